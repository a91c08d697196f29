"""CPL, Aono and Melis on the same victims (cpl, Fig 10), compared by SSIM and mean square error.

All three see the gradient of one example per victim on an untrained model. CPL matches gradients. Aono solves a fully
connected first layer, so it needs another network (`mlp`); the other two are shown on that one as well. Its activations are
sigmoids where the config does not say otherwise, because gradient matching needs slopes that change. Melis reconstructs
nothing: it infers a property, here the class, and scores membership. Its guess of the image is, among the attacker's
examples of the inferred class, the one with the highest membership score.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedveil.attacks import study
from fedveil.attacks.base import Progress, ReconstructionAttack, silent
from fedveil.attacks.games.observe import rules_of
from fedveil.attacks.inference import melis, replay, roc
from fedveil.attacks.inference.replay import LocalRules
from fedveil.attacks.observation import AuxiliaryData, GradientObservation, ObservedUpdate
from fedveil.attacks.score import ssim
from fedveil.attacks.taps import examples_as_seen, from_tap, truth_at_tap
from fedveil.config import AttackConfig, Config, for_attack
from fedveil.core.errors import ConfigError
from fedveil.core.files import SHARED, write_text
from fedveil.core.keys import Draws
from fedveil.federation import Federation, prepare
from fedveil.runs import environment

PAIRS = (("cpl", "lenet-cpl"), ("melis", "lenet-cpl"), ("cpl", "mlp"), ("aono", "mlp"), ("melis", "mlp"))
LEAST = {"ssim": -1.0, "mse": 0.0}  # the least possible value of each score; the largest is 1
OWN = 1000  # the most examples that the Melis attacker looks through


@dataclass(frozen=True)
class Found:
    """The scores of one attack for each victim; the mean over several starts."""

    ssim: np.ndarray  # [victims]
    mse: np.ndarray
    label: np.ndarray  # how often the class was right
    seconds: float


def rows(
    config: Config, images: int, pairs: Sequence[tuple[str, str]] = PAIRS, progress: Progress = silent
) -> list[dict[str, Any]]:
    """One row for each attack and network: scores with Student's interval over victims, settings, versions."""
    made = []
    draws = Draws.of(config.train.noise_seed)  # the same victims for all
    for done, (name, network) in enumerate(pairs, 1):
        federation = prepare(_on(config, name, network, images), trainable=False, draws=draws)
        if len(federation.dataset.shape) != 3:
            takes = "the comparison is by SSIM, of images: take an image dataset"
            raise ConfigError("data.name", config.data.name, takes)
        found = _melis(federation, images) if name == "melis" else _reconstructed(federation)
        made.append({**_row(name, found), "settings": _settings(federation, name), **environment()})
        progress(done, len(pairs))
    return made


