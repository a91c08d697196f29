"""What the owner of a node allows: `node.toml`, checked before a request is computed.

`node.toml` names the client, its data file, the digest of the app that may run and, in `[limits]`, the conditions that
every request must meet. A server proposes a defence with its keys and rounds. It cannot relax a limit, because limits are
read from this file alone. A node whose limits are incomplete takes part in nothing.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedveil.accounting.accountants import Round
from fedveil.config import Config
from fedveil.core.errors import ConfigError, FedveilError, did_you_mean, unknown_name
from fedveil.core.events import Release
from fedveil.core.files import write_text
from fedveil.core.taps import CHAIN
from fedveil.core.validation import one_line
from fedveil.defenses.base import Defense
from fedveil.defenses.catalog import DEFENSES

FILE = "node.toml"
SUMMED = 3  # nodes in a sum, at least


class Refused(FedveilError):
    """A node rejects a request; the server learns this message and nothing else."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Limits(_Table):
    """`[limits]`: conditions that every request must meet."""

    defenses: list[str] | None = Field(None, min_length=1, description="accepted defences (default: all)")
    clip: float | None = Field(None, gt=0, description="largest accepted clip")
    clip_min: float | None = Field(None, gt=0, description="smallest accepted clip")
    noise: float | None = Field(None, gt=0, description="smallest accepted noise, in units of the defence's key")
    multiplier: float | None = Field(
        None, gt=0, description="smallest accepted z: noise over sensitivity in what is sent"
    )
    steps: int | None = Field(None, ge=1, description="most local steps in a round")
    rounds: int | None = Field(None, ge=1, description="most rounds in a run")
    parameters: int = Field(20_000_000, ge=1, description="most parameters of a model")
    honest: float = Field(
        0.9, gt=0, le=1, description="share of a quorum that this node trusts to add its noise and keep it secret"
    )
    survivors: int = Field(3, ge=3, description="fewest nodes whose sum is unmasked under secure aggregation")
    seconds: float = Field(900.0, gt=0, description="most seconds for one round; the worker is ended after that")
    memory: int = Field(16_384, ge=512, description="most memory of the worker, in MiB")
    epsilon: float | None = Field(None, gt=0, description="budget: ε of all rounds of all runs together")
    delta: float = Field(1e-5, gt=0, lt=1, description="δ of the budget")
    unit: Literal["example", "client"] = Field(
        "example", description="unit of the budget: one record, or all records of the node"
    )
    adjacency: Literal["zero-out", "replace"] = Field(
        "zero-out", description="whether the unit is removed (zero-out) or replaced"
    )
    floating: bool = Field(False, description="whether certified noise may be drawn in floating point")
    unaccounted: bool = Field(False, description="whether rounds without a certificate are accepted")

    @property
    def largest_message(self) -> int:
        """Bytes of the largest message: a model of float64 numbers with room for names."""
        return 8 * self.parameters + (1 << 20)

    @model_validator(mode="after")
    def _consistent(self) -> Limits:
        for name in self.defenses or ():
            if name not in DEFENSES:
                raise unknown_name("limits.defenses", name, DEFENSES)
        if self.unaccounted and self.epsilon is not None:
            takes = "a budget cannot cover rounds without a certificate: leave one of the two out"
            raise ConfigError("limits.unaccounted", True, takes)
        if self.clip is not None and self.clip_min is not None and self.clip_min > self.clip:
            raise ConfigError("limits.clip_min", self.clip_min, f"is above limits.clip, which is {self.clip:g}")
        return self

    @property
    def missing(self) -> list[str]:
        """The limits that a node needs and that are not set."""
        needed = ["steps", "rounds"]
        if not self.unaccounted:
            needed += ["epsilon", "multiplier", "clip", "clip_min"]
        return [name for name in needed if getattr(self, name) is None]


class Node(_Table):
    """`node.toml`."""

    client: int = Field(ge=0, description="number of this client in the federation")
    data: str = Field(description=".npz file with arrays x and y; relative to this folder or absolute")
    classes: int = Field(ge=2, description="number of classes in the federation")
    server: str | None = Field(None, description="host:port of the server")
    app: str = Field("", description="digest of the app whose runs are accepted")
    test: bool = Field(
        False, description="whether runs are accepted whose noise the server knows, for comparison with simulation"
    )
    limits: Limits = Field(default_factory=lambda: Limits())


