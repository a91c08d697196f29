"""Presets: what a private defence uses for the keys that a config leaves out, by defence and kind of dataset.

`fedveil`, the default, holds settings that learn at a small ε: flat clips, noise on sums of many records, one local step
where the noise is per step, momentum at the server. They were tuned on digits, Fashion-MNIST and CIFAR-10
(docs/defaults.md). `paper`
holds the papers' settings: the defaults of the defence's own keys, and the dataset's usual training.

A preset only fills keys that nobody set. The keys of the step size (`STEP_SIZE`) belong together: if one of them was set,
the preset fills none of them. A defence that is given as an object has all its keys, so nothing is filled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from fedveil.core.errors import unknown_name

PRESETS = {
    "fedveil": "settings that learn at a small ε, tuned on digits and Fashion-MNIST",
    "paper": "the papers' settings, which the recipes use",
}
DEFAULT = "fedveil"
STEP_SIZE = frozenset({"lr", "lr_end", "optimizer", "server_lr", "server_momentum"})
KINDS = ("image", "table", "photograph")  # kinds of datasets: images, rows of attributes, small photographs in colour
PHOTOGRAPHS = ("cifar10",)  # they need more rounds; LFW's clients are too small for these batches


@dataclass(frozen=True)
class Values:
    """What a preset sets: keys of the defence, of `[train]` and of `[model]`, and how many clients take part in a round."""

    defense: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)  # of the dataset's own network
    most: int = 50  # clients in a round: a share of all, and no more than this
    share: float = 0.5

    def per_round(self, clients: int) -> int:
        return max(1, min(self.most, int(clients * self.share)))


STEPS = {"local_steps": 1, "batch": 20, "rounds": 100, "lr": 0.2, "server_momentum": 0.9}
TABLE = {**STEPS, "rounds": 40, "lr": 0.5}
PHOTOS = {**STEPS, "batch": 40, "rounds": 400, "lr": 1.0, "lr_end": 0.1}
CDP = {"placement": "batch", "clip": 1.0, "clip_scope": "flat", "noise": 0.8}
MORE = {**CDP, "noise": 0.25}
TANH = {"activation": "tanh"}  # bounded activations keep gradients below the clip (Papernot et al. 2021)
TWO = {"clip": 1.0, "noise": 0.8}

SDP = {"placement": "server-sum", "clip": 1.0, "clip_scope": "flat", "noise": 2.7}
ROUNDS = {"local_steps": 20, "batch": 5, "rounds": 20, "lr": 0.2, "server_momentum": 0.0}

TUNED: dict[str, dict[str, Values]] = {
    "fed-cdp": {"image": Values(CDP, STEPS), "table": Values(CDP, TABLE), "photograph": Values(MORE, PHOTOS, TANH)},
    "fed-sdp": {kind: Values(SDP, ROUNDS, most=1000, share=1.0) for kind in ("image", "table")},
    "2dp-fl": {"image": Values(TWO, STEPS), "table": Values(TWO, TABLE)},
}
# Noise that no setting was found to learn under at a certified ε of at most 8 (docs/defaults.md).
UNTUNED = ("nbafl", "dpfl", "lip", "gradient-noise", "dssgd")


def check(name: object) -> str:
    """The name of a preset."""
    if not isinstance(name, str) or name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return name


def kind_of(name: str, kind: str) -> str:
    """Which of `KINDS` a dataset is, by its name and by whether it holds images."""
    return "table" if kind != "image" else "photograph" if name in PHOTOGRAPHS else "image"


def values(preset: str, defense: str, kind: str) -> Values | None:
    """What a preset has for a defence and a kind of dataset; None where it has nothing."""
    tuned = TUNED.get(defense, {}) if preset == "fedveil" else {}
    return tuned.get(kind, tuned.get("image"))


def filled(preset: str, defenses: object, kind: str) -> object:
    """Tables of defences with the keys that the preset has and the user did not set."""
    if isinstance(defenses, Mapping):
        found = values(preset, str(defenses.get("name")), kind)
        return {**found.defense, **defenses} if found else defenses
    if isinstance(defenses, list | tuple):
        return [filled(preset, one, kind) for one in defenses]
    return defenses


def training(preset: str, defenses: Sequence[Any], kind: str) -> Values | None:
    """The preset's values for `[train]`: those of the first defence for which it has any."""
    found = (values(preset, defense.name, kind) for defense in defenses)
    return next((one for one in found if one is not None), None)


def described(defense: type[Any]) -> dict[str, dict[str, Any]]:
    """Preset → kind of dataset → every key that it sets for a defence, with its value; empty where there is no noise."""
    tuned = TUNED.get(defense.name, {})
    if not tuned:
        return {}
    keys = dict.fromkeys(key for one in tuned.values() for key in one.defense)
    own = {one.name: one.default for one in fields(defense) if one.name in keys}
    paper = {**own, "train": "the dataset's"}
    mine = {
        kind: {**one.defense}
        | {f"train.{key}": value for key, value in one.train.items()}
        | {f"model.{key}": value for key, value in one.model.items()}
        | {"train.per_round": f"{one.share:g} of the clients, at most {one.most}"}
        for kind, one in tuned.items()
    }
    return {"fedveil": mine, "paper": dict.fromkeys(KINDS, paper)}
