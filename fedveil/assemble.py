"""From a config to a federation that can be run: dataset, partition, model, defences, simulator."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import numpy as np

from fedveil.config import Config, resolve
from fedveil.data.dataset import Dataset
from fedveil.data.load import load
from fedveil.data.partition import Partition, make_partition
from fedveil.data.split import cut_share
from fedveil.defenses.base import Setting, View
from fedveil.defenses.catalog import make_all
from fedveil.errors import ConfigError
from fedveil.models.build import Choices, build
from fedveil.models.net import Model
from fedveil.rounds.client import Task
from fedveil.rounds.plan import BatchLaw
from fedveil.rounds.server import ServerRule
from fedveil.rounds.simulate import Faults, Schedule, Simulator, client_weights


@dataclass(frozen=True)
class Federation:
    """A resolved config and what was made from it."""

    config: Config
    dataset: Dataset
    partition: Partition
    simulator: Simulator
    own_model: bool = False  # the caller's own network: the config's [model] does not describe it


def prepare(config: Config, *, dataset: Dataset | None = None, model: Model | None = None) -> Federation:
    """Loads the data and builds everything a run needs; all errors of usage come from here, before anything is written.

    A caller's own dataset or model takes the place of the named one.
    """
    config = resolve(config)
    data = config.data
    share = max(defense.public_share(data.name) for defense in make_all(config.defense))
    if dataset is None:
        dataset = load(
            data.name,
            dir=data.dir,
            split=data.split,
            min_images=data.min_images,
            size=data.size,
            file=data.file,
            public=share,
        )
    elif share and dataset.public is None:
        dataset = _with_public(dataset, share)
    partition = make_partition(
        data.partition or "shards",
        dataset.train.y,
        clients=data.clients,
        per_client=data.per_client,
        classes_per_client=data.classes_per_client or 2,
        alpha=data.alpha,
        seed=config.train.seed,
        classes=dataset.classes,
    )
    law = _batch_law(config, partition)
    task = _task(config, dataset, partition, law, model)
    view = View(replace(task, defenses=()), dataset, partition, law, config.train.seed)
    task = replace(task, defenses=tuple(defense.prepare(view) for defense in task.defenses))
    train, speed = config.train, config.speed
    assert train.lr is not None and train.lr_end is not None and train.rounds is not None
    simulator = Simulator(
        task,
        ServerRule(train.server_lr, train.server_momentum, keeps_late=train.late > 0),
        dataset,
        partition,
        law,
        Schedule(train.lr, train.lr_end, train.rounds),
        seed=train.seed,
        faults=Faults(train.dropout, train.late),
        engine=speed.engine,
        chunk=None if speed.chunk == "auto" else speed.chunk,
    )
    return Federation(config, dataset, partition, simulator, own_model=model is not None)


def _with_public(dataset: Dataset, share: float) -> Dataset:
    """A caller's own dataset with a public set for the server, cut from the test part wherever that is."""
    if dataset.test is not None:
        public, rest = cut_share(dataset.test, share)
        return replace(dataset, public=public, test=rest)
    public, rest = cut_share(dataset.held_out, share)
    return replace(dataset, public=public, held_out=rest)


def _batch_law(config: Config, partition: Partition) -> BatchLaw:
    train = config.train
    assert train.batch is not None
    largest = int(partition.length.max())
    if train.batch > largest:
        takes = f"the largest client holds {largest} examples: lower train.batch or raise data.per_client"
        raise ConfigError("train.batch", train.batch, takes)
    return BatchLaw(train.batching, train.batch, train.local_steps, train.local_epochs)


def _task(config: Config, dataset: Dataset, partition: Partition, law: BatchLaw, model: Model | None) -> Task:
    train, chosen = config.train, config.model
    assert train.batch is not None and train.per_round is not None and train.rounds is not None
    if model is None:
        choices = Choices(
            chosen.activation, chosen.init, chosen.dropout, tuple(chosen.hidden), chosen.pooling, chosen.channels
        )
        model = build(chosen.name or "cnn", dataset.shape, dataset.classes, choices)
    else:
        _check_model(model, dataset)
    steps = [law.steps_for(int(n)) for n in np.unique(partition.length)]
    setting = Setting(
        clients=config.data.clients,
        per_round=train.per_round,
        rounds=train.rounds,
        batch=train.batch,
        local_steps=max(steps),
        sampling=train.sampling,
        batching=train.batching,
        aggregation=train.aggregation,
        weights=train.weights,
        secure_aggregation=train.secure_aggregation,
        lr=train.lr or 1.0,
        optimizer=train.optimizer,
        max_weight=float(client_weights(train.weights, partition).max()),
        smallest=int(partition.length.min()),
        layers=len(jax.eval_shape(model.init, jax.random.key(0))),
    )
    defenses = make_all(config.defense)
    for defense in defenses:
        defense.check(setting)
        if defense.stateful and train.sampling == "with-replacement":
            takes = f"{defense.name} remembers each client, so a client cannot take part twice in a round: use fixed"
            raise ConfigError("train.sampling", train.sampling, takes)
    return Task(
        model=model,
        setting=setting,
        optimizer=train.optimizer,
        defenses=defenses,
        scale=dataset.scale,
        dtype=config.speed.precision,
        ragged_steps=min(steps) != max(steps),
    )


def _check_model(model: Model, dataset: Dataset) -> None:
    """A caller's own model must give one logit for each class."""
    one = np.zeros((1, *dataset.shape), np.float32)
    logits = jax.eval_shape(lambda key, x: model.apply(model.init(key), x), jax.random.key(0), one)
    if logits.shape != (1, dataset.classes):
        takes = f"for a batch of one it must give logits of shape (1, {dataset.classes}), one for each class"
        raise ConfigError("model", logits.shape, takes)
