"""The requests that the pages make, and the forms in which users fill them in.

A request is checked, limited to what a small machine computes in minutes, and turned into a config, so that everything on
the page can be scripted. The forms are built from the tables that check configs: names, keys, types, limits, defaults.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator

from fedveil.attacks.registry import ATTACKS
from fedveil.config import from_dict, resolve
from fedveil.core.errors import ConfigError, unknown_name
from fedveil.core.taps import TAPS
from fedveil.core.validation import one_line
from fedveil.data import originals
from fedveil.data.files import find, search_folders
from fedveil.data.registry import DATASETS
from fedveil.defenses.base import Defense
from fedveil.defenses.catalog import DEFENSES
from fedveil.models.catalog import MODELS

Document = dict[str, Any]

MAX_PICTURES = 16  # in one attacked gradient or update
PICTURE_SETS = tuple(i.name for i in DATASETS.values() if i.kind == "image" and i.trainable and i.name != "file")
TRAIN_SETS = tuple(i.name for i in DATASETS.values() if i.trainable and i.name != "file")
LEAK_MODELS = ("lenet-cpl", "lenet-dlg", "cnn", "dpfl-net", "mlp", "logistic")
LEAK_ATTACKS = ("cpl", "dlg", "idlg", "inverting")
LEAK_TAPS = ("example", "client", "server")
UPLOAD_NAME = r"^[0-9a-f]{16}$"
EXTREME = 1e9  # values of a defence beyond it, or below its inverse, are refused: no training has them


# --- requests


class LabRequest(BaseModel):
    """Base of all requests: unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _within_reach(defense: Document) -> Document:
    for key, value in defense.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and value != 0 and key != "delta" and not 1 / EXTREME <= abs(value) <= EXTREME:
            raise ConfigError(f"defense.{key}", value, f"takes 0, or a number from {1 / EXTREME:g} to {EXTREME:g}")
    return defense


def _named(names: Sequence[str]) -> Any:
    """A name from a table, for the OpenAPI schema only. Names are checked elsewhere, with "did you mean"."""
    return WithJsonSchema({"type": "string", "enum": list(names)})


DEFENSE_SCHEMA: Document = {
    "type": "object",
    "properties": {
        "name": {"enum": list(DEFENSES)},
        **{key: {"type": "number"} for key in ("clip", "noise", "epsilon", "share", "scale", "delta")},
    },
    "required": ["name"],
}
DefenseTable = Annotated[Document, AfterValidator(_within_reach), WithJsonSchema(DEFENSE_SCHEMA)]
PictureSet = Annotated[str, _named(PICTURE_SETS)]
TrainSet = Annotated[str, _named(TRAIN_SETS)]
LeakModel = Annotated[str, _named(LEAK_MODELS)]
LeakAttack = Annotated[str, _named(LEAK_ATTACKS)]


class Picture(LabRequest):
    """One picture: the training example with this index, or an upload with the given label."""

    dataset: PictureSet = "digits"
    index: int = Field(0, ge=0, le=10_000_000)
    upload: str | None = Field(None, pattern=UPLOAD_NAME)
    label: int = Field(0, ge=0, le=10_000)

    @model_validator(mode="after")
    def _known(self) -> Picture:
        if self.dataset not in PICTURE_SETS:
            raise unknown_name("picture.dataset", self.dataset, PICTURE_SETS)
        return self


class Federation(LabRequest):
    """The sizes of a training."""

    clients: int = Field(100, ge=1, le=5_000)
    per_round: int = Field(10, ge=1, le=500)
    rounds: int = Field(20, ge=1, le=1_000)


