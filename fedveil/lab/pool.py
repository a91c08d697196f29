"""Jobs, and a pool of worker processes that runs them: a queue, cancelling, and limits on time and memory.

Each slot of the pool is a thread that owns one process. It gives the process a job, forwards the job's events, and
supervises it: a job that exceeds its limits is stopped, and a process that dies is reported and replaced.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedveil.core.errors import FedveilError
from fedveil.lab import worker

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
OPEN = (QUEUED, RUNNING)
POLL = 0.1  # seconds between two checks of a worker
KEPT_EVENTS = 400  # events of a job that are kept for pages that open later
KEPT_JOBS = 50  # ended jobs that can still be queried
KEPT_NEWS = 20
Entry = Callable[[Connection, str, int], None]  # main function of a worker process: pipe, folder, id of the parent


class QueueFull(FedveilError):
    """The queue has no room for another job."""


@dataclass(frozen=True)
class Limits:
    """Limits of a pool's jobs."""

    seconds: float = 1800.0
    memory: float = 6e9  # bytes of one worker
    waiting: int = 8  # jobs in the queue
    grace: float = 6.0  # seconds after which a cancelled job is killed
    nice: int = 0  # niceness of the workers


class Job:
    """A task for a worker process, and its state. The pool's threads write it and the server reads it, under a lock."""

    def __init__(self, kind: str, payload: dict[str, Any], title: str, group: str | None = None):
        self.id = secrets.token_hex(8)
        self.kind, self.payload, self.title, self.group = kind, payload, title, group
        self.state, self.message = QUEUED, ""
        self.wrong_usage = False  # whether the request itself was at fault
        self.created = time.time()
        self.started: float | None = None
        self.ended: float | None = None
        self.events: list[dict[str, Any]] = []
        self.dropped = 0  # number of old events that were discarded
        self.result: Any = None
        self.cancel_wanted = threading.Event()
        self.finished: Future[Job] = Future()
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self.state, self.started = RUNNING, time.time()

    def tell(self, event: dict[str, Any]) -> None:
        """Adds an event; beyond `KEPT_EVENTS` the oldest is discarded."""
        with self._lock:
            self.events.append(event)
            if len(self.events) > KEPT_EVENTS:
                self.dropped += 1
                del self.events[0]

    def end(self, state: str, message: str = "", result: Any = None, wrong_usage: bool = False) -> None:
        """Ends the job. Only the first call counts."""
        with self._lock:
            if self.state not in OPEN:
                return
            self.state, self.message, self.result, self.ended = state, message, result, time.time()
            self.wrong_usage = wrong_usage
        self.finished.set_result(self)

    def since(self, start: int) -> tuple[list[dict[str, Any]], int]:
        """All events with number `start` or higher, and the number that the next event will have."""
        with self._lock:
            first = max(0, start - self.dropped)
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


