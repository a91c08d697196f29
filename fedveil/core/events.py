"""What a defence declares to the ledger: per tap, the mechanism that stands between one unit and the observer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Law = Literal["gaussian", "laplace"]


@dataclass(frozen=True)
class Release:
    """One kind of noisy release, declared at the first tap that is behind its noise.

    `multiplier` is z: the noise's standard deviation (Gaussian) or scale (Laplace) over the sensitivity, that is over the
    norm (L1 for Laplace) that one unit's contribution can have at most at this tap, zero-out adjacency. `uses` says how
    often it happens to a client that takes part: once per local step or once per round.

    Who draws the noise decides what holds on a sum over clients. `adds_up`: every client draws its own, and nothing but
    sums and constant factors lies between it and the round's sum, so that the sum carries the noise of all. `on_sum`: the
    server draws it once for the whole sum.
    """

    tap: str
    unit: Literal["example", "client"]
    law: Law
    multiplier: float
    uses: Literal["step", "round"]
    stage: str  # where in the round the noise enters
    by_round: tuple[float, ...] = ()  # z in each round, where it changes
    adds_up: bool = False
    on_sum: bool = False
    every_round: bool = False  # who takes part depends on data: a participation in every round is counted
    covered: bool = True  # False: no certificate covers it, see `reason`
    reason: str = ""
    assumes: tuple[str, ...] = ()
