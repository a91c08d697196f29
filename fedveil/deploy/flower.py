"""The Flower side of a deployed run: a `Transport` over Flower's grid, and the server's start of a run. Imports Flower."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

from fedveil.deploy.files import Federation, Member, roster
from fedveil.deploy.messages import BadMessage, Introduction, Payload, ReceivedReply, Reply, Request, Secured
from fedveil.deploy.records import content, fields_of, payload_of
from fedveil.deploy.secagg import identity

SMALL = 1 << 20  # bytes of a reply without an update
OBJECT = 64  # bytes that count for each object, so that a reply cannot consist of countless empty ones
TRIES = 3  # attempts to read a reply
SOONEST, LATEST = 0.1, 1.0  # seconds between two questions for a reply: at first, and at most
SERVER_DOWNTIME = 60.0  # seconds for which an unreachable server is retried


class FlowerTransport:
    """Reaches nodes through Flower's grid. Every wait has a limit; until then an unreachable server is retried."""

    def __init__(self, grid: Grid, federation: Federation) -> None:
        self.grid, self.federation = grid, federation
        there = (federation.server / identity.ROSTER).exists()
        self.keys = identity.read_roster(federation.server) if there else None

    def online(self) -> dict[int, Member]:
        """The connected nodes of the roster. A node that is not in it does not count."""
        members = roster(self.federation)
        found = _retry(self.grid.get_node_ids, time.monotonic() + SERVER_DOWNTIME)
        return {node: members[node] for node in sorted(found) if node in members}

    def introduce(self, nodes: list[int], timeout: float) -> dict[int, Introduction]:
        messages = {node: partial(_message, RecordDict(), node, MessageType.QUERY, timeout) for node in nodes}
        introductions = {}
        for node, reply in self._exchange(messages, timeout, SMALL).items():
            with contextlib.suppress(Exception):  # a node that introduces itself with nonsense is left out
                introductions[node] = Introduction.read(fields_of(reply.content, "introduction"))
        return introductions

    def send(self, requests: Mapping[int, tuple[Request, Payload]], timeout: float) -> dict[int, ReceivedReply]:
        messages = {
            node: partial(_message, content("request", request.as_dict(), payload), node, MessageType.TRAIN, timeout)
            for node, (request, payload) in requests.items()
        }
        largest = SMALL + max((2 * sum(map(len, payload.values())) for _, payload in requests.values()), default=0)
        return {node: _received(reply) for node, reply in self._exchange(messages, timeout, largest).items()}

    def exchange(
        self, asked: Mapping[int, tuple[Mapping[str, Any], Payload]], timeout: float, largest: int
    ) -> dict[int, Secured]:
        messages = {
            node: partial(_message, content("secagg", fields, parts), node, MessageType.EVALUATE, timeout)
            for node, (fields, parts) in asked.items()
        }
        return {node: _secured(reply) for node, reply in self._exchange(messages, timeout, largest).items()}

    def _exchange(
        self, messages: Mapping[int, Callable[[], Message]], timeout: float, largest: int
    ) -> dict[int, Message]:
        """The replies of at most `largest` bytes that arrive in time, by node.

        A message whose sending failed is built and sent again. A node that receives it twice also accounts for it twice.
        """
        until, waiting, replies = time.monotonic() + timeout, dict[int, str](), dict[int, Message]()
        for node, make in messages.items():
            with contextlib.suppress(Exception):  # not sent in time: counts as no reply
                (waiting[node],) = _retry(partial(self._push, make), until)
        failed, pause = Counter[int](), SOONEST
        while waiting and time.monotonic() < until:
            # One message at a time: what one node sends cannot keep the replies of others from being read. A reply
            # counts for the node that was asked, whatever sender it states.
            for node, number in list(waiting.items()):
                try:
                    for reply in self._pull(number, largest):
                        replies[node] = reply
                        del waiting[node]
                except Exception as error:  # the server is unreachable, or the reply cannot be read
                    failed[node] += not isinstance(error, httpx.HTTPError)
                    if failed[node] >= TRIES:
                        waiting.pop(node, None)
            if waiting:
                time.sleep(pause)
                pause = min(1.3 * pause, LATEST)  # most replies come soon, and every question costs the server's time
        return replies

    def _pull(self, number: str, largest: int) -> list[Message]:
        """The reply to a message, if it has arrived. Its objects are counted while they are fetched."""
        client: Any = self.grid._runtime_client  # type: ignore[attr-defined, unused-ignore]
        fetch, left, lock = type(client).PullObject, [largest], threading.Lock()

        def bounded(request: Any) -> Any:
            found = fetch(client, request)
            with lock:
                left[0] -= len(found.object_content) + OBJECT
                if left[0] < 0:
                    raise ObjectPullError(request.object_id, f"the reply has more than {largest} bytes")
            return found

        client.PullObject = bounded
        return list(self.grid.pull_messages([number]))[:1]

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


# --- messages


def _message(record: RecordDict, node: int, kind: str, timeout: float) -> Message:
    return Message(record, dst_node_id=node, message_type=kind, ttl=timeout)


def _received(message: Message) -> ReceivedReply:
    """A node's reply; one that cannot be read is a failure with its reason."""
    if message.has_error():
        return ReceivedReply(None, {}, f"the node failed ({(message.error.reason or 'no reason given')[:300]})")
    try:
        values = fields_of(message.content, "reply")
        reply = Reply.read({**values, "loss": float(_number(values.get("loss")))})
        return ReceivedReply(reply, payload_of(message.content))
    except (BadMessage, KeyError, ValueError, TypeError, AttributeError) as error:
        return ReceivedReply(None, {}, f"unreadable: {error}")


def _secured(message: Message) -> Secured:
    """A node's reply in secure aggregation; one that cannot be read is refused with its reason."""
    if message.has_error():
        return Secured({}, f"the node failed ({(message.error.reason or 'no reason given')[:300]})")
    try:
        refused = fields_of(message.content, "secagg")["refused"]
        return Secured(payload_of(message.content), str(refused)[:300])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        return Secured({}, f"unreadable: {type(error).__name__}")


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


# --- the server's app


def conduct_run(grid: Grid, federation: Federation, given: Mapping[str, Any]) -> None:
    """Conducts one run. `fedveil deploy run` has sent its config and terms as values of the bundle's keys."""
    from fedveil.config import from_dict
    from fedveil.deploy.coordinator import Terms, conduct
    from fedveil.runs import RunFolder

    folder = RunFolder(Path(str(given["folder"])))
    terms = Terms(
        float(given["quorum"]), float(given["timeout"]), float(given["wait"]), bool(given["test"]), federation.records
    )
    conduct(from_dict(tomllib.loads(str(given["config"]))), FlowerTransport(grid, federation), folder, terms)
