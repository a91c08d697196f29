"""Hostile nodes: what they state and send cannot take another's place, make the server allocate, or enter the model."""

from __future__ import annotations

import math
import resource
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attacks import npy, npy_that_claims, tally
from deploy_memory import Puppets, key_of

from fedveil.config import from_dict
from fedveil.core.errors import RunError
from fedveil.deploy.coordinator import Terms, conduct
from fedveil.deploy.files import Member
from fedveil.deploy.messages import BadMessage, Introduction, Payload, ReceivedReply, Reply, Request
from fedveil.runs import RunFolder

CONFIG = from_dict(
    {
        "data": {"name": "digits", "clients": 4, "per_client": 60},
        "model": {"name": "logistic"},
        "train": {"rounds": 2, "per_round": 4, "sampling": "fixed", "local_steps": 1, "batch": 5, "eval_every": 100},
        "defense": [{"name": "none"}],
    }
)
MIB = 1 << 20
TRUE = Introduction(3, 60, "8,8,1", 10, "float32")

INTRODUCTIONS: dict[str, dict[str, Any]] = {
    **{f"{n} records": {"size": n} for n in (2 * 10**9, 10**12, 2**62, 2**63, 0, -1, 100_001)},
    **{f"examples of shape {s[:12]}": {"shape": s} for s in (
        "1000000000", "0", "-8,-8", "8,8,1,1,1,1", "x", "", "8," * 5000, "1e9", "65536,65536", "9" * 99)},
    **{f"{n} classes": {"classes": n} for n in (2 * 10**9, 2**62, 0, 1, -5)},
    **{f"numbers of type {t[:10]}": {"dtype": t} for t in ("object", "S2000000000", "V8", "float32; import os", "")},
    **{f"the place of client {n}": {"client": n} for n in (0, 2, -1, 4, 2**31)},
}  # fmt: skip


class Liars(Puppets):
    """Node 3 states something else than the truth."""

    def __init__(self, lies: dict[str, Any], records: int = 60) -> None:
        super().__init__()
        self.lies = lies

    def introduce(self, nodes: list[int], timeout: float) -> dict[int, Introduction]:
        told = super().introduce(nodes, timeout)
        return {n: Introduction(**{**TRUE.as_dict(), **self.lies}) if n == 3 else one for n, one in told.items()}


@pytest.mark.parametrize("name", INTRODUCTIONS)
def test_what_a_node_states_is_bounded_and_allocates_nothing(name: str, tmp_path: Path) -> None:
    """The run does not start with such a node; once it has started, the node is left out of the rounds."""
    terms = Terms(wait=0.05, records=100_000)
    tracemalloc.start()
    with pytest.raises(RunError, match="3 of 4 nodes are connected .*missing: client 3") as caught:
        conduct(CONFIG, Liars(INTRODUCTIONS[name]), RunFolder.create(tmp_path / "run"), terms)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * MIB and "\n" not in str(caught.value)


def test_the_largest_sizes_that_the_roster_allows_are_not_allocated(tmp_path: Path) -> None:
    class Large(Puppets):
        def introduce(self, nodes: list[int], timeout: float) -> dict[int, Introduction]:
            return {n: Introduction(n, 500_000_000, "8,8,1", 10, "float32") for n in nodes}

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    terms = Terms(records=500_000_000)
    result = conduct(CONFIG, Large(), RunFolder.create(tmp_path / "run"), terms)
    assert result["rounds"] == 2
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 1000 * MIB


def test_a_node_does_not_take_the_place_of_another_when_a_run_is_resumed(tmp_path: Path) -> None:
    """Client 0 is away, and node 3 introduces itself as client 0 with the right sizes."""
    folder = RunFolder.create(tmp_path / "run")
    nodes = Liars({})
    nodes.answers = {(1, c): lambda reply, sent: None for c in (0, 1, 2)}
    with pytest.raises(RunError, match="quorum"):
        conduct(CONFIG, nodes, folder, Terms())
    again = Liars({"client": 0})
    again.there = {1, 2, 3}
    result = conduct(CONFIG, again, folder, Terms())
    assert result["rounds"] == 2
    assert {client for _, client in again.asked} == {1, 2}  # neither the absent client 0 nor the liar was asked


def test_a_node_whose_key_is_no_longer_in_the_roster_is_not_asked(tmp_path: Path) -> None:
    class Rotated(Puppets):
        def online(self) -> dict[int, Member]:
            found = super().online()
            return {**found, 3: Member(3, key_of(9))} if self.asked else found  # after the first round

    nodes = Rotated()
    result = conduct(CONFIG, nodes, RunFolder.create(tmp_path / "run"), Terms())
    assert result["rounds"] == 2 and (0, 3) in nodes.asked and (1, 3) not in nodes.asked


