"""From a config to a `Plan`, which an account reads, and to a `Federation`, which can be run.

`plan` needs no JAX, and no data where the sizes are known: accounts are quick and do not wait for downloads. `prepare`
loads the data and builds model, defences and simulator.

The module is callable: `fedveil.federation(...)` is its function `federation`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedveil.accounting import calibrate
from fedveil.accounting.transcript import Transcript, planned
from fedveil.config import Config, Defenses, Settings, fitting, from_settings, resolve
from fedveil.core.errors import ConfigError
from fedveil.core.keys import Draws
from fedveil.core.setting import Setting
from fedveil.core.system import make_callable
from fedveil.data.arrays import from_arrays
from fedveil.data.dataset import Dataset, cut_share
from fedveil.data.partition import Partition, PartitionSettings, make_partition
from fedveil.data.registry import DATASETS, load
from fedveil.data.sizes import read_sizes
from fedveil.defenses.base import Defense
from fedveil.models.catalog import build_any
from fedveil.models.net import Model, Net
from fedveil.simulation.sampling import BatchSampling, client_weights

if TYPE_CHECKING:
    from fedveil.simulation.client import Task
    from fedveil.simulation.simulator import Simulator


Arrays = Dataset | Sequence[np.ndarray]
IN_MEMORY = "(arrays in memory)"  # recorded as the file name of a dataset that a caller holds


@dataclass(frozen=True)
class Plan:
    """What an account needs to know of a run: no data, no training."""

    config: Config
    defenses: tuple[Defense, ...]
    setting: Setting

    def transcript(self, rounds: int | None = None) -> Transcript:
        """The transcript of the planned rounds, or of another number of them, before any is executed."""
        return planned(self.defenses, self.setting, self.setting.rounds if rounds is None else rounds)


# Partitions whose sizes and copies do not depend on which example has which label.
LABEL_FREE = ("iid", "shards", "copies", "quantity")


def plan(config: Config) -> Plan:
    """The setting of a config, without its data where the sizes are known: accounts do not wait for downloads."""
    if config.data.sizes is not None:
        return _plan_of_sizes(config)
    dataset = load_data(config, 0.0) if config.data.name == "file" and config.data.file is not None else None
    asked, config = config, resolve(own_clients(config, dataset))
    data = config.data
    info = DATASETS[data.name]
    examples = info.train_size(data.split)
    if dataset is not None:
        shape, classes, labels = dataset.shape, dataset.classes, dataset.train.y
    elif examples is not None and data.partition in LABEL_FREE and not data.label_sets:
        shape, classes, labels = info.shape, info.classes, np.arange(examples) % info.classes
    else:
        dataset = load_data(config, 0.0)
        shape, classes, labels = dataset.shape, dataset.classes, dataset.train.y
    partition = partition_of(config, labels, classes, None if dataset is None else dataset.train.client)
    config = fitting(asked, config, int(partition.length.max()))
    return _planned(config, partition, shape, classes, len(labels))


def _planned(config: Config, partition: Partition, shape: tuple[int, ...], classes: int, examples: int) -> Plan:
    batches, model = batch_sampling(config, partition), build_model(config, shape, classes)
    setting = make_setting(config, partition, batches, model, examples)
    return Plan(config, checked_defenses(config, setting), setting)


def _plan_of_sizes(config: Config) -> Plan:
    """The setting of a federation of which only the sizes are known: nobody's data is needed."""
    data, info = config.data, DATASETS[config.data.name]
    sizes = read_sizes(data.sizes)
    shape, classes = tuple(data.shape or info.shape), data.classes or info.classes
    if not shape or not classes:
        key, value = ("data.shape", data.shape) if not shape else ("data.classes", data.classes)
        raise ConfigError(key, value, "is needed beside data.sizes where data.name names no dataset of known shape")
    known = data.model_copy(update={"clients": len(sizes), "partition": "own"})
    config = fitting(config, resolve(config.model_copy(update={"data": known})), max(sizes))
    owners = np.repeat(np.arange(len(sizes)), sizes)
    partition = partition_of(config, owners % classes, classes, owners)
    return _planned(config, partition, shape, classes, len(owners))


