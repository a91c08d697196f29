"""The Flower side of a deployed run: a `Transport` over Flower's grid, the client app and the server app.

Both apps are thin. The client app unpacks a message, calls `node` and packs the reply; the server app hands the grid to
`coordinator`. A node's folder comes from the node's own command line (`--node-config`), never from a message.
"""

from __future__ import annotations

import contextlib
import math
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedveil.deploy.messages import BadMessage, Introduction, Payload, ReceivedReply, Reply, Request

SERVER_DOWNTIME = 60.0  # seconds for which an unreachable server is retried
STYPE = "numpy.ndarray"  # Flower's name for arrays that are .npy files

client_app = ClientApp()
server_app = ServerApp()


# --- the transport


class FlowerTransport:
    """Reaches nodes through Flower's grid. Every wait has a limit; until then an unreachable server is retried."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def online(self) -> list[int]:
        return sorted(_retry(self.grid.get_node_ids, time.monotonic() + SERVER_DOWNTIME))

    def introduce(self, nodes: list[int], timeout: float) -> dict[int, Introduction]:
        messages = [partial(_message, RecordDict(), node, MessageType.QUERY, timeout) for node in nodes]
        introductions = {}
        for node, reply in self._exchange(messages, timeout).items():
            with contextlib.suppress(BadMessage, KeyError, ValueError):
                introductions[node] = Introduction.read(dict(reply.content.config_records["introduction"]))
        return introductions

    def send(self, requests: Mapping[int, tuple[Request, Payload]], timeout: float) -> dict[int, ReceivedReply]:
        messages = [
            partial(_message, _request_record(request, payload), node, MessageType.TRAIN, timeout)
            for node, (request, payload) in requests.items()
        ]
        return {node: _received(reply) for node, reply in self._exchange(messages, timeout).items()}

    def _exchange(self, messages: Sequence[Callable[[], Message]], timeout: float) -> dict[int, Message]:
        """The replies that arrive in time, by node.

        A message whose sending failed is built and sent again. A node that receives it twice also accounts for it twice.
        """
        until, waiting, replies = time.monotonic() + timeout, set[str](), dict[int, Message]()
        for make in messages:
            with contextlib.suppress(Exception):  # not sent in time: counts as no reply
                waiting |= set(_retry(partial(self._push, make), until))
        while waiting and time.monotonic() < until:
            with contextlib.suppress(Exception):  # the server is unreachable: tried again in the next turn
                for reply in self.grid.pull_messages(waiting):
                    waiting.discard(reply.metadata.reply_to_message_id)
                    replies[reply.metadata.src_node_id] = reply
            if waiting:
                time.sleep(0.5)
        return replies

    def _push(self, make: Callable[[], Message]) -> list[str]:
        return list(self.grid.push_messages([make()]))


def _retry(call: Callable[[], Any], until: float) -> Any:
    """The result of a call, retried until this time: Flower raises errors of many kinds while its server is down."""
    while True:
        try:
            return call()
        except Exception:
            if time.monotonic() > until:
                raise
            time.sleep(1.0)


# --- records


def to_record(payload: Payload) -> ArrayRecord:
    """A payload as Flower's record. Types and shapes are inside the bytes, and are checked when these are unpacked."""
    return ArrayRecord({name: Array("bytes", (len(data),), STYPE, data) for name, data in payload.items()})


def from_record(record: ArrayRecord) -> Payload:
    return {name: array.data for name, array in record.items()}


def _request_record(request: Request, payload: Payload) -> RecordDict:
    return RecordDict({"request": ConfigRecord(dict(request.as_dict())), "model": to_record(payload)})


def _message(content: RecordDict, node: int, kind: str, timeout: float) -> Message:
    return Message(content, dst_node_id=node, message_type=kind, ttl=timeout)


def _received(message: Message) -> ReceivedReply:
    """A node's reply; one that cannot be read is a failure with its reason."""
    if message.has_error():
        return ReceivedReply(None, {}, f"the node failed ({(message.error.reason or 'no reason given')[:300]})")
    try:
        values = dict(message.content.config_records["reply"])
        reply = Reply.read({**values, "loss": float(_number(values.get("loss")))})
        return ReceivedReply(reply, from_record(message.content.array_records["update"]))
    except (BadMessage, KeyError, ValueError) as error:
        return ReceivedReply(None, {}, f"unreadable: {error}")


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


# --- the app of a node


def _home(context: Context) -> Path:
    from fedveil.deploy.node import cached_compilations

    home = Path(str(context.node_config["home"]))
    cached_compilations(home)
    return home


@client_app.query()  # type: ignore[untyped-decorator, unused-ignore]
def introduce(message: Message, context: Context) -> Message:
    """Tells the server which client this node is."""
    from fedveil.deploy import node

    home = _home(context)
    try:
        introduction = ConfigRecord(dict(node.introduce(home).as_dict()))
    except Exception:
        raise RuntimeError(node.log_error(home)) from None  # Flower sends this text to the server
    return Message(RecordDict({"introduction": introduction}), reply_to=message)


@client_app.train()  # type: ignore[untyped-decorator, unused-ignore]
def take_part(message: Message, context: Context) -> Message:
    """Takes part in one round."""
    from fedveil.deploy import node

    request = Request.read(dict(message.content.config_records["request"]))
    model = from_record(message.content.array_records["model"])
    reply, update = node.handle(_home(context), request, model)
    content = RecordDict({"reply": ConfigRecord(dict(reply.as_dict())), "update": to_record(update)})
    return Message(content, reply_to=message)


# --- the app of the server


@server_app.main()  # type: ignore[untyped-decorator, unused-ignore]
def main(grid: Grid, context: Context) -> None:
    """One run. `fedveil deploy run` wrote its config and terms into the config of the app."""
    from fedveil.config import from_dict
    from fedveil.core.errors import FedveilError
    from fedveil.deploy.coordinator import Terms, conduct
    from fedveil.runs import RunFolder

    given = context.run_config
    folder = RunFolder(Path(str(given["folder"])))
    terms = Terms(float(given["quorum"]), float(given["timeout"]), float(given["wait"]), bool(given["test"]))
    try:
        conduct(from_dict(tomllib.loads(str(given["config"]))), FlowerTransport(grid), folder, terms)
    except FedveilError as error:
        folder.write_info(status="failed", error=str(error))
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}; resume from the last complete round with --resume {folder.path}"
        folder.write_info(status="failed", error=text)
        raise
