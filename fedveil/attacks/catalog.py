"""The table of attacks, and the settings of those that reconstruct. Cheap to import: no JAX."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedveil.attacks.adversaries import INFERENCE, Inference
from fedveil.core.errors import ConfigError, did_you_mean, unknown_name

INITS: dict[str, str] = {
    "patterned-2x2": "uniform noise on a quarter, tiled 2×2 (cpl)",
    "patterned-4x4": "uniform noise on a sixteenth, tiled 4×4 (cpl)",
    "random-normal": "normal noise (DLG, iDLG, inverting)",
    "random-uniform": "uniform noise in [0, 1)",
    "dark": "all zeros",
    "light": "all ones",
    "red": "plain red, for colour images",
    "green": "plain green, for colour images",
    "blue": "plain blue, for colour images",
    "optimal": "another example of the same class, from what the attacker was granted",
    "optimal-any": "any example from what the attacker was granted",
    "file": "the picture or array in attack.file",
}
ALIASES = {"patterned": "patterned-2x2"}
DISTANCES: dict[str, str] = {
    "l2": "squared L2 distance of all gradients",
    "cosine": "one minus the cosine of all gradients taken as one vector",
    "cosine-layers": "one minus the cosine of each layer's gradient, summed: sees through a clip of single layers",
    "entropy": "Kullback-Leibler divergence of the gradients' softmax",
}
OPTIMIZERS: dict[str, str] = {
    "lbfgs": "L-BFGS without line search, 20 steps to an iteration",
    "adam": "Adam",
    "sgd": "plain gradient descent",
    "momentum": "gradient descent with momentum 0.9",
    "adagrad": "Adagrad",
}
LABELS: dict[str, str] = {
    "infer": "read off the last layer's gradient",
    "joint": "optimised together with the content",
    "given": "granted to the attacker",
}
READINGS: dict[str, str] = {
    "simple": "an update after L local steps is taken for L times the first gradient",
    "simulated": "the L local steps are made again inside the attack",
}


@dataclass(frozen=True)
class Settings:
    """How an attack goes about it. `None` in `stop` and `plateau`: the rule does not exist."""

    name: str = "cpl"
    init: str = "patterned-2x2"
    distance: str = "l2"
    optimizer: str = "lbfgs"
    lr: float = 1.0
    iterations: int = 300  # T; with L-BFGS one iteration is up to 20 steps
    stop: float | None = None  # a squared gradient distance that ends the attack
    plateau: int | None = None  # ends it after so many iterations in which the objective did not fall by 1 %
    label: str = "infer"
    alpha: float = 0.0  # weight of ‖softmax f(x) − y‖² (cpl, Algorithm 1 line 12)
    tv: float = 0.0  # weight of the total variation
    signed: bool = False  # steps by the sign of the gradient
    decay: bool = False  # a tenth of the step length after 3/8, 5/8 and 7/8 of the iterations
    box: bool = False  # inputs are kept in their known range at every step
    restarts: int = 0  # more starts from other draws; the least objective is kept
    reading: str = "simple"
    file: str | None = None  # for init `file`


@dataclass(frozen=True)
class AttackInfo:
    """One attack: what it is, which keys of `[attack]` it reads, how its defaults differ from cpl's."""

    name: str
    summary: str
    keys: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    taps: tuple[str, ...] = ("example", "batch", "client", "server")
    seats: tuple[str, ...] = ()  # of an inference attack; a reconstruction stands at a tap and needs no more


_MATCHING = (
    "init",
    "distance",
    "optimizer",
    "lr",
    "iterations",
    "stop",
    "plateau",
    "label",
    "alpha",
    "tv",
    "signed",
    "decay",
    "box",
    "restarts",
    "reading",
    "file",
)

