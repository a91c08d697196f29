"""Randomness by name, never by order of execution.

Every random number is a function of (seed, purpose, round, client, step, ...). So the vectorised simulator, the
one-client-at-a-time reference and a deployment draw the same numbers, chunking changes nothing, and a resumed run goes on
as if undisturbed. What is decided on the host (who takes part, which examples form a batch) uses numpy's Philox with
these numbers as its seed; what is drawn on the device (noise, dropout) folds the same numbers into a JAX key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedveil.core.lazy import Lazy

if TYPE_CHECKING:
    import jax
else:  # on first use: what is decided on the host needs none of it
    jax = Lazy("jax")

PURPOSES = {
    "init": 1,
    "cohort": 2,
    "batch": 3,
    "dropout": 4,  # inside the network
    "lost": 5,  # clients that drop out
    "late": 6,  # clients that send late
    "broadcast": 7,
    "example": 8,
    "batch-noise": 9,
    "update": 10,
    "upload": 11,
    "aggregate": 12,
    "finish": 13,
    "shared": 14,  # one draw for all clients of a round
    "round": 15,
    "client": 16,
}


def host(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """A numpy generator for this purpose at (round, client, ...)."""
    named = [seed, PURPOSES[purpose], *numbers]
    # The same state either way; numpy takes two thirds of the time where it has no numbers to cut into words of 32 bits.
    words = np.array(named, np.uint32) if max(named) < 2**32 else named
    sequence = np.random.SeedSequence(words)
    return np.random.Generator(np.random.Philox(sequence))


def device(key: jax.Array, purpose: str, *numbers: int | jax.Array) -> jax.Array:
    """`key` narrowed to a purpose and then to each number in turn."""
    key = jax.random.fold_in(key, PURPOSES[purpose])
    for number in numbers:
        key = jax.random.fold_in(key, number)
    return key


def root(seed: int) -> jax.Array:
    return jax.random.key(seed, impl="threefry2x32")


# Every number is folded in below a purpose, so that no two things that are drawn can have the same key.


def round_key(root_key: jax.Array, number: int | jax.Array) -> jax.Array:
    """The key of one round."""
    return device(root_key, "round", number)


def client_key(of_round: jax.Array, client: int | jax.Array, occurrence: int | jax.Array) -> jax.Array:
    """The key of one client in one round; `occurrence` tells apart the draws of a client taken twice in a cohort."""
    return device(of_round, "client", client, occurrence)


def shared_key(of_round: jax.Array) -> jax.Array:
    """The key of what all clients of a round have in common."""
    return device(of_round, "shared")
