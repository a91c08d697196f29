"""From a config to a federation that can be run: dataset, partition, model, defences, simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from fedveil.accounting import calibrate
from fedveil.config import Config, resolve
from fedveil.core.errors import ConfigError
from fedveil.core.keys import Draws
from fedveil.core.setting import Setting
from fedveil.data.dataset import Dataset
from fedveil.data.partition import Partition
from fedveil.data.split import cut_share
from fedveil.defenses.base import Defense
from fedveil.defenses.catalog import make_all
from fedveil.models.net import Model
from fedveil.planning import (
    Plan,
    batch_law,
    build_model,
    checked_defenses,
    load_data,
    make_setting,
    partition_of,
    plan,
)
from fedveil.rounds.client import Task
from fedveil.rounds.context import FederationContext
from fedveil.rounds.plan import BatchLaw
from fedveil.rounds.server import ServerRule
from fedveil.rounds.simulate import Faults, Schedule, Simulator

__all__ = ["Federation", "Plan", "affordable_rounds", "build_model", "make_setting", "plan", "prepare"]


@dataclass(frozen=True)
class Federation:
    """A resolved config and what was made from it."""

    config: Config
    dataset: Dataset
    partition: Partition
    simulator: Simulator
    rounds: int  # to make: those of the config, or as many as its privacy budget allows
    stops: str = ""  # why these are fewer than the config's
    own_model: bool = False  # the caller's own network: the config's [model] does not describe it


def prepare(
    config: Config,
    *,
    dataset: Dataset | None = None,
    model: Model | None = None,
    trainable: bool = True,
    partition: Partition | None = None,
    draws: Draws | None = None,
) -> Federation:
    """Loads the data and builds everything a run needs; all errors of usage come from here, before anything is written.

    A caller's own dataset or model takes the place of the named one; its own partition that of the config, where clients
    hold their data themselves. `trainable` false: for attacks on the first round, pictures too few to train on will do.
    `draws`: those of a run that is resumed or attacked; by default `train.noise_seed`, or a new secret.
    """
    config = resolve(config, trainable=trainable)
    data = config.data
    share = max(defense.public_share(data.name) for defense in make_all(config.defense))
    if dataset is None:
        dataset = load_data(config, share)
    elif share and dataset.public is None:
        dataset = _with_public(dataset, share)
    if partition is None:
        partition = partition_of(config, dataset.train.y, dataset.classes)
    law = batch_law(config, partition)
    task = _task(config, dataset, partition, law, model)
    draws = draws or Draws.of(config.train.noise_seed)
    context = FederationContext(replace(task, defenses=()), dataset, partition, law, draws)
    task = replace(task, defenses=tuple(defense.prepare(context) for defense in task.defenses))
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
        draws=draws,
        faults=Faults(train.dropout, train.late),
        engine=speed.engine,
        chunk=None if speed.chunk == "auto" else speed.chunk,
    )
    rounds, stops = affordable_rounds(config, task.defenses, task.setting)
    return Federation(config, dataset, partition, simulator, rounds, stops, own_model=model is not None)


def affordable_rounds(config: Config, defenses: Sequence[Defense], setting: Setting) -> tuple[int, str]:
    """The rounds to make: those of the config, or as many as its budget allows; and if fewer, why.

    The account depends on the rounds and on nothing that happens in them, so it is settled before the first one, and a run
    that is resumed stops where the undisturbed one does.
    """
    budget = config.train.budget
    if budget is None:
        return setting.rounds, ""
    goal = calibrate.Goal(budget.epsilon, budget.delta, budget.tap, budget.unit)
    try:
        rounds = calibrate.rounds_for(defenses, setting, goal, most=setting.rounds)
    except ConfigError as error:
        raise ConfigError("train.budget", budget.model_dump(), error.takes) from None
    kept = f"ε = {budget.epsilon:g} at δ = {budget.delta:g}, tap {budget.tap}, unit {budget.unit}"
    if rounds == 0:
        takes = f"one round alone exceeds {kept}: more noise, or a larger ε"
        raise ConfigError("train.budget", budget.model_dump(), takes)
    if rounds == setting.rounds:
        return rounds, ""
    return rounds, f"budget: round {rounds + 1} of {setting.rounds} would exceed {kept}"


def _with_public(dataset: Dataset, share: float) -> Dataset:
    """A caller's own dataset with a public set for the server, cut from the test part wherever that is."""
    if dataset.test is not None:
        public, rest = cut_share(dataset.test, share)
        return replace(dataset, public=public, test=rest)
    public, rest = cut_share(dataset.held_out, share)
    return replace(dataset, public=public, held_out=rest)


def _task(config: Config, dataset: Dataset, partition: Partition, law: BatchLaw, model: Model | None) -> Task:
    train = config.train
    if model is None:
        model = build_model(config, dataset.shape, dataset.classes)
    else:
        _check_model(model, dataset)
    setting = make_setting(config, partition, law, model, len(dataset.train))
    defenses = checked_defenses(config, setting)
    return Task(
        model=model,
        setting=setting,
        optimizer=train.optimizer,
        defenses=defenses,
        scale=dataset.scale,
        dtype=config.speed.precision,
        ragged_steps=len({steps for _, steps in setting.sizes}) > 1,
        half=_half(config),
    )


def _half(config: Config) -> bool:
    """Whether training rounds patches to bfloat16: if asked for, or left open on a graphics card."""
    if config.speed.products == "auto":
        return config.speed.precision == "float32" and jax.default_backend() == "gpu"
    return config.speed.products == "bfloat16"


def _check_model(model: Model, dataset: Dataset) -> None:
    """A caller's own model must give one logit for each class."""
    one = np.zeros((1, *dataset.shape), np.float32)
    logits = jax.eval_shape(lambda key, x: model.apply(model.init(key), x), jax.random.key(0), one)
    if logits.shape != (1, dataset.classes):
        takes = f"for a batch of one it must give logits of shape (1, {dataset.classes}), one for each class"
        raise ConfigError("model", logits.shape, takes)
