"""What server and nodes say to each other, as plain values: three kinds of message, whatever carries them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol, TypeVar

from fedveil.deploy.wire import BadMessage

Parts = Mapping[str, bytes]
Values = dict[str, str | int | float]
Kind = TypeVar("Kind", bound="Plain")


class Plain:
    """A message whose fields are text and numbers."""

    def values(self) -> Values:
        return asdict(self)  # type: ignore[call-overload]

    @classmethod
    def read(cls: type[Kind], values: Mapping[str, Any]) -> Kind:
        """From values of unknown origin: exactly these fields, of these types."""
        kinds: dict[str, Any] = {field.name: field.type for field in fields(cls)}  # type: ignore[arg-type]
        if set(values) != set(kinds):
            odd = sorted(set(values).symmetric_difference(kinds))[0]
            raise BadMessage(f"not a {cls.__name__.lower()} of this version of fedveil: '{odd}' differs")
        for name, kind in kinds.items():
            if type(values[name]).__name__ != kind:
                raise BadMessage(f"'{name}' is {type(values[name]).__name__}, {kind} was to come")
        return cls(**values)


@dataclass(frozen=True)
class Introduction(Plain):
    """A node to the server, once in a run: which client it is, and the sizes that are public."""

    client: int
    size: int
    shape: str  # "28,28,1"
    classes: int
    dtype: str  # of the stored examples


@dataclass(frozen=True)
class Request(Plain):
    """The server to a node: take part in this round. The model that it receives comes beside this."""

    run: str
    round: int
    client: int
    config: str  # the resolved config as TOML
    smallest: int  # size of the smallest client
    max_weight: float
    min_weight: float
    seed: int  # -1; in test mode the seed that all noise follows from

    @property
    def test(self) -> bool:
        return self.seed >= 0

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.config.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Reply(Plain):
    """A node to the server; what it sends comes beside this, unless it refused."""

    run: str
    round: int
    client: int
    refused: str  # why nothing is sent; empty where something is
    loss: float  # NaN, unless a defence selects by losses: the server learns nothing it need not know


@dataclass(frozen=True)
class Answer:
    """A reply with what came beside it; or a `failure` to deliver one, in words."""

    reply: Reply | None
    parts: Parts
    failure: str = ""


class Exchange(Protocol):
    """What carries messages: Flower's grid, or in tests a loop over nodes in memory."""

    def online(self) -> list[int]:
        """The numbers of the nodes that can be asked now."""

    def introduce(self, nodes: list[int], timeout: float) -> dict[int, Introduction]:
        """Asks nodes who they are; those that do not answer are left out."""

    def ask(self, requests: Mapping[int, tuple[Request, Parts]], timeout: float) -> dict[int, Answer]:
        """Asks nodes to take part; those that do not answer in time are left out."""
