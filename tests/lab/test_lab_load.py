"""Under load: 50 requests in parallel while an attack runs, and a worker that is killed during an attack."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.slow
PATHS = (
    "/leak",
    "/tradeoff",
    "/runs",
    "/static/common.js",
    "/api/jobs",
    "/api/runs",
    "/api/choices",
    "/static/lab.css",
)
LONG = {"iterations": 5000, "attack": "inverting", "batch": 4}


@pytest.fixture(scope="module")
def lab(lab_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab_server(tmp_path_factory.mktemp("loaded")) as served:
        yield served


def _running(lab: Any, leak: dict[str, Any]) -> Any:
    """An attack that is under way: past observing and compiling."""
    _, job = lab.ask("/api/leak", {"leak": leak})
    end = time.monotonic() + 240
    while not any(event["stage"] == "step" for event in lab.ask(f"/api/jobs/{job['id']}")[1]["events"]):
        assert time.monotonic() < end
        time.sleep(0.2)
    return job


def _timed(lab: Any, path: str) -> tuple[int, float]:
    began = time.monotonic()
    status = lab.raw(path)[0]
    return status, time.monotonic() - began


def test_fifty_at_a_time_while_an_attack_runs(lab: Any, record_property: Callable[[str, object], None]) -> None:
    job = _running(lab, LONG)
    with ThreadPoolExecutor(50) as many:
        answers = list(many.map(lambda n: _timed(lab, PATHS[n % len(PATHS)]), range(500)))
    assert lab.ask(f"/api/jobs/{job['id']}")[1]["state"] == "running"
    assert {status for status, _ in answers} == {200}
    times = sorted(seconds for _, seconds in answers)
    median, tail = statistics.median(times), times[int(0.95 * len(times))]
    record_property("median_seconds", median)
    told = ", ".join(f"{name} {1000 * value:.0f} ms" for name, value in (("median", median), ("95 %", tail)))
    print(f"500 requests, 50 at a time: {told}, most {1000 * times[-1]:.0f} ms")
    assert median < 0.2
    lab.ask(f"/api/jobs/{job['id']}/cancel", {})
    assert lab.wait(job["id"])["state"] == "cancelled"


def test_a_killed_worker_is_reported_and_the_rest_goes_on(lab: Any) -> None:
    job = _running(lab, LONG)
    short = {"iterations": 3, "defense": {"name": "none"}}
    _, behind = lab.ask("/api/leak", {"leak": short})
    pid = next(w["pid"] for w in lab.ask("/api/jobs")[1]["workers"] if w["job"] == job["id"])
    os.kill(pid, signal.SIGKILL)
    told = lab.wait(job["id"])
    assert told["state"] == "failed" and "the worker process died (signal 9, SIGKILL)" in told["message"]
    assert lab.ask("/api/account", {"trade": {}})[0] == 200
    assert lab.wait(behind["id"])["state"] == "done"
    jobs = lab.ask("/api/jobs")[1]
    assert any(f"worker {pid} died" in news["text"] for news in jobs["news"])
    assert pid not in [worker["pid"] for worker in jobs["workers"]]
    for _ in range(8):
        status, _ = lab.ask("/api/leak", {"leak": LONG})
        assert status == 200
    full = [lab.ask("/api/leak", {"leak": LONG}) for _ in range(3)]
    assert full[-1][0] == 429 and "jobs are waiting already" in full[-1][1]["error"]
