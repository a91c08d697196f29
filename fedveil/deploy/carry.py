"""Flower as what carries our messages: records, and an `Exchange` over its grid."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedveil.deploy.messages import Answer, Introduction, Parts, Reply, Request
from fedveil.deploy.wire import BadMessage

STYPE = "numpy.ndarray"  # the data of each array are an .npy file


def to_record(parts: Parts) -> ArrayRecord:
    """Bytes by name; their types and shapes stand in the bytes, which are checked when they are read."""
    return ArrayRecord({name: Array("bytes", (len(data),), STYPE, data) for name, data in parts.items()})


def from_record(record: ArrayRecord) -> Parts:
    return {name: array.data for name, array in record.items()}


class FlowerExchange:
    """Asks nodes through Flower's grid. Every wait has an end."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def online(self) -> list[int]:
        return sorted(self.grid.get_node_ids())

    def introduce(self, nodes: list[int], timeout: float) -> dict[int, Introduction]:
        messages = [_message(RecordDict(), node, MessageType.QUERY, timeout) for node in nodes]
        told = {}
        for node, reply in self._ask(messages, timeout).items():
            try:
                told[node] = Introduction.read(dict(reply.content.config_records["introduction"]))
            except (BadMessage, KeyError, ValueError):
                continue
        return told

    def ask(self, requests: Mapping[int, tuple[Request, Parts]], timeout: float) -> dict[int, Answer]:
        messages = [
            _message(
                RecordDict({"request": ConfigRecord(dict(request.values())), "model": to_record(parts)}),
                node,
                MessageType.TRAIN,
                timeout,
            )
            for node, (request, parts) in requests.items()
        ]
        return {node: _answer(reply) for node, reply in self._ask(messages, timeout).items()}

    def _ask(self, messages: list[Message], timeout: float) -> dict[int, Message]:
        """The replies that come in time, by node. A server that is away for a while is asked again."""
        if not messages:
            return {}
        waiting = set(self.grid.push_messages(messages))
        until, replies = time.monotonic() + timeout, dict[int, Message]()
        while waiting and time.monotonic() < until:
            for reply in self.grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                replies[reply.metadata.src_node_id] = reply
            if waiting:
                time.sleep(0.5)
        return replies


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
