"""Schedules over rounds for a clip bound or a noise scale: functions of the round alone, never of data."""

from __future__ import annotations

from typing import Any, Literal

from fedveil.core.lazy import Lazy

jnp: Any = Lazy("jax.numpy")
numpy: Any = Lazy("numpy")

Shape = Literal["linear", "staircase", "exponential", "cosine"]
STAIRS = 5  # steps of the staircase


def value(start: float, end: float | None, shape: str, round_: Any, rounds: int, xp: Any = jnp) -> Any:
    """The value in a round: `start` in the first, `end` in the last. Without an end it stays at `start`.

    `xp` is the array module, so that the ledger reads the same schedule with numpy.
    """
    if end is None or rounds <= 1:
        return start
    share = xp.minimum(round_ / (rounds - 1), 1.0)
    if shape == "exponential":
        return start * (end / start) ** share
    if shape == "cosine":
        share = (1.0 - xp.cos(xp.pi * share)) / 2.0
    if shape == "staircase":
        share = xp.minimum(xp.floor(share * STAIRS), STAIRS - 1) / (STAIRS - 1)
    return start + (end - start) * share


def every_round(start: float, end: float | None, shape: str, rounds: int) -> tuple[float, ...]:
    """The values of all rounds; empty where it never changes."""
    if end is None or rounds <= 1:
        return ()
    return tuple(float(v) for v in value(start, end, shape, numpy.arange(rounds), rounds, numpy))
