"""Compares today's results with the golden record. What that is, and how to record again: `__init__.py`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from . import cases, digest, harness, store

HELP = "if this change is meant: python -m tests.golden.record, and name the reason in the commit message"


@cache
def stored(kind: str) -> dict[str, Any]:
    return store.read(kind)


def some_slow(names: Iterable[str], quick: Iterable[str]) -> list[Any]:
    """The names as parameters; all but the quick ones are marked `slow`."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


def report(lines: Iterable[str]) -> None:
    """Fails with the lines, if there are any."""
    found = list(lines)
    if found:
        pytest.fail("\n".join([*found, HELP]), pytrace=False)


def trainings() -> list[Any]:
    """Every case on both engines; of the quick ones the reference engine runs every third."""
    quick = [(name, "vectorised") for name in cases.QUICK_TRAINING]
    quick += [(name, "reference") for name in cases.QUICK_TRAINING[::3]]
    pairs = [(name, engine) for name in cases.TRAINING for engine in harness.ENGINES]
    return [pytest.param(*pair, marks=() if pair in quick else pytest.mark.slow) for pair in pairs]


@pytest.mark.parametrize(("name", "engine"), trainings())
def test_training(name: str, engine: str) -> None:
    entry = stored("training")[name]
    expected = entry.get("both") or entry[engine]
    found = digest.digest(harness.train(entry["config"], engine))
    report(digest.different_models(f"{name}, {engine}", expected, found))


@pytest.mark.parametrize("name", some_slow(cases.TRAINING | cases.LEDGER_ONLY, cases.QUICK_TRAINING))
def test_ledger(name: str) -> None:
    entry = stored("ledger")[name]
    found = [digest.row(one) for one in harness.ledger(entry["config"])]
    report(digest.different_rows(name, entry["rows"], found))


@pytest.mark.parametrize("name", some_slow(cases.ATTACKS, cases.QUICK_ATTACKS))
def test_attack(name: str) -> None:
    entry = stored("attacks")[name]
    report(digest.different_numbers(name, entry["numbers"], harness.attack(entry["config"])))


def test_every_case_is_recorded() -> None:
    assert list(stored("training")) == list(cases.TRAINING)
    assert list(stored("ledger")) == list(cases.TRAINING | cases.LEDGER_ONLY)
    assert list(stored("attacks")) == list(cases.ATTACKS)
