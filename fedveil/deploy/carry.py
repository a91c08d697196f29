"""Flower as what carries our messages: records, and an `Exchange` over its grid."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedveil.deploy.messages import Answer, Introduction, Parts, Reply, Request
from fedveil.deploy.wire import BadMessage

AWAY = 60.0  # seconds that the server may be away
STYPE = "numpy.ndarray"  # the data of each array are an .npy file


def to_record(parts: Parts) -> ArrayRecord:
    """Bytes by name; their types and shapes stand in the bytes, which are checked when they are read."""
    return ArrayRecord({name: Array("bytes", (len(data),), STYPE, data) for name, data in parts.items()})


def from_record(record: ArrayRecord) -> Parts:
    return {name: array.data for name, array in record.items()}


class FlowerExchange:
    """Asks nodes through Flower's grid. Every wait has an end; while the server is away, it is asked again until then."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def online(self) -> list[int]:
        return sorted(_patiently(self.grid.get_node_ids, time.monotonic() + AWAY))

    def introduce(self, nodes: list[int], timeout: float) -> dict[int, Introduction]:
        asked = [partial(_message, RecordDict(), node, MessageType.QUERY, timeout) for node in nodes]
        told = {}
        for node, reply in self._ask(asked, timeout).items():
            try:
                told[node] = Introduction.read(dict(reply.content.config_records["introduction"]))
            except (BadMessage, KeyError, ValueError):
                continue
        return told

    def ask(self, requests: Mapping[int, tuple[Request, Parts]], timeout: float) -> dict[int, Answer]:
        asked = [
            partial(_message, _content(request, parts), node, MessageType.TRAIN, timeout)
            for node, (request, parts) in requests.items()
        ]
        return {node: _answer(reply) for node, reply in self._ask(asked, timeout).items()}

    def _ask(self, asked: Sequence[Callable[[], Message]], timeout: float) -> dict[int, Message]:
        """The replies that come in time, by node.

        A message whose sending broke off is made and sent anew. Its node may see it twice, and counts it twice then.
        """
        until, waiting, replies = time.monotonic() + timeout, set[str](), dict[int, Message]()
        for make in asked:
            with contextlib.suppress(Exception):  # not sent in time: it counts as not answered
                waiting |= set(_patiently(partial(self._push, make), until))
        while waiting and time.monotonic() < until:
            with contextlib.suppress(Exception):  # the server is away: the next turn asks again
                for reply in self.grid.pull_messages(waiting):
                    waiting.discard(reply.metadata.reply_to_message_id)
                    replies[reply.metadata.src_node_id] = reply
            if waiting:
                time.sleep(0.5)
        return replies

    def _push(self, make: Callable[[], Message]) -> list[str]:
        return list(self.grid.push_messages([make()]))


def _patiently(call: Callable[[], Any], until: float) -> Any:
    """What a call returns, tried again until this time: Flower raises errors of many kinds while its server is away."""
    while True:
        try:
            return call()
        except Exception:
            if time.monotonic() > until:
                raise
            time.sleep(1.0)


def _content(request: Request, parts: Parts) -> RecordDict:
    return RecordDict({"request": ConfigRecord(dict(request.values())), "model": to_record(parts)})


def _message(content: RecordDict, node: int, kind: str, timeout: float) -> Message:
    return Message(content, dst_node_id=node, message_type=kind, ttl=timeout)


def _answer(message: Message) -> Answer:
    """A reply as it came; what cannot be read is a failure with its reason."""
    if message.has_error():
        return Answer(None, {}, f"the node failed ({(message.error.reason or 'no reason given')[:300]})")
    try:
        values = dict(message.content.config_records["reply"])
        reply = Reply.read({**values, "loss": float(_number(values.get("loss")))})
        return Answer(reply, from_record(message.content.array_records["update"]))
    except (BadMessage, KeyError, ValueError) as error:
        return Answer(None, {}, f"unreadable: {error}")


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
