"""Candidates: settings that a knowledgeable engineer would consider, each with the noise that the ledger requires.

All are Fed-CDP with one local step, every client in each round, Poisson batches, a flat clip, and momentum at the
server. Cohort noise is certified only with one local step, and Poisson batches amplify privacy. The candidates differ
in where the noise is added, in the features below a linear model, and in clip, learning rate and number of rounds.

A linear model on fixed features wins at small ε: noise grows with the number of parameters (`beyond/fig-1` compares).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedveil.accounting.calibrate import Goal, noise_for
from fedveil.accounting.ledger import Row, rows
from fedveil.advice.question import Question
from fedveil.config import Config, from_dict, resolve, to_toml
from fedveil.core.errors import ConfigError
from fedveil.data.registry import SMALLEST_SCATTERED
from fedveil.data.scatter import ANGLES, STRIDE
from fedveil.federation import Plan, batch_sampling, build_model, checked_defenses, make_setting, partition_of

CLIPS = (0.1, 1.0)
STEPS = (0.1, 0.3, 1.0, 3.0, 10.0)  # learning rate × clip
ROUNDS = (10, 20, 40, 80)
MOMENTUM = 0.9
WORK = 5e5  # values of records that a training may read per second of the whole budget
MAPS = 1 + 2 * ANGLES + ANGLES**2  # scattering features per window and colour


@dataclass(frozen=True)
class Kind:
    """Where noise is added, and on which features the model works: the part of a candidate that is shown by name."""

    placement: str  # batch, cohort or example
    features: str  # raw or scatter

    @property
    def name(self) -> str:
        return f"{self.placement}, {self.features}"

    @property
    def says(self) -> str:
        """In words, for a reader who knows no key of the config."""
        model = "scattering features" if self.features == "scatter" else "the records themselves"
        where = {
            "example": "noise on every single gradient",
            "batch": "each client adds the full noise",
            "cohort": "the noise adds up over the clients",
        }[self.placement]
        return f"Fed-CDP, a linear model on {model}, {where}"


@dataclass(frozen=True)
class Candidate:
    """One setting of Fed-CDP, with its noise once it is calibrated."""

    kind: Kind
    rounds: int
    batch: int
    clip: float
    lr: float
    noise: float = 0.0

    def tables(self, asked: Question) -> dict[str, Any]:
        """The config as nested tables, with every key that matters, so that it depends on no default."""
        source = dict(asked.source)
        return {
            "data": {
                **source,
                "partition": "iid",
                "clients": asked.clients,
                "per_client": asked.records,
                "features": self.kind.features,
            },
            "model": {"name": "logistic", "init": "default"},
            "train": {
                "rounds": self.rounds,
                "per_round": asked.clients,
                "sampling": "poisson",
                "local_steps": 1,
                "batch": self.batch,
                "batching": "poisson",
                "lr": self.lr,
                "lr_end": self.lr / 10,
                "optimizer": "sgd",
                "server_lr": 1.0,
                "server_momentum": MOMENTUM,
                "aggregation": "fedsgd",
                "weights": "uniform",
                "dropout": 0.0,
                "late": 0.0,
                "secure_aggregation": asked.secure_aggregation,
                "eval_every": max(1, self.rounds // 5),
            },
            "defense": {
                "name": "fed-cdp",
                "placement": self.kind.placement,
                "clip": self.clip,
                "clip_scope": "flat",
                "clip_mode": "fixed",
                "noise": self.noise,
                "delta": asked.delta,
            },
        }

    def config(self, asked: Question) -> Config:
        return resolve(from_dict(self.tables(asked)))

    def toml(self, asked: Question) -> str:
        """The config as a TOML file, with comments that say for which federation it is."""
        sums = ", with secure aggregation" if asked.secure_aggregation else ""
        head = [
            f"# {self.kind.says}.",
            f"# For {asked.clients} clients with {asked.records} records each{sums}.",
            f"# Keeps ε <= {asked.epsilon:g} at delta = {asked.delta:g} for one {asked.unit} at the tap {asked.tap}.",
        ]
        if asked.data is None:
            head.append("# Put your own .npz (arrays x and y) in data.file.")
        return "\n".join(head) + "\n\n" + to_toml(self.config(asked))

    def plan(self, asked: Question) -> Plan:
        """The plan of this training on the user's data: all records distinct, dealt to the clients."""
        config = self.config(asked)
        total = asked.clients * asked.records
        partition = partition_of(config, np.arange(total) % asked.classes, asked.classes)
        batches = batch_sampling(config, partition)
        model = build_model(config, shape_of(self.kind.features, asked.shape), asked.classes)
        setting = make_setting(config, partition, batches, model, total)
        return Plan(config, checked_defenses(config, setting), setting)

    def calibrated(self, asked: Question, epsilon: float | None = None) -> Candidate | None:
        """The candidate with the least noise that keeps ε at the asked tap; None if no noise has a certificate."""
        start = replace(self, noise=1.0)
        plan = start.plan(asked)
        goal = Goal(asked.epsilon if epsilon is None else epsilon, asked.delta, asked.tap, asked.unit)
        try:
            return replace(self, noise=noise_for(plan.defenses, plan.setting, goal).value)
        except ConfigError:
            return None

    def ledger(self, asked: Question) -> list[Row]:
        """The account of this training on the user's data."""
        return rows(self.plan(asked).transcript(), asked.delta, accountants=("pld",))

    def noise_on_mean(self, clients: int) -> float:
        """The standard deviation of the noise on the mean gradient of a round."""
        added = {"cohort": 1.0, "batch": clients**0.5, "example": (clients * self.batch) ** 0.5}[self.kind.placement]
        return self.noise * self.clip * added / (clients * self.batch)


def shape_of(features: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a record as the model sees it."""
    if features == "raw":
        return shape
    rows_, columns, colours = shape
    return rows_ // STRIDE, columns // STRIDE, MAPS * colours


def kinds(asked: Question) -> list[Kind]:
    """The kinds of candidates that can have a certificate at the asked tap, the cheapest noise first."""
    scattered = asked.image and min(asked.shape[:2]) >= SMALLEST_SCATTERED
    features = ("scatter", "raw") if scattered else ("raw",)
    places = ["batch", "example"]
    if asked.tap == "example":
        places = ["example"]
    elif asked.secure_aggregation or asked.tap in ("release", "broadcast"):
        places = ["cohort", *places]
    return [Kind(place, name) for place in places for name in features]


def lengths(asked: Question, kind: Kind) -> list[tuple[int, int]]:
    """Pairs (rounds, batch) that one training can afford in the asked time: with fewer rounds, a larger batch."""
    width = int(np.prod(shape_of(kind.features, asked.shape)))
    passes = min(WORK * asked.seconds / width, 4e5)  # records that a training reads
    found: dict[tuple[int, int], None] = {}
    for rounds in ROUNDS:
        batch = int(passes / (rounds * asked.clients))
        found[rounds, max(1, min(batch, asked.records // 2))] = None
    return list(found)