def own_clients(config: Config, dataset: Dataset | None) -> Config:
    """The config with the clients that the data itself names, unless it asks for another partition."""
    data = config.data
    if dataset is None or dataset.train.client is None or data.partition not in (None, "own"):
        return config
    own = int(dataset.train.client.max()) + 1
    if data.clients != own and "clients" in data.model_fields_set:
        raise ConfigError("data.clients", data.clients, f"the data already has {own} clients: leave it out")
    return config.model_copy(update={"data": data.model_copy(update={"clients": own, "partition": "own"})})


def partition_of(config: Config, labels: np.ndarray, classes: int, owners: np.ndarray | None = None) -> Partition:
    data = config.data
    settings = PartitionSettings(
        clients=data.clients,
        per_client=data.per_client,
        classes_per_client=data.classes_per_client or 2,
        groups_per_client=data.groups_per_client or 1,
        alpha=data.alpha,
        label_sets=data.label_sets,
        classes=classes,
        seed=config.train.seed,
        owners=owners,
    )
    return make_partition(data.partition or "shards", labels, settings)


def load_data(config: Config, share: float) -> Dataset:
    data = config.data
    keys = ("dir", "split", "min_images", "size", "file", "features")
    return load(data.name, public=share, **{key: getattr(data, key) for key in keys})


def batch_sampling(config: Config, partition: Partition) -> BatchSampling:
    train = config.train
    assert train.batch is not None
    largest = int(partition.length.max())
    if train.batch > largest:
        takes = f"the largest client holds {largest} examples: lower train.batch or raise data.per_client"
        raise ConfigError("train.batch", train.batch, takes)
    return BatchSampling(train.batching, train.batch, train.local_steps, train.local_epochs)


def build_model(config: Config, shape: tuple[int, ...], classes: int) -> Model:
    """The network of `[model]`: built in, or the user's own by its file or its Python name."""
    return build_any(config.model.name or "cnn", shape, classes, config.model)


def checked_defenses(config: Config, setting: Setting) -> tuple[Defense, ...]:
    """The defences, each checked against the setting."""
    for defense in config.defense:
        defense.check(setting)
        if defense.stateful and setting.sampling == "with-replacement":
            takes = f"{defense.name} remembers each client, so a client cannot take part twice in a round: use fixed"
            raise ConfigError("train.sampling", setting.sampling, takes)
    return config.defense


def make_setting(config: Config, partition: Partition, batches: BatchSampling, model: Model, examples: int) -> Setting:
    """What the defences and the ledger may know of a run."""
    train = config.train
    assert train.batch is not None and train.per_round is not None and train.rounds is not None
    sizes = tuple((int(n), batches.steps_for(int(n))) for n in np.unique(partition.length))
    weights = client_weights(train.weights, partition)
    return Setting(
        clients=config.data.clients,
        per_round=train.per_round,
        rounds=train.rounds,
        batch=train.batch,
        local_steps=max(steps for _, steps in sizes),
        sampling=train.sampling,
        batching=train.batching,
        aggregation=train.aggregation,
        weights=train.weights,
        secure_aggregation=train.secure_aggregation,
        quorum=0 if train.quorum is None else math.ceil(train.quorum * train.per_round - 1e-9),
        honest=1.0 if train.honest is None else train.honest,
        lr=train.lr or 1.0,
        optimizer=train.optimizer,
        max_weight=float(weights.max()),
        smallest=sizes[0][0],
        layers=_layers(model),
        values=_values(model) if any(defense.counts_values for defense in config.defense) else 0,
        dropout=train.dropout,
        late=train.late,
        plain_server=train.server_lr == 1.0 and train.server_momentum == 0.0,
        min_weight=float(weights.min()),
        sizes=sizes,
        copies=partition.copies(),
        examples=examples,
        lr_end=train.lr_end,
        max_share=_largest_share(weights, train.per_round, train.sampling),
        secret_draws=train.noise_seed is None,
        may_stop=train.stop is not None,
    )


