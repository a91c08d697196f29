"""What a defence declares to the ledger: for each tap, the mechanism between one unit and the observer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Distribution = Literal["gaussian", "laplace"]


@dataclass(frozen=True)
class Release:
    """One kind of noisy release, declared at the first tap that is behind its noise.

    `multiplier` is z: the noise's standard deviation (Gaussian) or scale (Laplace) over the sensitivity, that is over the
    norm (L1 for Laplace) that one unit's contribution can have at most at this tap, zero-out adjacency. `uses` says how
    often it happens to a client that takes part: once per local step or once per round.

    What holds on a sum over clients depends on who draws the noise. `client_noise_sums`: every client draws its own, and
    only sums and constant factors are between it and the round's sum, so the sum carries the noise of all clients.
    `on_sum`: the server draws it once for the whole sum.
    """

    tap: str
    unit: Literal["example", "client"]
    distribution: Distribution
    multiplier: float
    uses: Literal["step", "round"]
    stage: str  # where in the round the noise enters
    by_round: tuple[float, ...] = ()  # z in each round, where it changes
    client_noise_sums: bool = False
    on_sum: bool = False
    every_round: bool = False  # participation depends on data: every round is counted
    certifiable: bool = True  # False: no certificate covers it, see `reason`
    reason: str = ""
    assumes: tuple[str, ...] = ()
    clip_stage: str = ""  # where contributions are clipped; empty: at `stage`
    on_each: bool = False  # the noise is on single examples, not on their sum
    digest: str = ""  # of the mechanism
    arithmetic: Literal["float", "integer"] = "float"  # of the noise
    slip: float = 0.0  # total variation between the noise of one release and the ideal: it is taken off δ
    sum_slip: float = 0.0  # the same for a sum over clients


@dataclass(frozen=True)
class Claim:
    """What a paper claims of its defence, repeated by the ledger and never certified.

    With `sigma` the claim follows by the paper's rules from `steps_per_round` Gaussians a round, of multiplier `sigma` on
    Poisson samples of rate `rate`; its assumptions may name {steps} and {rounds}. Otherwise `epsilon` is the published
    number, None where the paper gives none.
    """

    tap: str
    unit: Literal["example", "client"]
    reason: str
    rule: str = "as-published"  # "sampled": all rules for sampled Gaussians; "joint", "moments": that one
    adjacency: str = "add-remove"
    epsilon: float | None = None
    delta: float | None = None  # None: the ledger's own
    sigma: float | None = None
    rate: float = 1.0
    steps_per_round: int = 0
    assumptions: tuple[str, ...] = ()
