"""The live attack of the Leak page: what a tap shows without and with the defence, attacked side by side.

Both sides are one batch of attacks from the same starts, so that they differ in the defence alone. What is shown on the way
is compared with the truth, as a bench does; the attack itself sees the two observations and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fedveil.attacks import study, truth
from fedveil.attacks.catalog import settings as make_settings
from fedveil.attacks.observe import Observation, from_tap
from fedveil.attacks.reconstruction.run import Reconstruction, reconstruct
from fedveil.attacks.reconstruction.scheduler import Sight
from fedveil.attacks.score import Scores, assigned, psnr, score, ssim
from fedveil.config import from_dict
from fedveil.core.keys import Draws
from fedveil.data.pixels import png_uri
from fedveil.federation import prepare

Tell = Callable[[dict[str, Any]], None]
SIDES = ("open", "defended")
BETWEEN = 0.35  # seconds between two looks at an attack, about
GROWTH = 6  # the first looks come after 1, 2, 3, … evaluations, later ones a sixth of what was made


def run(documents: list[dict[str, Any]], tell: Tell) -> dict[str, Any]:
    """Attacks the first round of each document (undefended first); tells truth, steps; returns the scores."""
    tell({"stage": "observing", "text": "the client computes its gradient"})
    draws = Draws.of(from_dict(documents[0]).train.noise_seed)  # one: the same batch without and with the defence
    seen = [_observe(document, draws) for document in documents]
    config, (x, y) = seen[0][2], seen[0][1]
    tell({"stage": "truth", "pictures": [[png_uri(p) for p in one] for one in x], "labels": y.tolist()})
    together = _stack([observation for observation, _, _ in seen])
    settings = make_settings(config.attack.name, **config.attack.given())
    tell({"stage": "compiling", "text": "the attack is compiled (once for each model and size)"})
    eyes = _Eyes(x, tell)
    done = reconstruct(together, settings, precision=config.speed.precision, watch=eyes)
    scores = score(done, np.concatenate([x] * len(seen)), np.concatenate([y] * len(seen)), config.attack.rule)
    return {SIDES[side]: _summary(scores, side, len(x)) for side in range(len(seen))} | {
        "rule": scores.rule.says,
        "seconds": done.seconds,
        "compile_seconds": done.compile_seconds,
    }


def _observe(document: dict[str, Any], draws: Draws) -> tuple[Observation, tuple[np.ndarray, np.ndarray], Any]:
    """What the tap shows of the one client, and what is behind it."""
    config = from_dict(document)
    study.check_tap(config.attack)
    federation = prepare(config, trainable=False, draws=draws)
    state = federation.simulator.start()
    observation = from_tap(federation, state, 0, [0], config.attack.at)
    return observation, truth.of_tap(federation, 0, [0], config.attack.at), federation.config


def _stack(seen: list[Observation]) -> Observation:
    """Observations of the same client under different defences as one; ids recur, so that starts are the same."""
    own = any(one.own_params for one in seen)

    def params(one: Observation) -> Any:
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


class _Eyes:
    """Watches the attacks: scores what they have so far, tells it, and says when to look again."""

    def __init__(self, x: np.ndarray, tell: Tell):
        self.x, self.tell = x, tell
        self.began = time.monotonic()
        self.lengths: dict[int, int] = {}  # of each thread's last spell
        self.lock = threading.Lock()

    def __call__(self, inputs: np.ndarray, labels: np.ndarray, sight: Sight) -> int:
        for place, number in enumerate(sight.attack):
            self._show(int(number), inputs[place], labels[place], sight, place)
        thread = threading.get_ident()
        before = self.lengths.get(thread, 1)
        at_most = BETWEEN * before / max(sight.seconds, 1e-4)
        length = int(max(1, min(int(sight.evaluations.max()) // GROWTH, at_most)))
        self.lengths[thread] = length
        return length

    def _show(self, number: int, inputs: np.ndarray, labels: np.ndarray, sight: Sight, place: int) -> None:
        side, attack = divmod(number, len(self.x))
        real = self.x[attack]
        found, guessed = assigned(inputs[None].astype(np.float64), labels[None], real[None])
        alike = [ssim(mine, its) for mine, its in zip(found[0], real, strict=True)]
        event = {
            "stage": "step",
            "side": SIDES[side],
            "attack": attack,
            "iteration": int(sight.iteration[place]),
            "evaluations": int(sight.evaluations[place]),
            "distance": float(sight.distance[place]),
            "ssim": alike,
            "labels": guessed[0].tolist(),
            "seconds": round(time.monotonic() - self.began, 3),
            "pictures": [png_uri(picture) for picture in found[0]],
        }
        with self.lock:
            self.tell(event)


def _summary(scores: Scores, side: int, attacks: int) -> dict[str, Any]:
    """One side's scores."""
    rows, done = slice(side * attacks, (side + 1) * attacks), scores.reconstruction
    items = scores.items
    return {
        "success_rate": float(scores.success[rows].mean()),
        "label_success_rate": float(items.label[rows].mean()),
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
