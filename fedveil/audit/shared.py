"""What tests and bounds of one audit share: the federation, its sizes, the canary model under some defences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fedveil.audit.path import CanaryPath, canary_path
from fedveil.defenses.base import Defense
from fedveil.simulation.client import Task
from fedveil.simulation.simulator import Simulator

MOST_WIDTH = 64  # directions of canaries that meet in one message
SEED = 0x41554449  # the audit's draws are not the training's

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Sizes:
    """How large an audit is."""

    trials: int
    canaries: int
    seeds: int
    rounds: int
    steps: int


@dataclass(frozen=True)
class Audit:
    """The settings of one audit, with the canary models that were compiled for it."""

    simulator: Simulator
    sizes: Sizes
    confidence: float
    delta: float | None
    tell: Progress
    paths: dict[tuple[Defense, ...], CanaryPath] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        return self.simulator.task

    @property
    def seed(self) -> int:
        return self.simulator.seed + SEED

    def canaries(self, defenses: tuple[Defense, ...]) -> CanaryPath:
        """The canary model under some defences; compiled once."""
        if defenses not in self.paths:
            setting = self.task.setting
            width = min(MOST_WIDTH, max(8, setting.batch, setting.per_round))
            self.paths[defenses] = canary_path(self.simulator, defenses, width, self.seed)
        found = self.paths[defenses]
        found.reseed(self.seed)
        found.forced = None
        return found
