"""The messages between server and nodes, independent of the transport that delivers them.

A message has fields (text and numbers) and a payload (a model or an update as named arrays). Nothing that arrives is used
before it has been checked: fields against their types, arrays against the names, sizes, types and shapes of the model.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import jax
import numpy as np

from fedveil.core.errors import FedveilError
from fedveil.runs import named_leaves

if TYPE_CHECKING:
    from fedveil.defenses.base import Defense
    from fedveil.deploy.files import Member
    from fedveil.deploy.secagg.roster import Roster

Tree = Any
Payload = Mapping[str, bytes]  # leaf path → contents of an .npy file
MAX_NPY_HEADER = 4096  # bytes by which an .npy file may exceed its numbers
Kind = TypeVar("Kind", bound="Fields")


class BadMessage(FedveilError):
    """A message that cannot be used; the text says why."""


# --- fields


class Fields:
    """Base of the messages: dataclasses whose fields are text and numbers."""

    def as_dict(self) -> dict[str, str | int | float]:
        return asdict(self)  # type: ignore[call-overload]

    @classmethod
    def read(cls: type[Kind], values: Mapping[str, Any]) -> Kind:
        """The message with these values, which must be exactly its fields, each of its type."""
        kinds: dict[str, Any] = {field.name: field.type for field in fields(cls)}  # type: ignore[arg-type]
        if set(values) != set(kinds):
            odd = sorted(set(values).symmetric_difference(kinds))[0]
            raise BadMessage(f"not a {cls.__name__.lower()} of this version of fedveil: '{odd}' differs")
        for name, kind in kinds.items():
            if type(values[name]).__name__ != kind:
                raise BadMessage(f"'{name}' is {type(values[name]).__name__}, expected {kind}")
        return cls(**values)


@dataclass(frozen=True)
class Introduction(Fields):
    """From a node to the server, once per run: which client it is, and its public sizes."""

    client: int
    size: int
    shape: str  # "28,28,1"
    classes: int
    dtype: str  # of the stored examples


@dataclass(frozen=True)
class Request(Fields):
    """From the server to a node: take part in this round. The payload is the model."""

    run: str
    round: int
    client: int
    key: str  # fingerprint of the public key that the server knows for this client
    config: str  # the resolved config as TOML
    smallest: int  # size of the smallest client
    max_weight: float
    min_weight: float
    seed: int  # -1; in test mode the seed of all noise

    @property
    def test(self) -> bool:
        return self.seed >= 0

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.config.encode()).hexdigest()[:32]

    @property
    def common(self) -> str:
        """A digest of all that must be the same for every node of a round: config, public sizes and weights, seed."""
        same = (self.config, self.smallest, self.max_weight, self.min_weight, self.seed)
        return hashlib.sha256(repr(same).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Reply(Fields):
    """From a node to the server. The payload is the update; a node that refuses sends none."""

    run: str
    round: int
    client: int
    refused: str  # the reason for a refusal; empty if the node took part
    loss: float  # NaN unless a defence selects clients by loss: the server learns only what it needs


@dataclass(frozen=True)
class ReceivedReply:
    """A reply with its payload, or a `failure` that says why none was delivered."""

    reply: Reply | None
    payload: Payload
    failure: str = ""


@dataclass(frozen=True)
class Secured:
    """A reply in secure aggregation: its parts, or why there are none."""

    parts: Payload
    refused: str = ""


class Transport(Protocol):
    """Delivers messages: Flower's grid, or in tests a loop over nodes in memory."""

    keys: Roster | None  # the nodes' long-term keys, for secure aggregation

    def online(self) -> dict[int, Member]:
        """The nodes that can be reached now, by id, with the client and the key that the roster has for them."""

    def introduce(self, nodes: list[int], timeout: float) -> dict[int, Introduction]:
        """The introductions of these nodes; a node that does not reply in time is left out."""

    def exchange(
        self, asked: Mapping[int, tuple[Mapping[str, Any], Payload]], timeout: float, largest: int
    ) -> dict[int, Secured]:
        """Sends messages of secure aggregation (fields, parts) by node; the replies have at most `largest` bytes."""

    def send(self, requests: Mapping[int, tuple[Request, Payload]], timeout: float) -> dict[int, ReceivedReply]:
        """Sends requests by node; returns the replies. A node that does not reply in time is left out."""


# --- payloads


def digest_of(model: Payload, defenses: Sequence[Defense]) -> bytes:
    """A digest of the model that all nodes of a round receive; empty if a defence sends each of them another."""
    if any(defense.fills("broadcast") for defense in defenses):
        return b""
    made = hashlib.sha256()
    for name in sorted(model):
        for part in (name.encode(), model[name]):
            made.update(len(part).to_bytes(8, "big") + part)
    return made.digest()


def pack(tree: Tree) -> dict[str, bytes]:
    """A tree of arrays as a payload: each leaf as an .npy file, by its path."""
    return {name: _npy(np.asarray(leaf)) for name, leaf in named_leaves(jax.device_get(tree)).items()}


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def unpack(payload: Payload, like: Tree) -> Tree:
    """The tree in a payload. Raises `BadMessage` unless names, shapes and types are those of `like` and values finite."""
    wanted = named_leaves(like)
    if set(payload) != set(wanted):
        odd = sorted(set(payload).symmetric_difference(wanted))[0]
        raise BadMessage(f"wrong shape: '{odd}' is {'missing' if odd in wanted else 'not part of the model'}")
    leaves = []
    for name, leaf in wanted.items():
        size = int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize
        if len(payload[name]) > size + MAX_NPY_HEADER:  # before anything is decoded
            raise BadMessage(f"too large: '{name}' has {len(payload[name])} bytes, expected {size}")
        leaves.append(_checked(name, payload[name], tuple(leaf.shape), np.dtype(leaf.dtype)))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _checked(name: str, data: bytes, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # the kind of error depends on which bytes are damaged
        raise BadMessage(f"unreadable: '{name}' is not an array ({type(error).__name__})") from None
    if not isinstance(array, np.ndarray) or array.shape != shape:
        raise BadMessage(f"wrong shape: '{name}' is {list(np.shape(array))}, expected {list(shape)}")
    if array.dtype != dtype:
        raise BadMessage(f"wrong type: '{name}' is {array.dtype}, expected {dtype}")
    if not np.isfinite(array).all():
        raise BadMessage(f"not finite: '{name}' contains NaN or infinity")
    return array
