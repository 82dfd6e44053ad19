"""Attention by moments in GPU kernels that never write a matrix of scores to memory.

Of one head, with p the attention weights, k and v less their means over sources (a shift of all
keys, or of all values, changes nothing but the mean of the output), c = p k and o = p v:

    a_ij = scale^2 sum_e (q_ie^2 + v_q,ie) v_k,je        variance of a score, by its key
    d_ij = scale^2 sum_e v_q,ie (k_je - c_ie)^2          by its query, less what all scores share
    u_ij = p_ij^2 [1 + d_ij + (1 - 2 p_ij) a_ij + sum_l p_il^2 a_il]               E[p_ij^2]
    w_ij = p_ij^2 (a_ij + d_ij)
    variance_id = sum_j u_ij v_v,jd + sum_j w_ij (v_jd - o_id)^2

What of this is exact `open_attention` says. Squares of differences are multiplied out, so that all
sums are products of matrices. Squares of values are taken in two parts, each of which holds all of
its digits in half precision, so that nothing is lost where an attended value is nearly one of the
values.

A program has a block of targets and goes over the sources, or the reverse. Factors of products
lie ready in memory (`sources_made`, and `targets_made` in `attention_gradients`): what is computed
where it is needed takes registers, of which there are too few. Products have the type of the
means, their sums are float32.

Reference: Dao, Fu, Ermon, Rudra, Ré (2022), "FlashAttention: fast and memory-efficient exact
attention with IO-awareness", for how scores are kept from memory.
"""

# Triton comes with torch for GPUs. Its language is no Python that a type checker knows, and takes
# no annotations but its own.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def block(length, SIZE: tl.constexpr):
    """Return the head that a program is for, and the tokens of its block."""
    # All on the first axis, which alone has room for any number of heads.
    count = tl.cdiv(length, SIZE)
    program = tl.program_id(0)
    return program // count, program % count * SIZE + tl.arange(0, SIZE)


@triton.jit
def tile(pointer, rows, stride, columns, count):
    """Return rows of a tensor, 0 after the last."""
    where = pointer + rows[:, None].to(tl.int64) * stride + columns[None, :]
    return tl.load(where, mask=rows[:, None] < count, other=0.0)


@triton.jit
def keep(pointer, values, rows, stride, columns, count):
    """Write rows of a tensor, up to the last."""
    where = pointer + rows[:, None].to(tl.int64) * stride + columns[None, :]
    tl.store(where, values.to(pointer.dtype.element_ty), mask=rows[:, None] < count)


@triton.jit
def at_peak(pointer, highest, stride, columns):
    """Return what there is of the sources at the peaks of targets, 0 where there is none."""
    where = pointer + tl.maximum(highest - 1, 0)[:, None].to(tl.int64) * stride + columns[None, :]
    return tl.load(where, mask=highest[:, None] > 0, other=0.0).to(tl.float32)


@triton.jit
def score_parts(q, q2, q_var, qc, k, k_var, k2, level, top, is_there, scale):
    """Return p, a and d of a tile, and where d is not below 0 by rounding, which has no gradient.

    q2 is q^2 + v_q, qc is -2 v_q c, and `level` the sum of v_q c^2.
    """
    scores = tl.dot(q, tl.trans(k)) * (scale * LOG2_E)
    p = tl.where(is_there, tl.exp2(scores - top), 0.0)
    a = tl.dot(q2, tl.trans(k_var)) * (scale * scale)
    d = (tl.dot(qc, tl.trans(k), tl.dot(q_var, tl.trans(k2))) + level) * (scale * scale)
    return p, a, tl.maximum(d, 0.0), d >= 0.0


