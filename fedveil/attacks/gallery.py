"""Pictures of some reconstructions: the true example, intermediate steps, the result, and the score of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedveil.attacks.base import Execution, ReconstructionAttack
from fedveil.attacks.results import MOST, Pictures
from fedveil.attacks.score import assigned
from fedveil.attacks.study import Group, Study, first

SMALL = 32  # attacks


def gallery(study: Study, precision: str, count: int = MOST, steps: Sequence[int] = ()) -> Pictures | None:
    """The first examples of a study with their reconstructions by the first seed; None if examples are no images.

    `steps`: earlier iterations to show. The attack is run again for that many iterations. An attack whose path depends on
    the number of iterations shows none.
    """
    if len(study.groups[0].observation.shape) != 3:
        return None
    shown = {n: short for n in steps if (short := study.attack.shortened(n)) is not None}
    parts: list[Pictures] = []
    for group in study.groups:
        left = count - sum(len(part.truth) for part in parts)
        if left > 0:
            parts.append(_of_group(group, left, shown, precision))
    by_example = ("truth", "ssim", "mse", "labels", "success")
    joined: dict[str, Any] = {key: np.concatenate([getattr(part, key) for part in parts]) for key in by_example}
    found = np.concatenate([part.found for part in parts], axis=1)
    return Pictures(found=found, shown=parts[0].shown, **joined)


def _of_group(group: Group, count: int, shown: Mapping[int, ReconstructionAttack], precision: str) -> Pictures:
    """The pictures of one group. Each result is paired with the true example of its gradient that it fits best."""
    examples = group.observation.examples
    attacks = min(len(group.observation), -(-count // examples))
    # A small group is attacked as a whole again: with as many slots as before it needs no other program.
    again = len(group.observation) if len(group.observation) <= SMALL else attacks
    few = first(group.observation, again)
    truth = np.asarray(group.truth_x[:attacks], float)
    done = group.reconstruction  # its first attacks are those of the first seed
    tries = [short.run(few, Execution(precision=precision)) for short in shown.values()]
    pairs = [(one.inputs[:attacks], one.labels[:attacks]) for one in [*tries, done]]
    fitted = [assigned(inputs.astype(np.float64), labels, truth) for inputs, labels in pairs]
    items = group.scores.items

    def flat(values: np.ndarray) -> np.ndarray:
        return values.reshape(attacks * examples, *values.shape[2:])[:count]

    return Pictures(
        truth=flat(truth),
        found=np.stack([flat(inputs) for inputs, _ in fitted]),
        shown=(*(f"step {n}" for n in shown), "result"),
        ssim=flat(items.ssim[:attacks]),
        mse=flat(items.mse[:attacks]),
        labels=np.stack([flat(np.asarray(group.truth_y[:attacks])), flat(fitted[-1][1])], axis=1),
        success=flat(group.scores.success[:attacks]),
    )
