"""`Setting`: the public facts of a run that mechanisms and accounts may depend on."""

from __future__ import annotations

from dataclasses import dataclass


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
    secret_draws: bool = True  # cohorts, batches and noise come from a secret, not from a seed in the config
