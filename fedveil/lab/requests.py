"""What the page may ask for: checked, bounded to what a small machine does in minutes, and turned into configs.

Everything here is a config in the end, so that what is clicked can be scripted. Limits of the lab are those of its fields;
what the config itself refuses is refused with the config's own words.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedveil.config import from_dict, resolve
from fedveil.core.errors import ConfigError, unknown_name
from fedveil.core.validation import one_line
from fedveil.data.catalog import DATASETS
from fedveil.models.catalog import MODELS

Document = dict[str, Any]

MOST_PICTURES = 16  # behind one attacked gradient or update
PICTURE_SETS = tuple(i.name for i in DATASETS.values() if i.kind == "image" and i.trainable and i.name != "file")
TRAIN_SETS = tuple(i.name for i in DATASETS.values() if i.trainable and i.name != "file")
LEAK_MODELS = ("lenet-cpl", "lenet-dlg", "cnn", "dpfl-net", "mlp", "logistic")
LEAK_ATTACKS = ("cpl", "dlg", "idlg", "inverting")
LEAK_TAPS = ("example", "client", "server")
UPLOAD_NAME = r"^[0-9a-f]{16}$"


class Ask(BaseModel):
    """Base of requests: nothing unknown, nothing sloppy."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Picture(Ask):
    """One picture: the training part's example with this index, or an upload with a label that it is given."""

    dataset: str = "digits"
    index: int = Field(0, ge=0, le=10_000_000)
    upload: str | None = Field(None, pattern=UPLOAD_NAME)
    label: int = Field(0, ge=0, le=10_000)

    @model_validator(mode="after")
    def _known(self) -> Picture:
        if self.dataset not in PICTURE_SETS:
            raise unknown_name("picture.dataset", self.dataset, PICTURE_SETS)
        return self


class Federation(Ask):
    """The sizes of a training."""

    clients: int = Field(100, ge=1, le=5_000)
    per_round: int = Field(10, ge=1, le=500)
    rounds: int = Field(20, ge=1, le=1_000)


class LeakAsk(Ask):
    """A picture, whose gradient is attacked without and with a defence."""

    picture: Picture = Picture()
    model: str = "lenet-cpl"
    batch: int = Field(1, ge=1, le=8)
    local_steps: int = Field(1, ge=1, le=8)
    defense: dict[str, Any] = Field(default_factory=lambda: {"name": "fed-cdp"})
    attack: str = "cpl"
    tap: Literal["example", "client", "server"] = "client"
    iterations: int = Field(100, ge=1, le=5_000)
    seed: int = Field(0, ge=0, le=1_000_000)
    federation: Federation = Federation()

    @model_validator(mode="after")
    def _fits(self) -> LeakAsk:
        for key, name, known in (("model", self.model, LEAK_MODELS), ("attack", self.attack, LEAK_ATTACKS)):
            if name not in known:
                raise unknown_name(f"{key}.name", name, known)
        if self.batch * self.local_steps > MOST_PICTURES:
            takes = f"times train.batch = {self.batch} is more than the {MOST_PICTURES} pictures that the lab rebuilds"
            raise ConfigError("train.local_steps", self.local_steps, takes)
        return self

    @property
    def pictures(self) -> int:
        """How many the client holds: one batch for each local step that the attacker sees at once."""
        return self.batch if self.tap == "example" else self.batch * self.local_steps

    def attack_document(self, file: str, *, defended: bool) -> Document:
        """One client that holds the pictures of `file`, and the attack on its first round."""
        model = {"name": self.model, **({"init": "uniform-0.5"} if self.model.startswith("lenet") else {})}
        made: Document = {
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
        """The training that the attacked round is one of: what ε is worked out for."""
        return TradeAsk(
            dataset=self.picture.dataset,
            model=self.model,
            defense=self.defense,
            batch=self.batch,
            local_steps=self.local_steps,
            **self.federation.model_dump(),
        ).document()


class TradeAsk(Ask):
    """A training: what it costs in privacy, and what it learns."""

    dataset: str = "digits"
    model: str | None = None
    defense: dict[str, Any] = Field(default_factory=lambda: {"name": "fed-cdp", "clip": 1.0, "noise": 1.0})
    clients: int = Field(100, ge=1, le=5_000)
    per_round: int = Field(10, ge=1, le=500)
    rounds: int = Field(60, ge=1, le=1_000)
    local_steps: int = Field(20, ge=1, le=1_000)
    batch: int = Field(4, ge=1, le=512)
    lr: float | None = Field(None, gt=0, le=1e3)
    seed: int = Field(0, ge=0, le=1_000_000)

    @model_validator(mode="after")
    def _known(self) -> TradeAsk:
        if self.dataset not in TRAIN_SETS:
            raise unknown_name("data.name", self.dataset, TRAIN_SETS)
        if self.model is not None and self.model not in MODELS:
            raise unknown_name("model.name", self.model, MODELS)
        return self

    def document(self) -> Document:
        made: Document = {
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


def read(kind: type[Ask], body: object) -> Any:
    """A checked request; a wrong one is a `ConfigError` of one line."""
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
    """The document itself, once the config's own checks have passed."""
    config = from_dict(document)
    resolve(config, trainable=False)
    return document
