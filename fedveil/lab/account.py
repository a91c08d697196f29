"""ε against every adversary for a config, as the pages show it. Runs in a worker: planning a federation needs JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedveil.accounting.ledger import Row
from fedveil.accounting.published import RULES
from fedveil.config import from_dict
from fedveil.core.taps import ACCOUNTED_TAPS, UNITS
from fedveil.federation import plan
from fedveil.report.glossary import limit, weak
from fedveil.run_account import account

PUBLISHED = (*RULES, "joint", "as-published")
COLUMNS = ("tap", "unit", "epsilon", "delta", "adjacency", "certified", "rule", "accountant", "reason", "assumptions")


def account_of(document: dict[str, Any]) -> dict[str, Any]:
    """One entry per tap and unit (`seats`), the papers' claims separately, and the resolved sampling."""
    planned = plan(from_dict(document))
    setting = planned.setting
    fixed = setting.sampling == "fixed" or setting.batching == "without-replacement"
    accountants = ("paper", "pld", "rdp") if fixed else ("paper", "pld")  # only rdp covers samples of a fixed size
    rows = account(planned, accountant=accountants)
    own = [row for row in rows if row.rule not in PUBLISHED]
    return {
        "seats": [entry for tap in ACCOUNTED_TAPS for unit in UNITS if (entry := _best(own, tap, unit))],
        "claims": [_as_dict(row) for row in rows if row.rule in PUBLISHED],
        "delta": planned.transcript().delta,
        "rounds": setting.rounds,
        "sampling": setting.sampling,
        "batching": setting.batching,
        "smallest": setting.smallest,
        "private": any(defense.private for defense in planned.defenses),
    }


def _best(rows: Sequence[Row], tap: str, unit: str) -> dict[str, Any] | None:
    """The ledger row to show for one tap and unit. If no row has an ε, the row that says why.

    Certified rows come before others, and rows under `replace` last. Among equals the smallest ε counts.
    """
    found = [row for row in rows if (row.tap, row.unit) == (tap, unit)]
    if not found:
        return None
    known = [row for row in found if row.epsilon is not None]
    known.sort(key=lambda row: (not row.certified, row.adjacency == "replace", row.epsilon))
    return _as_dict(known[0] if known else found[0])


def _as_dict(row: Row) -> dict[str, Any]:
    values = row.as_dict()
    known = row.epsilon is not None and row.delta is not None
    return {
        **{name: values[name] for name in COLUMNS},
        "weak": known and weak(row.epsilon or 0.0, row.delta or 0.0),
        "means": limit(row.epsilon or 0.0, row.delta or 0.0) if known else "",
    }
