"""Pictures of some reconstructions: the true example, intermediate steps, the result, and the score of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedveil.attacks.base import Execution, ReconstructionAttack
from fedveil.attacks.limit import NO_LIMIT, Limit
from fedveil.attacks.results import MOST, Pictures
from fedveil.attacks.score import assigned
from fedveil.attacks.study import Group, Study, first, in_time

SMALL = 32  # attacks


def gallery(
    study: Study, precision: str, count: int = MOST, steps: Sequence[int] = (), limit: Limit = NO_LIMIT
) -> Pictures | None:
    """The first examples of a study with their reconstructions by the first seed; None if examples are no images.

    `steps`: earlier iterations to show. The attack is run again for that many iterations. An attack whose path depends on
    the number of iterations shows none. Steps that the limit leaves no time for are left out.
    """
    if len(study.groups[0].observation.shape) != 3:
        return None
    shown = {n: short for n in steps if (short := study.attack.shortened(n)) is not None}
    parts: list[Pictures] = []
    for group in study.groups:
        left = count - sum(len(part.truth) for part in parts)
        if left > 0:
            parts.append(_of_group(group, left, shown, Execution(precision=precision, deadline=limit.deadline)))
    by_example = ("truth", "ssim", "mse", "labels", "success")
    joined: dict[str, Any] = {key: np.concatenate([getattr(part, key) for part in parts]) for key in by_example}
    rows = min(len(part.found) for part in parts) - 1  # a group for which time ran out has fewer steps
    found = np.concatenate([part.found[[*range(rows), -1]] for part in parts], axis=1)
    return Pictures(found=found, shown=(*parts[0].shown[:rows], "result"), **joined)


def _of_group(group: Group, count: int, shown: Mapping[int, ReconstructionAttack], execution: Execution) -> Pictures:
    """The pictures of one group. Each result is paired with the true example of its gradient that it fits best."""
    examples = group.observation.examples
    done = group.reconstruction
    which = done.attack[done.of_first_seed][: -(-count // examples)]
    attacks = len(which)
    # A small group is attacked as a whole again: with as many slots as before it needs no other program.
    again = len(group.observation) if len(group.observation) <= SMALL else int(which.max()) + 1
    few = first(group.observation, again)
    truth = np.asarray(group.truth_x[which], float)
    tries = in_time(shown.values(), few, execution)
    pairs = [(one.inputs[which], one.labels[which]) for one in tries]
    pairs.append((done.inputs[:attacks], done.labels[:attacks]))
    fitted = [assigned(inputs.astype(np.float64), labels, truth) for inputs, labels in pairs]
    items = group.scores.items

    def flat(values: np.ndarray) -> np.ndarray:
        return values.reshape(attacks * examples, *values.shape[2:])[:count]

    return Pictures(
        truth=flat(truth),
        found=np.stack([flat(inputs) for inputs, _ in fitted]),
        shown=(*(f"step {n}" for n in list(shown)[: len(tries)]), "result"),
        ssim=flat(items.ssim[:attacks]),
        mse=flat(items.mse[:attacks]),
        labels=np.stack([flat(np.asarray(group.truth_y[which])), flat(fitted[-1][1])], axis=1),
        success=flat(group.scores.success[:attacks]),
    )
