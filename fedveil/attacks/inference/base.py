"""Inference attacks: what all of them set, and one base class for each question that they answer.

| base class | question | `run` gets | `run` returns |
|---|---|---|---|
| `InversionAttack` | what do examples of a class have in common? | `InversionObservation` | one input per class |
| `MembershipAttack` | was a record trained on? | `MembershipObservation` | scores [records] |
| `ParticipationAttack` | did a client take part? | `ParticipationObservation` | `ParticipationScores` |
| `PropertyAttack` | has a batch a property, and is a record in it? | `UpdateObservation` | `PropertyScores` |

Scores are larger where the attacker thinks "yes" more likely. `game` names the module of `attacks.games` that trains the
federations, hands out the observations and scores the answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedveil.attacks.adversaries import ADVERSARIES, Position
from fedveil.attacks.base import ONCE, Attack, Execution
from fedveil.attacks.observation import (
    InversionObservation,
    MembershipObservation,
    ParticipationObservation,
    UpdateObservation,
)
from fedveil.core.errors import ConfigError, unknown_name
from fedveil.core.plugins import keys

Attacker = Annotated[int | None, Field(ge=0, description="the client that attacks, where the adversary is one (0)")]
Victim = Annotated[int | None, Field(ge=0, description="the client that is attacked (1)")]
Records = Annotated[int, Field(ge=2, le=1_000_000, description="records that are asked about")]
Shadows = Annotated[int, Field(ge=1, le=10_000, description="shadow federations that the attacker trains")]


@dataclass(frozen=True)
class InferenceAttack(Attack):
    """An attack on a whole training, by an adversary that observes it at a tap."""

    adversary: Annotated[str, Field(description="who observes the training")] = "passive-global"
    tap: Annotated[str | None, Field(description="where it observes (by adversary)")] = None

    game: ClassVar[str] = ""
    adversaries: ClassVar[tuple[str, ...]] = ()  # those who can see what it needs; the default is a field
    bench: ClassVar[tuple[str, ...]] = ("seeds", "round", "seconds")

    @property
    def position(self) -> Position:
        """Who observes whom, and where. By default client 0 attacks client 1."""
        tap = self.tap or ADVERSARIES[self.adversary].taps[0]
        attacker, victim = getattr(self, "attacker", None), getattr(self, "victim", None)
        return Position(self.adversary, tap, 0 if attacker is None else attacker, 1 if victim is None else victim)

    def check(self) -> None:
        """Refuses an adversary or a tap that does not show what this attack needs, and says what is missing."""
        if self.adversary not in ADVERSARIES:
            raise unknown_name("attack.adversary", self.adversary, ADVERSARIES)
        if self.adversary not in self.adversaries:
            takes = f"{self.name} needs {self.needs}: take {' or '.join(self.adversaries)}"
            raise ConfigError("attack.adversary", self.adversary, takes)
        taps = tuple(tap for tap in ADVERSARIES[self.adversary].taps if tap in self.taps)
        if self.tap is not None and self.tap not in taps:
            takes = f"{self.name} by {self.adversary} needs {self.needs}, which is seen at {' or '.join(taps)}"
            raise ConfigError("attack.tap", self.tap, takes)
        if {"attacker", "victim"} <= set(keys(type(self))) and self.position.attacker == self.position.victim:
            raise ConfigError("attack.victim", self.position.victim, "is the attacker itself: name another client")


@dataclass(frozen=True)
class InversionAttack(InferenceAttack):
    """Recovers what the examples of a class have in common."""

    attacker: Attacker = None
    victim: Victim = None
    classes: Annotated[
        list[int] | None, Field(min_length=1, description="classes to recover (those that the victim holds)")
    ] = None

    game: ClassVar[str] = "inversion"
    needs: ClassVar[str] = "a trained model"
    taps: ClassVar[tuple[str, ...]] = ("release", "broadcast", "server", "client")
    adversaries: ClassVar[tuple[str, ...]] = ("passive-global", "passive-local", "active")

    def run(self, observation: InversionObservation, execution: Execution = ONCE) -> np.ndarray:
        """[federations, classes, ...shape] float64: an input of each class."""
        raise NotImplementedError


@dataclass(frozen=True)
class MembershipAttack(InferenceAttack):
    """Decides whether records were trained on."""

    victim: Victim = None
    records: Records = 1000

    game: ClassVar[str] = "membership"
    needs: ClassVar[str] = "a trained model"
    taps: ClassVar[tuple[str, ...]] = ("release", "broadcast", "server", "client")
    adversaries: ClassVar[tuple[str, ...]] = ("passive-global", "active")
    fewest_shadows: ClassVar[int] = 0  # shadow federations without which it has nothing to compare with

    @property
    def shadow_count(self) -> int:
        """Shadow federations to train for the attacker."""
        return int(getattr(self, "shadows", 0))

    def run(self, observation: MembershipObservation, execution: Execution = ONCE) -> np.ndarray:
        """[records]: the larger, the likelier that the record was trained on."""
        raise NotImplementedError


@dataclass(frozen=True)
class ParticipationScores:
    """How likely the attacker thinks it that each candidate took part."""

    present: np.ndarray  # [candidates] the larger, the likelier that the client is in the federation
    rounds: np.ndarray  # [rounds, candidates] likewise, that it took part in each round


@dataclass(frozen=True)
class ParticipationAttack(InferenceAttack):
    """Decides whether clients took part in the training."""

    attacker: Attacker = None

    game: ClassVar[str] = "participation"
    needs: ClassVar[str] = "the models of all rounds"
    taps: ClassVar[tuple[str, ...]] = ("release", "broadcast")
    adversaries: ClassVar[tuple[str, ...]] = ("passive-global",)

    def run(self, observation: ParticipationObservation, execution: Execution = ONCE) -> ParticipationScores:
        """Scores every candidate; the attacker's own draws follow the first seed."""
        raise NotImplementedError


@dataclass(frozen=True)
class PropertyScores:
    """How likely the attacker thinks it that updates have the property, and that records are behind them."""

    updates: np.ndarray  # [asked]
    records: np.ndarray  # [records]


@dataclass(frozen=True)
class PropertyAttack(InferenceAttack):
    """Decides whether the examples behind an update have a property, and whether records are among them."""

    adversary: Annotated[str, Field(description="who observes the training")] = "active"
    attacker: Attacker = None
    victim: Victim = None
    property: Annotated[str | None, Field(description="class:N, or column:NAME of attribute data")] = None
    records: Records = 1000

    game: ClassVar[str] = "properties"
    needs: ClassVar[str] = "updates: one client's, or the difference of two models that came one after the other"
    taps: ClassVar[tuple[str, ...]] = ("server", "client", "broadcast")
    adversaries: ClassVar[tuple[str, ...]] = ("active", "passive-local")

    def run(self, observation: UpdateObservation, execution: Execution = ONCE) -> PropertyScores:
        """Scores the updates that are asked about, and every record; own draws follow the first seed."""
        raise NotImplementedError
