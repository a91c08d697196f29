"""The scored result of an inference attack."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fedveil.attacks.inference.base import InferenceAttack


@dataclass(frozen=True)
class Outcome:
    """The document of an attack, the rows of its picture, and its ROC curves."""

    document: dict[str, Any]
    pictures: tuple[np.ndarray, ...] = ()  # rows [n, height, width, channels], values in [0, 1]
    captions: tuple[str, ...] = ()  # one for each row of pictures
    curves: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # false and true positive rates
    cut: dict[str, tuple[int, int]] = field(default_factory=dict)  # what the time limit left unfinished: made, planned


def cut(**counts: tuple[int, int]) -> dict[str, tuple[int, int]]:
    """Those of the counts (made, planned) that are not complete."""
    return {name: pair for name, pair in counts.items() if pair[0] < pair[1]}


def head(attack: InferenceAttack) -> dict[str, Any]:
    """The first entries of a document; `seat` is the former name of `adversary`, kept for scripts that read it."""
    where = attack.position
    return {"attack": attack.name, "adversary": where.adversary, "seat": where.adversary, "tap": where.tap}
