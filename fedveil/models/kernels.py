"""A hand-written kernel for graphics cards (Pallas, Triton): the gradients of a first convolution, example by example.

After max-pooling each output that counts looked at one place of the image, which differs from channel to channel. Written
with arrays that is a selection among four shifted images for every weight; here each thread reads the place it needs.
In float32, for networks and settings that `tiles.py` does not suit.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from fedveil.models.layers import Array

WINDOWS = 32  # a program looks at so many windows at a time
INTERPRET = False  # tests set it: all kernels in plain JAX, on any machine


def first_layer(x: Array, g: Array, place: Array, kernel: int) -> tuple[Array, Array]:
    """Each example's gradient of the weights [batch, kernel, kernel, inputs, outputs], and its squared norm [batch].

    `x` [batch, rows, columns, inputs] without padding; `g` and `place` [batch, r, s, outputs] are the derivative by the
    pooled output and which of the four entries of a window won. `outputs` is a power of two. One program per example;
    `vmap` over clients adds to the grid.
    """
    batch, _, _, inputs = x.shape
    r, s, outputs = g.shape[1:]
    weights = list(itertools.product(range(kernel), range(kernel), range(inputs)))

    def body(x_ref: Any, g_ref: Any, place_ref: Any, each_ref: Any, square_ref: Any) -> None:
        out = jnp.arange(outputs, dtype=jnp.int32)[None, :]

        def some(turn: Any, sums: tuple[Array, ...]) -> tuple[Array, ...]:
            q = (turn * WINDOWS + jnp.arange(WINDOWS, dtype=jnp.int32))[:, None]
            row, column = q // s, q % s
            mask = (q < r * s) & (out >= 0)
            cotangent = triton.load(g_ref.at[row, column, out], mask=mask, other=0.0)
            won = triton.load(place_ref.at[row, column, out], mask=mask, other=0).astype(jnp.int32)
            top, left = 2 * row + won // 2, 2 * column + won % 2
            return tuple(
                total + triton.load(x_ref.at[top + i, left + j, c], mask=mask, other=0.0) * cotangent
                for total, (i, j, c) in zip(sums, weights, strict=True)
            )

        zeros = tuple(jnp.zeros((WINDOWS, outputs), jnp.float32) for _ in weights)
        sums = jax.lax.fori_loop(0, pl.cdiv(r * s, WINDOWS), some, zeros)
        square = jnp.zeros((outputs,), jnp.float32)
        for total, (i, j, c) in zip(sums, weights, strict=True):
            each_ref[i, j, c] = jnp.sum(total, axis=0)
            square += jnp.square(jnp.sum(total, axis=0))
        square_ref[0] = jnp.sum(square)

    shapes = ((batch, kernel, kernel, inputs, outputs), (batch, 1))
    each, squares = pl.pallas_call(
        body,
        tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes),  # type: ignore[no-untyped-call]
        grid=(batch,),
        in_specs=[one_of(a.shape) for a in (x, g, place)],
        out_specs=tuple(one_of(shape) for shape in shapes),
        **compiled(warps=4),
    )(x, g, place)
    return each, squares[:, 0]


def one_of(shape: tuple[int, ...]) -> pl.BlockSpec:
    """The part of one example: that of a program's first number."""
    rest = (0,) * (len(shape) - 1)
    return pl.BlockSpec((None, *shape[1:]), lambda b, *_: (b, *rest))


def whole(shape: tuple[int, ...]) -> pl.BlockSpec:
    """All of an array, for every program."""
    return pl.BlockSpec(shape, lambda *_: (0,) * len(shape))


def compiled(warps: int, stages: int = 1) -> dict[str, Any]:
    """How a kernel is made, as arguments of `pallas_call`."""
    params = None if INTERPRET else triton.CompilerParams(num_warps=warps, num_stages=stages)
    return {"interpret": INTERPRET, "compiler_params": params}