ATTACKS: dict[str, AttackInfo] = {
    info.name: info
    for info in (
        AttackInfo("cpl", "gradient matching from a patterned start, label inferred (cpl, Algorithm 1)", _MATCHING),
        AttackInfo(
            "dlg",
            "gradient matching from normal noise, label optimised jointly (Zhu et al. 2019)",
            _MATCHING,
            {"init": "random-normal", "label": "joint"},
        ),
        AttackInfo(
            "idlg",
            "DLG with the label inferred (Zhao et al. 2020)",
            _MATCHING,
            {"init": "random-normal"},
        ),
        AttackInfo(
            "inverting",
            "cosine distance, total variation, signed Adam (Geiping et al. 2020)",
            _MATCHING,
            {
                "init": "random-normal",
                "distance": "cosine",
                "optimizer": "adam",
                "lr": 0.1,
                "iterations": 4800,
                "tv": 1e-4,
                "signed": True,
                "decay": True,
                "box": True,
            },
        ),
        AttackInfo("aono", "a fully connected first layer, solved in closed form (Aono et al. 2017)", ()),
        *(AttackInfo(i.name, i.summary, i.keys, i.defaults, i.taps, i.seats) for i in INFERENCE.values()),
    )
}


def settings(name: str = "cpl", **given: Any) -> Settings:
    """The settings of the reconstruction called `name`, its defaults changed by what is given; checked."""
    if name in INFERENCE:
        raise ConfigError("attack.name", name, "infers and does not reconstruct: use `inference_settings`")
    info = _info(name, given)
    chosen = {**info.defaults, **given}
    if "init" in chosen:
        chosen["init"] = ALIASES.get(chosen["init"], chosen["init"])
    if chosen.get("optimizer", "lbfgs") != "lbfgs" and "lr" not in chosen:
        chosen["lr"] = 0.1
    made = Settings(name=name, **chosen)
    _check(made)
    return made


def inference_settings(name: str, **given: Any) -> Inference:
    """The settings of the inference attack called `name`, its defaults changed by what is given; checked."""
    info = _info(name, given)
    if not info.seats:
        raise ConfigError("attack.name", name, "reconstructs and does not infer: use `settings`")
    made = Inference(name=name, **{**info.defaults, **given})
    made.check()
    return made


def _info(name: str, given: Mapping[str, Any]) -> AttackInfo:
    """The attack's entry; refuses keys that it does not read."""
    if name not in ATTACKS:
        raise unknown_name("attack.name", name, ATTACKS)
    info = ATTACKS[name]
    for key, value in given.items():
        if key not in info.keys:
            raise ConfigError(f"attack.{key}", value, f"{name} has no such key; " + did_you_mean(key, info.keys))
    return info


def _check(made: Settings) -> None:
    tables: dict[str, Mapping[str, str]] = {
        "init": INITS,
        "distance": DISTANCES,
        "optimizer": OPTIMIZERS,
        "label": LABELS,
        "reading": READINGS,
    }
    for key, table in tables.items():
        if getattr(made, key) not in table:
            raise unknown_name(f"attack.{key}", getattr(made, key), table)
    for key in ("iterations", "plateau"):
        value = getattr(made, key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigError(f"attack.{key}", value, "takes a whole number of iterations, at least 1")
    if not isinstance(made.restarts, int) or isinstance(made.restarts, bool) or made.restarts < 0:
        raise ConfigError("attack.restarts", made.restarts, "takes a whole number, 0 for a single start")
    for key in ("lr", "stop"):
        value = getattr(made, key)
        if value is not None and not _number(value, above=0.0):
            raise ConfigError(f"attack.{key}", value, "takes a number above 0")
    for key in ("alpha", "tv"):
        if not _number(getattr(made, key), least=0.0):
            raise ConfigError(f"attack.{key}", getattr(made, key), "takes a number, 0 for none")
    if made.optimizer == "lbfgs":
        for key in ("signed", "decay", "box"):
            if getattr(made, key):
                raise ConfigError(
                    f"attack.{key}", True, "is for first-order optimisers: set attack.optimizer to 'adam'"
                )
    if made.init == "file" and made.file is None:
        raise ConfigError("attack.file", None, "init 'file' takes the path of a picture, or of an .npy array")
    if made.label == "joint" and made.alpha > 0:
        raise ConfigError("attack.alpha", made.alpha, "needs a fixed label: set attack.label to 'infer', or alpha to 0")


def _number(value: object, least: float = -math.inf, above: float = -math.inf) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value >= least and value > above


def keys() -> tuple[str, ...]:
    """Every key of `Settings` but the name."""
    return tuple(f.name for f in dataclasses.fields(Settings) if f.name != "name")
