"""The configuration: one pydantic model per section, working defaults, errors of one line.

A config comes from a TOML file, from `section.key=value` settings, or from both. `load` checks all that can be checked
without data; `resolve` fills in what depends on the dataset, so that a run folder says exactly what was run.
"""

from __future__ import annotations

import copy
import json
import tomllib
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import (
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from fedveil.attacks.base import Attack
from fedveil.attacks.registry import attack_kind, make_attack
from fedveil.core.errors import ConfigError, did_you_mean, unknown_name
from fedveil.core.plugins import keys
from fedveil.core.taps import TAPS
from fedveil.core.validation import Section, one_line
from fedveil.data.dataset import SPLITS
from fedveil.data.partition import PARTITIONS
from fedveil.data.registry import DATASETS, SMALLEST_SCATTERED
from fedveil.defenses import presets
from fedveil.defenses.base import Defense
from fedveil.defenses.catalog import make_all, named, resolved
from fedveil.defenses.none import NoDefense
from fedveil.models.catalog import ACTIVATION_NAMES, INITS, MODELS, POOLINGS, ModelConfig, is_own

SAMPLINGS = ("auto", "fixed", "poisson", "with-replacement")
BATCHINGS = ("auto", "shuffle", "poisson", "without-replacement", "with-replacement")
OPTIMIZERS = ("sgd", "momentum", "adam", "adagrad")
CHUNK_TAKES = "takes 'auto' or a whole number of clients, 1 or more"

# Keys that take a name from a table. They are checked before types, so that the error can say "did you mean".
NAMES: dict[str, Collection[str]] = {
    "data.name": DATASETS.keys(),  # a view, which shows datasets that are registered later
    "data.partition": tuple(PARTITIONS),
    "data.split": tuple(SPLITS),
    "data.features": ("raw", "scatter"),
    "model.name": tuple(MODELS),
    "model.activation": ACTIVATION_NAMES,
    "model.init": INITS,
    "model.pooling": POOLINGS,
    "train.sampling": SAMPLINGS,
    "train.batching": BATCHINGS,
    "train.optimizer": OPTIMIZERS,
    "train.aggregation": ("auto", "fedsgd", "fedavg"),
    "train.weights": ("uniform", "size"),
    "attack.tap": tuple(TAPS),
    "attack.rule": ("ssim", "mse", "distance"),
    "speed.engine": ("vectorised", "reference"),
    "speed.precision": ("float32", "float64"),
    "speed.products": ("auto", "float32", "bfloat16"),
}
FORMER_ATTACK_KEYS = {"seat": "adversary", "trait": "property"}


class DataConfig(Section):
    """`[data]`: the dataset, and how it is divided among the clients."""

    name: str = Field("digits", description="dataset")
    partition: str | None = Field(None, description="how examples are divided among clients (shards; by dataset)")
    clients: int = Field(100, ge=1, le=10_000_000, description="number of clients, K")
    per_client: int | None = Field(None, ge=1, description="examples per client, N_i (by dataset)")
    classes_per_client: int | None = Field(None, ge=1, description="classes or shards per client (2; LFW 15)")
    groups_per_client: int | None = Field(None, ge=1, description="label groups per client, for groups-* (1)")
    alpha: float = Field(0.5, gt=0, description="Dirichlet concentration, for dirichlet and quantity")
    label_sets: list[list[int]] | None = Field(
        None,
        min_length=1,
        description="classes of the first clients, one list for each; the others follow the partition",
    )
    min_images: Literal[14, 20] = Field(20, description="LFW: people with at least this many images")
    size: Literal[32, 64, 128] = Field(32, description="LFW: pixels per side")
    features: str = Field("raw", description="raw, or scatter: fixed wavelet features of images, for a model on top")
    sizes: str | list[int] | None = Field(
        None, description="records of each client, as a list or a CSV file: for accounts without data"
    )
    shape: list[int] | None = Field(None, description="with sizes: shape of one record (that of the dataset)")
    classes: int | None = Field(None, ge=2, le=100_000, description="with sizes: number of classes (of the dataset)")
    split: str = Field("fed-cdp", description="whose split: fed-cdp (validation), cpl (test), dpfl (test less public)")
    file: str | None = Field(
        None, description="with name = file: an .npz with x, y (client, x_test, y_test), or a folder, one per client"
    )
    dir: str | None = Field(None, description="folders to look in, before FEDVEIL_DATA")

    @field_validator("file", "dir")
    @classmethod
    def _writable(cls, path: str | None, info: ValidationInfo) -> str | None:
        """Refuses a path that is not UTF-8. Python represents it with surrogates, which config.toml cannot store."""
        if path is not None and any("\ud800" <= c <= "\udfff" for c in path):
            raise ConfigError(f"data.{info.field_name}", path, "takes a path in UTF-8: rename it, or link to it")
        return path


class Budget(Section):
    """`train.budget`: stop before the round that would exceed this."""

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)
    tap: Literal["example", "client", "server", "broadcast", "release"] = "release"
    unit: Literal["example", "image", "client"] = "example"


