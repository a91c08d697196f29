"""One row of a benchmark: the times of two sides, turn by turn, and the ratio of ours over theirs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def row(
    name: str, ours: Sequence[float], theirs: Sequence[float], work: int = 1, device: str | None = None
) -> dict[str, object]:
    """The median of the turns' ratios with its quartiles, and the median of each side divided by `work`.

    The ratio is taken within a turn, so that a machine that slows down between turns slows both sides. `device` names the
    device that both sides ran on; None means JAX's first device.
    """
    low, middle, high = statistics.quantiles([a / b for a, b in zip(ours, theirs, strict=True)], n=4)
    return {
        "name": name,
        "ratio": middle,
        "low": low,
        "high": high,
        "ours": statistics.median(ours) / work,
        "theirs": statistics.median(theirs) / work,
        "device": _first_device() if device is None else device,
    }


def _first_device() -> str:
    import jax

    return str(jax.devices()[0].device_kind)
