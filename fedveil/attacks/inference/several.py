"""Federations that differ in their seeds alone, attacked one after another, and how far each of them is watched."""

from __future__ import annotations

from collections.abc import Callable

from fedveil.config import Config
from fedveil.core.errors import ConfigError
from fedveil.core.keys import Draws
from fedveil.data.dataset import Dataset
from fedveil.federation import Federation, prepare

Progress = Callable[[int, int], None]


def federation(config: Config, place: int, draws: Draws, dataset: Dataset | None = None) -> Federation:
    """Federation number `place`: seed `train.seed` + place, and its own of the draws that the first one has."""
    train, own = config.train, draws.nth(place)
    changes = {"seed": (train.seed + place) % 2**32, "noise_seed": own.seed}
    return prepare(config.model_copy(update={"train": train.model_copy(update=changes)}), dataset=dataset, draws=own)


def rounds_watched(config: Config, first: Federation) -> int:
    """Rounds that are watched: all, or the first so many (`attack.round`)."""
    asked = config.attack.round
    if asked is None:
        return first.rounds
    if not 1 <= asked <= first.rounds:
        takes = f"the first so many rounds are watched: takes 1 to {first.rounds}"
        raise ConfigError("attack.round", asked, takes)
    return asked


def part(progress: Progress, place: int, count: int) -> Progress:
    """The progress of one of `count` federations, as part of that of all."""
    return lambda done, total: progress(place * total + done, count * total)