class TrainConfig(Section):
    """`[train]`: the federated training."""

    rounds: int | None = Field(None, ge=1, le=10_000_000, description="rounds, T (by dataset)")
    per_round: int | None = Field(
        None, ge=1, le=10_000_000, description="clients per round, Kt (a tenth of the clients)"
    )
    sampling: str = Field("auto", description="how clients are drawn: fixed, poisson, with-replacement")
    local_steps: int | None = Field(None, ge=1, le=1_000_000, description="local iterations, L (by dataset)")
    local_epochs: int | None = Field(None, ge=1, le=100_000, description="local epochs, instead of local_steps")
    batch: int | None = Field(None, ge=1, description="local batch size, B (by dataset)")
    batching: str = Field(
        "auto", description="how batches are drawn: shuffle, poisson, without-replacement, with-replacement"
    )
    lr: float | None = Field(None, ge=1e-12, le=1e6, description="local learning rate, η (by dataset)")
    lr_end: float | None = Field(
        None, ge=1e-12, le=1e6, description="learning rate of the last round, reached linearly"
    )
    optimizer: str = Field("sgd", description="local optimiser: sgd, momentum, adam, adagrad")
    server_lr: float = Field(1.0, ge=1e-12, le=1e6, description="factor on the mean update")
    server_momentum: float = Field(0.0, ge=0, lt=1, description="momentum of the server's step")
    aggregation: str = Field(
        "auto", description="fedsgd (mean of updates) or fedavg (mean of models; auto for 2dp-fl, nbafl)"
    )
    weights: str = Field("uniform", description="uniform, or size (by data size)")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of chosen clients that never answer")
    late: float = Field(0.0, ge=0, lt=1, description="share of chosen clients whose answer counts one round later")
    secure_aggregation: bool = Field(False, description="the server sees sums only")
    quorum: float | None = Field(
        None, gt=0, le=1, description="share of a round's clients that a sum needs and whose noise is enough for it"
    )
    honest: float | None = Field(
        None, gt=0, le=1, description="share of the quorum that is trusted to add its noise and keep it secret (1)"
    )
    budget: Budget | None = Field(None, description="{epsilon, delta, tap, unit}: stop before exceeding it")
    stop: int | None = Field(
        None, ge=1, description="evaluations in a row without a smaller loss that end the training (unset: never)"
    )
    eval_every: int | None = Field(None, ge=1, description="rounds between evaluations (a twentieth of the rounds)")
    seed: int = Field(0, ge=0, le=2**32 - 1, description="seed of the partition and the initial model")
    noise_seed: int | None = Field(
        None,
        ge=0,
        le=2**32 - 1,
        description="seed of cohorts, batches and noise: a reproducible run, never certified (unset: secret draws)",
    )

    @model_validator(mode="after")
    def _one_length(self) -> TrainConfig:
        if self.local_steps is not None and self.local_epochs is not None:
            takes = f"train.local_steps = {self.local_steps} is set too: keep one of the two"
            raise ConfigError("train.local_epochs", self.local_epochs, takes)
        return self

    @model_validator(mode="after")
    def _sums(self) -> TrainConfig:
        if self.quorum is not None and not self.secure_aggregation:
            takes = "says how many clients a sum needs: set train.secure_aggregation = true, or leave it out"
            raise ConfigError("train.quorum", self.quorum, takes)
        if self.honest is not None and self.quorum is None:
            raise ConfigError(
                "train.honest", self.honest, "is a share of the quorum: set train.quorum, or leave it out"
            )
        return self


