"""What a defence declares to the ledger: per tap, the mechanism that stands between one unit and the observer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Law = Literal["gaussian", "laplace", "none"]


@dataclass(frozen=True)
class Release:
    """One kind of noisy release.

    `multiplier` is z: the noise's standard deviation (Gaussian) or scale (Laplace) over the sensitivity, that is over the
    norm that one unit's contribution can have at most at this tap, zero-out adjacency. `uses` says how often it happens to
    a client that takes part: once per local step or once per round.
    """

    tap: str
    unit: Literal["example", "client"]
    law: Law
    multiplier: float
    uses: Literal["step", "round"]
    covered: bool = True  # False: the bound itself depends on private data, so that no certificate covers it
    reason: str = ""
    assumes: tuple[str, ...] = ()
