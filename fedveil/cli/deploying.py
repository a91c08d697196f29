"""The work of `fedveil deploy run` and `fedveil deploy status`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedveil.cli import show
from fedveil.config import load
from fedveil.core.errors import ConfigError
from fedveil.deploy import files, follow
from fedveil.deploy import status as statuses
from fedveil.deploy.coordinator import Terms
from fedveil.deploy.limits import FILE as NODE_FILE
from fedveil.runs import RunFolder


def run_deployed(
    file: str | None,
    settings: list[str],
    folder: str,
    terms: tuple[float, float, float, bool],
    *,
    out: str | None,
    resume: str | None,
    json: bool,
) -> None:
    """Deploys a run, or goes on with one; prints its result."""
    federation = files.read_federation(Path(folder))
    if resume is not None:
        if file is not None or settings or out is not None:
            raise ConfigError("--resume", resume, "takes the run's own config and folder: leave out FILE, -s and --out")
        config, run = None, RunFolder.open(Path(resume))
        rounds = load(run.config).train.rounds
    else:
        config = follow.checked(federation, load(file, settings), test=Terms(*terms).test)
        run, rounds = follow.new_folder(out, config), config.train.rounds
    with show.Bar(rounds or 1) as bar:
        result = follow.run(federation, config, run, Terms(*terms), show.note, bar)
    if json:
        show.print_json(result)
        return
    rows = [(key, value) for key, value in result.items() if key != "ledger" and value is not None]
    show.print_table("Deployed run", ("what", "result"), rows)
    if result["test"]:
        show.note("test mode: all noise follows from the seed, so nothing is protected")
    for row in result["ledger"]:
        if row["certified"] and row["tap"] in ("server", "release"):
            show.note(
                f"{row['tap']}, one {row['unit']}: ε = {row['epsilon']:.4g}, δ = {row['delta']:g}, {row['adjacency']}"
            )


def run_status(folder: Path, json: bool) -> None:
    """A federation's nodes and runs, or a node's account."""
    if (folder / NODE_FILE).is_file():
        found = statuses.of_node(folder)
        if json:
            show.print_json(found)
            return
        show.print_table(
            f"Client {found['client']}: {found['rounds']} rounds of {found['runs']} runs",
            ("tap", "unit", "adjacency", "epsilon", "delta", "reason"),
            [tuple(row.values()) for row in found["accounts"]],
        )
        show.note(f"budget: {found['budget'] or 'none'}")
        return
    found = statuses.of_federation(files.read_federation(folder))
    if json:
        show.print_json(found)
        return
    rows = [(node["client"], node["node"], node["status"], _spent(node.get("account"))) for node in found["nodes"]]
    title = f"{found['address']}: {'up' if found['up'] else 'down'}"
    show.print_table(title, ("client", "node", "status", "account (where it is here)"), rows)
    show.print_table("Runs", ("run", "status"), [(run["run"], run["status"]) for run in found["runs"]])


def _spent(account: dict[str, Any] | None) -> str:
    if account is None:
        return ""
    if "error" in account:
        return str(account["error"])
    known = [f"one {a['unit']}: ε = {a['epsilon']:.4g}" for a in account["accounts"] if a["epsilon"] is not None]
    return f"{account['rounds']} rounds; " + (", ".join(known) or "no certificate")