def read_node(home: Path) -> Node:
    """Reads `node.toml` in the folder of a node."""
    path = home / FILE
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("NODE", str(home), f"holds no {FILE}: create the folder with 'fedveil deploy init'") from None
    except (OSError, ValueError) as error:
        raise ConfigError("NODE", str(path), f"cannot be read: {error}") from None
    try:
        return Node.model_validate(document)
    except ValidationError as error:
        raise _line(error, path) from None


def check_complete(node: Node) -> None:
    """Raises `Refused` unless all limits are set that a node needs."""
    if node.limits.missing:
        raise Refused(
            f"this node has no limits for {', '.join(node.limits.missing)}: set them in {FILE} below [limits], see "
            "docs/deployment.md"
        )


def with_data(home: Path, data: Path) -> Node:
    """Changes the data file in a node's `node.toml`."""
    path = home / FILE
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [f"data = {json.dumps(str(data))}" if line.split("=")[0].strip() == "data" else line for line in lines]
    write_text(path, "\n".join(kept) + "\n")
    return read_node(home)


def _line(error: ValidationError, path: Path) -> ConfigError:
    first = error.errors()[0]
    path_of_key = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        known = (Limits if path_of_key[0] == "limits" else Node).model_fields
        takes = "unknown key; " + did_you_mean(path_of_key[-1], known)
        return ConfigError(f"{path}: {'.'.join(path_of_key)}", first["input"], takes)
    return one_line(error, prefix=str(path))


def check_deployable(config: Config, *, test: bool = False) -> None:
    """Raises `ConfigError` for settings that have no meaning, or give no protection, on real machines."""
    train = config.train
    if train.noise_seed is not None and not test:
        takes = "makes the draws known to everyone who has the config: leave it out to deploy, or use test mode"
        raise ConfigError("train.noise_seed", train.noise_seed, takes)
    for key in ("dropout", "late"):
        if getattr(train, key):
            takes = "simulates lost or late clients; real ones are lost by themselves: leave it out to deploy"
            raise ConfigError(f"train.{key}", getattr(train, key), takes)
    if train.stop is not None:
        raise ConfigError("train.stop", train.stop, "is for simulations: a coordinator makes all rounds, leave it out")
    if config.data.features != "raw":
        takes = "raw in deployment: a node reads its file unchanged, so store the features in the nodes' files"
        raise ConfigError("data.features", config.data.features, takes)
    if train.sampling == "with-replacement":
        raise ConfigError("train.sampling", train.sampling, "a node takes part once in a round: use fixed or poisson")
    if train.secure_aggregation:
        _check_sums(config)
    for defense in config.defense:
        refusal = defense.refuses_deployment(train.secure_aggregation and train.quorum is not None)
        if refusal is not None:
            raise ConfigError(f"defense.{refusal.key}", refusal.value, refusal.takes)


def _check_sums(config: Config) -> None:
    """Raises `ConfigError` for settings that need more than the sum of a round's updates."""
    train = config.train
    if train.weights != "uniform":
        takes = "needs each update on its own: with train.secure_aggregation use uniform"
        raise ConfigError("train.weights", train.weights, takes)
    if train.per_round is not None and train.per_round < SUMMED:
        takes = f"a sum over fewer than {SUMMED} nodes shows too much of each under train.secure_aggregation"
        raise ConfigError("train.per_round", train.per_round, takes)
    for defense in config.defense:
        if defense.reads_losses and defense.fills("select"):
            takes = "selects nodes by their losses, which train.secure_aggregation hides"
            raise ConfigError("defense.selection", defense.name, takes)


def deployable(config: Config, *, test: bool = False) -> Config:
    """The config as it runs on real machines: checked, and with integer noise unless it says otherwise.

    Test mode changes nothing: it compares a run with a simulation of the same config.
    """
    check_deployable(config, test=test)
    if test:
        return config
    made = config.model_copy(update={"defense": tuple(d.deployed() for d in config.defense)})
    if made.train.quorum is not None:
        _check_quorum(made)
    return made


