"""Kernels for graphics cards (Pallas, Triton): two convolutions with max-pooling by products of tiles, without patches.

Patches of a convolution are nine times as large as what they are made of. Written to memory they cost more than all
products made of them; here each program reads the places that it needs, and what it reads stays in the cache. Inputs of
products are in bfloat16, sums in float32. A kernel has one program or a few per example; `vmap` over clients adds to the
grid. Sizes and warps are the quickest of some sixty on an H200 (100 clients, batches of 5, the CNN's second layer).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from fedveil.models import kernels
from fedveil.models.layers import Array

MOST = 256  # outputs before pooling that a kernel of example gradients is written out for
INACTIVE = 4  # instead of the winner's place in its window, where the activation lets nothing through
WINDOW = ((0, 0), (0, 1), (1, 0), (1, 1))
WINDOWS = 32  # a tile of pooled outputs
CHUNK = {"by_example": 64, "summed": 128}  # outputs before pooling whose products are added up at once
PLACES = 64  # a tile of the first layer's outputs
SPOTS = 2  # weights' places read at once there: with three a multiprocessor has no room for a fourth program
LENGTH = 64  # of the long side of a thin product, in one program
WARPS = {"pooled": 2, "by_example": 2, "summed": 4, "first_by_example": 4, "thin": 1}
THREE_PASSES = jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3  # as exact as float32, nearly
Scale = Callable[[Array, Array], Array]  # of a squared norm and a bound: what to multiply by


def winners(corners: list[Array]) -> tuple[Array, Array]:
    """The largest of four arrays, and which it was (the first of equals); not a number wins over all."""
    a, b, c, d = corners
    best = jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d))
    return best, jnp.where(a == best, 0, jnp.where(b == best, 1, jnp.where(c == best, 2, 3)))


def rectified(best: Array, place: Array) -> tuple[Array, Array]:
    """Both after ReLU: where it lets nothing through, nobody won."""
    return jnp.maximum(best, 0.0), jnp.where(best > 0, place, INACTIVE)


def pooled(x: Array, w: Array, bias: Array | None, relu: bool) -> tuple[Array, Array]:
    """The largest output of every 2×2 window, and its place; both [batch, rows, columns, outputs].

    `x` [batch, height, width, inputs] without padding and `w` [kernel, kernel, inputs, outputs] in bfloat16. On a card a
    number wins over what is none.
    """
    batch, height, width, inputs = x.shape
    kernel, _, _, outputs = w.shape
    rows, columns = ((side - kernel + 1) // 2 for side in (height, width))
    spots = list(itertools.product(range(kernel), range(kernel)))

    def body(x_ref: Any, w_ref: Any, *rest: Any) -> None:
        *bias_ref, best_ref, place_ref = rest
        q, row, column, there = _tile(pl.program_id(1) * WINDOWS, WINDOWS, rows, columns)
        start, out = 2 * row * width + 2 * column, _across(outputs)
        weights = {spot: w_ref[spot] for spot in spots}
        sums = [jnp.zeros((WINDOWS, outputs), jnp.float32)] * 4
        for u in range(kernel + 1):
            line = [_load(x_ref, start + (u * width + v), _across(inputs), there) for v in range(kernel + 1)]
            for v, seen in enumerate(line):
                for corner, (a, b) in enumerate(WINDOW):
                    if (u - a, v - b) in weights:
                        sums[corner] += _product(seen, weights[u - a, v - b])
        best, place = winners(sums)
        best = best if bias is None else best + bias_ref[0][...][None, :]
        best, place = rectified(best, place) if relu else (best, place)
        kept = jnp.broadcast_to(there, (WINDOWS, outputs))
        triton.store(best_ref.at[q, out], best, mask=kept)
        triton.store(place_ref.at[q, out], place.astype(jnp.int8), mask=kept)

    shape = (batch, rows * columns, outputs)
    results = (_array(shape, jnp.float32), _array(shape, jnp.int8))
    grid = (batch, pl.cdiv(rows * columns, WINDOWS))
    given = [_flat(x), w] if bias is None else [_flat(x), w, bias]
    best, place = _call(pooled, body, results, grid, [_one_of(given[0]), *map(_whole, given[1:])])(*given)
    return best.reshape(batch, rows, columns, outputs), place.reshape(batch, rows, columns, outputs)


def by_example(x: Array, g: Array, kernel: int, more: Array | None, bound: Array, scale: Scale) -> tuple[Array, Array]:
    """Each example's gradient of the weights in bfloat16 [batch, kernel, kernel, inputs, outputs], and what `scale` makes
    of the square of its norm, of the rounded numbers, and of the bound [batch].

    `g` [batch, height, width, outputs]: derivatives by the outputs before pooling, in bfloat16 as `x` is. `more` [batch] is
    added to the squares: of the bias, where there is one.
    """
    batch, _, width, inputs = x.shape
    outputs = g.shape[-1]

    def body(x_ref: Any, g_ref: Any, bound_ref: Any, *rest: Any) -> None:
        *more_ref, each_ref, scale_ref = rest
        chunks = _chunks(g_ref, g.shape, width, CHUNK["by_example"])
        total = jnp.zeros((inputs, outputs), jnp.float32)
        for i in range(kernel):
            line = [_seen(x_ref, chunks, i * width + j) for j in range(kernel)]
            for j, seen in enumerate(line):
                half = _sum_over(seen, chunks, jnp.zeros((inputs, outputs), jnp.float32)).astype(jnp.bfloat16)
                each_ref[i, j] = half
                total += jnp.square(half.astype(jnp.float32))
        square = jnp.sum(total)
        scale_ref[0] = scale(square if more is None else square + more_ref[0][0], bound_ref[0])

    results = (_array((batch, kernel, kernel, inputs, outputs), jnp.bfloat16), _array((batch, 1), jnp.float32))
    given = [_flat(x), _flat(g), bound.reshape(1), *([] if more is None else [more.reshape(batch, 1)])]
    specs = [_whole(a) if a is given[2] else _one_of(a) for a in given]
    each, scales = _call(by_example, body, results, (batch,), specs)(*given)
    return each, scales[:, 0]


def summed(x: Array, g: Array, kernel: int) -> Array:
    """The sum of what `by_example` gives, in float32 [kernel, kernel, inputs, outputs]."""
    batch, _, width, inputs = x.shape
    outputs = g.shape[-1]

    def body(x_ref: Any, g_ref: Any, sum_ref: Any) -> None:
        shift = pl.program_id(0) * width + pl.program_id(1)

        def one(number: Any, sums: Array) -> Array:
            chunks = _chunks(g_ref, g.shape, width, CHUNK["summed"], number)
            return _sum_over(_seen(x_ref, chunks, shift, number), chunks, sums)

        sum_ref[...] = jax.lax.fori_loop(0, batch, one, jnp.zeros((inputs, outputs), jnp.float32))

    result = _array((kernel, kernel, inputs, outputs), jnp.float32)
    part = pl.BlockSpec((None, None, inputs, outputs), lambda i, j: (i, j, 0, 0))
    given = (_flat(x), _flat(g))
    return _call(summed, body, result, (kernel, kernel), [_whole(a) for a in given], part)(*given)


def first_by_example(
    g: Array, w: Array, place: Array, x: Array, kernel: int, bias: bool, bound: Array, scale: Scale
) -> tuple[Array, Array]:
    """Each example's gradient of the layer before, in float32
    [batch, kernel · kernel · inputs (+ 1 for the bias), outputs], and what `scale` makes of its norm, as above.

    `g` and `w` are those of the layer after it; `place` [batch, height, width, outputs] are the winners of the layer
    itself, `x` [batch, rows, columns, inputs] what it saw. The derivative by its outputs is never stored.
    """
    batch, rows, columns, wide = g.shape
    after = w.shape[0]
    height, width, outputs = place.shape[1:]
    entries = kernel * kernel * x.shape[-1] + bias
    size = _side(entries)
    spots = list(itertools.product(range(after), range(after)))

    def body(g_ref: Any, w_ref: Any, place_ref: Any, x_ref: Any, bound_ref: Any, each_ref: Any, scale_ref: Any) -> None:
        out, far = _across(outputs), _across(wide)

        def some(turn: Any, gradient: Array) -> Array:
            q, row, column, there = _tile(turn * PLACES, PLACES, height, width)
            won = _load(place_ref, q, out, there, INACTIVE)
            looked = [_looked(x_ref, row, column, corner, there, _across(size), kernel) for corner in WINDOW]
            sums = jnp.zeros((PLACES, outputs), jnp.float32)
            start = row * columns + column
            within = [(row >= i) & (row - i < rows) for i in range(after)]
            inside = [(column >= j) & (column - j < columns) for j in range(after)]
            for few in range(0, len(spots), SPOTS):
                line = []
                for i, j in spots[few : few + SPOTS]:
                    derivative = _load(g_ref, start - (i * columns + j), far, within[i] & inside[j])
                    line.append((derivative, w_ref[i, j]))
                for derivative, weights in line:
                    sums += _product(derivative, weights, across=1)
            half = sums.astype(jnp.bfloat16)
            for corner, seen in enumerate(looked):
                mine = jnp.where(won == corner, half, jnp.bfloat16(0.0))
                gradient += _product(seen, mine, over=0)
            return gradient

        nothing = jnp.zeros((size, outputs), jnp.float32)
        gradient = jax.lax.fori_loop(0, pl.cdiv(height * width, PLACES), some, nothing)
        down = jnp.arange(size, dtype=jnp.int32)[:, None]
        kept = jnp.broadcast_to(down < entries, gradient.shape)
        triton.store(each_ref.at[down, out], gradient, mask=kept)
        scale_ref[0] = scale(jnp.sum(jnp.where(kept, jnp.square(gradient), 0.0)), bound_ref[0])

    results = (_array((batch, entries, outputs), jnp.float32), _array((batch, 1), jnp.float32))
    given = (_flat(g), w, _flat(place), x, bound.reshape(1))
    specs = [_whole(a) if a is w or a is given[4] else _one_of(a) for a in given]
    each, scales = _call(first_by_example, body, results, (batch,), specs)(*given)
    return each, scales[:, 0]


def thin(x: Array, w: Array) -> Array:
    """`x @ w` for few rows and few columns but a long sum, made in parts by programs of their own."""
    return _thin(x, w, False)[0]


def thin_and_squares(x: Array, w: Array) -> tuple[Array, Array]:
    """The same, and the squared norms of the rows of `x` [rows], which the programs read anyway."""
    y, squares = _thin(x, w, True)
    return y, squares


def _thin(x: Array, w: Array, squares: bool) -> list[Array]:
    rows, length = x.shape
    columns = w.shape[1]
    high, wide = _side(rows), _side(columns)
    parts = pl.cdiv(length, LENGTH)

    def body(x_ref: Any, w_ref: Any, y_ref: Any, *square_ref: Any) -> None:
        k = pl.program_id(0) * LENGTH + jnp.arange(LENGTH, dtype=jnp.int32)
        row = jnp.arange(high, dtype=jnp.int32)
        down, out = row[:, None], _across(wide)
        a = _load(x_ref, down, k[None, :], (down < rows) & (k[None, :] < length))
        b = _load(w_ref, k[:, None], out, (k[:, None] < length) & (out < columns))
        y = _product(a, b, precision=None if kernels.INTERPRET else THREE_PASSES)
        triton.store(y_ref.at[down, out], y, mask=(down < rows) & (out < columns))
        for ref in square_ref:
            triton.store(ref.at[row], jnp.sum(jnp.square(a), axis=1), mask=row < rows)

    results = [_array((parts, rows, columns), jnp.float32), *([_array((parts, rows), jnp.float32)] if squares else [])]
    return [a.sum(axis=0) for a in _call(thin, body, results, (parts,), [_whole(x), _whole(w)])(x, w)]


Chunk = tuple[Array, Array, Array]


def _tile(start: Any, size: int, rows: int, columns: int) -> tuple[Array, Array, Array, Array]:
    """So many places of a grid from `start` on, one below the other: places, rows, columns, and which there are."""
    q = (start + jnp.arange(size, dtype=jnp.int32))[:, None]
    return q, q // columns, q % columns, q < rows * columns


def _chunks(g_ref: Any, shape: tuple[int, ...], width: int, size: int, number: Any = None) -> list[Chunk]:
    """All places of an example's outputs, chunk by chunk: where they are in the input, which there are, the derivatives."""
    _, rows, columns, outputs = shape
    chunks = []
    for start in range(0, rows * columns, size):
        q, row, column, there = _tile(start, size, rows, columns)
        chunks.append((row * width + column, there, _load(g_ref, q, _across(outputs), there, number=number)))
    return chunks


