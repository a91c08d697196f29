"""Secure aggregation over Flower: a server and five nodes as processes, with TLS and node keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

CONFIG = """
[data]
name = "digits"
clients = 5
per_client = 60

[model]
name = "mlp"
hidden = [8]

[train]
rounds = 10
per_round = 5
sampling = "fixed"
local_steps = 1
batch = 5
secure_aggregation = true
{keys}
[[defense]]
name = "fed-cdp"
clip = 1.0
noise = {noise}
{defense}"""
# Integers that carry their share of the noise: no float is sent at all.
COHORT = {"keys": 'batching = "poisson"\nquorum = 0.8\nhonest = 0.9\n', "noise": 6.0,
          "defense": 'placement = "cohort"\nclip_scope = "flat"\narithmetic = "integer"\n'}  # fmt: skip
UPDATES = {"keys": "", "noise": 1.0, "defense": ""}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [UPDATES, COHORT], ids=["updates", "cohort noise"])
def test_ten_rounds_with_five_nodes(tmp_path: Path, kind: dict[str, Any]) -> None:
    """Every unmasked sum equals the plain sum (test mode); a run without test mode needs all nodes at its start."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedveil[flower]'")
    from loopback import Loopback

    config = tmp_path / "config.toml"
    config.write_text(CONFIG.format(**kind))
    with Loopback(tmp_path / "federation", config, "--test", "--epsilon", "1000000", nodes=5) as federation:
        for number in range(5):  # test mode has no certificate
            path = federation.home(number) / "node.toml"
            kept = [line for line in path.read_text().splitlines() if not line.startswith(("epsilon", "multiplier"))]
            path.write_text("\n".join([*kept, "unaccounted = true"]) + "\n")
        code, result, error = federation.run("--test", "--out", str(tmp_path / "test"), patience=1500)
        assert code == 0 and result["rounds"] == 10 and result["clients_lost"] == 0, error
        federation.processes["node-4"].terminate()
        federation.processes.pop("node-4").wait(30)
        code, result, error = federation.run(
            "--out", str(tmp_path / "run"), "--timeout", "20", "--wait", "5", patience=1500
        )
        assert code != 0 and "missing: client 4" in error  # a run needs all of its nodes at its start
        last = json.loads(federation.call("deploy", "status", str(federation.home(0)), "--json").stdout)
        assert last["secure_aggregation"]["last"]["survivors"] == 5
    rows = [json.loads(line) for line in (tmp_path / "test" / "metrics.jsonl").read_text().splitlines()]
    assert [row["secagg"]["survivors"] for row in rows] == [5] * 10
    print("seconds of a round", [round(row["seconds"], 1) for row in rows])