def _check_quorum(config: Config) -> None:
    """Raises `ConfigError` where nodes could not send integers that carry their share of the noise."""
    train, (first, *others) = config.train, config.defense
    one_step = train.local_steps == 1 and train.optimizer == "sgd" and train.batching == "poisson"
    suits = first.name == "fed-cdp" and first.integer and getattr(first, "placement", "") != "example"
    if others or not suits or not one_step or train.aggregation != "fedsgd":
        takes = (
            "divides the noise of a sum of integers: on real machines that takes fed-cdp alone, with placement 'cohort' or "
            "'batch', integer arithmetic, one local step of sgd on Poisson batches, and fedsgd"
        )
        raise ConfigError("train.quorum", train.quorum, takes)


def check_size(limits: Limits, rounds: int, steps: int, parameters: int) -> None:
    """Raises `Refused` if a request would cost more than this node gives to one round, before anything is computed."""
    if limits.rounds is not None and rounds > limits.rounds:
        raise Refused(f"this node accepts runs of at most {limits.rounds} rounds, requested: {rounds}")
    if limits.steps is not None and steps > limits.steps:
        raise Refused(f"this node makes at most {limits.steps} local steps in a round, requested: {steps}")
    if parameters > limits.parameters:
        raise Refused(f"this node accepts models of at most {limits.parameters} parameters, requested: {parameters}")


def check(
    limits: Limits, defenses: Sequence[Defense], use: Round | None, why: str, releases: Sequence[Release] = ()
) -> None:
    """Raises `Refused` if a request violates a limit.

    `use` is its privacy cost; None if nothing is certified. `releases` are those that the certificate rests on.
    """
    names = [d.name for d in defenses]
    if limits.defenses is not None and not set(names) <= set(limits.defenses):
        raise Refused(f"this node accepts the defences {', '.join(limits.defenses)}, not {'+'.join(names)}")
    floating = [d.name for d in defenses if d.floats_by_choice]
    if floating and not limits.floating:
        told = "this node accepts noise in whole numbers alone: leave defense.arithmetic out, or set it to 'integer'"
        raise Refused(f"{told}, requested: 'float' for {'+'.join(floating)}")
    if use is not None and not limits.floating and any(_floats(release) for release in releases):
        told = f"{'+'.join(names)} draws noise in floating point, for which its certificate does not hold exactly"
        raise Refused(f"{told}: this node accepts noise in whole numbers alone (limits.floating)")
    if limits.clip is not None:
        clips = [bound for d in defenses for bound in d.clip_bounds()]
        if not clips or max(clips) > limits.clip:
            raise Refused(f"this node accepts a clip of at most {limits.clip:g}, requested: {_shown(clips, max)}")
    if limits.clip_min is not None:
        clips = [bound for d in defenses for bound in d.clip_bounds()]
        if not clips or min(clips) < limits.clip_min:
            raise Refused(f"this node accepts a clip of at least {limits.clip_min:g}, requested: {_shown(clips, min)}")
    if limits.noise is not None:
        noises = [level for d in defenses for level in d.noise_levels()]
        if not noises or min(noises) < limits.noise:
            raise Refused(f"this node accepts noise of at least {limits.noise:g}, requested: {_shown(noises, min)}")
    if use is None:
        if not limits.unaccounted:
            raise Refused(f"this node requires a certificate, and there is none for this update: {why}")
        return
    smallest = min(z for _, z in use.noise)
    if limits.multiplier is not None and smallest < limits.multiplier:
        raise Refused(f"this node accepts z of at least {limits.multiplier:g}, requested: {smallest:.4g}")


def _floats(release: Release) -> bool:
    """Whether a node's certificate rests on noise in floating point."""
    return release.certifiable and release.arithmetic == "float" and CHAIN.index(release.tap) <= CHAIN.index("server")


def _shown(values: Sequence[float], worst: Any) -> str:
    return f"{worst(values):g}" if values else "none"
