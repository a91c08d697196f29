"""A node's ledger on disk: written before sending, never lowered, never over budget."""

from __future__ import annotations

import json
import math
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fedveil.accounting import accountants
from fedveil.accounting.accountants import Round
from fedveil.accounting.filters import RenyiFilter
from fedveil.core.errors import RunError
from fedveil.deploy.account import FILE, Entry, NodeLedger, Use, total
from fedveil.deploy.limits import Limits, Refused

USE = Use(z=2.0, steps=2, rate=0.1, hidden=True)


def entry(round_: int = 0, run: str = "a", use: Use | None = USE) -> Entry:
    swapped = None if use is None else replace(use, replace=True)
    nothing = {"zero-out": None, "replace": None}
    uses = {"example": {"zero-out": use, "replace": swapped}, "client": nothing}
    return Entry(run, round_, "digest", uses, "2026-01-01T00:00:00Z")


@pytest.fixture
def ledger(tmp_path: Path) -> NodeLedger:
    made = NodeLedger(tmp_path)
    made.create()
    return made


def test_epsilon_is_that_of_the_rounds_composed(ledger: NodeLedger) -> None:
    for number in range(3):
        ledger.spend(entry(number), Limits())
    expected = accountants.epsilon(((USE.round, 3),), 1e-5, "pld")
    assert ledger.epsilon("example", 1e-5) == pytest.approx(expected)
    assert ledger.epsilon("client", 1e-5) == math.inf


def test_replays_restarts_and_second_runs_count_on(ledger: NodeLedger, tmp_path: Path) -> None:
    found: list[float | None] = []
    for again in (entry(0), entry(0), entry(0, run="b")):
        found.append(NodeLedger(tmp_path).spend(again, Limits(epsilon=50.0)))  # as if each were a new process
    assert 0 < found[0] < found[1] < found[2]
    assert len(NodeLedger(tmp_path).entries()) == 3
    ledger.create()  # keeps an existing ledger
    assert len(ledger.entries()) == 3


@pytest.mark.parametrize("name", ["\u2028", "\u2029", "\x85", "a\nb", "\x1c"])
def test_the_name_of_a_run_cannot_damage_the_ledger(ledger: NodeLedger, name: str) -> None:
    """The server chooses it: a line separator in it would end all further rounds of this node."""
    ledger.spend(entry(0, run=name), Limits())
    ledger.spend(entry(1, run=name), Limits())
    assert [one.run for one in ledger.entries()] == [name, name]


def test_runs_of_other_kinds_compose(ledger: NodeLedger) -> None:
    ledger.spend(entry(0), Limits())
    alone = ledger.epsilon("example", 1e-5)
    ledger.spend(entry(0, run="b", use=Use(z=20.0, law="laplace", replace=True)), Limits())
    assert alone < ledger.epsilon("example", 1e-5) <= alone + 0.1 + 0.01


def test_a_round_over_budget_is_refused_and_leaves_no_trace(ledger: NodeLedger) -> None:
    budget = RenyiFilter.for_budget(4.0, 1e-5)
    limits = Limits(epsilon=4.0)
    afforded = int(budget.limit / budget.cost(USE.round))
    assert afforded >= 2
    for number in range(afforded):
        ledger.spend(entry(number), limits)
    spent = ledger.epsilon("example", 1e-5)
    assert 1.0 < spent <= 4.0  # within the budget by composition too
    before = ledger.path.read_bytes()
    with pytest.raises(Refused, match="over budget"):
        ledger.spend(entry(afforded), limits)
    assert ledger.path.read_bytes() == before


def test_what_has_no_certificate_is_over_every_budget(ledger: NodeLedger) -> None:
    with pytest.raises(Refused, match="over budget"):
        ledger.spend(entry(use=None), Limits(epsilon=1e9))
    ledger.spend(entry(use=None), Limits(unaccounted=True))
    with pytest.raises(Refused):  # and stays so
        ledger.spend(entry(), Limits(epsilon=1e9))


@pytest.mark.parametrize("damage", ["", "{", '{"ledger": 1, "entries": 2}\n', "cut", "edited"])
def test_a_damaged_account_stops_the_node(ledger: NodeLedger, damage: str) -> None:
    ledger.spend(entry(0), Limits())
    text = ledger.path.read_text()
    ledger.path.write_text({"cut": text[:-20], "edited": text.replace('"z"', '"y"')}.get(damage, damage))
    with pytest.raises(RunError, match="damaged"):
        ledger.spend(entry(1), Limits())


def rewritten(text: str, change: str) -> str:
    """The file after an attack on its lines that keeps it readable."""
    lines = text.splitlines(keepends=True)
    return {
        "lower": text.replace('"z": 2.0', '"z": 9.0', 1),
        "swap": "".join([lines[0], lines[2], lines[1], *lines[3:]]),
        "fewer": "".join([lines[0].replace('"entries": 3', '"entries": 2'), *lines[1:3]]),
        "twice": "".join([lines[0], lines[1], lines[1], lines[1]]),
        "older": "".join([lines[0].replace('"ledger": 3', '"ledger": 2'), *lines[1:]]),
    }[change]


