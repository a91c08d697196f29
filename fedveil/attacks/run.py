"""Plays an attack, by its settings, on an observation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedveil.attacks import analytic
from fedveil.attacks.catalog import Settings
from fedveil.attacks.observe import Observation
from fedveil.attacks.reconstruction.run import Reconstruction, reconstruct


def attack(
    observation: Observation,
    settings: Settings,
    *,
    seeds: Sequence[int] = (0,),
    precision: str = "float32",
    progress: Callable[[int, int], None] = lambda ended, total: None,
) -> Reconstruction:
    """All attacks of the observation, for all seeds."""
    if settings.name == "aono":
        return analytic.solve(observation, settings, tuple(seeds))
    return reconstruct(observation, settings, seeds=seeds, precision=precision, progress=progress)