@triton.jit
def sources_made(
    k, v, v_mean, keys, k_square, values, v_square, v_rest,
    heads, sources, kb, kh, kn,
    REST: tl.constexpr, D: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Write keys and values less their means over sources, and their squares, and values' means.

    Squares of values are in two parts, the second only if `REST`. A program has a head.
    """
    head = tl.program_id(0)
    columns = tl.arange(0, D)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    k += b * kb + h * kh
    v += b * kb + h * kh
    there = head.to(tl.int64) * sources * D
    kind = k.dtype.element_ty
    k_middle = tl.zeros([D], tl.float32)
    v_middle = tl.zeros([D], tl.float32)
    for start in range(0, sources, N):
        rows = start + tl.arange(0, N)
        k_middle += tl.sum(tile(k, rows, kn, columns, sources).to(tl.float32), 0)
        v_middle += tl.sum(tile(v, rows, kn, columns, sources).to(tl.float32), 0)
    k_middle = k_middle / sources
    v_middle = v_middle / sources
    tl.store(v_mean + head * D + columns, v_middle)
    for start in range(0, sources, N):
        rows = start + tl.arange(0, N)
        less = tile(k, rows, kn, columns, sources).to(tl.float32) - k_middle[None, :]
        less = less.to(kind)
        keep(keys + there, less, rows, D, columns, sources)
        less = less.to(tl.float32)
        keep(k_square + there, less * less, rows, D, columns, sources)
        less = tile(v, rows, kn, columns, sources).to(tl.float32) - v_middle[None, :]
        less = less.to(kind)
        keep(values + there, less, rows, D, columns, sources)
        less = less.to(tl.float32)
        square = (less * less).to(kind)
        keep(v_square + there, square, rows, D, columns, sources)
        if REST:
            keep(v_rest + there, less * less - square.to(tl.float32), rows, D, columns, sources)


@triton.jit
def means(
    q, qv, kv, keys, values, v_mean, out, o_rest, centre, lse, share, peak,
    scale, heads, targets, sources, qb, qh, qn, ub, uh, un, wb, wh, wn,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Write the mean of attended values, what rounding takes from o, c, sums, and peaks.

    Sums are log2 of the softmax's total, and the one in u. A peak is 1 more than the place of the
    source with more than half of a target's weight, and 0 if there is none. c is less the key
    there, which it may be so near that half precision would leave no digit of the difference.

    Queries have strides qb, qh, qn of batch, head and token, their variances ub, uh, un, those of
    keys and values wb, wh, wn. `keys` and `values` are (batch, head, token, feature), the results
    (batch, token, head, feature).
    """
    head, rows = block(targets, M)
    columns = tl.arange(0, D)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    q += b * qb + h * qh
    kv += b * wb + h * wh
    keys += head.to(tl.int64) * sources * D
    values += head.to(tl.int64) * sources * D
    queries = tile(q, rows, qn, columns, targets)
    kind = queries.dtype
    second = queries.to(tl.float32) * queries.to(tl.float32)
    second += tile(qv + b * ub + h * uh, rows, un, columns, targets).to(tl.float32)
    second = second.to(kind)

    most = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    spread = tl.zeros([M], tl.float32)
    best = tl.zeros([M], tl.int32)
    c = tl.zeros([M, D], tl.float32)
    o = tl.zeros([M, D], tl.float32)
    for start in range(0, sources, N):
        places = start + tl.arange(0, N)
        k = tile(keys, places, D, columns, sources)
        scores = tl.dot(queries, tl.trans(k)) * (scale * LOG2_E)
        scores = tl.where(places[None, :] < sources, scores, -float("inf"))
        largest = tl.max(scores, 1)
        place = tl.max(tl.where(scores == largest[:, None], places[None, :], 0), 1)
        best = tl.where(largest > most, place, best)
        now = tl.maximum(most, largest)
        less = tl.exp2(most - now)
        e = tl.exp2(scores - now[:, None])
        total = total * less + tl.sum(e, 1)
        k_var = tile(kv, places, wn, columns, sources).to(kind)
        a = tl.dot(second, tl.trans(k_var))
        spread = spread * (less * less) + tl.sum(e * e * a, 1)
        e = e.to(kind)
        c = tl.dot(e, k, c * less[:, None])
        o = tl.dot(e, tile(values, places, D, columns, sources), o * less[:, None])
        most = now
    o = o / total[:, None]
    step = heads * D
    there = b * targets * step + h * D
    middle = tl.load(v_mean + head * D + columns)[None, :]
    mean = (o + middle).to(out.dtype.element_ty)
    keep(out + there, mean, rows, step, columns, targets)
    keep(o_rest + there, o - (mean.to(tl.float32) - middle), rows, step, columns, targets)
    highest = tl.where(total < 2.0, best + 1, 0)
    c = c / total[:, None] - at_peak(keys, highest, D, columns)
    keep(centre + there, c, rows, step, columns, targets)
    tl.store(peak + head * targets + rows, highest, mask=rows < targets)
    tl.store(lse + head * targets + rows, most + tl.log2(total), mask=rows < targets)
    spread = spread * (scale * scale) / (total * total)
    tl.store(share + head * targets + rows, spread, mask=rows < targets)


@triton.jit
def variances(
    q, qv, kv, vv, keys, k_square, values, v_square, v_rest, v_mean, out, o_rest, centre,
    lse, share, peak, out_v, pull,
    scale, heads, targets, sources, qb, qh, qn, ub, uh, un, wb, wh, wn,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Write the variance of attended values, and for gradients sum_j w_ij (v_j - o_i)."""
    head, rows = block(targets, M)
    columns = tl.arange(0, D)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    q += b * qb + h * qh
    kv += b * wb + h * wh
    vv += b * wb + h * wh
    ready = head.to(tl.int64) * sources * D
    step = heads * D
    there = b * targets * step + h * D
    queries = tile(q, rows, qn, columns, targets)
    kind = queries.dtype
    q_var = tile(qv + b * ub + h * uh, rows, un, columns, targets).to(kind)
    wide = q_var.to(tl.float32)
    second = (queries.to(tl.float32) * queries.to(tl.float32) + wide).to(kind)
    highest = tl.load(peak + head * targets + rows, mask=rows < targets, other=0)
    c = at_peak(keys + ready, highest, D, columns)
    c += tile(centre + there, rows, step, columns, targets).to(tl.float32)
    level = tl.sum(wide * c * c, 1)[:, None]
    shifted = (-2.0 * wide * c).to(kind)
    top = tl.load(lse + head * targets + rows, mask=rows < targets, other=0.0)[:, None]
    spread = tl.load(share + head * targets + rows, mask=rows < targets, other=0.0)[:, None]

    by_value = tl.zeros([M, D], tl.float32)
    first = tl.zeros([M, D], tl.float32)
    squares = tl.zeros([M, D], tl.float32)
    weight = tl.zeros([M], tl.float32)
    for start in range(0, sources, N):
        places = start + tl.arange(0, N)
        k = tile(keys + ready, places, D, columns, sources)
        k_var = tile(kv, places, wn, columns, sources).to(kind)
        k2 = tile(k_square + ready, places, D, columns, sources)
        is_there = places[None, :] < sources
        p, a, d, _ = score_parts(
            queries, second, q_var, shifted, k, k_var, k2, level, top, is_there, scale
        )
        u = p * p * (1.0 + d + (1.0 - 2.0 * p) * a + spread)
        v_var = tile(vv, places, wn, columns, sources).to(kind)
        by_value = tl.dot(u.to(kind), v_var, by_value)
        w = (p * p * (a + d)).to(kind)
        weight += tl.sum(w.to(tl.float32), 1)
        first = tl.dot(w, tile(values + ready, places, D, columns, sources), first)
        squares = tl.dot(w, tile(v_square + ready, places, D, columns, sources), squares)
        squares = tl.dot(w, tile(v_rest + ready, places, D, columns, sources), squares)
    o = tile(out + there, rows, step, columns, targets).to(tl.float32)
    o -= tl.load(v_mean + head * D + columns)[None, :]
    o += tile(o_rest + there, rows, step, columns, targets).to(tl.float32)
    around = squares - 2.0 * o * first + o * o * weight[:, None]
    # What is not a number stays so.
    around = tl.maximum(around, 0.0, propagate_nan=tl.PropagateNan.ALL)
    keep(out_v + there, by_value + around, rows, step, columns, targets)
    keep(pull + there, first - o * weight[:, None], rows, step, columns, targets)
