"""Measures the cost of deployed rounds for docs/scaling.md: one JSON line for each number of nodes and model.

    python tests/deploy/measure_scaling.py FOLDER >> docs/data/deploy-scaling.jsonl

Server and nodes share one machine, so the cost grows with the nodes as they compete for its cores.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path

from loopback import Loopback

CONFIG = """
[data]
name = "digits"
clients = {nodes}
per_client = 60

[model]
name = "mlp"
hidden = {hidden}

[train]
rounds = {rounds}
per_round = {nodes}
sampling = "fixed"
local_steps = 5
batch = 5
eval_every = 100

[[defense]]
name = "fed-cdp"
clip = 1.0
noise = 4.0
"""
MODELS = {"[8]": 610, "[1024, 1024]": 1_126_410}
ROUNDS = 4


def measure(folder: Path, nodes: int) -> None:
    folder.mkdir(parents=True)
    config = folder / "config.toml"
    config.write_text(CONFIG.format(nodes=nodes, hidden="[8]", rounds=ROUNDS))
    with Loopback(folder / "federation", config, nodes=nodes) as federation:
        for hidden, parameters in MODELS.items():
            out = folder / f"run-{parameters}"
            code, result, said = federation.run("--out", str(out), "-s", f"model.hidden={hidden}", patience=900)
            assert code == 0, said
            rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            later = [row["seconds"] for row in rows[1:]]
            found = {
                "nodes": nodes,
                "parameters": parameters,
                "first_round_s": round(rows[0]["seconds"], 1),
                "later_rounds_s": [round(s, 1) for s in later],
                "later_round_median_s": round(statistics.median(later), 1),
                "at_node_first_s": at_nodes(federation, out, first=True),
                "at_node_later_s": at_nodes(federation, out, first=False),
                "lost": result["clients_lost"],
                "cores": os.cpu_count(),
                "load_1min": round(os.getloadavg()[0], 1),
            }
            print(json.dumps(found), flush=True)


def at_nodes(federation: Loopback, out: Path, first: bool) -> float:
    """Median seconds that a node spent on a round, from reading its data to handing over; start of the process apart."""
    run = json.loads((out / "deploy.json").read_text())["run"]
    spent = []
    for number in range(federation.nodes):
        lines = [json.loads(line) for line in (federation.home(number) / "rounds.jsonl").read_text().splitlines()]
        spent += [line["seconds"] for line in lines if line["run"] == run and (line["round"] == 0) == first]
    return round(statistics.median(spent), 2)


if __name__ == "__main__":
    for count in [int(n) for n in sys.argv[2:]] or [2, 4, 8]:
        measure(Path(sys.argv[1]) / str(count), count)