class SpeedConfig(Section):
    """`[speed]`: settings that change how fast a run is, and its results by rounding only."""

    engine: str = Field("vectorised", description="vectorised, or reference (slow and obvious)")
    chunk: int | Literal["auto"] = Field("auto", description="clients computed at once")
    precision: str = Field("float32", description="float32 or float64")
    products: str = Field("auto", description="patches in training: float32, bfloat16, auto (bfloat16 on a GPU)")


class AttackConfig(Section):
    """`[attack]`: which attack, on what, how often. The bench reads these keys; all others belong to the attack."""

    model_config = ConfigDict(extra="allow")

    name: str = Field("cpl", description="attack")
    tap: str | None = Field(None, description="where the attacker observes (client; for inference by adversary)")
    images: int = Field(16, ge=1, le=100_000, description="how many gradients are attacked, from the first clients on")
    seeds: int = Field(1, ge=1, le=10_000, description="starts of each attack; for inference, federations attacked")
    round: int | None = Field(None, ge=0, description="the round that is attacked (0, or the last of the run)")
    rule: str | None = Field(
        None, description="success: ssim (images), mse (attributes), or distance (the paper's own)"
    )
    limits: list[PositiveInt] | None = Field(
        None, description="iterations after which attacks are scored as well, as if they had ended there"
    )
    seconds: float | None = Field(
        None, ge=0, description="time limit of the attack in seconds (60; 0 or inf: none); recipes have none"
    )

    @model_validator(mode="before")
    @classmethod
    def _former_names(cls, given: Any) -> Any:
        """Accepts keys by their former names."""
        if not isinstance(given, dict):
            return given
        for old, new in FORMER_ATTACK_KEYS.items():
            if given.get(old) is not None:
                warnings.warn(f"attack.{old} is now called attack.{new}: please rename it", FutureWarning, stacklevel=2)
                given = {new: given[old], **given}
        return {key: value for key, value in given.items() if key not in FORMER_ATTACK_KEYS}

    @property
    def at(self) -> str:
        """The tap of a reconstruction."""
        return self.tap or "client"

    def own(self) -> dict[str, Any]:
        """The keys of the attack itself that were set."""
        return {key: value for key, value in (self.model_extra or {}).items() if value is not None}

    def make(self) -> Attack:
        """The attack that the section describes, checked; a key that neither it nor the bench reads is refused."""
        fields, kind = type(self).model_fields, attack_kind(self.name)
        unread = {key: getattr(self, key) for key in fields if key not in ("name", *kind.bench)}
        given = {key: value for key, value in unread.items() if value != fields[key].default} | self.own()
        known = ("name", *kind.bench, *keys(kind))
        for key, value in given.items():
            if key not in known:
                raise ConfigError(f"attack.{key}", value, f"{self.name} has no such key; " + did_you_mean(key, known))
        return make_attack(self.name, **given)


class Config(Section):
    """All sections. `defense` holds the defences themselves: they are made once, when a document is checked.

    `preset` names what private defences use for the keys that nobody set.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    preset: str = "paper"
    data: DataConfig = Field(default_factory=lambda: DataConfig())
    model: ModelConfig = Field(default_factory=lambda: ModelConfig())
    train: TrainConfig = Field(default_factory=lambda: TrainConfig())
    speed: SpeedConfig = Field(default_factory=lambda: SpeedConfig())
    attack: AttackConfig = Field(default_factory=lambda: AttackConfig())
    defense: tuple[Defense, ...] = Field(default_factory=lambda: (NoDefense(),))

    @field_serializer("defense")
    def _tables(self, defenses: tuple[Defense, ...]) -> list[dict[str, Any]]:
        return [resolved(defense) for defense in defenses]

    def __eq__(self, other: object) -> bool:
        """Whether all keys are the same. Some defences are compared by identity, so their tables are compared here."""
        return isinstance(other, Config) and self.model_dump() == other.model_dump()


SECTIONS: dict[str, type[Section]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "train": TrainConfig,
    "speed": SpeedConfig,
    "attack": AttackConfig,
}


# Nested dicts as in a config file, a `Config`, the path of a TOML file, or a list of `section.key=value`.
Settings = Mapping[str, Any] | Config | str | Path | list[str] | None
# A defence or several in order: each an object, or its table of keys.
Defenses = Defense | Mapping[str, Any] | Sequence[Defense | Mapping[str, Any]]


# --- reading -----------------------------------------------------------------------------------------------------


def from_settings(settings: Settings = None, defense: Defenses | None = None) -> Config:
    """The config that a caller's settings describe; `defense` replaces theirs."""
    if isinstance(settings, Config):
        return settings if defense is None else _with_defense(settings, defense)
    if isinstance(settings, str | Path):
        document = read(settings)
    elif isinstance(settings, list | tuple):
        document = read(None, list(settings))
    else:
        document = dict(settings or {})
    return from_dict(document if defense is None else {**document, "defense": defense})


