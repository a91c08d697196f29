"""The attack of Melis et al. (2019): properties of the examples behind an update, and which records are among them.

The attacker has examples with and without the property. In every round it computes updates from them on the observed
model, and trains a classifier to tell the two kinds apart; the classifier then scores the observed update. It is a
regularised logistic regression on the whole update. An update has many more values than there are auxiliary updates, so
only a linear rule in the space that they span can be fitted. Each round has its own classifier, because updates change
with the model.

A record is scored by the cosine of its gradient with the update: examples that were trained on point along it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedveil.attacks.base import ONCE, Execution
from fedveil.attacks.inference import replay
from fedveil.attacks.inference.base import PropertyAttack, PropertyScores
from fedveil.attacks.inference.property import Property
from fedveil.attacks.inference.replay import LocalRules
from fedveil.attacks.observation import AuxiliaryData, ObservedUpdate, UpdateObservation
from fedveil.simulation.sampling import Batches

AUXILIARY = 64  # updates with the property, and as many without, that a classifier learns from
PENALTY = 10.0  # the inverse weight of the squared coefficients (C), for updates of mean square length one


@dataclass(frozen=True)
class Melis(PropertyAttack):
    """Infers a property by a classifier of updates, and membership by the cosine with a record's gradient."""

    name: ClassVar[str] = "melis"
    summary: ClassVar[str] = "whether a batch has a property, from updates (Melis et al. 2019)"

    def run(self, observation: UpdateObservation, execution: Execution = ONCE) -> PropertyScores:
        updates = property_scores(observation, execution.seeds[0])
        return PropertyScores(updates, record_scores(observation))


def property_scores(observation: UpdateObservation, seed: int = 0) -> np.ndarray:
    """[asked]: a larger score means that the examples behind an update are more likely to have the property."""
    maker = UpdateMaker(observation, np.random.default_rng([seed, 0x7072]))
    found = []
    for index in observation.asked:
        seen = observation.updates[index]
        having, lacking = maker.like(seen, True), maker.like(seen, False)
        found.append(classify(having, lacking, seen.update))
    return np.array(found)


class UpdateMaker:
    """Makes updates with and without the property from the attacker's examples."""

    def __init__(self, observation: UpdateObservation, rng: np.random.Generator):
        self.rules, self.auxiliary, self.rng = observation.rules, observation.auxiliary, rng
        self.property: Property = observation.property
        self.have = self.property.of_records(self.auxiliary.x, self.auxiliary.y)

    def like(self, seen: ObservedUpdate, wanted: bool) -> np.ndarray:
        """Updates [AUXILIARY, values] with the property or without it, like the one that was seen.

        A single client's update comes from batches that have the property or lack it. In a mean over several clients,
        one client has a class and the others lack it; of a column all have it, or none.
        """
        ours = self.single(seen, wanted)
        if seen.clients == 1:
            return ours
        alone = wanted and self.property.column is None  # one of the clients has it
        rest = self.single(seen, False) if alone else ours
        picks = self.rng.multinomial(seen.clients - 1, np.full(AUXILIARY, 1 / AUXILIARY), AUXILIARY)  # [mean, client]
        return (ours + picks.astype(ours.dtype) @ rest) / seen.clients

    def single(self, seen: ObservedUpdate, wanted: bool) -> np.ndarray:
        """Updates [AUXILIARY, values] of single clients whose examples have the property, or lack it."""
        steps, batch = self.rules.task.setting.local_steps, self.rules.batches.batch
        drawn = [self.property.drawn(self.rng, self.have, steps * batch, wanted) for _ in range(AUXILIARY)]
        index = np.stack(drawn).reshape(AUXILIARY, steps, batch).astype(np.int32)
        batches = Batches(index, np.ones(index.shape, bool), np.full(AUXILIARY, steps, np.int32))
        return replay.updates(self.rules, seen.model, self.auxiliary, batches, seen.round)


def classify(having: np.ndarray, lacking: np.ndarray, update: np.ndarray) -> float:
    """The log-odds that `update` [values] has the property, by a logistic regression on known updates [n, values]."""
    from sklearn.linear_model import LogisticRegression

    known = np.concatenate([having, lacking]).astype(np.float64)
    middle = known.mean(axis=0)
    known -= middle
    scale = np.sqrt(np.square(known).sum(axis=1).mean())
    if not np.isfinite(scale) or scale == 0 or not np.isfinite(update).all():
        return 0.0
    ours, asked = in_span(known / scale, (update - middle)[None] / scale)
    rule = LogisticRegression(C=PENALTY, max_iter=1000).fit(ours, np.arange(len(known)) < len(having))
    return float(rule.decision_function(asked)[0])


def in_span(known: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of `known` [n, values] and `asked` [m, values] in the space that the former span.

    A penalised linear classifier has its coefficients in that space, so fitting it there is the same, and quicker.
    """
    squares, axes = np.linalg.eigh(known @ known.T)
    kept = squares > 1e-10 * squares.max()
    sizes, axes = np.sqrt(squares[kept]), axes[:, kept]
    return axes * sizes, asked @ known.T @ axes / sizes


def record_scores(observation: UpdateObservation) -> np.ndarray:
    """[records]: the cosine of a record's own step with the update that it may be behind."""
    records, which = observation.records, observation.record_update
    found = np.zeros(len(which))
    for index in np.unique(which):
        mine, seen = which == index, observation.updates[index]
        steps = record_steps(observation.rules, seen, AuxiliaryData(records.x[mine], records.y[mine]))
        lengths = np.linalg.norm(steps, axis=1) * np.linalg.norm(seen.update)
        found[mine] = (steps @ seen.update) / np.where(lengths > 0, lengths, 1.0)
    return found


def record_steps(rules: LocalRules, seen: ObservedUpdate, records: AuxiliaryData) -> np.ndarray:
    """[records, values]: the step that each record alone would make on the model that was seen."""
    count = len(records.y)
    padded = 1 << max(0, count - 1).bit_length()  # few sizes, so that few programs are compiled
    rows = np.arange(padded) % count
    index = np.arange(padded, dtype=np.int32)[:, None, None]
    batches = Batches(index, np.ones(index.shape, bool), np.ones(padded, np.int32))
    padded_records = AuxiliaryData(records.x[rows], records.y[rows])
    return replay.updates(rules, seen.model, padded_records, batches, seen.round)[:count]
