"""A row of a bench: seconds of two sides that took turns, and the ratio of ours over theirs."""

from __future__ import annotations

import statistics

import jax


def row(name: str, ours: list[float], theirs: list[float], work: int = 1) -> dict[str, object]:
    """The median ratio of the turns with its quartiles, and the median seconds of each side per piece of work."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(ours, theirs, strict=True)], n=4)
    return {
        "name": name,
        "ratio": middle,
        "low": low,
        "high": high,
        "ours": statistics.median(ours) / work,
        "theirs": statistics.median(theirs) / work,
        "device": str(jax.devices()[0].device_kind),
    }
