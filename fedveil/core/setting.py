"""`Setting`: the public facts of a run that mechanisms and accounts may depend on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """What is fixed for a whole run and known to everyone: the sizes a mechanism may depend on."""

    clients: int  # K
    per_round: int  # Kt
    rounds: int  # T
    batch: int  # B
    local_steps: int  # L, the most steps any client makes
    sampling: str
    batching: str
    aggregation: str
    weights: str
    secure_aggregation: bool = False  # the server sees sums only
    lr: float = 1.0  # η in the first round
    optimizer: str = "sgd"
    max_weight: float = 1.0  # the largest weight any client's message has in the sum
    smallest: int = 1  # N_i of the smallest client
    layers: int = 1  # layers of the model: what layerwise clipping clips apart
    dropout: float = 0.0  # share of chosen clients that never answer
    late: float = 0.0  # share whose answer counts one round later
    plain_server: bool = True  # the server adds the mean as it is: no factor, no momentum
    min_weight: float = 1.0  # the smallest weight any client's message has in the sum
    sizes: tuple[tuple[int, int], ...] = ()  # (N_i, L_i): the sizes that clients have, and their local steps
    copies: int = 1  # the most clients that hold one and the same example
    examples: int = 0  # N, distinct examples
    lr_end: float | None = None  # η in the last round, reached linearly; None: as in the first
    secret_draws: bool = True  # cohorts, batches and noise come from a secret, not from a seed in the config
    may_stop: bool = False  # training may end before `rounds`, by its results; all rounds are charged
    max_share: float = 0.0  # the largest share that one message can have in a round's mean; 0: max_weight/per_round
    values: int = 0  # d, the values of one update; counted only where a defence asks for it
    quorum: int = 0  # t: a sum over fewer clients is never made, and t clients' noise is enough for it; 0: no quorum
    honest: float = 1.0  # share of the quorum that adds its noise and keeps it secret

    def lr_at(self, round_: Any) -> Any:
        """The rate, linear from `lr` to `lr_end`, in a round: a number, an array, or a round that is traced under jit."""
        if self.lr_end is None or self.lr_end == self.lr or self.rounds <= 1:
            return self.lr
        share = round_ / (self.rounds - 1)
        share = min(1.0, share) if isinstance(round_, int) else share.clip(max=1.0)
        return self.lr + (self.lr_end - self.lr) * share

    @property
    def sharers(self) -> int:
        """The clients among whom the noise of a sum is divided: the quorum, or all of a round."""
        return self.quorum or self.per_round

    @property
    def sums(self) -> bool:
        """Whether messages are seen only in sums over a quorum, as what they are."""
        return self.secure_aggregation and self.quorum > 0 and self.aggregation == "fedsgd"

    @property
    def most(self) -> int:
        """The clients of a round, at most; under Poisson sampling except with a probability below e⁻³²."""
        if self.sampling != "poisson":
            return self.per_round
        return min(self.clients, self.per_round + math.ceil(8 * math.sqrt(self.per_round) + 32))

    @property
    def trusted(self) -> int:
        """The clients of a quorum whose noise counts; at least the one whose account it is."""
        return max(1, math.floor(self.honest * self.quorum + 1e-9))

    @property
    def share(self) -> float:
        """The largest share of one client's message in the mean of a round."""
        return self.max_share or self.max_weight / self.per_round
