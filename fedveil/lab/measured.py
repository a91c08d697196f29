"""Accuracies that come with the lab, so that the Trade-off page has something to show before the first own run.

`python -m fedveil.lab.measured` measures them again, run by run, and writes `measured.json`. Each is a config and what its
training came to; a test trains some of them again.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedveil import __version__
from fedveil.config import from_dict, resolve
from fedveil.lab.requests import TradeAsk

FILE = Path(__file__).parent / "measured.json"
KEPT = ("tap", "unit", "epsilon", "delta", "adjacency", "certified", "accountant")


def wanted() -> list[TradeAsk]:
    """The settings to measure: digits without a defence, and under a range of noise for the two of fed-cdp."""
    asked = [TradeAsk(defense={"name": "none"})]
    for noise in (0.1, 0.3, 1.0, 3.0, 6.0):
        asked.append(TradeAsk(defense={"name": "fed-cdp", "clip": 1.0, "noise": noise}))
    for noise in (0.3, 1.0, 3.0, 6.0):
        asked.append(TradeAsk(defense={"name": "fed-sdp", "clip": 1.0, "noise": noise}))
    return asked


def measure(document: dict[str, Any]) -> dict[str, Any]:
    """One training by a noise seed, as an entry of the file, with the certificates of the same training by secret draws."""
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
    """The entries in the form of finished runs."""
    from fedveil.lab.runs import fingerprint, settings

    made = []
    for entry in known():
        config = resolve(from_dict(entry["document"])).model_dump()
        shown = ", ".join(f"{key} {value}" for key, value in entry["document"]["defense"].items() if key != "name")
        kept = {key: entry[key] for key in ("accuracy", "split", "loss", "rounds", "seconds", "ledger")}
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
    for ask in wanted():
        entries.append(measure(ask.document()))
        print(entries[-1]["accuracy"], ask.defense, file=sys.stderr, flush=True)
    FILE.write_text("[\n" + ",\n".join(to_json(entry) for entry in entries) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