def of_run(path: str | Path) -> dict[str, Any]:
    """The document of a run's `config.toml`. Runs from before presets have the papers' settings."""
    return {"preset": "paper", **read(path)}


def _with_defense(config: Config, defense: Defenses) -> Config:
    """A config with another defence. The preset fills what a table leaves out; an object has all its keys."""
    preset = "paper" if _has_object(defense) else config.preset
    made = make_all(presets.filled(preset, named(defense), _kind(config.data.name)))
    return config.model_copy(update={"defense": made, "preset": preset})


def _has_object(defense: object) -> bool:
    parts = defense if isinstance(defense, list | tuple) else [defense]
    return any(isinstance(one, Defense) for one in parts)


def load(path: str | Path | None = None, settings: list[str] | None = None) -> Config:
    """The config of a file and of `section.key=value` settings, which override the file."""
    return from_dict(read(path, settings))


def read(path: str | Path | None = None, settings: list[str] | None = None) -> dict[str, Any]:
    """The document of a file and of `section.key=value` settings: what was set, not checked."""
    if path == "":
        raise ConfigError("FILE", path, "takes the path of a TOML config: leave it out to train with the defaults")
    document = _read(Path(path)) if path is not None else {}
    before = copy.deepcopy(document.get("defense"))
    for setting in settings or []:
        _apply(document, setting)
    if before:
        _switch(document, before, settings or [])
    return document


def _switch(document: dict[str, Any], before: Any, settings: Sequence[str]) -> None:
    """Where a setting names another defence than the file: leaves out what belongs to the file's, and says so."""
    from fedveil.defenses.switching import switched

    tables, after = before if isinstance(before, list) else [before], document["defense"]
    if not isinstance(after, list) or not all(isinstance(one, dict) for one in [*tables, *after]):
        return
    parts = [setting.partition("=")[0].strip().split(".") for setting in settings]
    given = [(int(part[1]) if part[1].isdigit() else 0, part[-1]) for part in parts if part[0] == "defense"]
    alone = ["defense", "name"] in parts and after[0].get("name") == NoDefense.name and not any(at for at, _ in given)
    if alone and after[1:]:  # what a setting puts beside "none" is refused where defences are made
        names = ", ".join(str(one.get("name")) for one in after[1:])
        warnings.warn(f"defense.name = 'none' replaces all defences of the file; left out: {names}", stacklevel=3)
        del after[1:]
    for index, table in enumerate(tables[: len(after)]):
        key = "defense.name" if len(tables) == 1 else f"defense.{index}.name"
        mine = [name for at, name in given if at == index]
        after[index], said = switched(key, table, after[index], mine)
        if said:
            warnings.warn(said, stacklevel=3)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("FILE", str(path), "no such file; give the path of a TOML config") from None
    except IsADirectoryError:
        raise ConfigError("FILE", str(path), "is a folder; give the path of a TOML config") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError("FILE", str(path), f"is not TOML: {error}") from None
    except (OSError, ValueError) as error:  # not UTF-8, or a path that no file can have
        raise ConfigError("FILE", str(path), f"cannot be read ({error}); give a TOML config in UTF-8") from None


def _apply(document: dict[str, Any], setting: str) -> None:
    """Puts one `section.key=value` into the document."""
    key, equals, text = setting.partition("=")
    parts = key.strip().split(".")
    if equals and parts == ["preset"]:
        document["preset"] = _value(text)
        return
    if not equals or len(parts) < 2 or not all(parts):
        raise ConfigError("-s", setting, "takes section.key=value, for example -s train.rounds=20")
    if parts[0] == "defense":
        _apply_defense(document, parts[1:], _value(text))
        return
    target = document
    for part in parts[:-1]:
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            raise ConfigError("-s", setting, f"'{part}' is a value, not a section")
    target[parts[-1]] = _value(text)


