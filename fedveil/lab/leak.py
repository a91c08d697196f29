"""The live attack of the Leak page: attacks what a tap shows without and with the defence, side by side.

Both sides are one batch of attacks from the same starts, so that they differ in the defence alone. The intermediate
pictures are compared with the truth, as a bench does; the attack sees the two observations and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from scipy.stats import binom

from fedveil.attacks.base import Execution, Reconstruction, ReconstructionAttack, check_tap
from fedveil.attacks.observation import GradientObservation
from fedveil.attacks.reconstruction.scheduler import Snapshot
from fedveil.attacks.score import Scores, assigned, psnr, score, ssim
from fedveil.attacks.study import Round
from fedveil.config import Config, from_dict
from fedveil.core.keys import Draws
from fedveil.data.pixels import png_uri
from fedveil.federation import prepare

Tell = Callable[[dict[str, Any]], None]
SIDES = ("open", "defended")
BETWEEN = 0.35  # seconds between two pictures of an attack, about
GROWTH = 6  # early pictures follow after 1, 2, 3, … evaluations, later ones after a sixth of those made so far


def run(documents: list[dict[str, Any]], tell: Tell) -> dict[str, Any]:
    """Attacks the first round of each document, undefended first. Sends true pictures and steps; returns the scores."""
    tell({"stage": "observing", "text": "the client computes its gradient"})
    draws = Draws.of(from_dict(documents[0]).train.noise_seed)  # one: the same batch without and with the defence
    sides = [_observe(document, draws) for document in documents]
    config, x, y = sides[0].config, sides[0].x, sides[0].y
    tell({"stage": "truth", "pictures": [[png_uri(p) for p in one] for one in x], "labels": y.tolist()})
    together = _stack([side.observation for side in sides])
    tell({"stage": "compiling", "text": "the attack is compiled (once for each model and size)"})
    done = sides[0].attack.run(together, Execution(precision=config.speed.precision, monitor=_Monitor(x, tell)))
    scores = score(done, np.concatenate([x] * len(sides)), np.concatenate([y] * len(sides)), config.attack.rule)
    classes = together.classes
    return {SIDES[side]: _summary(scores, side, y, classes) for side in range(len(sides))} | {
        "rule": scores.rule.says,
        "seconds": done.seconds,
        "compile_seconds": done.compile_seconds,
    }


@dataclass(frozen=True)
class _Side:
    """One side, without or with the defence: what the tap shows of the client, and the true pictures."""

    config: Config
    attack: ReconstructionAttack
    observation: GradientObservation
    x: np.ndarray
    y: np.ndarray


def _observe(document: dict[str, Any], draws: Draws) -> _Side:
    config = from_dict(document)
    attack, tap = config.attack.make(), config.attack.at
    assert isinstance(attack, ReconstructionAttack)
    check_tap(attack, tap)
    federation = prepare(config, trainable=False, draws=draws)
    attacked = Round(federation, federation.simulator.start(), 0)
    return _Side(federation.config, attack, *attacked.observe(attack, [0], tap))


def _stack(seen: list[GradientObservation]) -> GradientObservation:
    """One batch of observations of a client under different defences. Ids recur, so that attacks start alike."""
    own = any(one.own_params for one in seen)

    def params(one: GradientObservation) -> Any:
        if one.own_params or not own:
            return one.params
        return jax.tree.map(lambda a: np.repeat(np.asarray(a)[None], len(one), axis=0), one.params)

    def joined(trees: list[Any]) -> Any:
        return jax.tree.map(lambda *a: np.concatenate([np.asarray(part) for part in a]), *trees)

    return replace(
        seen[0],
        gradients=joined([one.gradients for one in seen]),
        params=joined([params(one) for one in seen]) if own else seen[0].params,
        own_params=own,
        ids=np.concatenate([one.ids for one in seen]),
    )


class _Monitor:
    """Scores and reports attacks while they run, and says after how many evaluations to call it next."""

    def __init__(self, x: np.ndarray, tell: Tell):
        self.x, self.tell = x, tell
        self.began = time.monotonic()
        self.lengths: dict[int, int] = {}  # of each thread's last chunk
        self.lock = threading.Lock()

    def __call__(self, inputs: np.ndarray, labels: np.ndarray, shot: Snapshot) -> int:
        for row in range(len(shot.attack)):
            self._show(inputs[row], labels[row], shot, row)
        thread = threading.get_ident()
        before = self.lengths.get(thread, 1)
        at_most = BETWEEN * before / max(shot.seconds, 1e-4)
        length = int(max(1, min(int(shot.evaluations.max()) // GROWTH, at_most)))
        self.lengths[thread] = length
        return length

    def _show(self, inputs: np.ndarray, labels: np.ndarray, shot: Snapshot, row: int) -> None:
        side, attack = divmod(int(shot.attack[row]), len(self.x))
        real = self.x[attack]
        found, guessed = assigned(inputs[None].astype(np.float64), labels[None], real[None])
        alike = [ssim(mine, its) for mine, its in zip(found[0], real, strict=True)]
        event = {
            "stage": "step",
            "side": SIDES[side],
            "attack": attack,
            "iteration": int(shot.iteration[row]),
            "evaluations": int(shot.evaluations[row]),
            "distance": float(shot.distance[row]),
            "ssim": alike,
            "labels": guessed[0].tolist(),
            "seconds": round(time.monotonic() - self.began, 3),
            "pictures": [png_uri(picture) for picture in found[0]],
        }
        with self.lock:
            self.tell(event)


def labels_found(right: np.ndarray, truth: np.ndarray, classes: int) -> bool:
    """Whether the labels found are better than guesses: as many right at most once in twenty times by chance.

    A constant guess is right for all pictures of one class, so the pictures of a class count as one.
    """
    held = np.unique(truth)
    hits = sum(bool(right[truth == label].all()) for label in held)
    return hits > 0 and float(binom.sf(hits - 1, len(held), 1 / max(2, classes))) <= 0.05


def _summary(scores: Scores, side: int, truth: np.ndarray, classes: int) -> dict[str, Any]:
    """One side's scores; `truth` has the labels of the pictures."""
    attacks = len(truth)
    rows, done = slice(side * attacks, (side + 1) * attacks), scores.reconstruction
    items = scores.items
    found = labels_found(items.label[rows].ravel(), truth.ravel(), classes)
    return {
        "success_rate": float(scores.success[rows].mean()),
        "label_success_rate": float(items.label[rows].mean()),
        "label_guess_rate": 1 / max(2, classes),
        "labels_found": found,
        "ssim": float(items.ssim[rows].mean()),
        "mse": float(items.mse[rows].mean()),
        "psnr": float(psnr(items.mse[rows]).mean()),
        "distance": float(done.distance[rows].mean()),
        "iterations": int(done.iterations[rows].max()),
        "ending": _endings(done, rows),
        "pictures": int(items.ssim[rows].size),
    }


def _endings(done: Reconstruction, rows: slice) -> list[str]:
    return sorted(set(done.ending[rows].tolist()))
