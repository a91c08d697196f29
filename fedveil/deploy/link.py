"""The process of a node that talks to the server: it fetches messages through Flower and hands them to `worker`.

It replaces Flower's SuperNode, which fetches and executes the app bundle of a run. This process never fetches a bundle. It
asks for the digest of a run's bundle and refuses every run whose bundle is not the pinned one. It passes numbers and text
on to the worker. It holds the node's key and no data. Responses of the server are bounded in size, and are unpacked in
this process only. Redirects are not followed. Imports Flower.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedveil.deploy import refusals, wire
from fedveil.deploy.records import content, fields_of, payload_of
from fedveil.deploy.wire import Parcel

POLL, SOON = 1.0, 0.1  # seconds between two questions for messages: when idle, and just after a message
SLOWER = 1.3  # factor from one pause to the next: a message waits for about a quarter of the time since the last one
PATIENCE = 5.0  # seconds before another attempt to reach the server
MAX_OBJECTS = 4096  # of one message
OVERHEAD = 1 << 20  # bytes by which a response may exceed the numbers in it


class Refusal(Exception):
    """A message that this node does not answer; the text is sent to the server."""


class Fleet:
    """Flower's fleet API with the key of this node."""

    def __init__(self, server: str, home: Path, largest: int) -> None:
        key: Any = load_ssh_private_key((home / "key").read_bytes(), None)
        self.public = public_key_to_bytes(key.public_key())
        self.largest, self.node = largest, Node()
        self.client = FleetHttpClient.from_server_address(
            server,
            False,
            (home / "ca.crt").read_bytes(),
            [RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(key, key.public_key())],
        )
        http: httpx.Client = self.client._client
        http.follow_redirects = False
        http.event_hooks = {"request": [_plain], "response": [self._bounded]}

    def _bounded(self, response: httpx.Response) -> None:
        """Refuses a response whose size is unknown or too large, before its body is read."""
        length = response.headers.get("content-length", "")
        known = length.isdecimal() and int(length) <= self.largest + OVERHEAD
        if not known or response.headers.get("content-encoding", "identity") != "identity":
            raise httpx.RemoteProtocolError(f"a response of {length[:20] or 'unknown'} bytes is not accepted")

    def activate(self) -> None:
        request = ActivateNodeRequest(public_key=self.public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        self.node = Node(node_id=self.client.ActivateNode(request).node_id)

    def deactivate(self) -> None:
        with suppress(Exception):
            self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))

    def beat(self) -> None:
        with suppress(httpx.HTTPError, ValueError):
            self.client.SendNodeHeartbeat(
                SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
            )

    def receive(self) -> tuple[Message, Any] | None:
        """The next message without its content, and the tree of its objects."""
        found = self.client.PullMessages(PullMessagesRequest(node=self.node))
        if not found.messages_list:
            return None
        return message_from_proto(found.messages_list[0]), found.message_object_trees[0]

    def bundle_of(self, run: int) -> str:
        return str(self.client.GetRun(GetRunRequest(node=self.node, run_id=run)).run.fab_hash)

    def complete(self, message: Message, tree: Any) -> Message:
        """The message with its content. Its objects are counted and their sizes summed while they arrive."""
        run, objects = message.metadata.run_id, list({one.object_id for one in iterate_object_tree(tree)})
        if len(objects) > MAX_OBJECTS:
            raise Refusal(f"a message of {len(objects)} objects is too large: this node accepts {MAX_OBJECTS}")
        pull = make_pull_object_fn_protobuf(self.client.PullObject, self.node, run)
        lock, left = threading.Lock(), [self.largest]

        def bounded(name: str) -> bytes:
            data = pull(name)
            with lock:
                left[0] -= len(data)
                if left[0] < 0:
                    raise Refusal(f"a message of more than {self.largest} bytes is too large for this node")
            return data

        contents = pull_objects(objects, bounded, max_time=60.0)
        self.client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=tree.object_id)
        )
        made = inflate_object_from_contents(tree.object_id, contents)
        if not isinstance(made, Message):
            raise Refusal("what arrived is not a message")
        made.metadata.__dict__["_message_id"] = tree.object_id
        return made

    def push(self, reply: Message) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        run = reply.metadata.run_id
        with no_object_id_recompute():
            answered = self.client.PushMessages(
                PushMessagesRequest(
                    node=self.node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[0.0],  # the server need not learn it
                )
            )
            push = make_push_object_fn_protobuf(self.client.PushObject, self.node, run, answered.session_id)
            push_objects(
                get_all_nested_objects(reply), push, object_ids_to_push=set(answered.objects_to_push), keep_objects=True
            )


def _plain(request: httpx.Request) -> None:
    request.headers["accept-encoding"] = "identity"