def write(path: Path, made: Sequence[dict[str, Any]]) -> None:
    """One row to a line."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made), SHARED)


def _on(config: Config, name: str, network: str, images: int) -> Config:
    """The config with this attack and network; everything else, and so the victims, stays the same."""
    asked = AttackConfig(name="aono", tap="client", images=images)  # like melis here, it has nothing to set or draw
    if name == "cpl":
        asked = config.attack.model_copy(update={"name": "cpl", "tap": "client", "images": images})
    init = config.model.init if network == config.model.name else None
    activation = config.model.activation or "sigmoid"
    model = config.model.model_copy(update={"name": network, "init": init, "activation": activation})
    return for_attack(config.model_copy(update={"attack": asked, "model": model}))


def _reconstructed(federation: Federation) -> Found:
    """An attack of the bench on the first round, from `attack.seeds` starts."""
    bench = federation.config.attack
    attack = bench.make()
    assert isinstance(attack, ReconstructionAttack)
    done = study.run_on(study.Round(federation, federation.simulator.start(), 0), attack, bench)

    def by_victim(key: str) -> np.ndarray:
        """[victims]: the mean over starts."""
        pairs = [(getattr(group.scores.items, key)[:, 0], group.reconstruction.attack) for group in done.groups]
        return np.concatenate([np.bincount(which, v.astype(float)) / np.bincount(which) for v, which in pairs])

    seconds = sum(group.reconstruction.seconds for group in done.groups)
    return Found(by_victim("ssim"), by_victim("mse"), by_victim("label"), seconds)


def _melis(federation: Federation, images: int) -> Found:
    """The attacker's best guess of each victim's image, compared with it."""
    victims = list(range(images))
    observation = from_tap(federation, federation.simulator.start(), 0, victims, "client")
    real_x, real_y = truth_at_tap(federation, 0, victims, "client")
    own = examples_as_seen(federation.dataset, federation.dataset.held_out, slice(OWN))
    started = time.monotonic()
    guessed = best_guesses(observation, rules_of(federation), own)
    seconds = time.monotonic() - started
    pairs = list(zip(own.x[guessed], real_x[:, 0], strict=True))
    return Found(
        np.array([ssim(found, real) for found, real in pairs]),
        np.array([np.square(found - real).mean() for found, real in pairs]),
        own.y[guessed] == real_y[:, 0],
        seconds,
    )


def best_guesses(observation: GradientObservation, rules: LocalRules, own: AuxiliaryData) -> np.ndarray:
    """For each gradient, the index of the attacker's example that most likely contributed to it [attacks].

    Only examples of the class that the attacker infers count; the score is the projection of the update on the example's
    own step.
    """
    if observation.own_params:
        raise ConfigError("attack.tap", "client", "every victim received another model: attack them one by one")
    seen = ObservedUpdate(0, observation.params, np.zeros(0))
    steps = melis.record_steps(rules, seen, own).astype(np.float64)  # [own, values]
    each = [jax.tree.map(lambda a, i=index: a[i], observation.gradients) for index in range(len(observation))]
    updates = np.stack([-replay.flat(gradient).astype(np.float64) for gradient in each])  # up to their lengths
    classes = _classes(steps, own.y, updates)
    lengths = np.linalg.norm(steps, axis=1)
    alike = updates @ (steps / np.where(lengths > 0, lengths, 1.0)[:, None]).T  # [attacks, own]
    return np.where(own.y == classes[:, None], alike, -np.inf).argmax(axis=1)


def _classes(steps: np.ndarray, labels: np.ndarray, updates: np.ndarray) -> np.ndarray:
    """The class of the example behind each update, [updates].

    A logistic regression learns it from the attacker's own steps. All vectors are scaled to length one.
    """
    from sklearn.linear_model import LogisticRegression

    known, asked = (a / np.maximum(np.linalg.norm(a, axis=1, keepdims=True), 1e-30) for a in (steps, updates))
    ours, theirs = melis.in_span(known, asked)
    return LogisticRegression(C=melis.PENALTY, max_iter=1000).fit(ours, labels).predict(theirs)


def _row(name: str, found: Found) -> dict[str, Any]:
    made: dict[str, Any] = {"attack": name, "victims": len(found.ssim), "tap": "client", "round": 0}
    for key, values in (("ssim", found.ssim), ("mse", found.mse)):
        span = roc.mean_interval(values) if len(values) > 1 else None
        clipped = None if span is None else [max(span[0], LEAST[key]), min(span[1], 1.0)]
        made |= {key: float(values.mean()), f"{key}_interval": clipped}
    return {**made, "label_success_rate": float(found.label.mean()), "seconds": found.seconds}


def _settings(federation: Federation, name: str) -> dict[str, Any]:
    """The settings that the row was measured with."""
    config = federation.config
    train = config.train
    data = {"name": config.data.name, "partition": config.data.partition, "clients": config.data.clients}
    if config.data.name == "lfw":
        data |= {"min_images": config.data.min_images, "size": config.data.size}
    used = {"batch": train.batch, "local_steps": train.local_steps, "seed": train.seed, "noise_seed": train.noise_seed}
    model = {key: getattr(config.model, key) for key in ("name", "init", "activation")}
    if config.model.name == "mlp":
        model["hidden"] = config.model.hidden
    attack: dict[str, Any] = {"name": name, **(config.attack.own() if name != "melis" else {"own": OWN})}
    if name == "cpl":
        attack["seeds"] = config.attack.seeds
    return {"data": data, "model": model, "train": used, "attack": attack}
