"""Federations that differ in their seeds alone, attacked one after another, and how far each of them is watched."""

from __future__ import annotations

from collections.abc import Callable

from fedveil.assemble import Federation, prepare
from fedveil.config import Config
from fedveil.core.errors import ConfigError

Progress = Callable[[int, int], None]


def config_of(config: Config, place: int) -> Config:
    """The config of federation number `place`: `train.seed` + place, and `train.noise_seed` + place where it is set."""
    seeds = {key: getattr(config.train, key) for key in ("seed", "noise_seed")}
    changes = {key: (seed + place) % 2**32 for key, seed in seeds.items() if seed is not None}
    return config.model_copy(update={"train": config.train.model_copy(update=changes)})


def federation(config: Config, place: int) -> Federation:
    """Federation number `place`, ready to train."""
    return prepare(config_of(config, place))


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
