"""The privacy ledger: one row per tap and unit, never an ε without its δ, unit, tap and adjacency."""

from __future__ import annotations

from dataclasses import asdict, dataclass

TAPS = ("example", "client", "server", "broadcast", "release")
UNITS = ("example", "image", "client")


@dataclass(frozen=True)
class Row:
    """The account of one observer for one unit of protection."""

    tap: str
    unit: str
    accountant: str
    rule: str
    certified: bool
    adjacency: str
    epsilon: float | None
    delta: float | None
    reason: str
    assumptions: tuple[str, ...]
    rounds: int

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "assumptions": list(self.assumptions)}


def rows(rounds: int) -> list[Row]:
    """The account of training without a defence: every tap open, so every ε is null."""
    reason = "no mechanism bounds what this tap shows: training is not private"
    return [
        Row(tap, unit, "pld", "none", False, "zero-out", None, None, reason, (), rounds)
        for tap in TAPS
        for unit in UNITS
    ]
