"""The training that is attacked, as a series of federations that differ in their seeds alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from fedveil.attacks.base import Progress, silent
from fedveil.attacks.limit import NO_LIMIT, Limit
from fedveil.config import Config
from fedveil.core.errors import ConfigError
from fedveil.core.keys import Draws
from fedveil.data.dataset import Dataset
from fedveil.federation import Federation, prepare
from fedveil.models.net import Model
from fedveil.simulation.server import ServerState


@dataclass(frozen=True)
class Target:
    """What is attacked: a config, its draws, and a caller's own data or model where there is one."""

    config: Config
    draws: Draws
    dataset: Dataset | None = None
    model: Model | None = None
    limit: Limit = NO_LIMIT

    @cached_property
    def first(self) -> Federation:
        """Federation number 0."""
        return self.federation(0)

    @property
    def seeds(self) -> int:
        """The number of federations that are attacked."""
        return self.config.attack.seeds

    def federation(self, number: int) -> Federation:
        """Federation `number`: the seed `train.seed` + number, and the draws of that index in the series."""
        train, draws = self.config.train, self.draws.nth(number)
        changes = {"seed": (train.seed + number) % 2**32, "noise_seed": draws.seed}
        config = self.config.model_copy(update={"train": train.model_copy(update=changes)})
        return prepare(config, dataset=self.dataset, model=self.model, draws=draws)

    def all(self) -> Iterator[Federation]:
        """All federations that are attacked, one after another, as long as the time limit allows; the first in any case."""
        yield self.first
        for number in range(1, self.seeds):
            if self.limit.over:
                return
            yield self.federation(number)


def observed_rounds(target: Target) -> int:
    """The number of rounds that are observed: all, or the first `attack.round`."""
    asked, first = target.config.attack.round, target.first
    if asked is None:
        return first.rounds
    if not 1 <= asked <= first.rounds:
        takes = f"is the number of rounds that are observed, from the first on: takes 1 to {first.rounds}"
        raise ConfigError("attack.round", asked, takes)
    return asked


def states(
    federation: Federation, rounds: int, progress: Progress = silent, limit: Limit = NO_LIMIT
) -> Iterator[tuple[int, ServerState]]:
    """The state before each round and, last, after all of them: (0, …), (1, …), …, (rounds, …).

    When the limit is over, the last one is that after the rounds made so far, at least one.

    A state is valid only until the next one is requested, because its buffers are reused.
    """
    state = federation.simulator.start()
    for number in range(rounds):
        if number and limit.over:
            rounds = number
            break
        yield number, state
        state, _ = federation.simulator.round(state, number)
        progress(number + 1, rounds)
    yield rounds, state


def final_state(
    federation: Federation, rounds: int, progress: Progress = silent, limit: Limit = NO_LIMIT
) -> tuple[int, ServerState]:
    """The last of `states`: after all rounds, or as many as the limit allowed."""
    reached = states(federation, rounds, progress, limit)
    last = next(reached)
    for last in reached:  # noqa: B007  (the last one is kept)
        pass
    return last


def part(progress: Progress, index: int, count: int) -> Progress:
    """The progress of federation `index` of `count`, as part of that of all."""
    return lambda done, total: progress(index * total + done, count * total)
