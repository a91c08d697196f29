"""The guard: hosts, origins, tokens, sizes, headers. Plain ASGI, so the extra is not needed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fedveil.core.errors import ConfigError
from fedveil.lab.guard import COOKIE, Guard, is_loopback
from fedveil.lab.server import Address, check_token

TOKEN = "a-token-of-enough-length"


async def _app(scope: Any, receive: Any, send: Any) -> None:
    """Reads its body and says how long it was."""
    length, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": str(length).encode()})


def call(
    guard: Guard, method: str = "GET", path: str = "/", query: str = "", body: bytes = b"", **headers: str
) -> tuple[int | None, dict[str, str], bytes]:
    sent: list[Any] = []
    given = [(k.replace("_", "-").encode(), v.encode()) for k, v in {"host": "127.0.0.1:8765", **headers}.items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": given}

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(guard(scope, receive, send))
    if not sent:
        return None, {}, b""
    got = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
    return sent[0]["status"], got, sent[1]["body"]


@pytest.fixture
def local() -> Guard:
    return Guard(_app, "127.0.0.1", None, 100)


def test_loopback_hosts_pass_and_others_do_not(local: Guard) -> None:
    for host in ("127.0.0.1:8765", "localhost:1", "[::1]:8765", "127.0.0.1"):
        assert call(local, host=host)[0] == 200, host
    for host in ("evil.example", "evil.example:8765", "127.0.0.1.evil.example", "10.0.0.4", "", "[", "localhost.evil"):
        assert call(local, host=host)[0] == 421, host


def test_other_sites_cannot_make_requests(local: Guard) -> None:
    assert call(local, "POST", origin="http://127.0.0.1:8765")[0] == 200
    assert call(local, "POST", origin="http://evil.example")[0] == 403
    assert call(local, "POST", origin="http://127.0.0.1:9999")[0] == 403
    assert call(local, "POST", origin="null")[0] == 403
    assert call(local, "POST", sec_fetch_site="cross-site")[0] == 403
    assert call(local, "POST", sec_fetch_site="same-site")[0] == 403
    assert call(local, "DELETE", origin="http://evil.example")[0] == 403


def test_headers_of_every_answer(local: Guard) -> None:
    for answer in (call(local), call(local, host="evil.example")):
        headers = answer[1]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "script-src 'self';" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert not any(name.startswith("access-control") for name in headers)


def test_bodies_are_bounded(local: Guard) -> None:
    assert call(local, "POST", body=b"x" * 100)[2] == b"100"
    assert call(local, "POST", content_length="101")[0] == 413
    assert call(local, "POST", content_length="-1")[0] == 413
    assert call(local, "POST", body=b"x" * 101)[0] is None  # more than announced: cut off


def test_token() -> None:
    guard = Guard(_app, "0.0.0.0", TOKEN, 100)
    assert call(guard)[0] == 401
    assert call(guard, "POST", query=f"token={TOKEN}")[0] == 401  # an address sets the cookie, it does not act
    assert call(guard, query="token=wrong-token-of-length")[0] == 401
    status, headers, _ = call(guard, path="//evil.example/leak", query=f"a=1&token={TOKEN}")
    assert (status, headers["location"]) == (303, "/evil.example/leak?a=1")
    assert "HttpOnly" in headers["set-cookie"] and "SameSite=Strict" in headers["set-cookie"]
    assert call(guard, cookie=f"other=1; {COOKIE}={TOKEN}")[0] == 200
    assert call(guard, cookie=f"{COOKIE}=wrong")[0] == 401
    assert call(guard, authorization=f"Bearer {TOKEN}")[0] == 200
    assert call(guard, authorization="Bearer nö")[0] == 401
    assert call(guard, host="10.0.0.4:8765", cookie=f"{COOKIE}={TOKEN}")[0] == 200
    assert call(guard, host="evil.example", cookie=f"{COOKIE}={TOKEN}")[0] == 421


def test_only_loopback_goes_without_a_token() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        assert is_loopback(host) and check_token(host, None) is None
    for host in ("0.0.0.0", "::", "192.168.1.2", "lab.example"):
        with pytest.raises(ConfigError, match="--token auto"):
            check_token(host, None)
        assert len(check_token(host, "auto") or "") >= 32
    with pytest.raises(ConfigError, match="16 to 128") as caught:
        check_token("0.0.0.0", "short; secret")
    assert "secret" not in str(caught.value)


def test_addresses() -> None:
    assert Address("127.0.0.1", 8765, None).url == "http://127.0.0.1:8765/"
    assert Address("::1", 80, None).url == "http://[::1]:80/"
    assert Address("0.0.0.0", 80, TOKEN).url == f"http://127.0.0.1:80/?token={TOKEN}"
