"""ε for every seat of a config, in the form that the page shows. Runs in a worker: building a plan takes JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedveil.accounting.ledger import Row
from fedveil.accounting.published import RULES
from fedveil.config import from_dict
from fedveil.core.taps import ACCOUNTED_TAPS, UNITS
from fedveil.federation import plan
from fedveil.report.words import limit, weak
from fedveil.run_account import account

PUBLISHED = (*RULES, "joint", "as-published")


def seats(document: dict[str, Any]) -> dict[str, Any]:
    """One entry per tap and unit, the papers' claims apart, and the laws that were taken."""
    planned = plan(from_dict(document))
    setting = planned.setting
    fixed = setting.sampling == "fixed" or setting.batching == "without-replacement"
    accountants = ("paper", "pld", "rdp") if fixed else ("paper", "pld")  # Rényi's alone knows fixed-size samples
    rows = account(planned, accountant=accountants)
    own = [row for row in rows if row.rule not in PUBLISHED]
    return {
        "seats": [entry for tap in ACCOUNTED_TAPS for unit in UNITS if (entry := _seat(own, tap, unit))],
        "claims": [_brief(row) for row in rows if row.rule in PUBLISHED],
        "delta": planned.transcript().delta,
        "rounds": setting.rounds,
        "sampling": setting.sampling,
        "batching": setting.batching,
        "smallest": setting.smallest,
        "private": any(defense.private for defense in planned.defenses),
    }


def _seat(rows: Sequence[Row], tap: str, unit: str) -> dict[str, Any] | None:
    """The account of one seat: the least ε where presence counts, else with a replaced unit, else why there is none."""
    here = [row for row in rows if (row.tap, row.unit) == (tap, unit)]
    if not here:
        return None
    known = [row for row in here if row.epsilon is not None]
    known.sort(key=lambda row: (not row.certified, row.adjacency == "replace", row.epsilon))
    return _brief(known[0] if known else here[0])


def _brief(row: Row) -> dict[str, Any]:
    told = row.as_dict()
    names = ("tap", "unit", "epsilon", "delta", "adjacency", "certified", "rule", "accountant", "reason", "assumptions")
    known = row.epsilon is not None and row.delta is not None
    return {
        **{name: told[name] for name in names},
        "weak": known and weak(row.epsilon or 0.0, row.delta or 0.0),
        "means": limit(row.epsilon or 0.0, row.delta or 0.0) if known else "",
    }
