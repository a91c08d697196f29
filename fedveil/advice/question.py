"""The question: the size of a federation, the shape of its records, the ε to keep, and against which adversary."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError, did_you_mean, unknown_name
from fedveil.core.taps import CHAIN
from fedveil.data.dataset import MOST_CLASSES
from fedveil.data.registry import DATASETS

UNITS = ("example", "image")
ADVERSARIES = {"server": "server", "clients": "broadcast", "release": "release"}  # who must be withstood → the tap
LEAST_SECONDS = 5.0


@dataclass(frozen=True)
class Question:
    """A federation that somebody wants to train. Only its size and the form of its records are known."""

    clients: int
    records: int  # at each client
    epsilon: float
    shape: tuple[int, ...] = ()  # of one record: rows, columns and colours, or the number of columns of a table
    classes: int = 0
    delta: float = 1e-5
    unit: str = "example"
    tap: str = "server"
    secure_aggregation: bool = False
    data: str | None = None  # a dataset, or an .npz file, instead of shape and classes
    seconds: float = 600.0  # for everything together
    seed: int = 0  # of the search on the stand-in

    @property
    def image(self) -> bool:
        return len(self.shape) == 3

    @property
    def source(self) -> dict[str, str]:
        """`data.name` and `data.file` of the config."""
        if self.data is None:
            return {"name": "file", "file": "YOUR-DATA.npz"}
        return {"name": self.data} if self.data in DATASETS else {"name": "file", "file": self.data}


def question(given: dict[str, Any]) -> Question:
    """A checked question. `withstand` (names of adversaries) stands for the tap that covers all of them."""
    given = {key: value for key, value in given.items() if value is not None}
    known = [field.name for field in fields(Question)]
    for key, value in given.items():
        if key not in (*known, "withstand"):
            raise ConfigError(key, value, did_you_mean(key, (*known, "withstand")))
    for key in ("clients", "records", "epsilon"):
        if key not in given:
            raise ConfigError(key, None, "is needed: how many clients, how many records each, and the ε to keep")
    if "withstand" in given:
        if "tap" in given:
            raise ConfigError("withstand", given["withstand"], f"and tap = {given['tap']!r} say the same: keep one")
        given["tap"] = _covering(given.pop("withstand"))
    if given.get("data"):
        if "shape" in given or "classes" in given:
            raise ConfigError("data", given["data"], "says shape and classes itself: leave shape and classes out")
        given["shape"], given["classes"] = _described(str(given["data"]))
    asked = Question(**{**given, "shape": tuple(given.get("shape", ()))})
    _check(asked)
    return asked


def _check(asked: Question) -> None:
    _whole("clients", asked.clients, 1, 10_000_000)
    _whole("records", asked.records, 1, 10_000_000)
    _whole("classes", asked.classes, 2, MOST_CLASSES)
    if len(asked.shape) not in (1, 3) or not all(type(side) is int and 1 <= side <= 4096 for side in asked.shape):
        takes = "takes rows,columns,colours of an image (28,28,1), or the columns of a table (30)"
        raise ConfigError("shape", list(asked.shape), takes)
    if not (asked.epsilon > 0 and math.isfinite(asked.epsilon)):
        raise ConfigError("epsilon", asked.epsilon, "takes a number above 0")
    if not 0 < asked.delta < 1:
        raise ConfigError("delta", asked.delta, "takes a number above 0 and below 1: 1e-5, say")
    if asked.unit not in UNITS:
        takes = "takes example or image. For all records of a client: fedveil calibrate with fed-sdp and --unit client"
        raise ConfigError("unit", asked.unit, takes)
    if asked.tap not in CHAIN:
        raise unknown_name("tap", asked.tap, CHAIN)
    if not (asked.seconds >= LEAST_SECONDS and math.isfinite(asked.seconds)):
        raise ConfigError("seconds", asked.seconds, f"takes at least {LEAST_SECONDS:g}")


def _whole(key: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(key, value, f"takes a whole number from {least} to {most:,}")


def _covering(names: Any) -> str:
    """The first tap of the chain that one of these adversaries sees: an ε there holds at all later taps."""
    asked = names.split(",") if isinstance(names, str) else list(names)
    for name in asked:
        if name not in ADVERSARIES:
            raise unknown_name("withstand", name, ADVERSARIES)
    if not asked:
        raise ConfigError("withstand", names, f"takes one or more of: {', '.join(ADVERSARIES)}")
    return min((ADVERSARIES[name] for name in asked), key=CHAIN.index)


def _described(data: str) -> tuple[tuple[int, ...], int]:
    """Shape and classes of a named dataset or of a file; its records are not used."""
    if data in DATASETS and data != "file":
        info = DATASETS[data]
        if not info.trainable:
            raise ConfigError("data", data, "holds pictures for attacks, too few to train on: use another dataset")
        return info.shape, info.classes
    if not Path(data).expanduser().is_file():
        raise unknown_name("data", data, [*(name for name in DATASETS if name != "file"), "a file NAME.npz"])
    from fedveil.data.registry import load

    found = load("file", file=data)
    return found.shape, found.classes
