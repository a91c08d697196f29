"""The pool: results, refusals, queue, cancelling, limits, and workers that die."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import light_worker

from fedveil.lab import pool as jobs
from fedveil.lab.pool import Job, Limits, Pool, QueueFull, memory_of

SOON = 20.0


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    limits = Limits(seconds=SOON, memory=2e8, waiting=3, grace=0.7)
    made = Pool("test", tmp_path_factory.mktemp("lab"), 1, limits, light_worker.main)
    yield made
    made.close()
    for one in made.workers():
        assert not _alive(one["pid"])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _heard(job: Job, stage: str) -> None:
    end = time.monotonic() + SOON
    while not any(event.get("stage") == stage for event in job.since(0)[0]):
        assert time.monotonic() < end, job.as_dict()
        time.sleep(0.02)


def test_result_and_events(pool: Pool) -> None:
    job = pool.submit("echo", {"value": [1, 2]}, "an echo")
    assert job.finished.result(SOON) is job
    assert (job.state, job.result) == (jobs.DONE, [1, 2])
    events, following = job.since(0)
    assert events == [{"seen": {"value": [1, 2]}}] and job.since(following) == ([], following)
    assert job.as_dict()["title"] == "an echo" and job.started is not None and job.ended is not None


def _worker(pool: Pool) -> int:
    """The worker process, after a first job: a new pool has none yet."""
    assert pool.submit("echo", {"value": 0}).finished.result(SOON).result == 0
    return pool.workers()[0]["pid"]


def test_refusals_keep_the_worker(pool: Pool) -> None:
    before = _worker(pool)
    refused = pool.submit("refuse", {}).finished.result(SOON)
    assert (refused.state, refused.wrong_usage) == (jobs.FAILED, True)
    assert refused.message == "data.name: got 'nope'; takes one of: digits"
    crashed = pool.submit("crash", {}).finished.result(SOON)
    assert (crashed.state, crashed.wrong_usage, crashed.message) == (jobs.FAILED, False, "ZeroDivisionError: by zero")
    assert pool.workers()[0]["pid"] == before


def test_cancelled_jobs_leave_the_worker_alive(pool: Pool) -> None:
    before = _worker(pool)
    job = pool.submit("wait", {"seconds": 60})
    _heard(job, "waiting")
    waiting = pool.submit("echo", {"value": 1})
    assert pool.position(waiting) == 0 and pool.position(job) is None
    pool.cancel(waiting)
    assert waiting.finished.result(SOON).state == jobs.CANCELLED
    pool.cancel(job)
    assert job.finished.result(SOON).state == jobs.CANCELLED
    job = pool.submit("soft", {"seconds": 60})
    _heard(job, "soft")
    pool.cancel(job)
    assert job.finished.result(SOON).message == "stopped after round 3; resume with --resume"
    assert pool.submit("echo", {"value": 5}).finished.result(SOON).result == 5
    assert pool.workers()[0]["pid"] == before


def test_queue_is_bounded_and_groups_replace(pool: Pool) -> None:
    busy = pool.submit("wait", {"seconds": 60})
    _heard(busy, "waiting")
    first = pool.submit("echo", {"value": 1}, group="page")
    second = pool.submit("echo", {"value": 2}, group="page")
    assert first.finished.result(SOON).state == jobs.CANCELLED
    others = [pool.submit("echo", {"value": n}) for n in range(2)]
    with pytest.raises(QueueFull, match="3 jobs are waiting already"):
        pool.submit("echo", {"value": 9})
    pool.cancel(busy)
    assert [job.finished.result(SOON).result for job in (second, *others)] == [2, 0, 1]


def test_killed_worker_is_reported_and_replaced(pool: Pool) -> None:
    before, told = _worker(pool), pool.replaced
    job = pool.submit("wait", {"seconds": 60}, "a long wait")
    behind = pool.submit("echo", {"value": "still here"})
    _heard(job, "waiting")
    os.kill(before, signal.SIGKILL)
    assert job.finished.result(SOON).state == jobs.FAILED
    assert "the worker process died (signal 9, SIGKILL)" in job.message
    assert behind.finished.result(SOON).result == "still here"
    assert pool.replaced == told + 1 and pool.workers()[0]["pid"] != before
    assert "a long wait" in pool.news[-1]["text"] and "a new one was started" in pool.news[-1]["text"]


def test_worker_that_dies_idle_is_replaced(pool: Pool) -> None:
    pool.submit("echo", {"value": 0}).finished.result(SOON)
    before = _worker(pool)
    os.kill(before, signal.SIGKILL)
    assert pool.submit("echo", {"value": 1}).finished.result(SOON).state in (jobs.DONE, jobs.FAILED)
    assert pool.submit("echo", {"value": 2}).finished.result(SOON).result == 2
    assert pool.workers()[0]["pid"] != before


def test_job_that_does_not_hear_is_stopped_by_force(pool: Pool) -> None:
    job = pool.submit("stubborn", {"seconds": 60})
    _heard(job, "deaf")
    began = time.monotonic()
    pool.cancel(job)
    assert job.finished.result(SOON).state == jobs.CANCELLED
    assert time.monotonic() - began < 5
    assert pool.submit("echo", {"value": 3}).finished.result(SOON).result == 3


@pytest.mark.skipif(memory_of(os.getpid()) is None, reason="this system does not say what a process holds")
def test_memory_limit(pool: Pool) -> None:
    job = pool.submit("greedy", {"bytes": 300_000_000}).finished.result(SOON)
    assert (job.state, job.message) == (jobs.FAILED, "stopped at the lab's memory limit of 0.2 GB")


def test_time_limit(tmp_path: Path) -> None:
    pool = Pool("short", tmp_path, 1, Limits(seconds=0.3), light_worker.main)
    try:
        pool.submit("echo", {"value": 0}).finished.result(SOON)
        job = pool.submit("wait", {"seconds": 60}).finished.result(SOON)
        assert (job.state, job.message) == (jobs.FAILED, "stopped at the lab's time limit of 0.3 s")
    finally:
        pool.close()


def test_old_events_are_let_go() -> None:
    job = Job("kind", {}, "title")
    for n in range(jobs.KEPT_EVENTS + 5):
        job.tell({"n": n})
    events, following = job.since(0)
    assert len(events) == jobs.KEPT_EVENTS and events[0] == {"n": 5} and following == jobs.KEPT_EVENTS + 5
    assert job.since(following - 1)[0] == [{"n": jobs.KEPT_EVENTS + 4}]
