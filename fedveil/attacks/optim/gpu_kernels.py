"""A GPU kernel (Pallas, Triton): products of L-BFGS's pairs with two vectors at once.

Most of what an evaluation reads are the pairs, so they are read once for both vectors. For 1,024 attacks on colour images
of 32×32 the compiler's matrix product with two columns takes 581 µs, two sums 835, one sum alone 290, this kernel 351
(H200).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from fedveil.models import kernels
from fedveil.models.layers import Array

SLOTS, NUMBERS, WARPS = 16, 256, 8  # slots, and values of each vector, that one program handles at a time


def suits(rows: Array) -> bool:
    return jax.default_backend() == "gpu" and rows.dtype == jnp.float32


def products(rows: Array, first: Array, second: Array) -> Array:
    """[attacks, slots, 2]: every row of `rows` [attacks, slots, n] times each of two vectors [attacks, n]."""
    attacks, slots, n = rows.shape

    def body(rows_ref: Any, first_ref: Any, second_ref: Any, out_ref: Any) -> None:
        attack = pl.program_id(0)
        slot = pl.program_id(1) * SLOTS + jnp.arange(SLOTS, dtype=jnp.int32)

        def some(turn: Any, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            at = turn * NUMBERS + jnp.arange(NUMBERS, dtype=jnp.int32)
            inside = at < n
            mask = (slot < slots)[:, None] & inside[None, :]
            part = triton.load(rows_ref.at[attack, slot[:, None], at[None, :]], mask=mask, other=0.0)
            a, b = (triton.load(ref.at[attack, at], mask=inside, other=0.0) for ref in (first_ref, second_ref))
            return sums[0] + part * a[None, :], sums[1] + part * b[None, :]

        zeros = jnp.zeros((SLOTS, NUMBERS), jnp.float32)
        for column, total in enumerate(jax.lax.fori_loop(0, pl.cdiv(n, NUMBERS), some, (zeros, zeros))):
            triton.store(out_ref.at[attack, slot, column], jnp.sum(total, axis=1), mask=slot < slots)

    return pl.pallas_call(
        body,
        jax.ShapeDtypeStruct((attacks, slots, 2), jnp.float32),  # type: ignore[no-untyped-call]
        grid=(attacks, pl.cdiv(slots, SLOTS)),
        in_specs=[kernels.whole(a.shape) for a in (rows, first, second)],
        out_specs=kernels.whole((attacks, slots, 2)),
        **kernels.compiled(WARPS, stages=2),
    )(rows, first, second)