def _seen(x_ref: Any, chunks: list[Chunk], shift: Any, number: Any = None) -> list[Array]:
    """What the weights at one spot see from all places."""
    across = _across(x_ref.shape[-1])
    return [_load(x_ref, place + shift, across, there, number=number) for place, there, _ in chunks]


def _sum_over(seen: list[Array], chunks: list[Chunk], total: Array) -> Array:
    for tile, (_, _, derivative) in zip(seen, chunks, strict=True):
        total += _product(tile, derivative, over=0)
    return total


def _looked(
    x_ref: Any, row: Array, column: Array, corner: tuple[int, int], there: Array, entry: Array, kernel: int
) -> Array:
    """What the outputs at one corner of these windows look at [windows, entries], in bfloat16; after the last, ones."""
    inputs = x_ref.shape[-1]
    last = kernel * kernel * inputs
    i, j, c = entry // (kernel * inputs), (entry // inputs) % kernel, entry % inputs
    places = (2 * row + (corner[0] + i), 2 * column + (corner[1] + j), c + 0 * row)
    seen = triton.load(x_ref.at[places], mask=there & (entry < last), other=jnp.zeros((), x_ref.dtype))
    return jnp.where(entry == last, 1.0, seen).astype(jnp.bfloat16)


def _side(length: int) -> int:
    """The side of a tile that holds so much: a power of two, and no less than products take."""
    return max(16, 1 << (length - 1).bit_length())