def _apply_defense(document: dict[str, Any], parts: list[str], value: Any) -> None:
    """`defense.key=v` sets the only (or first) defence, `defense.N.key=v` number N, which is made if it is the next."""
    defenses = document.setdefault("defense", [])
    if isinstance(defenses, dict):
        defenses = document["defense"] = [defenses]
    index = 0
    if parts[0].isdigit():
        index, parts = int(parts[0]), parts[1:]
    if len(parts) != 1:
        raise ConfigError("-s", ".".join(["defense", *parts]), "takes defense.key=value or defense.N.key=value")
    if index > len(defenses):
        takes = f"there are {len(defenses)} defences so far: number the next one {len(defenses)}"
        raise ConfigError("-s", f"defense.{index}.{parts[0]}", takes)
    if index == len(defenses):
        defenses.append({})
    defenses[index][parts[0]] = value


def _value(text: str) -> Any:
    """A setting's value: TOML where it parses as TOML (numbers, booleans, lists, tables), else the text itself."""
    text = text.strip()
    if text in ("null", "None"):
        return None
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def from_dict(document: dict[str, Any]) -> Config:
    """A checked config from plain data. `defense` may also be a defence object, or a list of them."""
    defenses = named(document.get("defense"))
    preset = presets.check(document.get("preset", "paper" if _has_object(defenses) else presets.DEFAULT))
    rest = {key: value for key, value in document.items() if key not in ("defense", "preset")}
    document = json.loads(json.dumps(rest, default=str))
    _check_sections(document)
    for key, known in NAMES.items():
        section, name = key.split(".")
        value = (document.get(section) or {}).get(name)
        if value is not None and value not in tuple(known) and not (key == "model.name" and is_own(value)):
            raise unknown_name(key, value, known)
    try:
        config = Config.model_validate(document)
    except ValidationError as error:
        raise _one_line(error) from None
    _check_values(config)
    config = config.model_copy(update={"preset": preset})
    if defenses is None:
        return config
    made = make_all(presets.filled(preset, defenses, _kind(config.data.name)))
    return config.model_copy(update={"defense": made})


def _check_values(config: Config) -> None:
    """Checks that the types of the sections cannot express."""
    if config.speed.precision == "float64" and config.speed.products == "bfloat16":
        raise ConfigError("speed.products", "bfloat16", "takes auto or float32 where speed.precision is float64")
    chunk = config.speed.chunk
    if isinstance(chunk, int) and chunk < 1:
        raise ConfigError("speed.chunk", chunk, CHUNK_TAKES)
    if any(not 1 <= width <= 65_536 for width in config.model.hidden):
        raise ConfigError("model.hidden", config.model.hidden, "takes widths of 1 or more, up to 65536: [64, 32], say")
    if "attack" in config.model_fields_set:  # the default section needs no check
        config.attack.make()


def _check_sections(document: dict[str, Any]) -> None:
    for name, section in document.items():
        if name not in SECTIONS:
            raise ConfigError(name, section, "unknown section; " + did_you_mean(name, (*SECTIONS, "defense", "preset")))
        if not isinstance(section, dict):
            raise ConfigError(name, section, f"is a section: write [{name}] with keys below it, or {name}.key")


def _one_line(error: ValidationError) -> ConfigError:
    """The first error that pydantic reports, as one line. For an unknown key it names the nearest known one."""
    first = error.errors()[0]
    parts = [str(p) for p in first["loc"]]
    if parts[:2] == ["speed", "chunk"]:
        return ConfigError("speed.chunk", first["input"], CHUNK_TAKES)
    if first["type"] == "extra_forbidden":
        known = list(SECTIONS[parts[0]].model_fields) if parts[0] in SECTIONS and len(parts) == 2 else []
        takes = "unknown key; " + (did_you_mean(parts[-1], known) if known else "remove it")
        return ConfigError(".".join(parts), first["input"], takes)
    return one_line(error)


