"""The attacker of Melis et al. (2019): what the examples behind an update have in common, and which records are among them.

It has examples of its own with and without the property it looks for. In every round it makes updates from them, on the
very model that was seen, and trains a classifier to tell the ones from the others; the classifier then scores what was
seen. It is a logistic regression on the whole update, regularised: an update has many more values than there are auxiliary
updates, so that a linear rule in the space that these span is all that can be fitted. Each round has a rule of its own,
for the model moves on and updates with it.

Of a record it is asked about, it compares the gradient with the update: examples that were trained on point along it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedveil.attacks.inference import replay
from fedveil.attacks.inference.property import Property
from fedveil.attacks.inference.replay import Rules
from fedveil.attacks.observe import AuxiliaryData
from fedveil.models.layers import Params

AUXILIARY = 64  # updates with the trait, and as many without, that a classifier learns from
PENALTY = 10.0  # the inverse weight of the squared coefficients (C), for updates of mean square length one


@dataclass(frozen=True)
class Seen:
    """An update that was seen."""

    round: int
    model: Params  # that it was made from, as far as the attacker has it
    update: np.ndarray  # [values]
    clients: int = 1  # whose updates it is the mean of, as far as the attacker knows


@dataclass(frozen=True)
class View:
    """All that the attacker has: updates, the rules of the training, and examples of its own."""

    seen: tuple[Seen, ...]
    rules: Rules
    own: AuxiliaryData


def property_scores(view: View, trait: Property, seed: int = 0) -> np.ndarray:
    """[updates]: the larger, the likelier that the examples behind an update have the trait."""
    rng = np.random.default_rng([seed, 0x7072])
    have = trait.of_records(view.own.x, view.own.y)
    found = []
    for seen in view.seen:
        having = auxiliary(view, seen, trait, have, True, rng)
        lacking = auxiliary(view, seen, trait, have, False, rng)
        found.append(classify(having, lacking, seen.update))
    return np.array(found)


def auxiliary(
    view: View, seen: Seen, trait: Property, have: np.ndarray, wanted: bool, rng: np.random.Generator
) -> np.ndarray:
    """Updates [AUXILIARY, values] with the trait or without it, like the one that was seen.

    Of one client: from batches that have the trait or have it not. A mean over several: one client of them has a class and
    the others have not; of a column all have it, or none.
    """
    ours = single_updates(view, seen, trait, have, wanted, rng)
    if seen.clients == 1:
        return ours
    alone = wanted and trait.column is None  # one of them has it
    rest = single_updates(view, seen, trait, have, False, rng) if alone else ours
    picks = rng.multinomial(seen.clients - 1, np.full(AUXILIARY, 1 / AUXILIARY), AUXILIARY)  # [mean, of whom]
    return (ours + picks.astype(ours.dtype) @ rest) / seen.clients


def single_updates(
    view: View, seen: Seen, trait: Property, have: np.ndarray, wanted: bool, rng: np.random.Generator
) -> np.ndarray:
    """Updates [AUXILIARY, values] of single clients whose examples have the trait, or have it not."""
    steps, batch = view.rules.task.setting.local_steps, view.rules.law.batch
    drawn = [trait.drawn(rng, have, steps * batch, wanted) for _ in range(AUXILIARY)]
    index = np.stack(drawn).reshape(AUXILIARY, steps, batch).astype(np.int32)
    batches = (index, np.ones(index.shape, bool), np.full(AUXILIARY, steps, np.int32))
    return replay.updates(view.rules, seen.model, view.own, batches, seen.round)


def classify(having: np.ndarray, lacking: np.ndarray, update: np.ndarray) -> float:
    """How far `update` [values] is on the side of the updates `having` [n, values] the trait, by logistic regression."""
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

    A penalised linear rule has its coefficients there, so that fitting it there is the same, and quicker.
    """
    squares, axes = np.linalg.eigh(known @ known.T)
    kept = squares > 1e-10 * squares.max()
    sizes, axes = np.sqrt(squares[kept]), axes[:, kept]
    return axes * sizes, asked @ known.T @ axes / sizes


def record_scores(view: View, records: AuxiliaryData, place: Sequence[int] | np.ndarray) -> np.ndarray:
    """[records]: the cosine of a record's own step with the update `view.seen[place]` that it may be behind."""
    place = np.asarray(place)
    found = np.zeros(len(place))
    for at in np.unique(place):
        mine, seen = place == at, view.seen[at]
        steps = record_steps(view.rules, seen, AuxiliaryData(records.x[mine], records.y[mine]))
        lengths = np.linalg.norm(steps, axis=1) * np.linalg.norm(seen.update)
        found[mine] = (steps @ seen.update) / np.where(lengths > 0, lengths, 1.0)
    return found


def record_steps(rules: Rules, seen: Seen, records: AuxiliaryData) -> np.ndarray:
    """[records, values]: the step that each record alone would make on the model that was seen."""
    count = len(records.y)
    padded = 1 << max(0, count - 1).bit_length()  # few sizes to compile for
    rows = np.arange(padded) % count
    index = np.arange(padded, dtype=np.int32)[:, None, None]
    batches = (index, np.ones(index.shape, bool), np.ones(padded, np.int32))
    return replay.updates(rules, seen.model, AuxiliaryData(records.x[rows], records.y[rows]), batches, seen.round)[
        :count
    ]
