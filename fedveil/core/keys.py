"""Randomness by name, never by order of execution.

Every random number is a function of (secret or seed, purpose, round, client, step, ...). So the vectorised simulator, the
one-client-at-a-time reference and a deployment in test mode draw the same numbers, chunking changes nothing, and a resumed
run continues as if undisturbed. What is decided on the host (who takes part, which examples form a batch) uses numpy's
Philox, keyed by these numbers; what is drawn on the device (noise, dropout) folds the same numbers into a JAX key.

`Draws` says where the numbers of a run come from: a secret of the operating system, or a seed that the config names.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedveil.core.system import Lazy

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

SECRET_BYTES = 32


def fresh_secret() -> bytes:
    """A new secret from the operating system."""
    return os.urandom(SECRET_BYTES)


@dataclass(frozen=True)
class Draws:
    """The source of everything that is drawn in a run's rounds: cohorts, batches, noise, simulated faults, dropout.

    It has a secret or a seed, never both. A seed gives the same draws to everyone who has the config. A secret gives
    them to those who have its 32 bytes: each host generator gets a key of 128 bits, a keyed BLAKE2b hash of purpose and
    numbers. The device's generator (Threefry) has a key of 64 bits, derived from the secret: that is a simulation's
    noise. A deployed node draws its noise by ChaCha20 with keys of 256 bits (`fedveil.random.secure`).
    """

    seed: int | None = None
    secret: bytes | None = field(default=None, repr=False)  # never in a message, a log or a result

    def __post_init__(self) -> None:
        if (self.seed is None) == (self.secret is None):
            raise ValueError("draws come from a seed or from a secret: give one of the two")
        if self.secret is not None and len(self.secret) != SECRET_BYTES:
            raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(self.secret)}")

    @classmethod
    def fresh(cls) -> Draws:
        """Draws from a new secret."""
        return cls(secret=fresh_secret())

    @classmethod
    def of(cls, noise_seed: int | None) -> Draws:
        """Draws that follow `train.noise_seed`, or a new secret if it is unset."""
        return cls.fresh() if noise_seed is None else cls(noise_seed)

    @property
    def fingerprint(self) -> str:
        """What names these draws in a transcript; it tells nothing of a secret."""
        if self.secret is None:
            return f"seed {self.seed}"
        return self._derived(b"fedveil name", 16).hex()

    def nth(self, number: int) -> Draws:
        """The draws of federation `number` in a series whose first has these: the next seeds, or secrets made of this."""
        if number == 0:
            return self
        if self.secret is None:
            assert self.seed is not None
            return Draws((self.seed + number) % 2**32)
        return Draws(secret=self._derived(b"fedveil series", SECRET_BYTES, number))

    def _derived(self, purpose: bytes, size: int, *numbers: int) -> bytes:
        """Bytes that only the secret gives for this purpose and these numbers."""
        assert self.secret is not None
        named = np.array(numbers, "<u8").tobytes()
        return hashlib.blake2b(named, digest_size=size, key=self.secret, person=purpose).digest()

    def host(self, purpose: str, *numbers: int) -> np.random.Generator:
        """A numpy generator for this purpose at (round, client, ...)."""
        if self.secret is None:
            assert self.seed is not None
            return host(self.seed, purpose, *numbers)
        derived = self._derived(b"fedveil host", 16, PURPOSES[purpose], *numbers)
        return np.random.Generator(np.random.Philox(key=np.frombuffer(derived, "<u8")))

    def root(self) -> jax.Array:
        """The device key that all others are folded from."""
        if self.secret is None:
            assert self.seed is not None
            return root(self.seed)
        words = jax.numpy.asarray(np.frombuffer(self._derived(b"fedveil device", 8), "<u4"), "uint32")
        return jax.random.wrap_key_data(words, impl="threefry2x32")


def generator(*numbers: int) -> np.random.Generator:
    """A NumPy generator seeded by these numbers, for draws outside a run: splits of a dataset, an attack's own draws."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(numbers)))


def host(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """A numpy generator for this purpose at (round, client, ...), by a seed."""
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
    """The JAX key that a seed gives."""
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
