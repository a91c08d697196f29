"""What a node allows, written on its own disk: checked before anything that a server asks for is computed.

`node.toml` says who the node is, where its data lie, and in `[limits]` what it insists on. A server proposes a defence, its
keys and its rounds; it cannot lower a limit, since nothing of a request is read into these.
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
    """A node says no; the message is all that the server learns."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Limits(_Table):
    """`[limits]`: what no request can go below."""

    defenses: list[str] | None = Field(None, min_length=1, description="the defences that are taken (any)")
    clip: float | None = Field(None, gt=0, description="the largest clip")
    noise: float | None = Field(None, gt=0, description="the smallest noise, by the defence's own key")
    multiplier: float | None = Field(None, gt=0, description="the smallest z: noise over sensitivity in what is sent")
    steps: int | None = Field(None, ge=1, description="the most local steps in a round")
    epsilon: float | None = Field(None, gt=0, description="the budget: ε of all rounds of all runs together")
    delta: float = Field(1e-5, gt=0, lt=1, description="its δ")
    unit: Literal["example", "client"] = Field("example", description="for one record, or for all of the node's")
    adjacency: Literal["zero-out", "replace"] = Field(
        "zero-out", description="whether it is left out, or replaced by another"
    )
    unaccounted: bool = Field(False, description="whether rounds without a certificate are taken")

    @model_validator(mode="after")
    def _consistent(self) -> Limits:
        for name in self.defenses or ():
            if name not in DEFENSES:
                raise unknown_name("limits.defenses", name, DEFENSES)
        if self.unaccounted and self.epsilon is not None:
            takes = "a budget cannot be kept with rounds that have no certificate: leave one of the two out"
            raise ConfigError("limits.unaccounted", True, takes)
        return self


class Node(_Table):
    """`node.toml`."""

    client: int = Field(ge=0, description="which client of the federation this is")
    data: str = Field(description="an .npz file with arrays x and y, from this folder or absolute")
    classes: int = Field(ge=2, description="how many classes there are in the federation")
    server: str | None = Field(None, description="host:port of the server")
    port: int = Field(9300, ge=1, le=65535, description="port of the node's own parts, on loopback alone")
    test: bool = Field(
        False, description="whether runs are taken whose noise the server knows, to compare with simulation"
    )
    limits: Limits = Field(default_factory=lambda: Limits())


def read_node(home: Path) -> Node:
    """The node whose folder this is."""
    path = home / FILE
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("NODE", str(home), f"holds no {FILE}: make the folder with 'fedveil deploy init'") from None
    except (OSError, ValueError) as error:
        raise ConfigError("NODE", str(path), f"cannot be read: {error}") from None
    try:
        return Node.model_validate(document)
    except ValidationError as error:
        raise _line(error, path) from None


def with_data(home: Path, data: Path) -> Node:
    """Writes another data file into a node's `node.toml`."""
    path = home / FILE
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [f"data = {json.dumps(str(data))}" if line.split("=")[0].strip() == "data" else line for line in lines]
    write_text(path, "\n".join(kept) + "\n")
    return read_node(home)


def _line(error: ValidationError, path: Path) -> ConfigError:
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        known = (Limits if place[0] == "limits" else Node).model_fields
        return ConfigError(
            f"{path}: {'.'.join(place)}", first["input"], "unknown key; " + did_you_mean(place[-1], known)
        )
    return one_line(error, prefix=str(path))


def check(limits: Limits, config: Config, defenses: Sequence[Defense], steps: int, use: Round | None, why: str) -> None:
    """Raises `Refused` where a request goes below a limit. `use` is what it costs, None where nothing is certified."""
    names = [d.name for d in defenses]
    if limits.defenses is not None and not set(names) <= set(limits.defenses):
        raise Refused(f"defence {'+'.join(names)} is not one that this node takes: {', '.join(limits.defenses)}")
    if limits.clip is not None:
        clips = [bound for d in defenses for bound in d.clip_bounds()]
        if not clips or max(clips) > limits.clip:
            raise Refused(f"this node takes a clip of at most {limits.clip:g}, asked was {_shown(clips, max)}")
    if limits.noise is not None:
        noises = [level for d in defenses for level in d.noise_levels()]
        if not noises or min(noises) < limits.noise:
            raise Refused(f"this node takes noise of at least {limits.noise:g}, asked was {_shown(noises, min)}")
    if limits.steps is not None and steps > limits.steps:
        raise Refused(f"this node makes at most {limits.steps} local steps in a round, asked were {steps}")
    if use is None:
        if not limits.unaccounted:
            raise Refused(f"nothing certified protects what would be sent ({why}), and this node insists on it")
        return
    smallest = min(z for _, z in use.noise)
    if limits.multiplier is not None and smallest < limits.multiplier:
        raise Refused(f"this node takes z of at least {limits.multiplier:g}, asked was {smallest:.4g}")


def _shown(values: Sequence[float], worst: Any) -> str:
    return f"{worst(values):g}" if values else "none"
