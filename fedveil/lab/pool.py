"""Worker processes with a queue: limits on time and memory, cancelling, and a new worker for one that dies.

Each slot of the pool is a thread that owns one process. It hands the process a job, passes on what it tells, and watches
over it: a job over its limits is stopped, a process that dies is reported and replaced, and the queue goes on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedveil.core.errors import FedveilError
from fedveil.lab import jobs, worker
from fedveil.lab.jobs import Job

LOOK = 0.1  # seconds between two looks at a worker
KEPT_JOBS = 50  # finished jobs that can still be asked about
KEPT_NEWS = 20
Entry = Callable[[Connection, str, int], None]  # what a worker process runs: pipe, folder, the parent's id


class QueueFull(FedveilError):
    """Too many jobs wait already."""


@dataclass(frozen=True)
class Limits:
    """What a job may take."""

    seconds: float = 1800.0
    memory: float = 6e9  # bytes of one worker
    waiting: int = 8  # jobs in the queue
    grace: float = 6.0  # seconds that a cancelled job has to end by itself
    nice: int = 0  # how far its workers stand back for other processes


@dataclass
class _Process:
    """One worker process and our end of its pipe."""

    process: Any
    pipe: Connection
    ready: bool = False

    @property
    def alive(self) -> bool:
        return bool(self.process.is_alive())

    def died_of(self) -> str:
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
    """So many workers, and the jobs they are given."""

    def __init__(
        self, name: str, folder: Path, size: int = 1, limits: Limits | None = None, entry: Entry = worker.main
    ):
        self.name, self.folder, self.limits, self.entry = name, folder, limits or Limits(), entry
        self.jobs: dict[str, Job] = {}
        self.news: deque[dict[str, Any]] = deque(maxlen=KEPT_NEWS)  # what happened to workers
        self.replaced = 0
        self._queue: deque[Job] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._slots = [_Slot(self, place) for place in range(size)]
        for slot in self._slots:
            slot.thread.start()

    def submit(self, kind: str, payload: dict[str, Any], title: str = "", group: str | None = None) -> Job:
        """A new job at the end of the queue. Of a `group` only the newest waits: older ones are out of date."""
        job = Job(kind, payload, title, group)
        with self._wake:
            if group is not None:
                for old in [j for j in self._queue if j.group == group]:
                    self._queue.remove(old)
                    old.end(jobs.CANCELLED, "a newer request took its place")
            if len(self._queue) >= self.limits.waiting:
                raise QueueFull(f"{len(self._queue)} jobs wait already: cancel one, or wait until one has ended")
            self.jobs[job.id] = job
            self._forget_old()
            self._queue.append(job)
            self._wake.notify_all()
        return job

    def cancel(self, job: Job) -> None:
        """A job that waits never starts; one that runs is stopped."""
        job.cancel_wanted.set()
        with self._wake:
            if job in self._queue:
                self._queue.remove(job)
                job.end(jobs.CANCELLED, "cancelled before it began")

    def place(self, job: Job) -> int | None:
        """How many jobs are before it."""
        with self._wake:
            return self._queue.index(job) if job in self._queue else None

    def workers(self) -> list[dict[str, Any]]:
        return [slot.describe() for slot in self._slots]

    def close(self) -> None:
        """Ends all workers and whatever they do."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        for slot in self._slots:
            slot.thread.join(self.limits.grace + 6)

    def tell(self, text: str) -> None:
        self.news.append({"time": time.time(), "text": text})

    def take(self) -> Job | None:
        """The next job; None after a moment without one."""
        with self._wake:
            if not self._queue and not self._closing:
                self._wake.wait(0.5)
            return self._queue.popleft() if self._queue and not self._closing else None

    @property
    def closing(self) -> bool:
        return self._closing

    def _forget_old(self) -> None:
        ended = [job for job in self.jobs.values() if job.state not in jobs.OPEN]
        for job in ended[: max(0, len(ended) - KEPT_JOBS)]:
            del self.jobs[job.id]