@dataclass
class _Process:
    """A worker process and this end of its pipe."""

    process: Any
    pipe: Connection
    ready: bool = False

    @property
    def alive(self) -> bool:
        return bool(self.process.is_alive())

    def cause_of_death(self) -> str:
        code = self.process.exitcode
        if code is not None and code < 0:
            try:
                return f"signal {-code}, {signal.Signals(-code).name}"
            except ValueError:
                return f"signal {-code}"
        return f"exit status {code}"

    def kill(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join(5)
        self.pipe.close()


class Pool:
    """A number of workers and a queue of jobs."""

    def __init__(
        self, name: str, folder: Path, size: int = 1, limits: Limits | None = None, entry: Entry = worker.main
    ):
        self.name, self.folder, self.limits, self.entry = name, folder, limits or Limits(), entry
        self.jobs: dict[str, Job] = {}
        self.news: deque[dict[str, Any]] = deque(maxlen=KEPT_NEWS)  # messages about workers that died or were stopped
        self.replaced = 0
        self._queue: deque[Job] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._slots = [_Slot(self, number) for number in range(size)]
        for slot in self._slots:
            slot.thread.start()

    def submit(self, kind: str, payload: dict[str, Any], title: str = "", group: str | None = None) -> Job:
        """Adds a job to the queue. A new job of a `group` replaces a waiting one, which is outdated."""
        job = Job(kind, payload, title, group)
        with self._wake:
            if group is not None:
                for old in [j for j in self._queue if j.group == group]:
                    self._queue.remove(old)
                    old.end(CANCELLED, "replaced by a newer request")
            if len(self._queue) >= self.limits.waiting:
                raise QueueFull(f"{len(self._queue)} jobs are waiting already: cancel one, or wait until one has ended")
            self.jobs[job.id] = job
            self._discard_old()
            self._queue.append(job)
            self._wake.notify_all()
        return job

    def cancel(self, job: Job) -> None:
        """Removes a waiting job from the queue, or stops a running one."""
        job.cancel_wanted.set()
        with self._wake:
            if job in self._queue:
                self._queue.remove(job)
                job.end(CANCELLED, "cancelled before it started")

    def position(self, job: Job) -> int | None:
        """The number of jobs ahead of a waiting job; None if it is not waiting."""
        with self._wake:
            return self._queue.index(job) if job in self._queue else None

    def workers(self) -> list[dict[str, Any]]:
        return [slot.describe() for slot in self._slots]

    def close(self) -> None:
        """Ends all workers, including running jobs."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        for slot in self._slots:
            slot.thread.join(self.limits.grace + 6)

    def tell(self, text: str) -> None:
        self.news.append({"time": time.time(), "text": text})

    def take(self) -> Job | None:
        """The next job; None if none arrives within half a second."""
        with self._wake:
            if not self._queue and not self._closing:
                self._wake.wait(0.5)
            return self._queue.popleft() if self._queue and not self._closing else None

    @property
    def closing(self) -> bool:
        return self._closing

    def _discard_old(self) -> None:
        ended = [job for job in self.jobs.values() if job.state not in OPEN]
        for job in ended[: max(0, len(ended) - KEPT_JOBS)]:
            del self.jobs[job.id]


class _Slot:
    """A thread that owns one worker process and gives it jobs."""

    def __init__(self, pool: Pool, number: int):
        self.pool = pool
        self.worker: _Process | None = None
        self.job: Job | None = None
        self.thread = threading.Thread(target=self._live, name=f"lab-{pool.name}-{number}", daemon=True)

    def describe(self) -> dict[str, Any]:
        current, job = self.worker, self.job
        return {
            "pool": self.pool.name,
            "pid": None if current is None else current.process.pid,
            "ready": current is not None and current.ready,
            "job": None if job is None else job.id,
        }

    def _live(self) -> None:
        self.worker = self._spawn()
        while not self.pool.closing:
            if not self.worker.alive:
                self._replace(f"worker {self.worker.process.pid} ended while idle ({self.worker.cause_of_death()})")
            self._receive(self.worker, None)
            job = self.pool.take()
            if job is not None:
                self.job = job
                self._run(self.worker, job)
                self.job = None
        self.worker.kill()

    def _spawn(self) -> _Process:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=self.pool.entry, args=(theirs, str(self.pool.folder), os.getpid()), daemon=True, name="fedveil-lab"
        )
        process.start()
        theirs.close()
        if self.pool.limits.nice and hasattr(os, "setpriority"):
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid or 0, self.pool.limits.nice)
        return _Process(process, ours)

    def _replace(self, why: str) -> None:
        assert self.worker is not None
        self.worker.kill()
        self.pool.replaced += 1
        self.pool.tell(f"{why}; a new one was started")
        if not self.pool.closing:
            self.worker = self._spawn()

    def _run(self, process: _Process, job: Job) -> None:
        """Runs one job until it ends, is stopped, or its process dies."""
        job.begin()
        with contextlib.suppress(OSError):  # a dead worker is noticed below
            process.pipe.send({"id": job.id, "kind": job.kind, "payload": job.payload})
        supervisor = _Supervisor(process, job, self.pool.limits)
        while job.state == RUNNING:
            self._receive(process, job, POLL)
            if job.state != RUNNING:
                return
            if not process.alive:
                self._receive(process, job)  # its last messages
                cause = process.cause_of_death()
                job.end(FAILED, f"the worker process died ({cause}); a new one was started, try again")
                self._replace(f"worker {process.process.pid} died ({cause}) in {job.title or job.kind}")
                return
            if supervisor.must_kill() or self.pool.closing:
                state, message = supervisor.reason
                self._replace(f"worker {process.process.pid} was stopped: {message}")
                job.end(state, message, wrong_usage=state == FAILED)  # it asked for more than the limits

    def _receive(self, process: _Process, job: Job | None, wait: float = 0.0) -> None:
        """Handles the messages that the worker has sent."""
        try:
            while process.pipe.poll(wait):
                message, wait = process.pipe.recv(), 0.0
                if message.get("ready"):
                    process.ready = True
                elif job is not None and message["id"] == job.id:
                    _update(job, message)
        except (EOFError, OSError):
            if process.alive:  # without its pipe a worker is of no use
                process.process.kill()
            process.process.join(1)


def _update(job: Job, message: dict[str, Any]) -> None:
    if "event" in message:
        job.tell(message["event"])
    elif "done" in message:
        job.end(DONE, result=message["done"])
    elif "cancelled" in message:
        job.end(CANCELLED, message["cancelled"] or "cancelled")
    else:
        job.end(FAILED, message["failed"], wrong_usage=bool(message.get("wrong_usage")))


class _Supervisor:
    """Decides when a running job must be killed, and why."""

    def __init__(self, process: _Process, job: Job, limits: Limits):
        self.process, self.job, self.limits = process, job, limits
        self.began = time.monotonic()
        self.cancelled_at: float | None = None
        self.reason = (CANCELLED, "cancelled")
        self.memory_checked = 0.0

    def must_kill(self) -> bool:
        now = time.monotonic()
        if self.cancelled_at is not None:
            return now - self.cancelled_at > self.limits.grace
        if self.job.cancel_wanted.is_set():
            self.cancelled_at = now
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.process.pid, signal.SIGTERM)
        elif now - self.began > self.limits.seconds:
            self.reason = (FAILED, f"stopped at the lab's time limit of {self.limits.seconds:g} s")
            return True
        elif now - self.memory_checked > 0.5:
            self.memory_checked = now
            used = memory_of(self.process.process.pid)
            if used is not None and used > self.limits.memory:
                self.reason = (FAILED, f"stopped at the lab's memory limit of {self.limits.memory / 1e9:g} GB")
                return True
        return False


def memory_of(pid: int) -> float | None:
    """Resident memory of a process in bytes; None if the system does not report it."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * float(os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, IndexError):
        pass
    try:  # systems without /proc
        listed = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, timeout=5)
        return float(listed.stdout.strip()) * 1024
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
