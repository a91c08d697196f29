"""From a config to what an account needs of it: sizes, laws, defences. No data where sizes are known, and no JAX."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedveil.accounting.transcript import Transcript, planned
from fedveil.config import Config, resolve
from fedveil.core.errors import ConfigError
from fedveil.core.setting import Setting
from fedveil.data.dataset import Dataset
from fedveil.data.load import load
from fedveil.data.partition import Partition, PartitionSettings, make_partition
from fedveil.data.registry import DATASETS
from fedveil.defenses.base import Defense
from fedveil.defenses.catalog import make_all
from fedveil.models.build import Choices, build
from fedveil.models.net import Model, Net
from fedveil.rounds.plan import BatchLaw, client_weights


@dataclass(frozen=True)
class Plan:
    """What an account needs of a run: no data, no training."""

    config: Config
    defenses: tuple[Defense, ...]
    setting: Setting

    def transcript(self, rounds: int | None = None) -> Transcript:
        """The transcript of its rounds, or of another number of them, before any has happened."""
        return planned(self.defenses, self.setting, self.setting.rounds if rounds is None else rounds)


# Partitions whose sizes and copies do not depend on which example has which label.
LABEL_FREE = ("iid", "shards", "copies", "quantity")


def plan(config: Config) -> Plan:
    """The setting of a config, without its data where the sizes are known: accounts do not wait for downloads."""
    config = resolve(config)
    data = config.data
    info = DATASETS[data.name]
    examples = info.train_size(data.split)
    if examples is not None and data.partition in LABEL_FREE and not data.label_sets:
        shape, classes, labels = info.shape, info.classes, np.arange(examples) % info.classes
    else:
        dataset = load_data(config, 0.0)
        shape, classes, labels = dataset.shape, dataset.classes, dataset.train.y
    partition = partition_of(config, labels, classes)
    setting = make_setting(
        config, partition, batch_law(config, partition), build_model(config, shape, classes), len(labels)
    )
    return Plan(config, checked_defenses(config, setting), setting)


def partition_of(config: Config, labels: np.ndarray, classes: int) -> Partition:
    data = config.data
    settings = PartitionSettings(
        clients=data.clients,
        per_client=data.per_client,
        classes_per_client=data.classes_per_client or 2,
        alpha=data.alpha,
        label_sets=data.label_sets,
        classes=classes,
        seed=config.train.seed,
    )
    return make_partition(data.partition or "shards", labels, settings)


def load_data(config: Config, share: float) -> Dataset:
    data = config.data
    return load(
        data.name,
        dir=data.dir,
        split=data.split,
        min_images=data.min_images,
        size=data.size,
        file=data.file,
        public=share,
        features=data.features,
    )


def batch_law(config: Config, partition: Partition) -> BatchLaw:
    train = config.train
    assert train.batch is not None
    largest = int(partition.length.max())
    if train.batch > largest:
        takes = f"the largest client holds {largest} examples: lower train.batch or raise data.per_client"
        raise ConfigError("train.batch", train.batch, takes)
    return BatchLaw(train.batching, train.batch, train.local_steps, train.local_epochs)


def build_model(config: Config, shape: tuple[int, ...], classes: int) -> Model:
    """The network of `[model]`."""
    chosen = config.model
    choices = Choices(
        chosen.activation,
        chosen.init or "default",
        chosen.dropout,
        tuple(chosen.hidden),
        chosen.pooling,
        chosen.channels,
    )
    return build(chosen.name or "cnn", shape, classes, choices)


def checked_defenses(config: Config, setting: Setting) -> tuple[Defense, ...]:
    """The defences, each checked against the setting."""
    defenses = make_all(config.defense)
    for defense in defenses:
        defense.check(setting)
        if defense.stateful and setting.sampling == "with-replacement":
            takes = f"{defense.name} remembers each client, so a client cannot take part twice in a round: use fixed"
            raise ConfigError("train.sampling", setting.sampling, takes)
    return defenses


def make_setting(config: Config, partition: Partition, law: BatchLaw, model: Model, examples: int) -> Setting:
    """What the defences and the ledger may know of a run."""
    train = config.train
    assert train.batch is not None and train.per_round is not None and train.rounds is not None
    sizes = tuple((int(n), law.steps_for(int(n))) for n in np.unique(partition.length))
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
        lr=train.lr or 1.0,
        optimizer=train.optimizer,
        max_weight=float(weights.max()),
        smallest=sizes[0][0],
        layers=_layers(model),
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
