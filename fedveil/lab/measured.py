"""Measured accuracies that come with the lab, so that the Trade-off page shows runs before the user trains any.

`python -m fedveil.lab.measured` measures them again and writes `measured.json`. Each entry is a config and the result of
its training; a test repeats some of them.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedveil import __version__
from fedveil.config import from_dict, resolve
from fedveil.core.files import SHARED, write_text
from fedveil.lab.requests import TradeRequest

FILE = Path(__file__).parent / "measured.json"
KEPT = ("tap", "unit", "epsilon", "delta", "adjacency", "certified", "accountant")


def wanted() -> list[TradeRequest]:
    """The trainings to measure: digits without a defence, and with a range of noise for fed-cdp and fed-sdp."""
    asked = [TradeRequest(defense={"name": "none"})]
    for noise in (0.1, 0.3, 1.0, 3.0, 6.0):
        asked.append(TradeRequest(defense={"name": "fed-cdp", "clip": 1.0, "noise": noise}))
    for noise in (0.3, 1.0, 3.0, 6.0):
        asked.append(TradeRequest(defense={"name": "fed-sdp", "clip": 1.0, "noise": noise}))
    from fedveil.lab.server import LEARNS

    for noise in (0.8, 2.0):  # where the page opens, and a smaller ε
        asked.append(TradeRequest(**{**LEARNS, "defense": {**LEARNS["defense"], "noise": noise}}))
    return asked


def measure(document: dict[str, Any]) -> dict[str, Any]:
    """An entry of the file: a training with a noise seed, and the certificates of the same training with secret draws."""
    from fedveil.accounting import ledger
    from fedveil.federation import plan
    from fedveil.training import train

    seed = document["train"].get("seed", 0)
    result = train({**document, "train": {**document["train"], "noise_seed": seed}})
    made = plan(from_dict(document))
    account = ledger.rows(made.transcript(result.rounds), accountants=("paper", "pld"))
    rows = [row.as_dict() for row in account if row.certified]
    return {
        "document": document,
        "accuracy": result.accuracy,
        "chance": result.chance,
        "split": result.split,
        "loss": result.loss,
        "rounds": result.rounds,
        "seconds": round(result.seconds, 1),
        "version": __version__,
        "ledger": [{key: row[key] for key in KEPT} for row in rows],
    }


@lru_cache(maxsize=1)
def known() -> tuple[dict[str, Any], ...]:
    """All entries of the file."""
    return tuple(json.loads(FILE.read_text(encoding="utf-8")))


@lru_cache(maxsize=1)
def points() -> tuple[dict[str, Any], ...]:
    """The entries as finished runs."""
    from fedveil.lab.runs import fingerprint, settings

    made = []
    for entry in known():
        config = resolve(from_dict(entry["document"])).model_dump()
        shown = ", ".join(f"{key} {value}" for key, value in entry["document"]["defense"].items() if key != "name")
        kept = {key: entry[key] for key in ("accuracy", "chance", "split", "loss", "rounds", "seconds", "ledger")}
        made.append(
            {
                **kept,
                "name": f"shipped with {entry['version']}: {entry['document']['defense']['name']} {shown}".rstrip(),
                "dataset": config["data"]["name"],
                "model": config["model"]["name"],
                "defense": [entry["document"]["defense"]["name"]],
                "settings": settings(config),
                "fingerprint": fingerprint(entry["document"]),
            }
        )
    return tuple(made)


def main() -> None:
    from fedveil.core.system import to_json

    entries = []
    for request in wanted():
        entries.append(measure(request.document()))
        print(entries[-1]["accuracy"], request.defense, file=sys.stderr, flush=True)
    write_text(FILE, "[\n" + ",\n".join(to_json(entry) for entry in entries) + "\n]\n", SHARED)


if __name__ == "__main__":
    main()