class LeakRequest(LabRequest):
    """An attack on the gradient of a picture, without and with a defence."""

    picture: Picture = Picture()
    model: LeakModel = "lenet-cpl"
    batch: int = Field(1, ge=1, le=8)
    local_steps: int = Field(1, ge=1, le=8)
    defense: DefenseTable = Field(default_factory=lambda: {"name": "fed-cdp"})
    attack: LeakAttack = "cpl"
    tap: Literal["example", "client", "server"] = "client"
    iterations: int = Field(100, ge=1, le=5_000)
    seed: int = Field(0, ge=0, le=1_000_000)
    federation: Federation = Federation()

    @model_validator(mode="after")
    def _consistent(self) -> LeakRequest:
        for key, name, known in (("model", self.model, LEAK_MODELS), ("attack", self.attack, LEAK_ATTACKS)):
            if name not in known:
                raise unknown_name(f"{key}.name", name, known)
        if self.batch * self.local_steps > MAX_PICTURES:
            takes = (
                f"times train.batch = {self.batch} is more than the {MAX_PICTURES} pictures that the lab reconstructs"
            )
            raise ConfigError("train.local_steps", self.local_steps, takes)
        return self

    @property
    def pictures(self) -> int:
        """The number of the client's pictures: one batch for each local step in the observed gradient or update."""
        return self.batch if self.tap == "example" else self.batch * self.local_steps

    def attack_document(self, file: str, *, defended: bool) -> Document:
        """The config of an attack on the first round of one client, which holds the pictures of `file`."""
        model = {"name": self.model, **({"init": "uniform-0.5"} if self.model.startswith("lenet") else {})}
        made: Document = {
            "preset": "paper",
            "data": {"name": "file", "file": file, "partition": "iid", "clients": 1},
            "model": model,
            "train": {
                "per_round": 1,
                "sampling": "fixed",
                "local_steps": self.local_steps,
                "batch": self.batch,
                "batching": "shuffle",
                "lr": DATASETS[self.picture.dataset].lr,
                "seed": self.seed,
            },
        }
        if defended:
            made["defense"] = dict(self.defense)
        images = self.batch if self.tap == "example" else 1
        made["attack"] = {"name": self.attack, "tap": self.tap, "images": images, "iterations": self.iterations}
        return made

    def federation_document(self) -> Document:
        """The config of the whole training to which the attacked round belongs; ε is that of this training."""
        return TradeRequest(
            dataset=self.picture.dataset,
            model=self.model,
            defense=self.defense,
            batch=self.batch,
            local_steps=self.local_steps,
            **self.federation.model_dump(),
        ).document()


class TradeRequest(LabRequest):
    """A training, for its ε and its accuracy."""

    dataset: TrainSet = "digits"
    model: Annotated[str, _named(list(MODELS))] | None = None
    defense: DefenseTable = Field(default_factory=lambda: {"name": "fed-cdp", "clip": 1.0, "noise": 1.0})
    clients: int = Field(100, ge=1, le=5_000)
    per_round: int = Field(10, ge=1, le=500)
    rounds: int = Field(60, ge=1, le=1_000)
    local_steps: int = Field(20, ge=1, le=1_000)
    batch: int = Field(4, ge=1, le=512)
    lr: float | None = Field(None, gt=0, le=1e3)
    seed: int = Field(0, ge=0, le=1_000_000)

    @model_validator(mode="after")
    def _known(self) -> TradeRequest:
        if self.dataset not in TRAIN_SETS:
            raise unknown_name("data.name", self.dataset, TRAIN_SETS)
        if self.model is not None and self.model not in MODELS:
            raise unknown_name("model.name", self.model, MODELS)
        return self

    def document(self) -> Document:
        made: Document = {
            "preset": "paper",  # the page shows every key that it sets
            "data": {"name": self.dataset, "clients": self.clients},
            "train": {
                "rounds": self.rounds,
                "per_round": self.per_round,
                "local_steps": self.local_steps,
                "batch": self.batch,
                **({} if self.lr is None else {"lr": self.lr}),
                **({"seed": self.seed} if self.seed else {}),
            },
            "defense": dict(self.defense),
        }
        if self.model is not None:
            made["model"] = {"name": self.model}
        return made


def read(kind: type[LabRequest], body: object) -> Any:
    """A checked request; raises `ConfigError` with one line for an invalid one."""
    if not isinstance(body, dict):
        raise ConfigError("request", body, "takes a JSON object")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "extra_forbidden":
            key = ".".join(str(part) for part in first["loc"])
            raise ConfigError(key, first["input"], "unknown key: remove it") from None
        raise one_line(error) from None


