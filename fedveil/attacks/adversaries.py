"""Where an inference attacker sits, what it sees from there, and which attacks need what. Cheap to import: no JAX.

A seat is a bundle of capabilities (2dp-fl, section IV): which models, of which rounds, and what the attacker knows besides.
A passive attacker keeps to the protocol and looks at what comes to it anyway; an active one has got hold of the victim's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedveil.core.errors import ConfigError, unknown_name


@dataclass(frozen=True)
class Adversary:
    """One seat: what is seen from it, and the taps at which that is."""

    name: str
    summary: str
    taps: tuple[str, ...]  # the first is the one taken where none is named


ADVERSARIES: dict[str, Adversary] = {
    seat.name: seat
    for seat in (
        Adversary(
            "passive-local", "a client that looks at its own model after training on its own data", ("broadcast",)
        ),
        Adversary(
            "passive-global",
            "whoever has the model that goes out: as published, or as a client receives it",
            ("release", "broadcast"),
        ),
        Adversary(
            "active",
            "whoever has got hold of what the victim sends: at the server, or on its machine",
            ("server", "client"),
        ),
    )
}


@dataclass(frozen=True)
class Inference:
    """How an inference attack goes about it."""

    name: str
    seat: str
    tap: str | None = None  # None: the seat's first
    attacker: int = 0  # the client that attacks, where the seat is a client's
    victim: int = 1  # the client that is attacked
    classes: tuple[int, ...] | list[int] | None = None  # to recover; None: those that the victim holds
    method: str = "ascent"
    iterations: int = 300
    lr: float = 0.1
    tv: float = 0.0
    records: int = 1000  # that are asked about
    shadows: int = 16
    trait: str | None = None  # the property that is looked for

    @property
    def stands_at(self) -> str:
        """The tap that is watched."""
        return self.tap or ADVERSARIES[self.seat].taps[0]

    def check(self) -> None:
        """Refuses a seat from which this attack has nothing to work on, and says what is missing."""
        info = INFERENCE[self.name]
        if self.seat not in ADVERSARIES:
            raise unknown_name("attack.seat", self.seat, ADVERSARIES)
        if self.seat not in info.seats:
            takes = f"{self.name} needs {info.needs}: sit at {' or '.join(info.seats)}"
            raise ConfigError("attack.seat", self.seat, takes)
        taps = tuple(tap for tap in ADVERSARIES[self.seat].taps if tap in info.taps)
        if self.tap is not None and self.tap not in taps:
            takes = f"{self.name} from the seat {self.seat} needs {info.needs}, which is seen at {' or '.join(taps)}"
            raise ConfigError("attack.tap", self.tap, takes)
        if self.method not in METHODS:
            raise unknown_name("attack.method", self.method, METHODS)
        if self.attacker == self.victim and "attacker" in info.keys and "victim" in info.keys:
            raise ConfigError("attack.victim", self.victim, "is the attacker itself: name another client")


METHODS = {
    "ascent": "gradient ascent on the class's log-probability",
    "closed": "logistic regression solved for its input",
}


@dataclass(frozen=True)
class InferenceInfo:
    """One inference attack: what it is, what it reads, and what it must see."""

    name: str
    summary: str
    keys: tuple[str, ...]
    seats: tuple[str, ...]  # the first is the one taken where none is named
    taps: tuple[str, ...]
    needs: str
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def defaults(self) -> dict[str, Any]:
        return {"seat": self.seats[0], **self.more}


_MODELS = ("release", "broadcast", "server", "client")
_SITTING = ("seat", "tap", "attacker", "victim")

INFERENCE: dict[str, InferenceInfo] = {
    info.name: info
    for info in (
        InferenceInfo(
            "inversion",
            "common features of a class, from a model that has learnt it (2dp-fl, section IV.B)",
            (*_SITTING, "classes", "method", "iterations", "lr", "tv"),
            ("passive-global", "passive-local", "active"),
            _MODELS,
            "a trained model",
            {"iterations": 500},
        ),
        InferenceInfo(
            "loss-threshold",
            "whether a record was trained on, by its loss (Yeom et al. 2018)",
            ("seat", "tap", "victim", "records"),
            ("passive-global", "active"),
            _MODELS,
            "a trained model",
        ),
        InferenceInfo(
            "lira",
            "whether a record was trained on, by the likelihood of its loss among shadow federations (Carlini et al. 2022)",
            ("seat", "tap", "victim", "records", "shadows"),
            ("passive-global", "active"),
            _MODELS,
            "a trained model",
        ),
        InferenceInfo(
            "rmia",
            "whether a record was trained on, by its likelihood ratio to population records (Zarifzadeh et al. 2024)",
            ("seat", "tap", "victim", "records", "shadows"),
            ("passive-global", "active"),
            _MODELS,
            "a trained model",
            {"shadows": 4},
        ),
        InferenceInfo(
            "client-membership",
            "whether a client took part, from the models of all rounds (2dp-fl, section IV.C)",
            ("seat", "tap", "attacker"),
            ("passive-global",),
            ("release", "broadcast"),
            "the models of all rounds",
        ),
        InferenceInfo(
            "melis",
            "whether a batch has a property, from updates (Melis et al. 2019)",
            (*_SITTING, "trait", "records"),
            ("active", "passive-local"),
            ("server", "client", "broadcast"),
            "updates: one client's, or the difference of two models that came one after the other",
        ),
    )
}