@pytest.mark.parametrize("change", ["lower", "swap", "fewer", "twice", "older"])
def test_no_line_can_be_changed_removed_or_moved(ledger: NodeLedger, change: str) -> None:
    for number in range(3):
        ledger.spend(entry(number), Limits())
    text = ledger.path.read_text()
    changed = rewritten(text, change)
    assert changed != text
    ledger.path.write_text(changed)
    with pytest.raises(RunError, match=r"damaged|replaced by an older"):
        ledger.spend(entry(3), Limits())


def test_an_old_copy_of_the_account_is_noticed(ledger: NodeLedger) -> None:
    ledger.spend(entry(0), Limits())
    old, digest = ledger.path.read_text(), ledger.digests()[-1]
    ledger.spend(entry(1), Limits())
    assert digest in ledger.digests()  # a note of the owner stays valid while the ledger grows
    newest = ledger.digests()[-1]
    ledger.path.write_text(old)
    with pytest.raises(RunError, match=f"replaced by an older or another copy .*{newest}"):
        ledger.entries()
    (ledger.path.parent / "ledger.last").unlink()
    with pytest.raises(RunError, match=r"ledger.last beside it is missing"):
        ledger.entries()
    (ledger.path.parent / "ledger.last").write_text(digest + "\n")  # both were put back: the owner's note remains
    assert newest not in ledger.digests()


DAMAGED = [
    "[]", "null", "3", '"x"', "[1, 2]", "{}", "NaN", '{"ledger": 3}', "[" * 100_000, "\x00", "{'a': 1}",
    '{"run": 1, "round": "x", "config": 2, "uses": 3, "time": 4}',
    '{"run": "a", "round": 1e400, "config": "c", "uses": {}, "time": ""}',
]  # fmt: skip
COSTS = [
    {"z": -1.0}, {"z": 0.0}, {"z": "2"}, {"z": None}, {"z": float("nan")}, {"steps": 0}, {"steps": 1.5}, {"steps": True},
    {"rate": 2.0}, {"rate": -0.1}, {"rate": "all"}, {"law": "cauchy"}, {"hidden": 3}, {"replace": "no"}, {"more": 1},
]  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED)
def test_a_line_that_is_none_gives_one_sentence(ledger: NodeLedger, line: str) -> None:
    ledger.spend(entry(0), Limits())
    first = ledger.path.read_text().splitlines()[0]
    for text in (f"{first}\n{line}\n", f"{line}\n"):
        ledger.path.write_text(text)
        with pytest.raises(RunError, match="damaged") as caught:
            ledger.entries()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("cost", COSTS)
def test_a_cost_that_no_round_has_is_damage(ledger: NodeLedger, cost: dict) -> None:
    """Also in files of an older version, whose lines are not chained."""
    spent = {"z": 2.0, "steps": 2, "rate": 0.1, "hidden": True, "law": "gaussian", "replace": False, **cost}
    uses = {unit: {"zero-out": spent, "replace": None} for unit in ("example", "client")}
    line = {"run": "a", "round": 0, "config": "c", "uses": uses, "time": ""}
    ledger.path.write_text(json.dumps({"ledger": 2, "entries": 1}) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(RunError, match="damaged"):
        ledger.entries()


def test_a_missing_account_is_not_a_new_one(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="missing"):
        NodeLedger(tmp_path).spend(entry(), Limits())


def test_a_line_is_synced_and_renamed_into_place(ledger: NodeLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    sync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (steps.append("sync"), sync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (steps.append("rename"), rename(a, b))[1])
    ledger.spend(entry(), Limits())
    assert steps[:3] == ["sync", "rename", "sync"]  # the content, the name, the folder


def test_a_crash_while_writing_leaves_the_old_account(ledger: NodeLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.spend(entry(0), Limits())

    def crash(a: object, b: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(OSError, match="no space"):
        ledger.spend(entry(1), Limits())
    monkeypatch.undo()
    assert len(ledger.entries()) == 1


def test_two_writers_at_once_lose_nothing(tmp_path: Path, ledger: NodeLedger) -> None:
    def spend(first: int) -> None:
        for number in range(first, first + 5):
            NodeLedger(tmp_path).spend(entry(number), Limits())

    writers = [threading.Thread(target=spend, args=(start,)) for start in (0, 100)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(e.round for e in ledger.entries()) == [*range(5), *range(100, 105)]


def test_the_file_says_what_was_spent(ledger: NodeLedger) -> None:
    use = Use.of(Round(((1.0, 2.34567),), steps=3, rate=0.25, hidden=True))
    assert use.z == 2.34567 and use.round.steps == 3
    ledger.spend(entry(use=use), Limits())
    line = json.loads((ledger.path.parent / FILE).read_text().splitlines()[1])
    spent = {"z": 2.34567, "steps": 3, "rate": 0.25, "hidden": True, "law": "gaussian", "replace": False, "slip": 0.0}
    assert line["uses"]["example"] == {"zero-out": spent, "replace": {**spent, "replace": True}}
    assert total([], "example", 1e-5) == 0.0