# --- resolving ---------------------------------------------------------------------------------------------------


def resolve(config: Config, *, trainable: bool = True) -> Config:
    """Fills in every default that depends on the dataset or the defence, and checks what depends on several keys."""
    info = DATASETS[config.data.name]
    if trainable and not info.trainable:
        takes = "holds pictures for attacks, too few to train on: use another dataset"
        raise ConfigError("data.name", info.name, takes)
    if (config.data.file is None) == (info.name == "file") and config.data.sizes is None:
        raise ConfigError("data.file", config.data.file, 'goes together with data.name = "file", and only with it')
    done = {"data": _resolve_data(config), "model": _resolve_model(config), "train": _resolve_train(config)}
    return config.model_copy(update=done)


def for_attack(config: Config) -> Config:
    """The config with the defaults of a reconstruction: cpl's network, weights in ±0.5, one example, one step.

    A dataset of a single picture belongs to one client.
    """
    info = DATASETS[config.data.name]
    model, train, data = config.model, config.train, config.data
    if data.features != "raw":
        raise ConfigError("data.features", data.features, "takes raw: the attack would rebuild features, not pictures")
    name = model.name or ("lenet-cpl" if info.kind == "image" else "mlp")
    init = model.init or ("uniform-0.5" if name.startswith("lenet") else None if is_own(name) else "default")
    changes: dict[str, object] = {"batch": train.batch or 1}
    if train.local_steps is None and train.local_epochs is None:
        changes["local_steps"] = 1
    if not info.trainable and "clients" not in data.model_fields_set:
        data = data.model_copy(update={"clients": 1, "partition": data.partition or "copies"})
    model, train = model.model_copy(update={"name": name, "init": init}), train.model_copy(update=changes)
    return config.model_copy(update={"data": data, "model": model, "train": train})


def _resolve_data(config: Config) -> DataConfig:
    data, info = config.data, DATASETS[config.data.name]
    name = data.partition or info.partition
    keys = PARTITIONS[name].keys
    read = ("per_client", "classes_per_client", "groups_per_client", "alpha")
    _refuse_unread("data", data, keys, read, f"partition '{name}'")
    _refuse_unread("data", data, info.keys, ("min_images", "size"), f"dataset '{info.name}'")
    known = bool(info.shape)  # of a user's own file the shape is checked when it is read
    if data.features != "raw" and known and (info.kind != "image" or min(info.shape[:2]) < SMALLEST_SCATTERED):
        takes = f"takes images of at least {SMALLEST_SCATTERED} pixels: use raw"
        raise ConfigError("data.features", data.features, takes)
    changes: dict[str, object] = {"partition": name}
    # The dataset's default size is for partitions into equal parts; the others distribute all the data.
    if name in ("iid", "shards", "classes"):
        changes["per_client"] = data.per_client or info.per_client
    if "classes_per_client" in keys:
        changes["classes_per_client"] = data.classes_per_client or info.classes_per_client
    return data.model_copy(update=changes)


def _kind(dataset: str) -> str:
    """The kind of a dataset, by which presets have their values."""
    return presets.kind_of(dataset, DATASETS[dataset].kind)


def _resolve_model(config: Config) -> ModelConfig:
    model = config.model
    if is_own(model.name):
        unread = ("activation", "init", "dropout", "hidden", "pooling", "channels")
        _refuse_unread("model", model, (), unread, "your own model")
        return model
    info = MODELS[model.name or DATASETS[config.data.name].model]
    optional = ("activation", "dropout", "hidden", "pooling", "channels")
    _refuse_unread("model", model, info.keys, optional, f"'{info.name}'")
    changes: dict[str, object] = {"name": info.name, "init": model.init or "default"}
    found = presets.training(config.preset, config.defense, _kind(config.data.name))
    filled = found.model if found is not None and info.name == DATASETS[config.data.name].model else {}
    for key in {"activation", "pooling"} & set(info.keys):
        changes[key] = getattr(model, key) or filled.get(key) or getattr(info, key)
    return model.model_copy(update=changes)