def _largest_share(weights: np.ndarray, per_round: int, sampling: str) -> float:
    """The largest share of one client's message in a round's mean: the heaviest client among the lightest others."""
    ordered = np.sort(weights)
    if sampling != "fixed" or len(ordered) < per_round:
        return float(ordered[-1] / per_round)
    return float(ordered[-1] / (ordered[-1] + ordered[: per_round - 1].sum()))


def _layers(model: Model) -> int:
    """Layers with parameters; a network of ours says so itself, of others the shapes are worked out."""
    if isinstance(model, Net):
        return len(model.named)
    import jax

    return len(jax.eval_shape(model.init, jax.random.key(0)))


def _values(model: Model) -> int:
    """The number of parameters of a model, which is the number of values in an update."""
    import jax

    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


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


def federation(
    settings: Settings = None,
    *,
    defense: Defenses | None = None,
    data: Arrays | None = None,
    model: Model | None = None,
    draws: Draws | None = None,
) -> Federation:
    """A federation ready to train or to be observed.

    `settings`: nested dicts as in a config file, a `Config`, the path of a TOML file, or a list of `section.key=value`.
    `defense`: a defence object, or several in order, replacing the one in the settings. `data`: a `Dataset`, or arrays
    `(x, y)` or `(x, y, x_test, y_test)`. `model`: anything with `init(key)` and `apply(params, x)`. `draws`: the source of
    cohorts, batches and noise; by default `train.noise_seed`, or a new secret.
    """
    if model is not None and (isinstance(model, type) or not isinstance(model, Model)):
        takes = "takes an object with init(key) and apply(params, x); the name of a model goes into the settings"
        raise ConfigError("model", model, f"{takes}: {{'model': {{'name': ...}}}}")
    config = from_settings(settings, defense)
    dataset = None
    if data is not None:
        dataset, config = in_memory(data, config)
    return prepare(config, dataset=dataset, model=model, draws=draws)


def in_memory(data: Arrays, config: Config) -> tuple[Dataset, Config]:
    """A caller's arrays as a dataset, and the config that says so."""
    dataset = data if isinstance(data, Dataset) else _from_sequence(data)
    named = config.data.model_copy(update={"name": "file", "file": IN_MEMORY})
    return dataset, config.model_copy(update={"data": named})


