"""Three ways to a victim's image, side by side (cpl, Fig 10): CPL, Aono and Melis, by SSIM and mean square error.

All three see the same victims: the gradient of one example each on an untrained model. CPL matches gradients; Aono solves a
fully connected first layer, so it has a network of its own kind (`mlp`), on which the other two are shown as well, with
sigmoids where the config does not say otherwise: gradient matching needs slopes that change, and cpl's networks have them.
Melis reconstructs nothing: it infers a property, here the class, and scores membership. Its best guess of the image is the
example of its own, of the class that it infers, with the highest membership score; that is what is compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedveil.attacks import study, truth
from fedveil.attacks.inference import melis, replay, roc
from fedveil.attacks.inference.melis import Seen, View
from fedveil.attacks.observe import AuxiliaryData, Observation, from_tap
from fedveil.attacks.score import ssim
from fedveil.config import AttackConfig, Config, for_attack
from fedveil.core.errors import ConfigError
from fedveil.core.keys import Draws
from fedveil.federation import Federation, prepare
from fedveil.runs import environment

PAIRS = (("cpl", "lenet-cpl"), ("melis", "lenet-cpl"), ("cpl", "mlp"), ("aono", "mlp"), ("melis", "mlp"))
LEAST = {"ssim": -1.0, "mse": 0.0}  # what each figure can be at least; at most, both are one
OWN = 1000  # examples of its own that the Melis attacker looks through, at most


@dataclass(frozen=True)
class Found:
    """What one attack came to, for each victim; of several starts, their mean."""

    ssim: np.ndarray  # [victims]
    mse: np.ndarray
    label: np.ndarray  # how often the class was right
    seconds: float


def rows(
    config: Config,
    images: int,
    pairs: Sequence[tuple[str, str]] = PAIRS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict[str, Any]]:
    """One row for each attack and network: figures with Student's interval over victims, settings, versions."""
    made = []
    draws = Draws.of(config.train.noise_seed)  # the same victims for all
    for place, (name, network) in enumerate(pairs):
        federation = prepare(_on(config, name, network, images), trainable=False, draws=draws)
        if len(federation.dataset.shape) != 3:
            raise ConfigError(
                "data.name", config.data.name, "the comparison is by SSIM, of images: take an image dataset"
            )
        found = _melis(federation, images) if name == "melis" else _reconstructed(federation)
        made.append({**_row(name, found), "settings": _settings(federation, name), **environment()})
        progress(place + 1, len(pairs))
    return made


