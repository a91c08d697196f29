"""Measures the cost of secure aggregation in memory for docs/scaling.md: one JSON line for each cohort and vector length.

    python tests/deploy/measure_secagg.py >> docs/data/secagg-cost.jsonl
    python tests/deploy/measure_secagg.py --fit docs/data/secagg-cost.jsonl

Processor time and bytes are those of one node (mean over all nodes) and of the server. `--fit` fits a + b·k + c·d bytes up,
a + b·peers + c·peers·n/8 bytes down and b·signatures + c·k² + d·peers·length seconds, where k is the number of
neighbours that a node chooses, O(log n), and `peers` are those and the ones that chose it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from fedveil.deploy.secagg.degree import AUDITED
from fedveil.deploy.secagg.rehearsal import Federation
from fedveil.deploy.secagg.terms import Terms, majority

CASES = [(10, 1000), (10, 100_000), (30, 1000), (100, 1000), (100, 100_000), (150, 1000), (200, 100_000), (300, 1000),
         (500, 1000), (500, 50_000), (1000, 1000), (1000, 20_000)]  # fmt: skip
BITS = 16


class Timed(Federation):
    """Adds up the processor time of all nodes."""

    spent = 0.0

    def answer(self, client: int, message: bytes) -> bytes:
        began = time.process_time()
        try:
            return super().answer(client, message)
        finally:
            self.spent += time.process_time() - began


def measure(nodes: int, length: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    federation = Timed([rng.integers(-9, 9, length) for _ in range(nodes)])
    terms = Terms("cost", 0, bytes(16), "", length, BITS, majority(nodes), frozenset(range(nodes)))
    began = time.process_time()
    server = federation.run(terms, {0: "masked"})
    whole = time.process_time() - began
    said = server.transcript
    return {
        "nodes": nodes,
        "length": length,
        "neighbours": terms.degree,
        "bits": BITS,
        "node_bytes_up": round(said.bytes_up / nodes),
        "node_bytes_down": round(said.bytes_down / nodes),
        "node_cpu_s": round(federation.spent / nodes, 5),
        "server_cpu_s": round(whole - federation.spent, 4),
    }


def fit(path: Path) -> dict[str, list[float]]:
    """The coefficients of each formula, and its largest relative error."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    n, k, d = (np.array([row[name] for row in rows], float) for name in ("nodes", "neighbours", "length"))
    sparse = k < n - 1
    peers = np.where(sparse, 2 * k, k)  # those that a node chose, and those that chose it
    checked = peers + k + np.where(sparse, AUDITED, 0)  # signatures
    found = {}
    for name, terms in (
        ("node_bytes_up", (np.ones_like(k), k, d)),
        ("node_bytes_down", (np.ones_like(k), peers, peers * n / 8)),
        ("node_cpu_s", (checked, k * k, peers * d)),
    ):
        y = np.array([row[name] for row in rows], float)
        table = np.stack(terms, axis=1) / y[:, None]
        coefficients, *_ = np.linalg.lstsq(table, np.ones_like(y), rcond=None)
        worst = float(np.abs(table @ coefficients - 1).max())
        found[name] = [float(f"{c:.3g}") for c in coefficients] + [round(worst, 3)]
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fit"]:
        print(json.dumps(fit(Path(sys.argv[2]))))
    else:
        for case in CASES:
            print(json.dumps(measure(*case)), flush=True)
