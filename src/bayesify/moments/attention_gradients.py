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

Scores and their gradients are computed anew wherever they are needed: first for sums over the
sources of each target, gc, gt and the one of the softmax, then for the gradients of queries, of
values and of keys.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl

from bayesify.moments.attention_kernels import block, keep, score_parts, tile


@triton.jit
def slopes(x1, x2, x3, y1, y2, y3, level):
    """Return gu and gw of a tile.

    Of targets by sources if x is r, r and -2 r o, and y is v_v, v^2 and v, or the reverse.
    """
    gu = tl.dot(x1, tl.trans(y1))
    return gu, tl.dot(x3, tl.trans(y3), tl.dot(x2, tl.trans(y2))) + level


@triton.jit
def targets_made(
    q, qv, out, v_mean, centre, pull, of_mean, of_var,
    second, shifted, of_out, of_offset, level, g_level, along,
    heads, targets, qb, qh, qn, ub, uh, un, ob, oh, on,
    D: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Write q^2 + v_q, -2 v_q c, g', -2 r o, and of each target sums of v_q c^2, r o^2 and g' o."""
    head, rows = block(targets, M)
    columns = tl.arange(0, D)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    ready = head.to(tl.int64) * targets * D
    step = heads * D
    there = b * targets * step + h * D
    given = b * ob + h * oh
    queries = tile(q + b * qb + h * qh, rows, qn, columns, targets).to(tl.float32)
    q_var = tile(qv + b * ub + h * uh, rows, un, columns, targets).to(tl.float32)
    keep(second + ready, queries * queries + q_var, rows, D, columns, targets)
    c = tile(centre + there, rows, step, columns, targets).to(tl.float32)
    keep(shifted + ready, -2.0 * q_var * c, rows, D, columns, targets)
    middle = tl.load(v_mean + head * D + columns)[None, :]
    o = tile(out + there, rows, step, columns, targets).to(tl.float32) - middle
    r = tile(of_var + given, rows, on, columns, targets).to(tl.float32)
    keep(of_offset + ready, -2.0 * r * o, rows, D, columns, targets)
    g = tile(of_mean + given, rows, on, columns, targets).to(tl.float32)
    g = g - 2.0 * r * tile(pull + there, rows, step, columns, targets).to(tl.float32)
    keep(of_out + ready, g, rows, D, columns, targets)
    place, is_there = head * targets + rows, rows < targets
    tl.store(level + place, tl.sum(q_var * c * c, 1), mask=is_there)
    tl.store(g_level + place, tl.sum(r * o * o, 1), mask=is_there)
    tl.store(along + place, tl.sum(g * o, 1), mask=is_there)


@triton.jit
def of_targets(
    q, qv, kv, vv, of_var, keys, k_square, values, v_square, second, shifted, of_offset, centre,
    lse, share, level, g_level, along,
    of_centre, grad_qv, of_share, delta,
    scale, heads, targets, sources, qb, qh, qn, ub, uh, un, wb, wh, wn, ob, oh, on,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Write gc, gt, the softmax's sum of p gp, and what d gives to the gradient of v_q."""
    head, rows = block(targets, M)
    columns = tl.arange(0, D)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    kv += b * wb + h * wh
    vv += b * wb + h * wh
    ready, own = head.to(tl.int64) * sources * D, head.to(tl.int64) * targets * D
    queries = tile(q + b * qb + h * qh, rows, qn, columns, targets)
    kind = queries.dtype
    q_var = tile(qv + b * ub + h * uh, rows, un, columns, targets).to(kind)
    q2 = tile(second + own, rows, D, columns, targets)
    qc = tile(shifted + own, rows, D, columns, targets)
    r = tile(of_var + b * ob + h * oh, rows, on, columns, targets).to(kind)
    ro = tile(of_offset + own, rows, D, columns, targets)
    place, is_row = head * targets + rows, rows < targets
    top = tl.load(lse + place, mask=is_row, other=0.0)[:, None]
    spread = tl.load(share + place, mask=is_row, other=0.0)
    lift = tl.load(level + place, mask=is_row, other=0.0)[:, None]
    g_lift = tl.load(g_level + place, mask=is_row, other=0.0)[:, None]

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
        is_there = places[None, :] < sources
        p, a, d, is_inside = score_parts(
            queries, q2, q_var, qc, k, k_var, k2, k, lift, top, is_there, scale
        )
        v = tile(values + ready, places, D, columns, sources)
        v2 = tile(v_square + ready, places, D, columns, sources)
        v_var = tile(vv, places, wn, columns, sources).to(kind)
        gu, gw = slopes(r, r, ro, v_var, v2, v, g_lift)
        p2 = p * p
        g_share += tl.sum(gu * p2, 1)
        within += tl.sum(
            p2 * (gu * (1.0 + d + (1.0 - 3.0 * p) * a + spread[:, None]) + gw * (a + d)), 1
        )
        gd = tl.where(is_inside, (gu + gw) * p2, 0.0).to(kind)
        weight += tl.sum(gd.to(tl.float32), 1)
        x = tl.dot(gd, k, x)
        y = tl.dot(gd, k2, y)
    step = heads * D
    there = b * targets * step + h * D
    c = tile(centre + there, rows, step, columns, targets).to(tl.float32)
    gc = -2.0 * scale * scale * q_var.to(tl.float32) * (x - c * weight[:, None])
    keep(of_centre + own, gc, rows, D, columns, targets)
    along_var = scale * scale * (y - 2.0 * c * x + c * c * weight[:, None])
    keep(grad_qv + there, along_var, rows, step, columns, targets)
    within = 2.0 * within + 2.0 * g_share * spread + tl.sum(gc * c, 1)
    within += tl.load(along + place, mask=is_row, other=0.0)
    tl.store(of_share + place, g_share, mask=is_row)
    tl.store(delta + place, within, mask=is_row)


@triton.jit
def of_queries(
    q, qv, kv, vv, of_var, keys, k_square, values, v_square, second, shifted, of_offset, of_out,
    of_centre, lse, share, level, g_level, of_share, delta,
    grad_q, grad_qv,
    scale, heads, targets, sources, qb, qh, qn, ub, uh, un, wb, wh, wn, ob, oh, on,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Write the gradient of queries, and complete that of their variances."""
    head, rows = block(targets, M)
    columns = tl.arange(0, D)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    kv += b * wb + h * wh
    vv += b * wb + h * wh
    ready, own = head.to(tl.int64) * sources * D, head.to(tl.int64) * targets * D
    queries = tile(q + b * qb + h * qh, rows, qn, columns, targets)
    kind = queries.dtype
    q_var = tile(qv + b * ub + h * uh, rows, un, columns, targets).to(kind)
    q2 = tile(second + own, rows, D, columns, targets)
    qc = tile(shifted + own, rows, D, columns, targets)
    r = tile(of_var + b * ob + h * oh, rows, on, columns, targets).to(kind)
    ro = tile(of_offset + own, rows, D, columns, targets)
    g = tile(of_out + own, rows, D, columns, targets)
    gc = tile(of_centre + own, rows, D, columns, targets)
    place, is_row = head * targets + rows, rows < targets
    top = tl.load(lse + place, mask=is_row, other=0.0)[:, None]
    spread = tl.load(share + place, mask=is_row, other=0.0)[:, None]
    lift = tl.load(level + place, mask=is_row, other=0.0)[:, None]
    g_lift = tl.load(g_level + place, mask=is_row, other=0.0)[:, None]
    g_share = tl.load(of_share + place, mask=is_row, other=0.0)[:, None]
    within = tl.load(delta + place, mask=is_row, other=0.0)[:, None]

    along_scores = tl.zeros([M, D], tl.float32)
    along_second = tl.zeros([M, D], tl.float32)
    for start in range(0, sources, N):
        places = start + tl.arange(0, N)
        k = tile(keys + ready, places, D, columns, sources)
        k2 = tile(k_square + ready, places, D, columns, sources)
        k_var = tile(kv, places, wn, columns, sources).to(kind)
        is_there = places[None, :] < sources
        p, a, d, _ = score_parts(
            queries, q2, q_var, qc, k, k_var, k2, k, lift, top, is_there, scale
        )
        v = tile(values + ready, places, D, columns, sources)
        v2 = tile(v_square + ready, places, D, columns, sources)
        v_var = tile(vv, places, wn, columns, sources).to(kind)
        gu, gw = slopes(r, r, ro, v_var, v2, v, g_lift)
        ga = p * p * ((1.0 - 2.0 * p) * gu + g_share + gw)
        along_second = tl.dot(ga.to(kind), k_var, along_second)
        inner = gu * (1.0 + d + (1.0 - 3.0 * p) * a + spread) + gw * (a + d) + g_share * a
        inner = tl.dot(g, tl.trans(v), 2.0 * p * inner - within)
        inner = tl.dot(gc, tl.trans(k), inner)
        along_scores = tl.dot((p * inner).to(kind), k, along_scores)
    step = heads * D
    there = b * targets * step + h * D
    along_second = along_second * (scale * scale)
    queries = tile(q + b * qb + h * qh, rows, qn, columns, targets).to(tl.float32)
    along_mean = scale * along_scores + 2.0 * queries * along_second
    keep(grad_q + there, along_mean, rows, step, columns, targets)
    along_second += tile(grad_qv + there, rows, step, columns, targets).to(tl.float32)
    keep(grad_qv + there, along_second, rows, step, columns, targets)


@triton.jit
def of_values(
    q, qv, kv, of_var, keys, k_square, values, second, shifted, of_offset, of_out,
    lse, share, level,
    grad_v, grad_vv,
    scale, heads, targets, sources, qb, qh, qn, ub, uh, un, wb, wh, wn, ob, oh, on,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Write the gradients of values and of their variances; tiles are sources by targets."""
    head, rows = block(sources, N)
    columns = tl.arange(0, D)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    q += b * qb + h * qh
    qv += b * ub + h * uh
    of_var += b * ob + h * oh
    ready, own = head.to(tl.int64) * sources * D, head.to(tl.int64) * targets * D
    k = tile(keys + ready, rows, D, columns, sources)
    kind = k.dtype
    k2 = tile(k_square + ready, rows, D, columns, sources)
    k_var = tile(kv + b * wb + h * wh, rows, wn, columns, sources).to(kind)

    along_v = tl.zeros([N, D], tl.float32)
    with_v = tl.zeros([N, D], tl.float32)
    along_vv = tl.zeros([N, D], tl.float32)
    for start in range(0, targets, M):
        places = start + tl.arange(0, M)
        is_there = places < targets
        place = head * targets + places
        queries = tile(q, places, qn, columns, targets)
        q_var = tile(qv, places, un, columns, targets).to(kind)
        q2 = tile(second + own, places, D, columns, targets)
        qc = tile(shifted + own, places, D, columns, targets)
        top = tl.load(lse + place, mask=is_there, other=0.0)[None, :]
        spread = tl.load(share + place, mask=is_there, other=0.0)[None, :]
        lift = tl.load(level + place, mask=is_there, other=0.0)[None, :]
        p, a, d, _ = score_parts(
            k, k_var, k2, k, queries, q2, q_var, qc, lift, top, is_there[None, :], scale
        )
        r = tile(of_var, places, on, columns, targets).to(kind)
        u = p * p * (1.0 + d + (1.0 - 2.0 * p) * a + spread)
        along_vv = tl.dot(u.to(kind), r, along_vv)
        w = (p * p * (a + d)).to(kind)
        with_v = tl.dot(w, r, with_v)
        along_v = tl.dot(w, tile(of_offset + own, places, D, columns, targets), along_v)
        along_v = tl.dot(p.to(kind), tile(of_out + own, places, D, columns, targets), along_v)
    along_v += 2.0 * tile(values + ready, rows, D, columns, sources).to(tl.float32) * with_v
    step = heads * D
    there = b * sources * step + h * D
    keep(grad_v + there, along_v, rows, step, columns, sources)
    keep(grad_vv + there, along_vv, rows, step, columns, sources)


@triton.jit
def of_keys(
    q, qv, kv, vv, of_var, keys, k_square, values, v_square, second, shifted, of_offset, of_out,
    of_centre, lse, share, level, g_level, of_share, delta,
    grad_k, grad_kv,
    scale, heads, targets, sources, qb, qh, qn, ub, uh, un, wb, wh, wn, ob, oh, on,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Write the gradients of keys and of their variances; tiles are sources by targets."""
    head, rows = block(sources, N)
    columns = tl.arange(0, D)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    q += b * qb + h * qh
    qv += b * ub + h * uh
    of_var += b * ob + h * oh
    ready, own = head.to(tl.int64) * sources * D, head.to(tl.int64) * targets * D
    k = tile(keys + ready, rows, D, columns, sources)
    kind = k.dtype
    k2 = tile(k_square + ready, rows, D, columns, sources)
    k_var = tile(kv + b * wb + h * wh, rows, wn, columns, sources).to(kind)
    v = tile(values + ready, rows, D, columns, sources)
    v2 = tile(v_square + ready, rows, D, columns, sources)
    v_var = tile(vv + b * wb + h * wh, rows, wn, columns, sources).to(kind)

    along_k = tl.zeros([N, D], tl.float32)
    with_k = tl.zeros([N, D], tl.float32)
    along_kv = tl.zeros([N, D], tl.float32)
    for start in range(0, targets, M):
        places = start + tl.arange(0, M)
        is_there = places < targets
        place = head * targets + places
        queries = tile(q, places, qn, columns, targets)
        q_var = tile(qv, places, un, columns, targets).to(kind)
        q2 = tile(second + own, places, D, columns, targets)
        qc = tile(shifted + own, places, D, columns, targets)
        top = tl.load(lse + place, mask=is_there, other=0.0)[None, :]
        spread = tl.load(share + place, mask=is_there, other=0.0)[None, :]
        lift = tl.load(level + place, mask=is_there, other=0.0)[None, :]
        g_lift = tl.load(g_level + place, mask=is_there, other=0.0)[None, :]
        g_share = tl.load(of_share + place, mask=is_there, other=0.0)[None, :]
        within = tl.load(delta + place, mask=is_there, other=0.0)[None, :]
        p, a, d, is_inside = score_parts(
            k, k_var, k2, k, queries, q2, q_var, qc, lift, top, is_there[None, :], scale
        )
        r = tile(of_var, places, on, columns, targets).to(kind)
        ro = tile(of_offset + own, places, D, columns, targets)
        gu, gw = slopes(v_var, v2, v, r, r, ro, g_lift)
        p2 = p * p
        ga = p2 * ((1.0 - 2.0 * p) * gu + g_share + gw)
        along_kv = tl.dot(ga.to(kind), q2, along_kv)
        gd = tl.where(is_inside, (gu + gw) * p2 * (scale * scale), 0.0).to(kind)
        with_k = tl.dot(gd, q_var, with_k)
        along_k = tl.dot(gd, qc, along_k)
        inner = gu * (1.0 + d + (1.0 - 3.0 * p) * a + spread) + gw * (a + d) + g_share * a
        g = tile(of_out + own, places, D, columns, targets)
        inner = tl.dot(v, tl.trans(g), 2.0 * p * inner - within)
        gc = tile(of_centre + own, places, D, columns, targets)
        inner = tl.dot(k, tl.trans(gc), inner)
        along_k = tl.dot(p.to(kind), gc, along_k)
        along_k = tl.dot((scale * p * inner).to(kind), queries, along_k)
    along_k += 2.0 * tile(keys + ready, rows, D, columns, sources).to(tl.float32) * with_k
    step = heads * D
    there = b * sources * step + h * D
    keep(grad_k + there, along_k, rows, step, columns, sources)
    keep(grad_kv + there, along_kv * (scale * scale), rows, step, columns, sources)
