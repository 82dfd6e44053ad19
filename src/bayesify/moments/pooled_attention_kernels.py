"""Attention by pooled rules in GPU kernels; `pooled_attention` has the formulas.

Of one head, with x_i and y_i the factors of a target, a_j, b_j and c_j the numbers of a source,

    t_ij = x_i a_j + y_i b_j        w_ij = p_ij^2 t_ij        u_ij = p_ij^2 + (1 - p_ij) w_ij
    o_i = sum_j p_ij v_j            total_i = sum_j u_ij c_j + sum_j w_ij |v_j - o_i|^2

all in one pass over the sources. The gradients, with g and h those of o and of the total, are

    of o    g' = g - 2 h sum_j w_ij (v_j - o_i)
    of t    gt = h p^2 [|v - o|^2 + (1 - p) c]
    of p    gp = g' v + h p [2 t |v - o|^2 + c (2 + 2 t - 3 p t)]
    of s    gs = p (gp - sum_l p gp),    sum_l p gp = g' o + h (2 total - sum_l p w c)

so that everything a target waits for is known from the way forward: `of_targets` makes the
gradients of queries, `of_sources` those of keys and values, each in one pass.

|v_j - o_i|^2 is multiplied out. It would cancel where a source has nearly all of the weight, if
its parts were rounded each by itself: forward all have the rounded weights of the products, back
the rounded o, and are sums in float32 of what is exact in half precision. gs cancels there too,
and has all digits of g' o for that.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl

from bayesify.moments.attention_kernels import LOG2_E, block, keep, tile


@triton.jit
def numbers(pointer, places, count):
    """Return a number of each place, 0 after the last."""
    return tl.load(pointer + places, mask=places < count, other=0.0)


@triton.jit
def forward(
    q, k, v, x, y, a, b, c, out, o_rest, pull, total, lse, rest,
    scale, heads, targets, sources, qb, qh, qn, kb, kh, kn,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Write o and the total, and for gradients what rounding takes from o, and three sums.

    These are sum_j w (v_j - o), log2 of the softmax's total, and sum_j p w c.

    Queries have strides qb, qh, qn of batch, head and token, keys and values kb, kh, kn; what is
    written (batch, token, head, feature), and numbers of tokens (batch, head, token).
    """
    head, rows = block(targets, M)
    columns = tl.arange(0, D)
    batch, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    queries = tile(q + batch * qb + h * qh, rows, qn, columns, targets)
    kind = queries.dtype
    k += batch * kb + h * kh
    v += batch * kb + h * kh
    here, there = head.to(tl.int64) * targets, head.to(tl.int64) * sources
    by_key = numbers(x + here, rows, targets)[:, None]
    by_query = numbers(y + here, rows, targets)[:, None]

    most = tl.full([M], -float("inf"), tl.float32)
    mass = tl.zeros([M], tl.float32)
    plain = tl.zeros([M], tl.float32)
    third = tl.zeros([M], tl.float32)
    weight = tl.zeros([M], tl.float32)
    square = tl.zeros([M], tl.float32)
    o = tl.zeros([M, D], tl.float32)
    first = tl.zeros([M, D], tl.float32)
    for start in range(0, sources, N):
        places = start + tl.arange(0, N)
        is_there = places[None, :] < sources
        scores = tl.dot(queries, tl.trans(tile(k, places, kn, columns, sources)))
        scores = tl.where(is_there, scores * (scale * LOG2_E), -float("inf"))
        now = tl.maximum(most, tl.max(scores, 1))
        less = tl.exp2(most - now)
        e = tl.exp2(scores - now[:, None])
        values = tile(v, places, kn, columns, sources)
        t = by_key * numbers(a + there, places, sources)[None, :]
        t += by_query * numbers(b + there, places, sources)[None, :]
        spread = numbers(c + there, places, sources)[None, :]
        w = e * e * t
        less_squared = less * less
        plain = plain * less_squared + tl.sum((e * e + w) * spread, 1)
        third = third * (less_squared * less) + tl.sum(e * w * spread, 1)
        e = e.to(kind)
        mass = mass * less + tl.sum(e.to(tl.float32), 1)
        o = tl.dot(e, values, o * less[:, None])
        w = w.to(kind)
        wide = w.to(tl.float32)
        sizes = tl.sum(values.to(tl.float32) * values.to(tl.float32), 1)
        weight = weight * less_squared + tl.sum(wide, 1)
        square = square * less_squared + tl.sum(wide * sizes[None, :], 1)
        first = tl.dot(w, values, first * less_squared[:, None])
        most = now
    per_mass = 1.0 / mass
    per_square = per_mass * per_mass
    o = o * per_mass[:, None]
    # What is not a number stays so.
    around = square - 2.0 * tl.sum(o * first, 1) + tl.sum(o * o, 1) * weight
    around = tl.maximum(around, 0.0, propagate_nan=tl.PropagateNan.ALL)
    third = third * (per_square * per_mass)
    step = heads * D
    at = batch * targets * step + h * D
    rounded = o.to(out.dtype.element_ty)
    keep(out + at, rounded, rows, step, columns, targets)
    keep(o_rest + at, o - rounded.to(tl.float32), rows, step, columns, targets)
    drawn = (first - o * weight[:, None]) * per_square[:, None]
    keep(pull + at, drawn, rows, step, columns, targets)
    is_target = rows < targets
    tl.store(total + here + rows, (plain + around) * per_square - third, mask=is_target)
    tl.store(lse + here + rows, most + tl.log2(mass), mask=is_target)
    tl.store(rest + here + rows, third, mask=is_target)


