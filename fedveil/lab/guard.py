"""Access control for the lab, as plain ASGI middleware in front of the application.

- **Host**: a site that points its name at this machine (DNS rebinding) sends its own name as Host and is refused.
- **Origin**: a browser marks requests from other sites (Origin, Sec-Fetch-Site); they are refused. No response has a CORS
  header, so no other site can read one.
- **Token**: unless the host is loopback, every request needs the token: as a cookie, as `Authorization: Bearer`, or once as
  `?token=` in the address, which sets the cookie.
- **Size**: the body of a request is counted while it is read.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

COOKIE = "fedveil_lab"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# A report is one self-contained page: it runs its own scripts, and can contact neither the lab nor any other site.
REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts allow-downloads allow-popups"
)
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), microphone=(), geolocation=()",
    b"cache-control": b"no-store",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Checks every request before the application sees it."""

    def __init__(self, app: Callable[..., Awaitable[None]], host: str, token: str | None, max_bytes: int):
        self.app, self.host, self.token, self.max_bytes = app, host, token, max_bytes
        self.names = {"localhost"} if is_loopback(host) else {"localhost", host.lower(), socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._refused(scope, headers)
        if refused is not None:
            await _answer(send, *refused)
            return
        if self.token is not None and not self._has_token(headers):
            await self._ask_for_token(scope, send)
            return
        await self.app(scope, self._counted(receive), _with_headers(send))

    def _refused(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        if not self._is_own_host(headers.get("host", "")):
            return 421, "wrong host name: open the lab at the address that `fedveil lab` printed"
        if scope["method"] in ("GET", "HEAD"):
            return None
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != headers.get("host"):
            return 403, "refused: the request comes from another site"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "refused: the request comes from another site"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.max_bytes:
            return 413, f"too large: the lab accepts at most {self.max_bytes:,} bytes"
        return None

    def _is_own_host(self, host: str) -> bool:
        """Accepts the lab's own names, and numeric addresses, which DNS rebinding cannot forge."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self.names:
            return True
        try:
            number = ipaddress.ip_address(name)
        except ValueError:
            return False
        return number.is_loopback or not is_loopback(self.host)

    def _has_token(self, headers: dict[str, str]) -> bool:
        assert self.token is not None
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except Exception:  # a malformed cookie
            cookies = SimpleCookie()
        shown = [cookies[COOKIE].value] if COOKIE in cookies else []
        kind, _, value = headers.get("authorization", "").partition(" ")
        shown += [value.strip()] if kind.lower() == "bearer" else []
        return any(hmac.compare_digest(one.encode(), self.token.encode()) for one in shown)

    async def _ask_for_token(self, scope: Scope, send: Send) -> None:
        """Moves a token from the address into a cookie; without a token, refuses."""
        assert self.token is not None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for key, value in query if key == "token"]
        if scope["method"] == "GET" and given and hmac.compare_digest(given[0].encode(), self.token.encode()):
            rest = urlencode([pair for pair in query if pair[0] != "token"])
            cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            path = "/" + quote(scope["path"].lstrip("/\\"))  # browsers read // and /\ as the start of another site
            extra = {"location": path + (f"?{rest}" if rest else ""), "set-cookie": cookie}
            await _answer(send, 303, "", extra)
            return
        await _answer(send, 401, "this lab requires a token: open the address that `fedveil lab` printed")

    def _counted(self, receive: Receive) -> Receive:
        """Counts the bytes of the body; beyond the limit the application sees a closed connection."""
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            return message if seen <= self.max_bytes else {"type": "http.disconnect"}

        return counted


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name.lower() for name, _ in message["headers"]}
            more = [(name, value) for name, value in HEADERS.items() if name not in own]
            if b"content-security-policy" not in own:
                more.append((b"content-security-policy", POLICY.encode()))
            message["headers"] = [*message["headers"], *more]
        await send(message)

    return sent


async def _answer(send: Send, status: int, text: str, extra: dict[str, str] | None = None) -> None:
    sent = _with_headers(send)
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    headers += [(name.encode(), value.encode("latin-1")) for name, value in (extra or {}).items()]
    await sent({"type": "http.response.start", "status": status, "headers": headers})
    await sent({"type": "http.response.body", "body": (text + "\n").encode() if text else b""})
