"""The state of a federation as its server sees it, and the ledger of one node as its owner sees it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedveil.core.errors import FedveilError
from fedveil.core.taps import NODE_UNITS
from fedveil.deploy import commands
from fedveil.deploy.account import ADJACENT, Entry, NodeLedger, total
from fedveil.deploy.files import Federation
from fedveil.deploy.limits import read_node
from fedveil.deploy.processes import flwr, listening, write_connection

Row = dict[str, Any]
FLOATING_POINT = "not certified against a server that exploits floating point"


def of_node(home: Path) -> Row:
    """A node's ledger, read from its disk, for its owner."""
    node = read_node(home)
    entries = NodeLedger(home).entries()
    limits = node.limits
    rows = [_account(entries, unit, adjacency, limits.delta) for unit in NODE_UNITS for adjacency in ADJACENT]
    budget = None
    if limits.epsilon is not None:
        budget = {"epsilon": limits.epsilon, "delta": limits.delta, "unit": limits.unit, "adjacency": limits.adjacency}
    return {
        "client": node.client,
        "rounds": len(entries),
        "runs": len({entry.run for entry in entries}),
        "accounts": rows,
        "budget": budget,
    }


def _account(entries: Sequence[Entry], unit: str, adjacency: str, delta: float) -> Row:
    """ε of all rounds under one neighbouring relation, by the rule `realised`."""
    epsilon = total(entries, unit, delta, adjacency)
    known = math.isfinite(epsilon)
    return {
        "tap": "server",
        "unit": unit,
        "rule": "realised",
        "certified": False,
        "adjacency": adjacency,
        "epsilon": epsilon if known else None,
        "delta": delta if known else None,
        "reason": FLOATING_POINT if known else "a round was sent without a certificate for this unit, or in test mode",
    }


def of_federation(federation: Federation) -> Row:
    """The server, its nodes and runs; and the ledgers of nodes whose folders are on this machine."""
    up = listening(federation.port)
    found: Row = {"address": federation.address, "up": up, "nodes": [], "runs": []}
    states: dict[str, str] = {}
    if up:
        write_connection(federation)
        environment = commands.environment(federation.server)
        nodes = flwr(commands.list_nodes(), environment)["nodes"]
        states = {str(node["node-id"]): str(node["status"]) for node in nodes}
        runs = flwr(commands.list_runs(), environment)["runs"]
        found["runs"] = [{"run": str(run["run-id"]), "status": str(run["status"])} for run in runs]
    for number in range(federation.nodes):
        known = federation.server / "nodes" / f"{number}.id"
        node = known.read_text(encoding="utf-8").strip() if known.exists() else None
        row: Row = {
            "client": number,
            "node": node,
            "status": states.get(node or "", "unknown" if not up else "offline"),
        }
        home = federation.node(number)
        if home.is_dir():
            try:
                row["account"] = of_node(home)
            except FedveilError as error:
                row["account"] = {"error": str(error)}
        found["nodes"].append(row)
    return found