Change = Callable[[Reply, Payload], tuple[Reply | None, Payload, str]]


def fields(**changes: Any) -> Change:
    return lambda reply, parts: (Reply(**{**reply.as_dict(), **changes}), parts, "")


def arrays(change: Callable[[np.ndarray, bytes], bytes]) -> Change:
    import io

    def made(reply: Reply, parts: Payload) -> tuple[Reply | None, Payload, str]:
        return reply, {name: change(np.load(io.BytesIO(data)), data) for name, data in parts.items()}, ""

    return made


REPLIES: dict[str, tuple[Change, str]] = {
    "NaN": (arrays(lambda a, _: npy(a * np.nan)), "not finite"),
    "infinity": (arrays(lambda a, _: npy(a + np.inf)), "not finite"),
    "float64": (arrays(lambda a, _: npy(a.astype(np.float64))), "wrong type"),
    "another shape": (arrays(lambda a, _: npy(a[None])), "wrong shape"),
    "ten times the size": (arrays(lambda a, _: npy(np.zeros(a.size * 10 + 5000, a.dtype))), "too large"),
    "a claim of 4 TB": (arrays(lambda a, _: npy_that_claims((10**12,))), "unreadable|wrong shape"),
    "pickled objects": (arrays(lambda a, _: npy(np.array([{"a": 1}] * 3, object))), "unreadable"),
    "cut": (arrays(lambda a, data: data[:-5]), "unreadable"),
    "nothing": (lambda reply, parts: (reply, {}, ""), "is missing"),
    "a layer more": (lambda reply, parts: (reply, {**parts, "x\x1b[31m": b""}, ""), "not part of the model"),
    "another run": (fields(run="other\n\x1b[2J" * 100), "stale"),
    "an earlier round": (fields(round=-1), "stale"),
    "a round of 20 digits": (fields(round=10**20), "stale"),
    "another client": (fields(client=0), "from client 0, expected client 3"),
    "a refusal of 10 MB": (fields(refused="\x1b]0;x\x07\n" * 10**6), "refused"),
    "a failure of many lines": (lambda reply, parts: (None, {}, "a\nb\n\x1b[2J" * 1000), "a b"),
    "neither reply nor failure": (lambda reply, parts: (None, {}, ""), "no reply"),
}


class Spoilers(Puppets):
    """The reply of node 3 is replaced."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def send(self, requests: dict[int, tuple[Request, Payload]], timeout: float) -> dict[int, ReceivedReply]:
        found = super().send(requests, timeout)
        if 3 in found and found[3].reply is not None:
            found[3] = ReceivedReply(*self.change(found[3].reply, found[3].payload))
        return found


@pytest.mark.parametrize("name", REPLIES)
def test_what_a_node_sends_is_left_out_with_one_line(name: str, tmp_path: Path) -> None:
    change, word = REPLIES[name]
    folder = RunFolder.create(tmp_path / "run")
    result = conduct(CONFIG, Spoilers(change), folder, Terms())
    assert result["rounds"] == 2 and result["clients_lost"] == 2
    import re

    for row in folder.read_metrics():
        reason = row["refused"]["3"]
        assert set(row["refused"]) == {"3"} and re.search(word, reason) and reason.isprintable() and len(reason) < 500


LOSSES = (math.inf, -math.inf, 1e308, -1e308)


def test_losses_that_nobody_asked_for_are_not_used(tmp_path: Path) -> None:
    for number, loss in enumerate(LOSSES):
        folder = RunFolder.create(tmp_path / str(number))
        conduct(CONFIG, Spoilers(fields(loss=loss)), folder, Terms())
        assert [row["train_loss"] for row in folder.read_metrics()] == [None, None]
    with pytest.raises(BadMessage, match="'loss' is str"):
        Reply.read({**Reply("r", 0, 0, "", 0.0).as_dict(), "loss": "x"})


def test_the_cases_are_those_of_the_page() -> None:
    stated = sum(name.startswith("the place of") for name in INTRODUCTIONS)
    tally("what a hostile node states about itself", len(INTRODUCTIONS) + 1, len(INTRODUCTIONS) + 1)
    tally("what a hostile node replies", len(REPLIES) + len(LOSSES) + 1, len(REPLIES) + len(LOSSES) + 1)
    tally("taking another client's place", 2, 2)
    assert stated == 5 and len(INTRODUCTIONS) + len(REPLIES) + len(LOSSES) >= 40
