"""Runs the lab: a server on one address, its workers, and an end that leaves nothing behind."""

from __future__ import annotations

import re
import secrets
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from fedveil.core.errors import ConfigError, RunError
from fedveil.lab.guard import is_loopback
from fedveil.lab.state import Lab, Options

TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,128}")
TOKEN_TAKES = "takes 16 to 128 letters, digits and . _ ~ -, or 'auto' to have one made"


@dataclass(frozen=True)
class Address:
    """Where the lab is found."""

    host: str
    port: int
    token: str | None

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/" + (f"?token={self.token}" if self.token else "")


def check_token(host: str, token: str | None) -> str | None:
    """The token to ask for; hosts that others can reach demand one."""
    if token == "auto":
        return secrets.token_urlsafe(24)
    if token is None and not is_loopback(host):
        raise ConfigError(
            "--host", host, "others can reach it, so it needs a token: add --token auto, or one of your own"
        )
    if token is not None and not TOKEN.fullmatch(token):
        raise ConfigError("--token", "(not shown)", TOKEN_TAKES)
    return token


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound, so that the address printed is one that answers."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(512)
    except socket.gaierror:
        raise ConfigError("--host", host, "is no address of this machine: 127.0.0.1, or 0.0.0.0 for all") from None
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"cannot listen on {host} port {port} ({reason}): give another --port, or 0 for any") from None
    return bound


def serve(options: Options, host: str, port: int, token: str | None, ready: Callable[[Address], None]) -> None:
    """Serves until it is told to stop (Ctrl-C, SIGTERM). `ready` is called once the address takes connections."""
    import uvicorn

    from fedveil.lab.app import create

    bound = listen(host, port)
    lab = Lab(options)
    address = Address(host, bound.getsockname()[1], token)

    config = uvicorn.Config(
        create(lab, host, token),
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="off",
        timeout_graceful_shutdown=3,
        limit_concurrency=500,
    )
    server = uvicorn.Server(config)
    lab.stopping = lambda: server.should_exit  # ends the streams that pages follow, which would keep it waiting
    # The server raises the signal that ended it once more when it is down: by then it has done its work.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ready(address)  # the socket listens: who comes early waits a moment
        server.run(sockets=[bound])
    finally:
        lab.close()
        bound.close()
        for number, handler in before.items():
            signal.signal(number, handler)
