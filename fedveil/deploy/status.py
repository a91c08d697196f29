"""The state of a federation as its server sees it, and the ledger of one node as its owner sees it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedveil.core.errors import FedveilError, RunError
from fedveil.core.taps import NODE_UNITS
from fedveil.deploy import refusals
from fedveil.deploy.account import ADJACENT, Entry, NodeLedger, total
from fedveil.deploy.files import Federation, roster
from fedveil.deploy.limits import read_node
from fedveil.deploy.processes import listening

Row = dict[str, Any]
FLOATING_POINT = "not certified against a server that exploits floating point"
ADAPTIVE = "for requests that were fixed beforehand; the budget also holds if each request depends on earlier answers"


def of_node(home: Path) -> Row:
    """A node's ledger, read from its disk, for its owner."""
    node = read_node(home)
    ledger = NodeLedger(home)
    entries = ledger.entries()
    limits = node.limits
    rows = [_account(entries, unit, adjacency, limits.delta) for unit in NODE_UNITS for adjacency in ADJACENT]
    budget = None
    if limits.epsilon is not None:
        budget = {"epsilon": limits.epsilon, "delta": limits.delta, "unit": limits.unit, "adjacency": limits.adjacency}
    return {
        "client": node.client,
        "rounds": len(entries),
        "runs": len({entry.run for entry in entries}),
        "digest": ledger.digests()[-1],
        "refused": refusals.read(home),
        "secure_aggregation": _secure(home),
        "accounts": rows,
        "budget": budget,
    }


def _secure(home: Path) -> Row | None:
    """The roster's fingerprint, to compare with that of the other owners, and the last session; None without a roster."""
    if not (home / "roster.txt").exists():
        return None
    from fedveil.deploy.secagg import identity  # `cryptography` comes with the extra [flower]

    return {"roster": identity.read_roster(home).fingerprint.hex()[:32], "last": identity.read_last(home)}


def check_contains(home: Path, digest: str) -> None:
    """Raises `RunError` unless the node's ledger contains this digest, which the owner noted earlier."""
    if digest not in NodeLedger(home).digests():
        raise RunError(
            f"the ledger of {home} does not contain {digest}: it is older than that note, or not the same ledger"
        )


def _account(entries: Sequence[Entry], unit: str, adjacency: str, delta: float) -> Row:
    """ε of all rounds under one neighbouring relation, by the rule `realised`."""
    epsilon = total(entries, unit, delta, adjacency)
    known = math.isfinite(epsilon)
    uses = [entry.use(unit, adjacency) for entry in entries]
    whole = all(use is not None and use.slip > 0 for use in uses)
    return {
        "tap": "server",
        "unit": unit,
        "rule": "realised",
        "certified": known and whole,
        "adjacency": adjacency,
        "epsilon": epsilon if known else None,
        "delta": delta if known else None,
        "reason": _why(known, whole),
    }


def _why(known: bool, whole: bool) -> str:
    if not known:
        return "a round was sent without a certificate for this unit, or in test mode"
    return ADAPTIVE if whole else FLOATING_POINT


def of_federation(federation: Federation) -> Row:
    """The server, its nodes and runs; and the ledgers of nodes whose folders are on this machine."""
    up = listening(federation.control)
    found: Row = {"address": federation.address, "up": up, "nodes": [], "runs": []}
    states: dict[int, str] = {}
    if up:
        from fedveil.deploy.control import Control

        with Control(federation.control, federation.server / "ca.crt") as control:
            states = {node: status for node, (status, _) in control.nodes().items()}
            found["runs"] = [{"run": str(run), "status": status} for run, status in control.runs().items()]
    ids = {member.client: node for node, member in roster(federation).items()}
    found["refused"] = refusals.read(federation.server)
    found["secure_aggregation"] = _secure(federation.server)
    for number in range(federation.nodes):
        node = ids.get(number)
        row: Row = {
            "client": number,
            "node": None if node is None else str(node),
            "status": "unknown" if not up else states.get(node or 0, "offline"),
        }
        home = federation.node(number)
        if home.is_dir():
            try:
                row["account"] = of_node(home)
            except FedveilError as error:
                row["account"] = {"error": str(error)}
        found["nodes"].append(row)
    return found
