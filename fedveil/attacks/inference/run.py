"""Plays an inference attack by its name: each module below knows one question and answers it with an `Outcome`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from fedveil.attacks.adversaries import Inference
from fedveil.attacks.catalog import inference_settings
from fedveil.attacks.inference.outcome import Outcome
from fedveil.config import Config
from fedveil.core.keys import Draws

Progress = Callable[[int, int], None]
Attack = Callable[[Config, Inference, Progress, Draws | None], Outcome]

MODULES = {
    "inversion": "inversion",
    "loss-threshold": "membership",
    "lira": "membership",
    "rmia": "membership",
    "client-membership": "participation",
    "melis": "properties",
}


def run(config: Config, progress: Progress = lambda done, total: None, draws: Draws | None = None) -> Outcome:
    """Trains what the config describes, attacks it from the seat that `[attack]` names, and scores.

    `draws`: those of a run that is attacked; by default `train.noise_seed`, or a new secret.
    """
    asked = config.attack
    settings = inference_settings(asked.name, **asked.given())
    attack: Attack = import_module(f"fedveil.attacks.inference.{MODULES[asked.name]}").attack
    return attack(config, settings, progress, draws)