class _Slot:
    """A thread that keeps one worker process and hands it jobs."""

    def __init__(self, pool: Pool, place: int):
        self.pool, self.place = pool, place
        self.worker: _Process | None = None
        self.job: Job | None = None
        self.thread = threading.Thread(target=self._live, name=f"lab-{pool.name}-{place}", daemon=True)

    def describe(self) -> dict[str, Any]:
        own, job = self.worker, self.job
        return {
            "pool": self.pool.name,
            "pid": None if own is None else own.process.pid,
            "ready": own is not None and own.ready,
            "job": None if job is None else job.id,
        }

    def _live(self) -> None:
        self.worker = self._spawn()
        while not self.pool.closing:
            if not self.worker.alive:
                self._replace(f"worker {self.worker.process.pid} ended while idle ({self.worker.died_of()})")
            self._hear(self.worker, None)
            job = self.pool.take()
            if job is not None:
                self.job = job
                self._run(self.worker, job)
                self.job = None
        self.worker.kill()

    def _spawn(self) -> _Process:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        made = context.Process(
            target=self.pool.entry, args=(theirs, str(self.pool.folder), os.getpid()), daemon=True, name="fedveil-lab"
        )
        made.start()
        theirs.close()
        if self.pool.limits.nice and hasattr(os, "setpriority"):
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, made.pid or 0, self.pool.limits.nice)
        return _Process(made, ours)

    def _replace(self, why: str) -> None:
        assert self.worker is not None
        self.worker.kill()
        self.pool.replaced += 1
        self.pool.tell(f"{why}; a new one was started")
        if not self.pool.closing:
            self.worker = self._spawn()

    def _run(self, own: _Process, job: Job) -> None:
        """One job to its end, whatever that is."""
        job.begin()
        with contextlib.suppress(OSError):  # of a dead worker: the watch below says so
            own.pipe.send({"id": job.id, "kind": job.kind, "payload": job.payload})
        watch = _Watch(own, job, self.pool.limits)
        while job.state == jobs.RUNNING:
            self._hear(own, job, LOOK)
            if job.state != jobs.RUNNING:
                return
            if not own.alive:
                self._hear(own, job)  # what it said last
                how = own.died_of()
                job.end(jobs.FAILED, f"the worker process died ({how}); a new one was started, try again")
                self._replace(f"worker {own.process.pid} died ({how}) in {job.title or job.kind}")
                return
            if watch.over() or self.pool.closing:
                state, message = watch.verdict()
                self._replace(f"worker {own.process.pid} was stopped: {message}")
                job.end(state, message)

    def _hear(self, own: _Process, job: Job | None, wait: float = 0.0) -> None:
        """Takes in what the worker has sent."""
        try:
            while own.pipe.poll(wait):
                message, wait = own.pipe.recv(), 0.0
                if message.get("ready"):
                    own.ready = True
                elif job is not None and message["id"] == job.id:
                    _note(job, message)
        except (EOFError, OSError):
            if own.alive:  # a closed pipe of a living process: of no more use
                own.process.kill()
            own.process.join(1)


def _note(job: Job, message: dict[str, Any]) -> None:
    if "event" in message:
        job.tell(message["event"])
    elif "done" in message:
        job.end(jobs.DONE, result=message["done"])
    elif "cancelled" in message:
        job.end(jobs.CANCELLED, message["cancelled"] or "cancelled")
    else:
        job.end(jobs.FAILED, message["failed"], wrong_usage=bool(message.get("wrong_usage")))


class _Watch:
    """When a running job has to be stopped by force, and what is said of it then."""

    def __init__(self, own: _Process, job: Job, limits: Limits):
        self.own, self.job, self.limits = own, job, limits
        self.began = time.monotonic()
        self.asked: float | None = None  # when it was told to end
        self.reason = (jobs.CANCELLED, "cancelled")
        self.looked = 0.0

    def over(self) -> bool:
        now = time.monotonic()
        if self.asked is not None:
            return now - self.asked > self.limits.grace
        if self.job.cancel_wanted.is_set():
            self._ask(now)
        elif now - self.began > self.limits.seconds:
            self.reason = (jobs.FAILED, f"stopped at the lab's time limit of {self.limits.seconds:g} s")
            return True
        elif now - self.looked > 0.5:
            self.looked = now
            used = memory_of(self.own.process.pid)
            if used is not None and used > self.limits.memory:
                self.reason = (jobs.FAILED, f"stopped at the lab's memory limit of {self.limits.memory / 1e9:g} GB")
                return True
        return False

    def verdict(self) -> tuple[str, str]:
        return self.reason

    def _ask(self, now: float) -> None:
        self.asked = now
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.own.process.pid, signal.SIGTERM)


def memory_of(pid: int) -> float | None:
    """Bytes of memory that a process holds now; None where the system does not say."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * float(os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, IndexError):
        pass
    try:  # systems without /proc
        told = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, timeout=5)
        return float(told.stdout.strip()) * 1024
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
