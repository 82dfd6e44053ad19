"""The gradients of attention by moments, in GPU kernels; `attention_kernels` has the formulas.

With g and r the gradients of the mean and of the variance, and sums over what is not named,

    of o    g' = g - 2 r sum_j w_ij (v_j - o_i)
    of u    gu_ij = sum r_id v_v,jd
    of w    gw_ij = sum r_id (v_jd - o_id)^2
    of d    gd = (gu + gw) p^2
    of c    gc_i = -2 scale^2 v_q,i sum_j gd_ij (k_j - c_i)
    of a    ga = p^2 [(1 - 2 p) gu + gt_i + gw],    gt_i = sum_j gu_ij p_ij^2
    of p    gp_ij = g'_i v_j + gc_i k_j
                    + 2 p {gu [1 + d + (1 - 3 p) a + sum_l p_il^2 a_il] + gw (a + d) + gt_i a}

`of_targets` finds all that takes sums over the sources of each target, gc, gt and the one of the
softmax, `of_queries` then the gradients of scores and queries. Those of keys and values are sums
over targets, which a library does best: for it the matrices that are summed are written down, of
as many heads at a time as there is room for. Computing scores anew took twice as long.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl

from bayesify.moments.attention_kernels import keep, score_parts, tile

# Where a row of each matrix lies, one after the other: of the gradients of d and of scores, p, w, u
# and the gradient of a; then of what is needed in between.
GD, GS, P, W, U, GA, PART, REST, SHARED, NUM_MATRICES = (tl.constexpr(n) for n in range(10))
# And factors of targets: -2 v_q c, q, gc, g', -2 r o, r, v_q, q^2 + v_q.
QC, Q, GC, G, RO, R, QV, Q2, NUM_FACTORS = (tl.constexpr(n) for n in range(9))


@triton.jit
def of_targets(
    q, qv, kv, vv, of_mean, of_var, keys, k_square, values, v_square, v_mean, out, centre, pull,
    lse, share, matrices, factors, grad_qv, of_share, delta,
    scale, first_head, heads, targets, sources,
    qb, qh, qn, ub, uh, un, wb, wh, wn, ob, oh, on,
    D: tl.constexpr, S: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Write factors and matrices, gt, the sum of p gp, and what d gives to the gradient of v_q."""
    local, rows, columns = tl.program_id(1), tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    head = first_head + local
    b, h = (head // heads).to(tl.int64), head % heads
    kv += b * wb + h * wh
    vv += b * wb + h * wh
    ready = head.to(tl.int64) * sources * D
    step = heads * D
    there, given = b * targets * step + h * D, b * ob + h * oh
    own = factors + local.to(tl.int64) * NUM_FACTORS * targets * D
    size = targets * D
    kind = q.dtype.element_ty

    queries = tile(q + b * qb + h * qh, rows, qn, columns, targets)
    keep(own + Q * size, queries, rows, D, columns, targets)
    q_var = tile(qv + b * ub + h * uh, rows, un, columns, targets).to(kind)
    keep(own + QV * size, q_var, rows, D, columns, targets)
    wide = q_var.to(tl.float32)
    second = (queries.to(tl.float32) * queries.to(tl.float32) + wide).to(kind)
    keep(own + Q2 * size, second, rows, D, columns, targets)
    c = tile(centre + there, rows, step, columns, targets).to(tl.float32)
    shifted = (-2.0 * wide * c).to(kind)
    keep(own + QC * size, shifted, rows, D, columns, targets)
    lift = tl.sum(wide * c * c, 1)[:, None]
    middle = tl.load(v_mean + head * D + columns)[None, :]
    o = tile(out + there, rows, step, columns, targets).to(tl.float32) - middle
    r = tile(of_var + given, rows, on, columns, targets).to(kind)
    keep(own + R * size, r, rows, D, columns, targets)
    wide = r.to(tl.float32)
    r_shifted = (-2.0 * wide * o).to(kind)
    keep(own + RO * size, r_shifted, rows, D, columns, targets)
    g_lift = tl.sum(wide * o * o, 1)[:, None]
    g = tile(of_mean + given, rows, on, columns, targets).to(tl.float32)
    g = g - 2.0 * wide * tile(pull + there, rows, step, columns, targets).to(tl.float32)
    keep(own + G * size, g, rows, D, columns, targets)
    along = tl.sum(g * o, 1)
    place, is_row = head * targets + rows, rows < targets
    top = tl.load(lse + place, mask=is_row, other=0.0)[:, None]
    spread = tl.load(share + place, mask=is_row, other=0.0)

    matrices += local.to(tl.int64) * NUM_MATRICES * targets * S
    lines = matrices + rows[:, None] * (NUM_MATRICES * S)
    x = tl.zeros([M, D], tl.float32)
    y = tl.zeros([M, D], tl.float32)
    weight = tl.zeros([M], tl.float32)
    g_share = tl.zeros([M], tl.float32)
    within = tl.zeros([M], tl.float32)
    for start in range(0, sources, N):
        places = start + tl.arange(0, N)
        k = tile(keys + ready, places, D, columns, sources)
        k2 = tile(k_square + ready, places, D, columns, sources)
        k_var = tile(kv, places, wn, columns, sources).to(kind)
        is_source = places[None, :] < sources
        p, a, d = score_parts(
            queries, second, q_var, shifted, k, k_var, k2, lift, top, is_source, scale
        )
        here, is_there = lines + places[None, :], is_row[:, None] & is_source
        tl.store(here + P * S, p.to(kind), mask=is_there)
        p2 = p * p
        tl.store(here + SHARED * S, (p2 * a).to(kind), mask=is_there)
        w = p2 * (a + d)
        tl.store(here + W * S, w.to(kind), mask=is_there)
        u = p2 * (1.0 + d + (1.0 - 2.0 * p) * a + spread[:, None])
        tl.store(here + U * S, u.to(kind), mask=is_there)
        v_var = tile(vv, places, wn, columns, sources).to(kind)
        gu = tl.dot(r, tl.trans(v_var))
        gw = tl.dot(r, tl.trans(tile(v_square + ready, places, D, columns, sources)))
        v = tile(values + ready, places, D, columns, sources)
        gw = tl.dot(r_shifted, tl.trans(v), gw) + g_lift
        part = 2.0 * (gu * (u - p2 * p * a) + gw * w)
        within += tl.sum(part, 1)
        tl.store(here + PART * S, part.to(kind), mask=is_there)
        g_share += tl.sum(gu * p2, 1)
        rest = p2 * ((1.0 - 2.0 * p) * gu + gw)
        tl.store(here + REST * S, rest.to(kind), mask=is_there)
        gd = tl.where(d > 0.0, (gu + gw) * p2 * (scale * scale), 0.0).to(kind)
        tl.store(here + GD * S, gd, mask=is_there)
        weight += tl.sum(gd.to(tl.float32), 1)
        x = tl.dot(gd, k, x)
        y = tl.dot(gd, k2, y)
    c = tile(centre + there, rows, step, columns, targets).to(tl.float32)
    wide = tile(qv + b * ub + h * uh, rows, un, columns, targets).to(tl.float32)
    gc = -2.0 * wide * (x - c * weight[:, None])
    keep(own + GC * size, gc, rows, D, columns, targets)
    along_var = y - 2.0 * c * x + c * c * weight[:, None]
    keep(grad_qv + there, along_var, rows, step, columns, targets)
    within += 2.0 * g_share * spread + tl.sum(gc * c, 1) + along
    tl.store(of_share + place, g_share, mask=is_row)
    tl.store(delta + place, within, mask=is_row)


@triton.jit
def of_queries(
    kv, keys, values, matrices, factors, of_share, delta, grad_q, grad_qv,
    scale, first_head, heads, targets, sources, wb, wh, wn,
    D: tl.constexpr, S: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Write the gradients of scores, of a and of queries, and complete that of their variances."""
    local, rows, columns = tl.program_id(1), tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    head = first_head + local
    b, h = (head // heads).to(tl.int64), head % heads
    kv += b * wb + h * wh
    ready = head.to(tl.int64) * sources * D
    size = targets * D
    own = factors + local.to(tl.int64) * NUM_FACTORS * targets * D
    matrices += local.to(tl.int64) * NUM_MATRICES * targets * S
    lines = matrices + rows[:, None] * (NUM_MATRICES * S)
    g = tile(own + G * size, rows, D, columns, targets)
    kind = g.dtype
    gc = tile(own + GC * size, rows, D, columns, targets)
    place, is_row = head * targets + rows, rows < targets
    g_share = tl.load(of_share + place, mask=is_row, other=0.0)[:, None]
    within = tl.load(delta + place, mask=is_row, other=0.0)[:, None]

    along_scores = tl.zeros([M, D], tl.float32)
    along_second = tl.zeros([M, D], tl.float32)
    for start in range(0, sources, N):
        places = start + tl.arange(0, N)
        k = tile(keys + ready, places, D, columns, sources)
        v = tile(values + ready, places, D, columns, sources)
        inner = tl.dot(gc, tl.trans(k), tl.dot(g, tl.trans(v))) - within
        here = lines + places[None, :]
        is_there = is_row[:, None] & (places[None, :] < sources)
        p = tl.load(here + P * S, mask=is_there, other=0.0).to(tl.float32)
        part = tl.load(here + PART * S, mask=is_there, other=0.0).to(tl.float32)
        shared = tl.load(here + SHARED * S, mask=is_there, other=0.0).to(tl.float32)
        gs = (scale * (part + 2.0 * g_share * shared + p * inner)).to(kind)
        tl.store(here + GS * S, gs, mask=is_there)
        along_scores = tl.dot(gs, k, along_scores)
        rest = tl.load(here + REST * S, mask=is_there, other=0.0).to(tl.float32)
        ga = ((rest + g_share * p * p) * (scale * scale)).to(kind)
        tl.store(here + GA * S, ga, mask=is_there)
        k_var = tile(kv, places, wn, columns, sources).to(kind)
        along_second = tl.dot(ga, k_var, along_second)
    step = heads * D
    there = b * targets * step + h * D
    queries = tile(own + Q * size, rows, D, columns, targets).to(tl.float32)
    keep(grad_q + there, along_scores + 2.0 * queries * along_second, rows, step, columns, targets)
    along_second += tile(grad_qv + there, rows, step, columns, targets).to(tl.float32)
    keep(grad_qv + there, along_second, rows, step, columns, targets)
