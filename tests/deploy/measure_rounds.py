"""Seconds and processor time of deployed rounds with 4 nodes on this machine, plain and with secure aggregation.

    python tests/deploy/measure_rounds.py [ROUNDS]

One JSON line for each way. `later_s` is the median of the rounds after the first; `early_s` and `late_s` are those of the
first and the last third, because rounds must not become slower. `cpu_s` is the processor time of a round by process,
`message_cpu_s` that of one message at a node, its worker and its link together. Server and nodes are their own processes,
with TLS, over loopback. Takes about three minutes on two idle cores.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from loopback import Loopback

NODES = 4
CONFIG = """
[data]
name = "digits"
clients = 4
per_client = 60

[model]
name = "mlp"
hidden = [8]

[train]
rounds = {rounds}
per_round = 4
sampling = "fixed"
local_steps = 1
batch = 5
batching = "poisson"
eval_every = 1000

[[defense]]
name = "fed-cdp"
clip = 1.0
noise = 6.0
placement = "batch"
"""
SECURE = ("-s", "train.secure_aggregation=true", "-s", "train.quorum=0.75", "-s", "defense.placement=cohort")
KINDS = ("flower-superlink", "deploy.gate", "deploy.serverapp", "deploy.worker", "deploy.link")
TICK = os.sysconf("SC_CLK_TCK")


def spent(roots: set[int]) -> Counter[str]:
    """Processor time so far of all descendants of some processes, by kind."""
    parents, times, names = dict[int, int](), dict[int, float](), dict[int, str]()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            line = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        number = int(entry.name)
        parents[number], times[number] = int(stat[1]), (int(stat[11]) + int(stat[12])) / TICK
        names[number] = next((kind for kind in KINDS if kind in line), "other")
    found = Counter[str]()
    for number in parents:
        above = number
        while above in parents and above not in roots:
            above = parents[above]
        if above in roots:
            found[names[number]] += times[number]
    return found


class Watch(threading.Thread):
    """Notes the processor time whenever a round of a run is complete."""

    def __init__(self, federation: Loopback, run: Path) -> None:
        super().__init__(daemon=True)
        self.federation, self.run_folder, self.done = federation, run, False
        self.at: dict[int, Counter[str]] = {}

    def run(self) -> None:
        while not self.done:
            done = self.federation.rounds_done(self.run_folder)
            if done not in self.at:
                self.at[done] = spent({process.pid for process in self.federation.processes.values()})
            time.sleep(0.2)


def measure(federation: Loopback, below: Path, how: str, options: tuple[str, ...]) -> dict[str, Any]:
    out = below / f"run-{how}"
    watch = Watch(federation, out)
    watch.start()
    code, result, said = federation.run("--out", str(out), *options, patience=900)
    watch.done = True
    watch.join()
    assert code == 0 and result["clients_lost"] == 0, said
    seconds = [json.loads(line)["seconds"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    later, third = seconds[1:], max(1, (len(seconds) - 1) // 3)
    first, last = min(n for n in watch.at if n >= 1), max(watch.at)
    used = watch.at[last] - watch.at[first]
    rounds = max(1, last - first)
    return {
        "how": how, "rounds": len(seconds), "first_s": round(seconds[0], 1), "later_s": round(statistics.median(later), 2),
        "early_s": round(statistics.median(later[:third]), 2), "late_s": round(statistics.median(later[-third:]), 2),
        "message_cpu_s": round((used["deploy.worker"] + used["deploy.link"]) / rounds / NODES, 3),
        "cpu_s": {kind: round(used[kind] / rounds, 2) for kind in (*KINDS, "other")},
        "cores": os.cpu_count(), "load_1min": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        below = Path(folder)
        config = below / "config.toml"
        config.write_text(CONFIG.format(rounds=rounds))
        with Loopback(below / "federation", config, nodes=NODES) as federation:
            for number in range(NODES):
                limits = federation.home(number) / "node.toml"
                text = limits.read_text().splitlines()
                wide = {"epsilon": "epsilon = 1000.0", "multiplier": "multiplier = 0.01"}
                limits.write_text("\n".join(wide.get(line.split(" ")[0], line) for line in text) + "\n")
            for how, options in (("plain", ()), ("secure aggregation", SECURE)):
                print(json.dumps(measure(federation, below, how, options)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 13)
