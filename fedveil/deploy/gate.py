"""The gate: the only process of a server that other machines can reach. Imports Flower.

It speaks TLS. It admits the calls that nodes make, if they are signed with a key of the roster, and passes them on to the
SuperLink on loopback. Everything else is refused before its body is read: starting runs, listing or changing the roster,
fetching bundles, the runtime API, the documentation pages.
"""

from __future__ import annotations

import asyncio
import datetime
import resource
import ssl
import sys
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from flwr.common.constant import TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedveil.deploy import refusals
from fedveil.deploy.credentials import public_bytes
from fedveil.deploy.files import Federation, read_federation

PREFIX = "/v1/fleet/"
# What a node calls. Fetching bundles and changing the roster are not among them.
CALLS = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run",
    "push-object", "pull-object", "confirm-message-received",
)  # fmt: skip
LARGEST = 64 << 20  # bytes of one request: Flower cuts arrays into smaller pieces
HEAD_TIME = 15.0  # seconds until a connection must have sent its first request
BODY_TIME = 60.0  # seconds for the body of a request
AT_ONCE = 16  # requests of one node at the same time
PASSED_ON = (b"content-type", b"accept", b"user-agent")

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Denied(Exception):
    """A request that is not passed on: HTTP status and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Roster:
    """The public keys in `server/nodes/*.pub`, read again when they are older than two seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.keys, self.read_at = folder, frozenset[bytes](), -10.0

    def __contains__(self, key: bytes) -> bool:
        if time.monotonic() - self.read_at > 2.0:
            found = set()
            for path in self.folder.glob("*.pub"):
                with suppress(OSError, ValueError):
                    found.add(public_bytes(path))
            self.keys, self.read_at = frozenset(found), time.monotonic()
        return key in self.keys


class Gate:
    """The ASGI application: checks each request and passes it on to the SuperLink."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.roster = federation, Roster(federation.server / "nodes")
        trusted = ssl.create_default_context(cafile=federation.server / "ca.crt")
        self.inside = httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{federation.control}", verify=trusted, timeout=60.0, follow_redirects=False
        )
        self.busy: dict[bytes, int] = {}
        self.unwritten, self.written_at = 0, 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        key = b""
        try:
            headers = dict(scope["headers"])
            call = self._call(scope["method"], scope["path"])
            key = self._key(headers)
            if self.busy.get(key, 0) >= AT_ONCE:
                key = b""
                raise Denied(429, "a node sent too many requests at once")
            self.busy[key] = self.busy.get(key, 0) + 1
            body = await _body(headers, receive)
            status, kept, answer = await self._inside(call, headers, body)
        except Denied as error:
            self._note(str(error), scope)
            status, kept, answer = error.status, [(b"content-type", b"text/plain")], f"{error}\n".encode()
        finally:
            if key:
                self.busy[key] -= 1
        head = [*kept, (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": answer})

    @staticmethod
    def _call(method: str, path: str) -> str:
        call = path.removeprefix(PREFIX)
        if method != "POST" or not path.startswith(PREFIX) or call not in CALLS:
            raise Denied(404, "nothing here for the outside")
        return PREFIX + call

    def _key(self, headers: Mapping[bytes, bytes]) -> bytes:
        """The key that signed this request, which must be in the roster."""
        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True)
            signed_at = headers[TIMESTAMP_HEADER.encode()]
            age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(signed_at.decode("ascii"))
            if key not in self.roster:
                raise Denied(401, "a key that is not in the roster")
            if abs(age.total_seconds()) > TIMESTAMP_TOLERANCE:
                raise Denied(401, "an old signature")
            if not verify_signature(bytes_to_public_key(key), signed_at, signature):
                raise Denied(401, "a wrong signature")
        except (KeyError, ValueError, TypeError):
            raise Denied(401, "a request without a node's signature") from None
        return key

    async def _inside(
        self, call: str, headers: Mapping[bytes, bytes], body: bytes
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Passes a call on to the SuperLink. Returns the status, headers and body of its answer."""
        kept = {name: value for name, value in headers.items() if name in PASSED_ON or name.startswith(b"flwr-")}
        passed = [*kept.items(), (b"accept-encoding", b"identity")]
        try:
            answer = await self.inside.post(call, content=body, headers=passed)
        except httpx.HTTPError:
            raise Denied(503, "the SuperLink does not answer") from None
        known = (b"content-type", b"retry-after")
        head = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() in known]
        return answer.status_code, head, answer.content

    def _note(self, why: str, scope: Scope) -> None:
        """Counts a refusal. The file is written at most once a second, because outsiders can send many requests."""
        self.unwritten += 1
        if time.monotonic() - self.written_at > 1.0:
            asked = "".join(c if c.isprintable() else "?" for c in f"{scope['method']} {scope['path']}")[:80]
            host = (scope.get("client") or ("unknown",))[0]
            with suppress(OSError):
                print(refusals.note(self.federation.server, f"{host}: {asked}: {why}", self.unwritten), flush=True)
            self.unwritten, self.written_at = 0, time.monotonic()


async def _body(headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
    """The body of a request, which must state its size."""
    length = headers.get(b"content-length", b"").decode("ascii", "replace")
    if not length.isdecimal() or int(length) > LARGEST:
        raise Denied(413, f"a request of {length[:20] or 'unknown'} bytes: at most {LARGEST} are accepted")
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_TIME):
            more = True
            while more:
                event = await receive()
                if event["type"] != "http.request":
                    raise Denied(400, "a request that ended early")
                data += event.get("body", b"")
                if len(data) > LARGEST:
                    raise Denied(413, f"a request of more than {LARGEST} bytes")
                more = bool(event.get("more_body", False))
    except TimeoutError:
        raise Denied(408, f"a request whose body took more than {BODY_TIME:g} s") from None
    return bytes(data)


class Impatient(H11Protocol):
    """Closes a connection that does not send its first request in time."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(HEAD_TIME, self._check, transport)

    def _check(self, transport: Any) -> None:
        if self.cycle is None and not transport.is_closing():
            transport.abort()


def serve(federation: Federation) -> None:
    """Listens on the outside address until the process is ended."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    own = federation.server
    uvicorn.run(
        Gate(federation), host=federation.bind, port=federation.port, ssl_certfile=str(own / "server.crt"),
        ssl_keyfile=str(own / "server.key"), http=Impatient, ws="none", lifespan="off", log_level="error",
        access_log=False, server_header=False, date_header=False, timeout_keep_alive=30,
        h11_max_incomplete_event_size=16384, timeout_graceful_shutdown=5,
    )  # fmt: skip


if __name__ == "__main__":
    serve(read_federation(Path(sys.argv[1])))
