"""The trial: a chosen setting is trained on the stand-in by the engine, and attacked from each position."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedveil.advice.candidates import Candidate
from fedveil.advice.question import Question
from fedveil.attacks.inference.roc import auc, auc_interval
from fedveil.config import Config, from_dict
from fedveil.core.errors import FedveilError
from fedveil.core.taps import CHAIN
from fedveil.data.dataset import Dataset
from fedveil.federation import IN_MEMORY, Federation, prepare
from fedveil.recipes.kinds_sweep import attacked
from fedveil.recipes.table import interval

SEEDS = 3
ATTACKED = ("example", "client", "server")  # taps that show gradients
# For a linear model the ratio of two gradients is the record itself, where a single record is behind them.
ATTACK = {"name": "aono", "images": 8, "rule": "mse"}
ASKED = 2000  # records whose membership is guessed

Say = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """Accuracies of a setting on the stand-in, and what attacks got from its first training."""

    accuracies: tuple[float, ...]
    split: str
    leak: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        return float(np.mean(self.accuracies))

    @property
    def interval(self) -> list[float] | None:
        """Student's 95 % interval of the mean over the trainings; None after a single one."""
        if len(self.accuracies) < 2:
            return None
        return [float(end or 0.0) for end in interval(list(self.accuracies), True)]


def try_out(candidate: Candidate, asked: Question, dataset: Dataset, say: Say, end: float) -> Trial:
    """Trains with different partitions, models and draws until `end`, at least once; attacks the first training.

    `dataset` has the features of the candidate. Accuracy is on its test part, on which nothing was chosen, if it has one.
    """
    from fedveil.training import train

    found: list[float] = []
    leak: dict[str, dict[str, Any]] = {}
    split = dataset.held_out_name
    for seed in range(SEEDS):
        begun = time.monotonic()
        federation = prepare(_config(candidate, asked, dataset, seed), dataset=dataset)
        done = train(federation)
        value = done.accuracy
        if dataset.test is not None:
            value, split = federation.simulator.evaluate_on(done.params, dataset.test)[0], "test"
        found.append(float(value))
        say(f"training {seed + 1} of {SEEDS}: accuracy {found[-1]:.3f} on the stand-in")
        if seed == 0:
            leak = _leak(federation, done.params, asked, say)
        if time.monotonic() + (time.monotonic() - begun) > end:
            break
    return Trial(tuple(found), split, leak)


def _config(candidate: Candidate, asked: Question, dataset: Dataset, seed: int) -> Config:
    """The candidate's config on records in memory, which have their features already."""
    tables = candidate.tables(asked)
    tables["data"] |= {"name": "file", "file": IN_MEMORY, "features": "raw"}
    tables["train"] |= {"seed": seed}
    return from_dict(tables)


def _leak(federation: Federation, params: Any, asked: Question, say: Say) -> dict[str, dict[str, Any]]:
    """What attacks at each position got: rebuilt records from gradients, guessed membership from the model."""
    found: dict[str, dict[str, Any]] = {}
    for tap in ATTACKED:
        if asked.secure_aggregation and tap == "server":
            found[tap] = {"what": "sums only: no single client's message is seen", "success": None, "interval": None}
            continue
        done = attacked(federation, federation.config, tap, {**ATTACK, "tap": tap})
        if "error" in done:
            found[tap] = {"what": f"not attacked: {done['error']}", "success": None, "interval": None}
        else:
            what = f"records rebuilt by {done['attack']} (mean square error at most 1e-3)"
            found[tap] = {"what": what, "success": done["success_rate"], "interval": done.get("interval")}
    try:
        found["release"] = _membership(federation, params)
    except FedveilError as error:
        found["release"] = {"what": f"not attacked: {error}", "success": None, "interval": None}
    told = (f"{tap} {entry['success']:.2f}" for tap, entry in found.items() if entry["success"] is not None)
    say(f"attacks: {', '.join(told)}")
    return {tap: found[tap] for tap in CHAIN if tap in found}


def _membership(federation: Federation, params: Any) -> dict[str, Any]:
    """Loss-threshold on the released model: members are records of clients, the others were held out."""
    import jax
    import jax.numpy as jnp

    dataset, model = federation.dataset, federation.simulator.task.model
    rng = np.random.default_rng(0)
    held = dataset.held_out if dataset.test is None else dataset.test
    members = dataset.train.take(rng.permutation(np.unique(federation.partition.order))[:ASKED])
    others = held.take(rng.permutation(len(held))[:ASKED])
    scores = []
    for part in (members, others):
        logits = model.apply(params, jnp.asarray(part.x, jnp.float32) * dataset.scale)
        chosen = jax.nn.log_softmax(logits)[jnp.arange(len(part)), jnp.asarray(part.y)]
        scores.append(np.asarray(chosen, float))
    joined = np.nan_to_num(np.concatenate(scores), nan=-1e30)
    area = auc(joined, np.arange(len(joined)) < len(scores[0]))
    low, high = auc_interval(area, len(scores[0]), len(scores[1]))
    return {"what": "AUC of guessing membership by loss (0.5 is a coin)", "success": area, "interval": [low, high]}