def write(path: Path, made: Sequence[dict[str, Any]]) -> None:
    """One row to a line."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made), encoding="utf-8")


def _on(config: Config, name: str, network: str, images: int) -> Config:
    """The config with this attack and network; all else, and so the victims, stays."""
    asked = AttackConfig(name="aono", tap="client", images=images)  # which, like melis here, has nothing to set or draw
    if name == "cpl":
        asked = config.attack.model_copy(update={"name": "cpl", "tap": "client", "images": images})
    init = config.model.init if network == config.model.name else None
    activation = config.model.activation or "sigmoid"
    model = config.model.model_copy(update={"name": network, "init": init, "activation": activation})
    return for_attack(config.model_copy(update={"attack": asked, "model": model}))


def _reconstructed(federation: Federation) -> Found:
    """An attack of the bench on the first round, from `attack.seeds` starts."""
    done = study.run(federation, federation.simulator.start(), 0, federation.config.attack)
    parts = [(group.scores.items, group.reconstruction.attack) for group in done.groups]
    ssims, mses, labels = (
        np.concatenate([_by_victim(getattr(items, key)[:, 0], which) for items, which in parts])
        for key in ("ssim", "mse", "label")
    )
    return Found(ssims, mses, labels, sum(group.reconstruction.seconds for group in done.groups))


def _by_victim(values: np.ndarray, which: np.ndarray) -> np.ndarray:
    """[victims]: the mean over starts of values [attacks] on the victims `which` [attacks]."""
    return np.bincount(which, weights=values.astype(float)) / np.bincount(which)


def _melis(federation: Federation, images: int) -> Found:
    """The attacker's best guess of each victim's image, compared with it."""
    victims = list(range(images))
    observation = from_tap(federation, federation.simulator.start(), 0, victims, "client")
    real_x, real_y = truth.of_tap(federation, 0, victims, "client")
    data = federation.dataset
    held = data.held_out.take(np.arange(min(OWN, len(data.held_out))))
    own = AuxiliaryData(held.x.astype(np.float64) * data.scale, held.y)
    started = time.monotonic()
    guessed = best_guesses(observation, View((), replay.rules_of(federation), own))
    seconds = time.monotonic() - started
    pairs = list(zip(own.x[guessed], real_x[:, 0], strict=True))
    return Found(
        np.array([ssim(found, real) for found, real in pairs]),
        np.array([np.square(found - real).mean() for found, real in pairs]),
        own.y[guessed] == real_y[:, 0],
        seconds,
    )


def best_guesses(observation: Observation, view: View) -> np.ndarray:
    """[attacks]: for each gradient the attacker's own example, of the class it infers, that most looks like a member."""
    if observation.own_params:
        raise ConfigError("attack.tap", "client", "every victim received a model of its own: attack them one by one")
    seen = Seen(0, observation.params, np.zeros(0))
    steps = melis.record_steps(view.rules, seen, view.own).astype(np.float64)  # [own, values]
    updates = np.stack([_step(observation, place) for place in range(len(observation))])
    classes = _classes(steps, view.own.y, updates)
    lengths = np.linalg.norm(steps, axis=1)
    alike = updates @ (steps / np.where(lengths > 0, lengths, 1.0)[:, None]).T  # [attacks, own]
    return np.where(view.own.y == classes[:, None], alike, -np.inf).argmax(axis=1)


def _step(observation: Observation, place: int) -> np.ndarray:
    """The update behind one gradient, up to its length."""
    return -replay.flat(jax.tree.map(lambda a: a[place], observation.gradients)).astype(np.float64)


def _classes(steps: np.ndarray, labels: np.ndarray, updates: np.ndarray) -> np.ndarray:
    """[updates]: the class of the example behind each, by a logistic regression on the attacker's own, at length one."""
    from sklearn.linear_model import LogisticRegression

    known, asked = (a / np.maximum(np.linalg.norm(a, axis=1, keepdims=True), 1e-30) for a in (steps, updates))
    ours, theirs = melis.in_span(known, asked)
    return LogisticRegression(C=melis.PENALTY, max_iter=1000).fit(ours, labels).predict(theirs)


def _row(name: str, found: Found) -> dict[str, Any]:
    made: dict[str, Any] = {"attack": name, "victims": len(found.ssim), "tap": "client", "round": 0}
    for key in ("ssim", "mse"):
        values = getattr(found, key)
        made[key] = float(values.mean())
        made[f"{key}_interval"] = None
        if len(values) > 1:
            low, high = roc.mean_interval(values)
            made[f"{key}_interval"] = [max(low, LEAST[key]), min(high, 1.0)]
    made["label_success_rate"] = float(found.label.mean())
    made["seconds"] = found.seconds
    return made


def _settings(federation: Federation, name: str) -> dict[str, Any]:
    """What the row was measured with."""
    config = federation.config
    train = config.train
    data = {"name": config.data.name, "partition": config.data.partition, "clients": config.data.clients}
    if config.data.name == "lfw":
        data |= {"min_images": config.data.min_images, "size": config.data.size}
    used = {"batch": train.batch, "local_steps": train.local_steps, "seed": train.seed, "noise_seed": train.noise_seed}
    model = {key: getattr(config.model, key) for key in ("name", "init", "activation")}
    if config.model.name == "mlp":
        model["hidden"] = config.model.hidden
    attack: dict[str, Any] = {"name": name, **(config.attack.given() if name != "melis" else {"own": OWN})}
    if name == "cpl":
        attack["seeds"] = config.attack.seeds
    return {"data": data, "model": model, "train": used, "attack": attack}
