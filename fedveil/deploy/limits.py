"""What the owner of a node allows: `node.toml`, checked before a request is computed.

`node.toml` names the client, its data file and, in `[limits]`, the conditions that every request must meet. A server
proposes a defence with its keys and rounds. It cannot relax a limit, because limits are read from this file alone.
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
from fedveil.core.validation import one_line
from fedveil.defenses.base import Defense
from fedveil.defenses.catalog import DEFENSES
from fedveil.runs import write_text

FILE = "node.toml"


class Refused(FedveilError):
    """A node rejects a request; the server learns this message and nothing else."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Limits(_Table):
    """`[limits]`: conditions that every request must meet."""

    defenses: list[str] | None = Field(None, min_length=1, description="accepted defences (default: all)")
    clip: float | None = Field(None, gt=0, description="largest accepted clip")
    noise: float | None = Field(None, gt=0, description="smallest accepted noise, in units of the defence's key")
    multiplier: float | None = Field(
        None, gt=0, description="smallest accepted z: noise over sensitivity in what is sent"
    )
    steps: int | None = Field(None, ge=1, description="most local steps in a round")
    epsilon: float | None = Field(None, gt=0, description="budget: ε of all rounds of all runs together")
    delta: float = Field(1e-5, gt=0, lt=1, description="δ of the budget")
    unit: Literal["example", "client"] = Field(
        "example", description="unit of the budget: one record, or all records of the node"
    )
    adjacency: Literal["zero-out", "replace"] = Field(
        "zero-out", description="whether the unit is removed (zero-out) or replaced"
    )
    unaccounted: bool = Field(False, description="whether rounds without a certificate are accepted")

    @model_validator(mode="after")
    def _consistent(self) -> Limits:
        for name in self.defenses or ():
            if name not in DEFENSES:
                raise unknown_name("limits.defenses", name, DEFENSES)
        if self.unaccounted and self.epsilon is not None:
            takes = "a budget cannot cover rounds without a certificate: leave one of the two out"
            raise ConfigError("limits.unaccounted", True, takes)
        return self


class Node(_Table):
    """`node.toml`."""

    client: int = Field(ge=0, description="number of this client in the federation")
    data: str = Field(description=".npz file with arrays x and y; relative to this folder or absolute")
    classes: int = Field(ge=2, description="number of classes in the federation")
    server: str | None = Field(None, description="host:port of the server")
    port: int = Field(9300, ge=1, le=65535, description="port for the node's own processes, on loopback only")
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


def check(limits: Limits, config: Config, defenses: Sequence[Defense], steps: int, use: Round | None, why: str) -> None:
    """Raises `Refused` if a request violates a limit. `use` is its privacy cost; None if nothing is certified."""
    names = [d.name for d in defenses]
    if limits.defenses is not None and not set(names) <= set(limits.defenses):
        raise Refused(f"this node accepts the defences {', '.join(limits.defenses)}, not {'+'.join(names)}")
    if limits.clip is not None:
        clips = [bound for d in defenses for bound in d.clip_bounds()]
        if not clips or max(clips) > limits.clip:
            raise Refused(f"this node accepts a clip of at most {limits.clip:g}, requested: {_shown(clips, max)}")
    if limits.noise is not None:
        noises = [level for d in defenses for level in d.noise_levels()]
        if not noises or min(noises) < limits.noise:
            raise Refused(f"this node accepts noise of at least {limits.noise:g}, requested: {_shown(noises, min)}")
    if limits.steps is not None and steps > limits.steps:
        raise Refused(f"this node makes at most {limits.steps} local steps in a round, requested: {steps}")
    if use is None:
        if not limits.unaccounted:
            raise Refused(f"this node requires a certificate, and there is none for this update: {why}")
        return
    smallest = min(z for _, z in use.noise)
    if limits.multiplier is not None and smallest < limits.multiplier:
        raise Refused(f"this node accepts z of at least {limits.multiplier:g}, requested: {smallest:.4g}")


def _shown(values: Sequence[float], worst: Any) -> str:
    return f"{worst(values):g}" if values else "none"
