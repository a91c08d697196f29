"""Schedules over rounds for a clip bound or a noise scale: functions of the round alone, never of data."""

from __future__ import annotations

from typing import Any, Literal

from fedveil.lazy import Lazy

jnp: Any = Lazy("jax.numpy")

Shape = Literal["linear", "staircase", "exponential", "cosine"]
STAIRS = 5  # steps of the staircase


def value(start: float, end: float | None, shape: str, round_: Any, rounds: int) -> Any:
    """The value in a round: `start` in the first, `end` in the last. Without an end it stays at `start`."""
    if end is None or rounds <= 1:
        return start
    share = jnp.minimum(round_ / (rounds - 1), 1.0)
    if shape == "exponential":
        return start * (end / start) ** share
    if shape == "cosine":
        share = (1.0 - jnp.cos(jnp.pi * share)) / 2.0
    if shape == "staircase":
        share = jnp.minimum(jnp.floor(share * STAIRS), STAIRS - 1) / (STAIRS - 1)
    return start + (end - start) * share