@triton.jit
def pairs(
    scores, along, inner, size, sizes, top, waiting, of_total, x, y, a, b, c, is_there, scale
):
    """Return p, the gradients of scores and of their variances, h w, and h u, of a tile.

    Args:
        scores: q k, of each pair, as the next two; all else is to be broadcast.
        along: g' v.
        inner: o v.
        size: |o|^2 of targets.
        sizes: |v|^2 of sources.
        top: log2 of the softmax's total.
        waiting: sum_l p gp.
        of_total: h.
        x: Of targets, as y.
        y: Of targets.
        a: Of sources, as b and c.
        b: Of sources.
        c: Of sources.
        is_there: Which are no padding.
        scale: Factor of the scores.
    """
    p = tl.where(is_there, tl.exp2(scores * (scale * LOG2_E) - top), 0.0)
    t = x * a + y * b
    around = tl.maximum(sizes + size - 2.0 * inner, 0.0)
    hp = of_total * p
    gt = hp * p * (around + (1.0 - p) * c)
    gp = along + hp * (2.0 * t * around + c * (2.0 + (2.0 - 3.0 * p) * t))
    hw = hp * p * t
    return p, p * (gp - waiting), gt, hw, hp * p + (1.0 - p) * hw


@triton.jit
def of_targets(
    q, k, v, x, y, a, b, c, out, o_rest, pull, total, lse, rest, of_mean, of_total,
    g_out, waiting, grad_q, grad_x, grad_y,
    scale, heads, targets, sources, qb, qh, qn, kb, kh, kn, gb, gh, gn,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Write the gradients of queries and of x and y, and for `of_sources` g' and sum_l p gp."""
    head, rows = block(targets, M)
    columns = tl.arange(0, D)
    batch, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    queries = tile(q + batch * qb + h * qh, rows, qn, columns, targets)
    kind = queries.dtype
    k += batch * kb + h * kh
    v += batch * kb + h * kh
    here, there = head.to(tl.int64) * targets, head.to(tl.int64) * sources
    by_key = numbers(x + here, rows, targets)[:, None]
    by_query = numbers(y + here, rows, targets)[:, None]
    along = numbers(of_total + here, rows, targets)[:, None]
    top = numbers(lse + here, rows, targets)[:, None]
    step = heads * D
    at = batch * targets * step + h * D
    o = tile(out + at, rows, step, columns, targets)
    wide = o.to(tl.float32)
    g = tile(of_mean + batch * gb + h * gh, rows, gn, columns, targets).to(tl.float32)
    g = (g - 2.0 * along * tile(pull + at, rows, step, columns, targets).to(tl.float32)).to(kind)
    keep(g_out + at, g, rows, step, columns, targets)
    all_of_o = wide + tile(o_rest + at, rows, step, columns, targets).to(tl.float32)
    waits = tl.sum(g.to(tl.float32) * all_of_o, 1)[:, None] + along * (
        2.0 * numbers(total + here, rows, targets)[:, None]
        - numbers(rest + here, rows, targets)[:, None]
    )
    tl.store(waiting + here + rows[:, None], waits, mask=rows[:, None] < targets)
    size = tl.sum(wide * wide, 1)[:, None]

    along_q = tl.zeros([M, D], tl.float32)
    along_x = tl.zeros([M], tl.float32)
    along_y = tl.zeros([M], tl.float32)
    for start in range(0, sources, N):
        places = start + tl.arange(0, N)
        keys = tile(k, places, kn, columns, sources)
        values = tile(v, places, kn, columns, sources)
        sizes = tl.sum(values.to(tl.float32) * values.to(tl.float32), 1)[None, :]
        of_key = numbers(a + there, places, sources)[None, :]
        distance = numbers(b + there, places, sources)[None, :]
        spread = numbers(c + there, places, sources)[None, :]
        is_there = places[None, :] < sources
        turned = tl.trans(values)
        _, gs, gt, _, _ = pairs(
            tl.dot(queries, tl.trans(keys)), tl.dot(g, turned), tl.dot(o, turned), size, sizes,
            top, waits, along, by_key, by_query, of_key, distance, spread, is_there, scale,
        )  # fmt: skip
        along_x += tl.sum(gt * of_key, 1)
        along_y += tl.sum(gt * distance, 1)
        along_q = tl.dot(gs.to(kind), keys, along_q)
    keep(grad_q + at, along_q * scale, rows, step, columns, targets)
    tl.store(grad_x + here + rows, along_x, mask=rows < targets)
    tl.store(grad_y + here + rows, along_y, mask=rows < targets)


@triton.jit
def of_sources(
    q, k, v, x, y, a, b, c, out, lse, g_out, waiting, of_total,
    grad_k, grad_v, grad_a, grad_b, grad_c,
    scale, heads, targets, sources, qb, qh, qn, kb, kh, kn,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Write the gradients of keys, of values, and of a, b and c."""
    head, rows = block(sources, N)
    columns = tl.arange(0, D)
    batch, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    q += batch * qb + h * qh
    keys = tile(k + batch * kb + h * kh, rows, kn, columns, sources)
    values = tile(v + batch * kb + h * kh, rows, kn, columns, sources)
    kind = keys.dtype
    here, there = head.to(tl.int64) * targets, head.to(tl.int64) * sources
    of_key = numbers(a + there, rows, sources)[:, None]
    distance = numbers(b + there, rows, sources)[:, None]
    spread = numbers(c + there, rows, sources)[:, None]
    sizes = tl.sum(values.to(tl.float32) * values.to(tl.float32), 1)[:, None]
    step = heads * D
    at = batch * targets * step + h * D

    along_k = tl.zeros([N, D], tl.float32)
    along_v = tl.zeros([N, D], tl.float32)
    weight = tl.zeros([N], tl.float32)
    along_a = tl.zeros([N], tl.float32)
    along_b = tl.zeros([N], tl.float32)
    along_c = tl.zeros([N], tl.float32)
    for start in range(0, targets, M):
        places = start + tl.arange(0, M)
        queries = tile(q, places, qn, columns, targets)
        g = tile(g_out + at, places, step, columns, targets)
        o = tile(out + at, places, step, columns, targets)
        size = tl.sum(o.to(tl.float32) * o.to(tl.float32), 1)[None, :]
        by_key = numbers(x + here, places, targets)[None, :]
        by_query = numbers(y + here, places, targets)[None, :]
        along = numbers(of_total + here, places, targets)[None, :]
        waits = numbers(waiting + here, places, targets)[None, :]
        top = numbers(lse + here, places, targets)[None, :]
        is_there = places[None, :] < targets
        # Sources are rows: what is summed over targets then needs no turning.
        p, gs, gt, hw, hu = pairs(
            tl.dot(keys, tl.trans(queries)), tl.dot(values, tl.trans(g)),
            tl.dot(values, tl.trans(o)), size, sizes,
            top, waits, along, by_key, by_query, of_key, distance, spread, is_there, scale,
        )  # fmt: skip
        along_a += tl.sum(gt * by_key, 1)
        along_b += tl.sum(gt * by_query, 1)
        along_c += tl.sum(hu, 1)
        along_k = tl.dot(gs.to(kind), queries, along_k)
        along_v = tl.dot(p.to(kind), g, along_v)
        hw = (-2.0 * hw).to(kind)
        weight += tl.sum(hw.to(tl.float32), 1)
        along_v = tl.dot(hw, o, along_v)
    along_v -= values.to(tl.float32) * weight[:, None]
    at = batch * sources * step + h * D
    keep(grad_k + at, along_k * scale, rows, step, columns, sources)
    keep(grad_v + at, along_v, rows, step, columns, sources)
    is_source = rows < sources
    tl.store(grad_a + there + rows, along_a, mask=is_source)
    tl.store(grad_b + there + rows, along_b, mask=is_source)
    tl.store(grad_c + there + rows, along_c, mask=is_source)