def _with_preset(config: Config) -> TrainConfig:
    """`[train]` with what the preset has for the keys that nobody set."""
    train = config.train
    found = presets.training(config.preset, config.defense, _kind(config.data.name))
    if found is None:
        return train
    unset = {key: value for key, value in found.train.items() if key not in train.model_fields_set}
    unset |= {key: value for key, value in found.train.items() if getattr(train, key) is None}
    if train.local_epochs is not None or any(defense.fixed_local_steps for defense in config.defense):
        unset.pop("local_steps", None)
    if presets.STEP_SIZE & train.model_fields_set:  # a learning rate that was chosen is not multiplied by momentum
        unset = {key: value for key, value in unset.items() if key not in presets.STEP_SIZE}
    if train.per_round is None:
        unset["per_round"] = found.per_round(config.data.clients)
    return train.model_copy(update=unset)


def fitting(asked: Config, config: Config, largest: int) -> Config:
    """A resolved config whose batch, if only the preset set it, is at most as large as the largest client."""
    batch = config.train.batch
    if asked.train.batch is not None or asked.preset == "paper" or batch is None or batch <= largest:
        return config
    return config.model_copy(update={"train": config.train.model_copy(update={"batch": largest})})


def _resolve_train(config: Config) -> TrainConfig:
    train, info = _with_preset(config), DATASETS[config.data.name]
    defenses = config.defense
    private = any(defense.private for defense in defenses)
    sampling = train.sampling if train.sampling != "auto" else ("poisson" if private else "fixed")
    selecting = next((defense for defense in defenses if defense.fills("select")), None)
    if selecting is not None:
        if train.sampling not in ("auto", "fixed"):
            takes = f"{selecting.name} selects its clients itself, a fixed number in each round: leave it out"
            raise ConfigError("train.sampling", train.sampling, takes)
        sampling = "fixed"
    models = any(defense.averages_models for defense in defenses)
    per_round = train.per_round or max(1, config.data.clients // 10)
    if per_round > config.data.clients and sampling != "with-replacement":
        takes = f"takes at most data.clients = {config.data.clients}: lower it, or raise data.clients"
        raise ConfigError("train.per_round", per_round, takes)
    if train.budget is not None and not private:
        takes = "needs a defence with a privacy account: without one no budget can be kept, so leave it out"
        raise ConfigError("train.budget", train.budget.model_dump(), takes)
    if train.stop is not None and train.budget is not None:
        takes = "ends the training by its results, a budget by its plan: leave one of the two out"
        raise ConfigError("train.stop", train.stop, takes)
    rounds = train.rounds or info.rounds
    squeezed = next((d.fixed_local_steps for d in defenses if d.fixed_local_steps), None)
    if squeezed and train.local_epochs:
        takes = f"squeeze shares after {squeezed} local steps: leave out train.local_epochs"
        raise ConfigError("train.local_epochs", train.local_epochs, takes)
    return train.model_copy(
        update={
            "rounds": rounds,
            "per_round": per_round,
            "sampling": sampling,
            "aggregation": ("fedavg" if models else "fedsgd") if train.aggregation == "auto" else train.aggregation,
            "batching": train.batching if train.batching != "auto" else ("poisson" if private else "shuffle"),
            "local_steps": train.local_steps or (None if train.local_epochs else squeezed or info.local_steps),
            "batch": train.batch or info.batch,
            "lr": train.lr or info.lr,
            "lr_end": train.lr_end or train.lr or info.lr,
            "eval_every": train.eval_every or max(1, rounds // 20),
        }
    )


def _refuse_unread(section: str, given: Section, read: tuple[str, ...], keys: tuple[str, ...], who: str) -> None:
    """Refuses an option that would be ignored: the user who set it expects an effect."""
    for key in keys:
        default = type(given).model_fields[key].get_default()
        if key not in read and getattr(given, key) != default:
            takes = f"is not read by {who}" + (f", which reads {', '.join(read)}" if read else "") + ": leave it out"
            raise ConfigError(f"{section}.{key}", getattr(given, key), takes)


# --- writing -----------------------------------------------------------------------------------------------------


def to_toml(config: Config) -> str:
    """The config as TOML that `load` reads back equal. Unset keys are left out, and an `[attack]` that sets nothing."""
    document = config.model_dump(include={"preset", *SECTIONS}, exclude_none=True)
    if config.attack == AttackConfig():
        del document["attack"]
    return tomli_w.dumps(document | {"defense": [resolved(defense) for defense in config.defense]})
