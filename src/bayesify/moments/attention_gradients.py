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

gc, gt and the softmax's sum of p gp are sums over all sources, so what they are part of waits for
them. `of_targets` makes these sums, and writes seven matrices of targets by sources down: p, u, w,
scale^2 gd, p^2 a, and ga and the gradient of scores without what waits. `of_queries` completes the
last two, and `of_sources` makes the gradients of keys and values by products alone. Computed anew
in kernels for queries, keys and values each there would be 42 products in place of 23.

A source with more than half of a target's weight, its peak, is taken apart in float32: near to all
of the weight its gradients are differences of which half precision leaves nothing.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl

from bayesify.moments.attention_kernels import LOG2_E, at_peak, block, keep, score_parts, tile

# Of a part, not of a shape: kernels are the same for all of them.
PLACES = ("first_head", "first", "last")


@triton.jit
def targets_made(
    q, qv, kv, vv, keys, k_square, values, out, o_rest, v_mean, centre, pull, lse, share, peak,
    of_mean, of_var,
    second, shifted, of_out, of_offset, level, g_level, along,
    g_peak, gs_peak, ga_peak, pa_peak,
    scale, heads, targets, sources, qb, qh, qn, ub, uh, un, wb, wh, wn, ob, oh, on,
    D: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Write q^2 + v_q, -2 v_q c, g', -2 r o, and of each target sums of v_q c^2, r o^2 and g' o.

    And what belongs to its peak: gu + gw, p^2 a, and ga and the gradient of scores without what
    waits. So near to all of the weight little is left of them, in half precision nothing true.
    """
    head, rows = block(targets, M)
    columns = tl.arange(0, D)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    ready, from_source = head.to(tl.int64) * targets * D, head.to(tl.int64) * sources * D
    step = heads * D
    there = b * targets * step + h * D
    given = b * ob + h * oh
    place, is_there = head * targets + rows, rows < targets
    highest = tl.load(peak + place, mask=is_there, other=0)
    queries = tile(q + b * qb + h * qh, rows, qn, columns, targets).to(tl.float32)
    q_var = tile(qv + b * ub + h * uh, rows, un, columns, targets).to(tl.float32)
    q2 = (queries * queries + q_var).to(second.dtype.element_ty)
    keep(second + ready, q2, rows, D, columns, targets)
    k = at_peak(keys + from_source, highest, D, columns)
    c = tile(centre + there, rows, step, columns, targets).to(tl.float32) + k
    qc = (-2.0 * q_var * c).to(shifted.dtype.element_ty)
    keep(shifted + ready, qc, rows, D, columns, targets)
    lift = tl.sum(q_var * c * c, 1)
    tl.store(level + place, lift, mask=is_there)
    # As `score_parts` has it.
    d = q_var * at_peak(k_square + from_source, highest, D, columns) + qc.to(tl.float32) * k
    d = tl.maximum(tl.sum(d, 1) + lift, 0.0) * (scale * scale)
    scores = tl.sum(queries * k, 1) * (scale * LOG2_E)
    p = tl.exp2(scores - tl.load(lse + place, mask=is_there, other=0.0))
    k_var = at_peak(kv + b * wb + h * wh, highest, wn, columns)
    a = tl.sum(q2.to(tl.float32) * k_var, 1) * (scale * scale)

    middle = tl.load(v_mean + head * D + columns)[None, :]
    o = tile(out + there, rows, step, columns, targets).to(tl.float32) - middle
    o += tile(o_rest + there, rows, step, columns, targets).to(tl.float32)
    r = tile(of_var + given, rows, on, columns, targets).to(tl.float32)
    keep(of_offset + ready, -2.0 * r * o, rows, D, columns, targets)
    tl.store(g_level + place, tl.sum(r * o * o, 1), mask=is_there)
    g = tile(of_mean + given, rows, on, columns, targets).to(tl.float32)
    g = g - 2.0 * r * tile(pull + there, rows, step, columns, targets).to(tl.float32)
    g = g.to(of_out.dtype.element_ty)
    keep(of_out + ready, g, rows, D, columns, targets)
    tl.store(along + place, tl.sum(g.to(tl.float32) * o, 1), mask=is_there)
    away = at_peak(values + from_source, highest, D, columns) - o
    gu = tl.sum(r * at_peak(vv + b * wb + h * wh, highest, wn, columns), 1)
    both = gu + tl.sum(r * away * away, 1)

    spread = tl.load(share + place, mask=is_there, other=0.0)
    gs, ga, _, _, pa = slopes(p, a, d, gu, both, spread)
    is_there &= highest > 0
    tl.store(g_peak + place, both, mask=is_there)
    tl.store(gs_peak + place, gs, mask=is_there)
    tl.store(ga_peak + place, ga, mask=is_there)
    tl.store(pa_peak + place, pa, mask=is_there)


@triton.jit
def slopes(p, a, d, gu, both, spread):
    """Return the gradient of scores and ga without what waits, u, w and p^2 a.

    `both` is gu + gw.
    """
    p2 = p * p
    pa = p2 * a
    w = pa + p2 * d
    more = p * pa
    rest = p2 * (1.0 + spread) - 2.0 * more
    return both * w + gu * (rest - more), p2 * (both - 2.0 * p * gu), w + rest, w, pa


@triton.jit
def cells(rows, columns, across):
    """Return where entries of a matrix are that is written down."""
    return rows[:, None] * across + columns[None, :]


@triton.jit(do_not_specialize=PLACES)
def of_targets(
    q, qv, kv, vv, of_var, keys, k_square, values, v_square, second, shifted, of_offset, centre,
    lse, share, peak, level, g_level, along, g_peak,
    of_centre, of_share, within, grad_qv, p_at, u_at, w_at, gd_at, ga_at, gs_at, pa_at,
    scale, heads, targets, sources, qb, qh, qn, ub, uh, un, wb, wh, wn, ob, oh, on,
    first_head, first, last, across,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Write matrices, gc, gt, the softmax's sum, and what d gives to the gradient of v_q.

    Matrices are of heads from `first_head` on and of targets `first` to `last`, their rows
    `across` apart.
    """
    here, rows = block(last - first, M)
    matrix = here.to(tl.int64) * (last - first) * across
    p_at, u_at, w_at, gd_at = p_at + matrix, u_at + matrix, w_at + matrix, gd_at + matrix
    ga_at, gs_at, pa_at = ga_at + matrix, gs_at + matrix, pa_at + matrix
    inside = rows[:, None] < last - first
    head, at, rows = first_head + here, rows, rows + first
    columns = tl.arange(0, D)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    kv += b * wb + h * wh
    vv += b * wb + h * wh
    ready, own = head.to(tl.int64) * sources * D, head.to(tl.int64) * targets * D
    queries = tile(q + b * qb + h * qh, rows, qn, columns, last)
    kind = queries.dtype
    q_var = tile(qv + b * ub + h * uh, rows, un, columns, last).to(kind)
    q2 = tile(second + own, rows, D, columns, last)
    qc = tile(shifted + own, rows, D, columns, last)
    r = tile(of_var + b * ob + h * oh, rows, on, columns, last).to(kind)
    ro = tile(of_offset + own, rows, D, columns, last)
    place, is_row = head * targets + rows, rows < last
    top = tl.load(lse + place, mask=is_row, other=0.0)[:, None]
    spread = tl.load(share + place, mask=is_row, other=0.0)[:, None]
    lift = tl.load(level + place, mask=is_row, other=0.0)[:, None]
    g_lift = tl.load(g_level + place, mask=is_row, other=0.0)[:, None]
    highest = tl.load(peak + place, mask=is_row, other=0)
    has_peak = highest > 0
    own_g = tl.load(g_peak + place, mask=has_peak, other=0.0)

    x = tl.zeros([M, D], tl.float32)
    y = tl.zeros([M, D], tl.float32)
    weight = tl.zeros([M], tl.float32)
    g_share = tl.zeros([M], tl.float32)
    total = tl.zeros([M], tl.float32)
    for start in range(0, sources, N):
        places = start + tl.arange(0, N)
        k = tile(keys + ready, places, D, columns, sources)
        k2 = tile(k_square + ready, places, D, columns, sources)
        k_var = tile(kv, places, wn, columns, sources).to(kind)
        is_there = places[None, :] < sources
        p, a, d, is_positive = score_parts(
            queries, q2, q_var, qc, k, k_var, k2, lift, top, is_there, scale
        )
        v = tile(values + ready, places, D, columns, sources)
        v2 = tile(v_square + ready, places, D, columns, sources)
        v_var = tile(vv, places, wn, columns, sources).to(kind)
        gu = tl.dot(r, tl.trans(v_var))
        both = tl.dot(ro, tl.trans(v), tl.dot(r, tl.trans(v2), gu)) + g_lift
        is_peak = places[None, :] + 1 == highest[:, None]
        both = tl.where(is_peak, own_g[:, None], both)
        gs, ga, u, w, pa = slopes(p, a, d, gu, both, spread)
        is_cell = inside & (places[None, :] < across)
        cell = cells(at, places, across)
        tl.store(p_at + cell, p.to(kind), mask=is_cell)
        tl.store(u_at + cell, u.to(kind), mask=is_cell)
        tl.store(w_at + cell, w.to(kind), mask=is_cell)
        tl.store(gs_at + cell, gs.to(kind), mask=is_cell)
        tl.store(ga_at + cell, ga.to(kind), mask=is_cell)
        tl.store(pa_at + cell, pa.to(kind), mask=is_cell)
        p2 = p * p
        total += tl.sum(gs, 1)
        g_share += tl.sum(gu * p2, 1)
        gd = tl.where(is_positive | is_peak, both * p2 * (scale * scale), 0.0)
        tl.store(gd_at + cell, gd.to(kind), mask=is_cell)
        gd = tl.where(is_peak, 0.0, gd).to(kind)
        weight += tl.sum(gd.to(tl.float32), 1)
        x = tl.dot(gd, k, x)
        y = tl.dot(gd, k2, y)
    step = heads * D
    there = b * targets * step + h * D
    # c less the key at the peak, which is added last.
    c = tile(centre + there, rows, step, columns, last).to(tl.float32)
    away = tl.where(has_peak[:, None], -c, 0.0)
    k = at_peak(keys + ready, highest, D, columns)
    c += k
    p = tl.exp2(tl.sum(queries.to(tl.float32) * k, 1)[:, None] * (scale * LOG2_E) - top)
    at_top = tl.where(has_peak[:, None], own_g[:, None] * p * p * (scale * scale), 0.0) * away
    gc = x - c * weight[:, None] + at_top
    gc = (-2.0 * q_var.to(tl.float32) * gc).to(kind)
    keep(of_centre + own, gc, rows, D, columns, last)
    along_var = y - 2.0 * c * x + c * c * weight[:, None] + at_top * away
    keep(grad_qv + there, along_var, rows, step, columns, last)
    total = 2.0 * (total + g_share * tl.load(share + place, mask=is_row, other=0.0))
    total += tl.sum(gc.to(tl.float32) * c, 1)
    total += tl.load(along + place, mask=is_row, other=0.0)
    tl.store(within + place, total, mask=is_row)
    tl.store(of_share + place, g_share, mask=is_row)


@triton.jit(do_not_specialize=PLACES)
def of_queries(
    q, kv, keys, values, of_out, of_centre, lse, peak, of_share, within, gs_peak, ga_peak,
    pa_peak, grad_q, grad_qv, ga_at, gs_at, pa_at,
    scale, heads, targets, sources, qb, qh, qn, wb, wh, wn, first_head, first, last, across,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Complete two matrices, and write the gradients of queries and of their variances.

    p is computed anew: half precision has no digits of what a large one lacks.
    """
    here, rows = block(last - first, M)
    matrix = here.to(tl.int64) * (last - first) * across
    ga_at, gs_at, pa_at = ga_at + matrix, gs_at + matrix, pa_at + matrix
    inside = rows[:, None] < last - first
    head, at, rows = first_head + here, rows, rows + first
    columns = tl.arange(0, D)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    kv += b * wb + h * wh
    ready, own = head.to(tl.int64) * sources * D, head.to(tl.int64) * targets * D
    place, is_row = head * targets + rows, rows < last
    g_share = tl.load(of_share + place, mask=is_row, other=0.0)[:, None]
    total = tl.load(within + place, mask=is_row, other=0.0)[:, None]
    top = tl.load(lse + place, mask=is_row, other=0.0)[:, None]
    highest = tl.load(peak + place, mask=is_row, other=0)
    own_gs = tl.load(gs_peak + place, mask=highest > 0, other=0.0)[:, None]
    own_ga = tl.load(ga_peak + place, mask=highest > 0, other=0.0)[:, None]
    own_gs += tl.load(pa_peak + place, mask=highest > 0, other=0.0)[:, None] * g_share
    queries = tile(q + b * qb + h * qh, rows, qn, columns, last)
    kind = queries.dtype
    g = tile(of_out + own, rows, D, columns, last)
    gc = tile(of_centre + own, rows, D, columns, last)
    step = heads * D
    there = b * targets * step + h * D

    along_scores = tl.zeros([M, D], tl.float32)
    along_second = tl.zeros([M, D], tl.float32)
    for start in range(0, sources, N):
        places = start + tl.arange(0, N)
        is_cell = inside & (places[None, :] < across)
        cell = cells(at, places, across)
        pa = tl.load(pa_at + cell, mask=is_cell, other=0.0).to(tl.float32)
        gs = tl.load(gs_at + cell, mask=is_cell, other=0.0).to(tl.float32)
        ga = tl.load(ga_at + cell, mask=is_cell, other=0.0).to(tl.float32)
        is_peak = places[None, :] + 1 == highest[:, None]
        gs = tl.where(is_peak, own_gs, gs + pa * g_share)
        ga = tl.where(is_peak, own_ga, ga)
        k = tile(keys + ready, places, D, columns, sources)
        v = tile(values + ready, places, D, columns, sources)
        scores = tl.dot(queries, tl.trans(k)) * (scale * LOG2_E)
        p = tl.where(places[None, :] < sources, tl.exp2(scores - top), 0.0)
        inner = tl.dot(gc, tl.trans(k), tl.dot(g, tl.trans(v))) - total
        gs = (scale * (2.0 * gs + p * inner)).to(kind)
        tl.store(gs_at + cell, gs, mask=is_cell)
        along_scores = tl.dot(gs, k, along_scores)
        ga = ((scale * scale) * (ga + p * p * g_share)).to(kind)
        tl.store(ga_at + cell, ga, mask=is_cell)
        k_var = tile(kv, places, wn, columns, sources).to(kind)
        along_second = tl.dot(ga, k_var, along_second)
    queries = tile(q + b * qb + h * qh, rows, qn, columns, last).to(tl.float32)
    along_mean = along_scores + 2.0 * queries * along_second
    keep(grad_q + there, along_mean, rows, step, columns, last)
    along_second += tile(grad_qv + there, rows, step, columns, last).to(tl.float32)
    keep(grad_qv + there, along_second, rows, step, columns, last)


@triton.jit(do_not_specialize=PLACES)
def of_sources(
    q, qv, of_var, keys, values, second, shifted, of_offset, of_out, of_centre,
    p_at, u_at, w_at, gd_at, ga_at, gs_at,
    grad_k, grad_kv, grad_v, grad_vv,
    heads, targets, sources, qb, qh, qn, ub, uh, un, ob, oh, on,
    first_head, first, last, across,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Write the gradients of keys, values and their variances, and add those of earlier targets."""
    here, rows = block(sources, N)
    matrix = here.to(tl.int64) * (last - first) * across
    p_at, u_at, w_at = p_at + matrix, u_at + matrix, w_at + matrix
    gd_at, ga_at, gs_at = gd_at + matrix, ga_at + matrix, gs_at + matrix
    head = first_head + here
    columns = tl.arange(0, D)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    q += b * qb + h * qh
    qv += b * ub + h * uh
    of_var += b * ob + h * oh
    ready, own = head.to(tl.int64) * sources * D, head.to(tl.int64) * targets * D
    kind = keys.dtype.element_ty

    along_k = tl.zeros([N, D], tl.float32)
    with_k = tl.zeros([N, D], tl.float32)
    along_kv = tl.zeros([N, D], tl.float32)
    along_v = tl.zeros([N, D], tl.float32)
    with_v = tl.zeros([N, D], tl.float32)
    along_vv = tl.zeros([N, D], tl.float32)
    for start in range(first, last, M):
        places = start + tl.arange(0, M)
        cell = cells(places - first, rows, across)
        is_cell = (places[:, None] < last) & (rows[None, :] < across)
        r = tile(of_var, places, on, columns, last).to(kind)
        u = tl.load(u_at + cell, mask=is_cell, other=0.0)
        along_vv = tl.dot(tl.trans(u), r, along_vv)
        w = tl.load(w_at + cell, mask=is_cell, other=0.0)
        with_v = tl.dot(tl.trans(w), r, with_v)
        ro = tile(of_offset + own, places, D, columns, last)
        along_v = tl.dot(tl.trans(w), ro, along_v)
        p = tl.load(p_at + cell, mask=is_cell, other=0.0)
        along_v = tl.dot(tl.trans(p), tile(of_out + own, places, D, columns, last), along_v)
        along_k = tl.dot(tl.trans(p), tile(of_centre + own, places, D, columns, last), along_k)
        gd = tl.load(gd_at + cell, mask=is_cell, other=0.0)
        along_k = tl.dot(tl.trans(gd), tile(shifted + own, places, D, columns, last), along_k)
        with_k = tl.dot(tl.trans(gd), tile(qv, places, un, columns, last).to(kind), with_k)
        gs = tl.load(gs_at + cell, mask=is_cell, other=0.0)
        along_k = tl.dot(tl.trans(gs), tile(q, places, qn, columns, last), along_k)
        ga = tl.load(ga_at + cell, mask=is_cell, other=0.0)
        along_kv = tl.dot(tl.trans(ga), tile(second + own, places, D, columns, last), along_kv)
    along_k += 2.0 * tile(keys + ready, rows, D, columns, sources).to(tl.float32) * with_k
    along_v += 2.0 * tile(values + ready, rows, D, columns, sources).to(tl.float32) * with_v
    step = heads * D
    there = b * sources * step + h * D
    if first > 0:
        along_k += tile(grad_k + there, rows, step, columns, sources).to(tl.float32)
        along_kv += tile(grad_kv + there, rows, step, columns, sources).to(tl.float32)
        along_v += tile(grad_v + there, rows, step, columns, sources).to(tl.float32)
        along_vv += tile(grad_vv + there, rows, step, columns, sources).to(tl.float32)
    keep(grad_k + there, along_k, rows, step, columns, sources)
    keep(grad_kv + there, along_kv, rows, step, columns, sources)
    keep(grad_v + there, along_v, rows, step, columns, sources)
    keep(grad_vv + there, along_vv, rows, step, columns, sources)
