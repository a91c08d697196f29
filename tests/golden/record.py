"""Makes the record: `python -m tests.golden.record [TEXT]`, with TEXT only the cases whose names contain it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from . import cases, digest, harness, store

Document = dict[str, Any]


def training(name: str, config: Document) -> Document:
    """The digest of both engines, stored once where they agree."""
    found = {engine: digest.digest(harness.train(config, engine)) for engine in harness.ENGINES}
    first, second = found.values()
    apart = list(digest.different_models(name, first, second))
    for line in apart:
        print("engines differ:", line, flush=True)
    return found if apart else {"both": first}


def ledger(name: str, config: Document) -> Document:
    return {"rows": [digest.row(one) for one in harness.ledger(config)]}


def attack(name: str, config: Document) -> Document:
    return {"numbers": digest.rounded(harness.attack(config))}


def record(kind: str, grid: dict[str, Document], make: Callable[[str, Document], Document], wanted: str) -> None:
    """Makes the wanted cases of one file again and keeps the others."""
    made, before = {}, store.read(kind)
    for name, short in grid.items():
        if wanted not in name and name in before:
            made[name] = before[name]
            continue
        began = time.monotonic()
        config = harness.explicit(short, with_attack=kind == "attacks")
        made[name] = {"config": config, **make(name, config)}
        print(f"{kind}: {name}, {time.monotonic() - began:.1f} s", flush=True)
        store.write(kind, made)
    store.write(kind, made)


def main(wanted: str = "") -> None:
    record("ledger", cases.TRAINING | cases.LEDGER_ONLY, ledger, wanted)
    record("training", cases.TRAINING, training, wanted)
    record("attacks", cases.ATTACKS, attack, wanted)


if __name__ == "__main__":
    main(*sys.argv[1:2])
