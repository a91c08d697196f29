"""A job: something that a worker process does for the page, with what is known of it so far."""

from __future__ import annotations

import secrets
import threading
import time
from concurrent.futures import Future
from typing import Any

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
OPEN = (QUEUED, RUNNING)
KEPT_FRAMES = 400  # events of a job that are kept for who comes later


class Job:
    """One job. Written by the pool's threads, read by the server's: every change is made under its lock."""

    def __init__(self, kind: str, payload: dict[str, Any], title: str, group: str | None = None):
        self.id = secrets.token_hex(8)
        self.kind, self.payload, self.title, self.group = kind, payload, title, group
        self.state, self.message = QUEUED, ""
        self.wrong_usage = False  # it failed for what was asked, not for what happened
        self.created = time.time()
        self.started: float | None = None
        self.ended: float | None = None
        self.events: list[dict[str, Any]] = []
        self.dropped = 0  # events that were let go, counted from the first
        self.result: Any = None
        self.cancel_wanted = threading.Event()
        self.finished: Future[Job] = Future()
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self.state, self.started = RUNNING, time.time()

    def tell(self, event: dict[str, Any]) -> None:
        """Adds an event; the oldest go when there are too many."""
        with self._lock:
            self.events.append(event)
            if len(self.events) > KEPT_FRAMES:
                self.dropped += 1
                del self.events[0]

    def end(self, state: str, message: str = "", result: Any = None, wrong_usage: bool = False) -> None:
        """The first end counts."""
        with self._lock:
            if self.state not in OPEN:
                return
            self.state, self.message, self.result, self.ended = state, message, result, time.time()
            self.wrong_usage = wrong_usage
        self.finished.set_result(self)

    def since(self, place: int) -> tuple[list[dict[str, Any]], int]:
        """Events from a place on, and the place after them."""
        with self._lock:
            first = max(0, place - self.dropped)
            return self.events[first:], self.dropped + len(self.events)

    def as_dict(self) -> dict[str, Any]:
        with self._lock:
            return {
                "id": self.id,
                "kind": self.kind,
                "title": self.title,
                "state": self.state,
                "message": self.message,
                "created": self.created,
                "started": self.started,
                "ended": self.ended,
                "result": self.result,
            }
