"""The one file of the golden record that imports fedveil. When modules move, only this file changes.

`explicit` is needed to record; `train`, `ledger` and `attack` to record and to compare. All take a config as plain data.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from fedveil.accounting.ledger import rows
from fedveil.attacks.inference.base import InferenceAttack
from fedveil.attacks.orchestrate import attack as run_attack
from fedveil.config import TrainConfig, for_attack, from_dict, resolve
from fedveil.data.partition import PARTITIONS
from fedveil.data.registry import DATASETS
from fedveil.federation import plan, prepare
from fedveil.models.catalog import MODELS
from fedveil.training import train as run_training

Document = dict[str, Any]
ENGINES = ("vectorised", "reference")

# Keys that are refused where a partition, dataset or model does not read them, even at their default value.
DATA_KEYS = ("per_client", "classes_per_client", "groups_per_client", "alpha", "min_images", "size")
MODEL_KEYS = ("activation", "dropout", "hidden", "pooling", "channels")


def explicit(short: Document, with_attack: bool = False) -> Document:
    """The config with every key that is read written out."""
    given = from_dict(short)
    config = resolve(for_attack(given) if with_attack and not _infers(given) else given)
    data, model = config.data, config.model
    read = (*PARTITIONS[data.partition or ""].keys, *DATASETS[data.name].keys)
    whole = {
        "data": _read(data.model_dump(), DATA_KEYS, read),
        "model": _read(model.model_dump(), MODEL_KEYS, MODELS[model.name or ""].keys),
        "train": config.train.model_dump(),
        "speed": config.speed.model_dump(),
        "defense": [{"name": d.name, **dataclasses.asdict(d)} for d in config.defense],
    }
    if with_attack:
        whole["attack"] = _attack_keys(config)
    return whole


def _infers(config: Any) -> bool:
    return isinstance(config.attack.make(), InferenceAttack)


def _read(section: Document, optional: tuple[str, ...], read: tuple[str, ...]) -> Document:
    return {key: value for key, value in section.items() if key not in optional or key in read}


def _attack_keys(config: Any) -> Document:
    """What the attack reads; an inference attack's keys are written out in `cases.py`, since some exclude each other."""
    asked = config.attack
    if _infers(config):
        given = {key: value for key, value in asked.model_dump().items() if value is not None and key != "images"}
        return {"name": asked.name, **given}
    bench = {"tap": asked.at, "images": asked.images, "seeds": asked.seeds, "round": asked.round or 0}
    return {"name": asked.name, **bench, "rule": asked.rule or "ssim", **dataclasses.asdict(asked.make())}


def train(config: Document, engine: str) -> dict[str, np.ndarray]:
    """The final parameters by their names."""
    asked = copy.deepcopy(config)
    asked["speed"]["engine"] = engine
    result = run_training(prepare(from_dict(_seeded(asked))))
    return dict(sorted(_named(result.params)))


def _named(tree: Any) -> Iterator[tuple[str, np.ndarray]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield "/".join(str(part.key) for part in path), np.asarray(leaf)


def _seeded(config: Document) -> Document:
    """The config with the noise drawn from its seed. Before `noise_seed` existed noise always was."""
    if "noise_seed" not in TrainConfig.model_fields:
        return config
    return {**config, "train": {**config["train"], "noise_seed": config["train"]["seed"]}}


def ledger(config: Document) -> list[Document]:
    """Every row of `fedveil ledger`, as its JSON says it."""
    planned = plan(from_dict(config))
    return [row.as_dict() for row in rows(planned.transcript())]


def attack(config: Document) -> dict[str, Any]:
    """The numbers of an attack: of a reconstruction for each victim, of an inference attack those of its document."""
    done = run_attack(from_dict(_seeded({**config, "attack": {**config["attack"], "seconds": 0}})))
    if done.outcome is not None:
        return dict(_flat(done.outcome.document))
    assert done.study is not None
    return {name: found for group in done.study.groups for name, found in _victims(group)}


def _victims(group: Any) -> Iterator[tuple[str, Document]]:
    """Each victim's outcome and score; quality is the mean over the examples behind one gradient."""
    scores, items, done = group.scores, group.scores.items, group.scores.reconstruction
    for i in range(len(done)):
        name = f"{group.truth_y.shape[-1]} at once, victim {done.attack[i]}, seed {done.seed[i]}"
        outcome = {"success": scores.success[i].tolist(), "label": items.label[i].tolist()}
        quality = {"ssim": float(items.ssim[i].mean()), "mse": float(items.mse[i].mean())}
        cost = {"iterations": int(done.iterations[i]), "distance": float(done.distance[i])}
        yield name, outcome | quality | cost


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All numbers of a document; texts may be rewritten and times differ."""
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key} ")
        elif isinstance(value, list | tuple):
            yield from _flat({str(i): one for i, one in enumerate(value)}, f"{prefix}{key} ")
        elif not isinstance(value, str) and "seconds" not in key:
            yield f"{prefix}{key}", value