def _across(size: int) -> Array:
    return jnp.arange(size, dtype=jnp.int32)[None, :]


def _load(ref: Any, down: Array, across: Array, mask: Array, other: float = 0.0, number: Any = None) -> Array:
    """A tile of a matrix, or of matrix `number` of several."""
    places = (down, across) if number is None else (number + 0 * down, down, across)
    whole = jnp.broadcast_to(mask, (down.shape[0], across.shape[1]))
    return triton.load(ref.at[places], mask=whole, other=jnp.asarray(other, ref.dtype))


def _flat(a: Array) -> Array:
    """Rows and columns of each example as one axis."""
    return a.reshape(a.shape[0], -1, a.shape[-1])


def _product(a: Array, b: Array, over: int = 1, across: int = 0, precision: Any = None) -> Array:
    """The sum of products over the named axes, in float32."""
    numbers = (((over,), (across,)), ((), ()))
    return jax.lax.dot_general(a, b, numbers, precision=precision, preferred_element_type=jnp.float32)


def _array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _call(kernel: Any, body: Any, results: Any, grid: tuple[int, ...], given: list[Any], parts: Any = None) -> Any:
    name = kernel.__name__
    return pl.pallas_call(
        body,
        results,
        grid=grid,
        in_specs=given,
        out_specs=jax.tree.map(_one_of, results) if parts is None else parts,
        name=name,
        **kernels.compiled(WARPS[name]),
    )


def _one_of(a: Any) -> pl.BlockSpec:
    return kernels.one_of(a.shape)


def _whole(a: Any) -> pl.BlockSpec:
    return kernels.whole(a.shape)