def check(document: Document) -> Document:
    """The document, after the checks of the config have passed."""
    config = from_dict(document)
    resolve(config, trainable=False)
    return document


# --- forms

# Keys that make a defence stronger or weaker. The form shows them first, all others under "More keys".
STRENGTH = ("noise", "clip", "epsilon", "scale", "share", "server_noise", "steps", "placement", "stage")
UNITS_SHOWN = {
    "clip": "bound on a norm",
    "noise": "times clip (σ)",
    "server_noise": "times the sensitivity",
    "delta": "δ",
    "epsilon": "ε asked for",
    "share": "of all entries",
    "scale": "in gradient units",
    "steps": "local steps",
}


def choices() -> dict[str, Any]:
    """Everything that the pages need to build their forms."""
    return {
        "datasets": [_dataset(name) for name in TRAIN_SETS],
        "picture_sets": list(PICTURE_SETS),
        "models": [{"name": n, "summary": MODELS[n].summary, "images": MODELS[n].images} for n in MODELS],
        "leak_models": list(LEAK_MODELS),
        "attacks": [{"name": n, "summary": ATTACKS[n].summary} for n in LEAK_ATTACKS],
        "taps": [{"name": n, "summary": TAPS[n]} for n in LEAK_TAPS],
        "seats": [{"name": n, "summary": s} for n, s in TAPS.items() if n != "batch"],
        "defenses": [_defense(kind) for kind in DEFENSES.values()],
    }


def is_installed(name: str) -> bool:
    """Whether a dataset can be loaded without a download. LFW needs only the file of the default size."""
    if originals.find(DATASETS[name], search_folders()) is not None:
        return True
    files = [f for f in DATASETS[name].files if f.name != "lfw_128.npz"]
    return all(find(DATASETS[name], file.name) is not None for file in files)


def _dataset(name: str) -> dict[str, Any]:
    info = DATASETS[name]
    needs = info.needs_fetch or info.originals
    return {
        "name": name,
        "summary": info.summary,
        "kind": info.kind,
        "classes": info.classes,
        "model": info.model,
        "here": is_installed(name),
        "get": info.get_command if needs else "put its files into a folder named in FEDVEIL_DATA",
        "defaults": {"rounds": info.rounds, "local_steps": info.local_steps, "batch": info.batch, "lr": info.lr},
    }


def _defense(kind: type[Defense]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    fields = [_field(f.name, hints[f.name], f.default) for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    known = [field for field in fields if field is not None]
    known.sort(key=lambda f: STRENGTH.index(f["key"]) if f["key"] in STRENGTH else len(STRENGTH))
    return {"name": kind.name, "summary": kind.summary, "private": kind.private, "keys": known}


def _field(key: str, hint: Any, default: Any) -> dict[str, Any] | None:
    """One key of a defence as a form field; None for lists, which only the command line offers."""
    limits: dict[str, Any] = {}
    optional = False
    while get_origin(hint) in (Union, types.UnionType) or hasattr(hint, "__metadata__"):
        if hasattr(hint, "__metadata__"):
            limits |= _limits(hint.__metadata__)
            hint = get_args(hint)[0]
        else:
            optional = True
            hint = next(arg for arg in get_args(hint) if arg is not type(None))
    field = {
        "key": key,
        "default": default,
        "optional": optional,
        "unit": UNITS_SHOWN.get(key, ""),
        "main": key in STRENGTH,
        **limits,
    }
    if get_origin(hint) is Literal:
        return {**field, "type": "choice", "choices": list(get_args(hint))}
    kinds = {float: "number", int: "whole", bool: "switch"}
    return {**field, "type": kinds[hint]} if hint in kinds else None


def _limits(metadata: tuple[Any, ...]) -> dict[str, Any]:
    """The limits `gt`, `ge`, `lt` and `le` of a pydantic field."""
    found = {}
    for item in metadata:
        for limit in getattr(item, "metadata", [item]):
            for name in ("gt", "ge", "lt", "le"):
                if hasattr(limit, name):
                    found[name] = getattr(limit, name)
    return found