def _from_sequence(data: Sequence[np.ndarray]) -> Dataset:
    if len(data) not in (2, 4):
        raise ConfigError("data", f"{len(data)} arrays", "takes (x, y) or (x, y, x_test, y_test)")
    x, y, *test = data
    x_test, y_test = test or (None, None)
    return from_arrays(x, y, x_test, y_test)


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

    A caller's dataset, model or partition replaces the one that the config names; a deployment passes the partition that
    its clients hold. `trainable` false: for attacks on the first round, pictures too few to train on will do.
    `draws`: those of a run that is resumed or attacked; by default `train.noise_seed`, or a new secret.
    """
    from fedveil.compilation import check_jax_cache
    from fedveil.simulation.context import FederationContext
    from fedveil.simulation.server import ServerRule
    from fedveil.simulation.simulator import FederatedData, SimulationSettings, Simulator

    check_jax_cache()
    if config.data.sizes is not None:
        raise ConfigError("data.sizes", config.data.sizes, "is for accounts: leave it out to train on data")
    if dataset is None and config.data.name == "file" and config.data.file is not None:
        dataset = load_data(config, max(defense.public_share("file") for defense in config.defense))
    asked = config
    config = resolve(own_clients(config, dataset) if partition is None else config, trainable=trainable)
    data = config.data
    share = max(defense.public_share(data.name) for defense in config.defense)
    if dataset is None:
        dataset = load_data(config, share)
    elif share and dataset.public is None:
        dataset = _with_public(dataset, share)
    if partition is None:
        partition = partition_of(config, dataset.train.y, dataset.classes, dataset.train.client)
    config = fitting(asked, config, int(partition.length.max()))
    batches = batch_sampling(config, partition)
    task = _task(config, dataset, partition, batches, model)
    draws = draws or Draws.of(config.train.noise_seed)
    context = FederationContext(replace(task, defenses=()), dataset, partition, batches, draws)
    task = replace(task, defenses=tuple(defense.prepare(context) for defense in task.defenses))
    train, speed = config.train, config.speed
    simulator = Simulator(
        task,
        ServerRule(train.server_lr, train.server_momentum, keeps_late=train.late > 0),
        FederatedData(dataset, partition, batches),
        SimulationSettings(
            train.seed, draws, engine=speed.engine, chunk=None if speed.chunk == "auto" else speed.chunk
        ),
    )
    rounds, stops = affordable_rounds(config, task.defenses, task.setting)
    return Federation(config, dataset, partition, simulator, rounds, stops, own_model=model is not None)


def affordable_rounds(config: Config, defenses: Sequence[Defense], setting: Setting) -> tuple[int, str]:
    """The number of rounds: that of the config, or as many as all budgets allow; and, if these are fewer, the reason.

    The account depends on the number of rounds and on nothing that happens in them. So it is computed before the first
    round, and a resumed run stops where an uninterrupted one does.
    """
    most, spent = setting.rounds, ""
    for defense in defenses:
        last = defense.last_round(setting)
        if last is not None and last < most:
            most, spent = last, f"{defense.name}: its budget is spent after round {last} of {setting.rounds}"
    budget = config.train.budget
    if budget is None:
        return most, spent
    goal = calibrate.Goal(budget.epsilon, budget.delta, budget.tap, budget.unit)
    try:
        rounds = calibrate.rounds_for(defenses, setting, goal, most=most)
    except ConfigError as error:
        raise ConfigError("train.budget", budget.model_dump(), error.takes) from None
    kept = f"ε = {budget.epsilon:g} at δ = {budget.delta:g}, tap {budget.tap}, unit {budget.unit}"
    if rounds == 0:
        takes = f"one round alone exceeds {kept}: more noise, or a larger ε"
        raise ConfigError("train.budget", budget.model_dump(), takes)
    if rounds == most:
        return most, spent
    return rounds, f"budget: round {rounds + 1} of {setting.rounds} would exceed {kept}"


def _with_public(dataset: Dataset, share: float) -> Dataset:
    """Cuts a public set for the server from the test part of a caller's own dataset.

    A dataset without a separate test part uses its held-out part as test part.
    """
    public, rest = cut_share(dataset.held_out if dataset.test is None else dataset.test, share)
    cut = replace(dataset, public=public)
    return replace(cut, held_out=rest) if dataset.test is None else replace(cut, test=rest)


def _task(config: Config, dataset: Dataset, partition: Partition, batches: BatchSampling, model: Model | None) -> Task:
    from fedveil.simulation.client import Task, accelerated

    train = config.train
    if model is None:
        model = build_model(config, dataset.shape, dataset.classes)
    else:
        _check_model(model, dataset)
    setting = make_setting(config, partition, batches, model, len(dataset.train))
    defenses = checked_defenses(config, setting)
    return Task(
        model=model,
        setting=setting,
        optimizer=train.optimizer,
        defenses=defenses,
        scale=dataset.scale,
        dtype=config.speed.precision,
        ragged_steps=len({steps for _, steps in setting.sizes}) > 1,
        kernels=accelerated(_bfloat16(config)),
    )


def _bfloat16(config: Config) -> bool:
    """Whether training rounds patches to bfloat16: if the config says so, or by default on a GPU."""
    if config.speed.products == "auto":
        import jax

        return config.speed.precision == "float32" and jax.default_backend() == "gpu"
    return config.speed.products == "bfloat16"


def _check_model(model: Model, dataset: Dataset) -> None:
    """A caller's own model must give one logit for each class."""
    import jax

    one = np.zeros((1, *dataset.shape), np.float32)
    logits = jax.eval_shape(lambda key, x: model.apply(model.init(key), x), jax.random.key(0), one)
    if logits.shape != (1, dataset.classes):
        takes = f"for a batch of one it must give logits of shape (1, {dataset.classes}), one for each class"
        raise ConfigError("model", logits.shape, takes)


make_callable(__name__)