class Link:
    """Passes messages of the server to the worker, and the worker's replies to the server."""

    def __init__(self, fleet: Fleet, home: Path, app: str) -> None:
        self.fleet, self.home, self.app = fleet, home, app
        self.bundles: dict[int, str] = {}

    def run(self) -> None:
        """Answers messages until the process is ended. If the server does not know the node, it tries again to connect."""
        threading.Thread(target=self._beat, daemon=True).start()
        active, said, pause = False, "", POLL
        while True:
            try:
                if not active:
                    self.fleet.activate()
                    active, said = True, ""
                    print(f"connected as node {self.fleet.node.node_id}", flush=True)
                if self._next():
                    pause = SOON
                else:
                    time.sleep(pause)
                    pause = min(SLOWER * pause, POLL)
            except (httpx.HTTPError, ValueError) as error:
                if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403, 404):
                    active = False  # it was removed from the roster, or registered again under another id
                line = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                if line != said:
                    print(f"the server does not answer: {line}", flush=True)
                said = line
                time.sleep(PATIENCE)

    def _beat(self) -> None:
        while True:
            time.sleep(HEARTBEAT_DEFAULT_INTERVAL / 2)
            if self.fleet.node.node_id:
                self.fleet.beat()

    def _next(self) -> bool:
        """Answers the next message, if there is one."""
        received = self.fleet.receive()
        if received is None:
            return False
        message, tree = received
        made: Message | Any = message
        try:
            self._check(message)
            message = self.fleet.complete(message, tree)
            made = Message(self._ask_worker(message), reply_to=message)
        except Refusal as error:
            made = self._refused(message, str(error))
        except httpx.HTTPError:
            raise
        except Exception as error:  # what arrived cannot be unpacked; the kind of error depends on what it was
            made = self._refused(message, f"the message cannot be read ({type(error).__name__})")
        self._deliver(made)
        return True

    def _refused(self, message: Message, why: str) -> Message:
        return Message(Error(ErrorCode.INVALID_FAB, refusals.note(self.home, why)), reply_to=message)

    def _check(self, message: Message) -> None:
        """Refuses a run of another bundle before anything of its message is fetched."""
        run = message.metadata.run_id
        if run not in self.bundles:
            self.bundles = {**dict(list(self.bundles.items())[-63:]), run: self.fleet.bundle_of(run)}
        if self.bundles[run] != self.app:
            raise Refusal(
                f"this node runs only the app with digest {self.app[:16]} of its node.toml, not {self.bundles[run][:16]}"
            )

    def _ask_worker(self, message: Message) -> Any:
        """The content of the reply: the worker's answer to the message."""
        kind = {"query": "introduce", "train": "train", "evaluate": "secagg"}.get(message.metadata.message_type)
        if kind is None:
            raise Refusal(f"this node has nothing to do for a message of type {message.metadata.message_type[:50]!r}")
        given = message.content
        training = kind != "introduce"
        fields = fields_of(given, "request" if kind == "train" else kind) if training else {}
        asked = Parcel(kind, fields, payload_of(given) if training else {})
        answer = ask(asked, self.fleet.largest)
        if answer.kind == "refused":
            raise Refusal(str(answer.fields["reason"]))
        return content(answer.kind, answer.fields, answer.parts if training else None)

    def _deliver(self, reply: Message) -> None:
        """Sends a reply; tries for a minute if the server cannot be reached."""
        until = time.monotonic() + 60.0
        while True:
            try:
                return self.fleet.push(reply)
            except httpx.TransportError:
                if time.monotonic() > until:
                    return
                time.sleep(1.0)
            except Exception as error:  # the run has ended, or its message has expired: nobody waits for this reply
                print(f"a reply was not taken ({type(error).__name__})", flush=True)
                return


def ask(asked: Parcel, largest: int) -> Parcel:
    """The worker's answer. If no worker runs, the message is refused; `deploy node` starts the worker again."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(wire.SOCKET)
            wire.send(connection, asked)
            answer = wire.receive(connection, largest)
    except (OSError, wire.Broken) as error:
        raise Refusal(f"failed at the node: its worker ended or does not run ({type(error).__name__})") from None
    if answer is None:
        raise Refusal("failed at the node: its worker ended without an answer")
    return answer


def main(arguments: list[str]) -> int:
    given = argparse.ArgumentParser(prog="fedveil.deploy.link")
    for name, kind in (("--server", str), ("--app", str), ("--largest", int)):
        given.add_argument(name, type=kind, required=True)
    options = given.parse_args(arguments)
    home = Path.cwd()

    def stop(*_: Any) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)
    try:
        fleet = Fleet(options.server, home, options.largest)
    except (OSError, ValueError) as error:
        print(f"error: the key or the certificate of this node cannot be read: {error}", file=sys.stderr)
        return 2
    run: Callable[[], None] = Link(fleet, home, options.app).run
    try:
        run()
    finally:
        fleet.deactivate()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
