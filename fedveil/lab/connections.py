"""Connections to the lab: a request must arrive completely within a deadline, so that slow ones cannot block the others."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 30.0  # that a request may take to arrive
MOST = 64  # incomplete requests at a time; with one more, the oldest is dropped

_half_open: OrderedDict[Connection, asyncio.TimerHandle] = OrderedDict()


class Connection(H11Protocol):
    """HTTP/1.1, with a deadline for each request."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._follow()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        self._whole()
        super().connection_lost(exc)

    def _follow(self) -> None:
        """Starts the deadline of an incomplete request, and ends it when the request is complete."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._whole()
        elif self not in _half_open:
            _half_open[self] = self.loop.call_later(SECONDS, self.transport.abort)
            while len(_half_open) > MOST:
                oldest, timer = _half_open.popitem(last=False)
                timer.cancel()
                oldest.transport.abort()

    def _whole(self) -> None:
        timer = _half_open.pop(self, None)
        if timer is not None:
            timer.cancel()
