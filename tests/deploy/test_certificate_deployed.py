"""Regressions: cases in which the ledger of a deployed run or of a node once was too low."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from deploy_memory import SMALL, UNACCOUNTED, InMemory, Puppets, key_of, nodes_of, silent

from fedveil.accounting import accountants, accounts, ledger, transcript
from fedveil.accounting.accountants import Round
from fedveil.config import Config, from_dict, resolve, to_toml
from fedveil.core.errors import RunError
from fedveil.core.taps import NODE_UNITS
from fedveil.deploy import node, status
from fedveil.deploy.account import NodeLedger, Use, total
from fedveil.deploy.coordinator import Terms, conduct
from fedveil.deploy.messages import Payload, Reply, Request, pack
from fedveil.run_account import transcript_of
from fedveil.runs import RunFolder


def config_of(**sections: Any) -> Config:
    """The accounts do not depend on the model: one layer compiles fastest."""
    made = {key: {**SMALL[key], **sections.get(key, {})} for key in ("data", "train")}
    return from_dict({**made, "model": {"name": "logistic"}, "defense": sections.get("defense", SMALL["defense"])})


def alone(**sections: Any) -> Config:
    """A federation of one node."""
    sections["data"] = {"clients": 1, **sections.get("data", {})}
    sections["train"] = {"per_round": 1, **sections.get("train", {})}
    return resolve(config_of(**sections))


def model_of(config: Config) -> Payload:
    return pack(jax.device_get(node.build_model(config, (8, 8, 1), 10).init(jax.random.key(0))))


def ask(home: Path, config: Config, round_: int = 0, run: str = "run") -> tuple[Reply, dict[str, np.ndarray]]:
    import io

    request = Request(run, round_, 0, key_of(0), to_toml(config), 60, 1.0, 1.0, -1)
    reply, parts = node.handle(home, request, model_of(config))
    return reply, {name: np.load(io.BytesIO(data)) for name, data in parts.items()}


# --- state does not cross configs


def test_what_one_config_kept_before_its_noise_does_not_leave_under_another(tmp_path: Path) -> None:
    """DGC's client state is filled before the noise of Fed-SDP; the next config would send it with almost no noise."""
    train = {"local_steps": 1, "batch": 1, "rounds": 3, "batching": "shuffle", "lr": 1.0}
    keeps = [{"name": "dgc", "stage": "batch", "share": 0.999}, {"name": "fed-sdp", "placement": "client"}]
    sends = [{"name": "dgc", "stage": "batch", "share": 0.0}, {"name": "fed-cdp", "clip": 1e-9, "noise": 1.0}]
    first = alone(train=train, defense=keeps)
    (home,) = nodes_of(first, tmp_path)
    assert ask(home, first)[0].refused == ""
    kept = list((home / "memory").rglob("*.npz"))
    assert len(kept) == 1
    reply, sent = ask(home, alone(train=train, defense=sends), round_=1)
    assert reply.refused == ""
    largest = max(float(np.abs(a).max()) for a in sent.values())
    assert largest < 1e-6, f"more than clip and noise was sent: {largest}"
    assert not kept[0].exists()  # nor is anything left for a third config


# --- filters that read data


@pytest.mark.parametrize("reader", [{"name": "lip"}, {"name": "dpfl", "selection": "uniform", "finetune": False}])
def test_a_node_refuses_noise_that_follows_its_data(tmp_path: Path, reader: dict[str, Any]) -> None:
    config = alone(defense=[{"name": "fed-cdp"}, reader])
    (home,) = nodes_of(config, tmp_path)
    reply, sent = ask(home, config)
    assert "reads private data" in reply.refused and sent == {} and NodeLedger(home).entries() == []


# --- the account of a deployed run


DEPLOYED = [
    [{"name": "fed-cdp"}],
    [{"name": "fed-sdp", "placement": "client"}],
    [{"name": "fed-sdp"}],
    [{"name": "2dp-fl", "server_noise_mode": "same"}],
    [{"name": "nbafl", "arithmetic": "float"}],  # integers certify no ε of thousands
    pytest.param(
        [{"name": "dpfl", "allocation": "even", "selection": "uniform", "finetune": False}], marks=pytest.mark.slow
    ),
]


def of_a_client_in_every_round(own: transcript.Transcript, delta: float) -> dict[tuple[str, str], float | None]:
    """ε by the rule `realised` of a client that took part in every round; None where there is no certificate."""
    found = {}
    for unit, adjacency in itertools.product(NODE_UNITS, ("zero-out", "replace")):
        each = [(accounts.realised(own.releases, z, own.setting, unit, adjacency)[0], n) for z, n in own.groups]
        epsilon = accounts.realised_epsilon([one for one, times in each for _ in range(times)], delta)
        found[unit, adjacency] = epsilon if math.isfinite(epsilon) else None
    return found


@pytest.mark.parametrize("defense", DEPLOYED)
def test_run_folder_result_and_nodes_agree(tmp_path: Path, defense: list[dict[str, Any]]) -> None:
    config = config_of(train={"rounds": 2, "lr": 0.1, "lr_end": 0.05}, defense=defense)
    server_only = defense == [{"name": "fed-sdp"}]
    homes = nodes_of(config, tmp_path, UNACCOUNTED if server_only else "")
    result = conduct(config, InMemory(homes), RunFolder.create(tmp_path / "run"), Terms())
    made = transcript_of(tmp_path / "run")
    assert made.rounds == 2 and (made.lost, made.dropped) == (0, 0)
    assert [r.as_dict() for r in ledger.rows(made, accountants=("paper", "pld"))] == result["ledger"]
    # All four nodes took part in both rounds: a node's own account is the transcript's by the rule `realised`.
    own = replace(made, setting=replace(made.setting, sizes=((60, made.setting.local_steps),), smallest=60))
    told = {(r["unit"], r["adjacency"]): r["epsilon"] for r in status.of_node(homes[0])["accounts"]}
    assert of_a_client_in_every_round(own, 1e-5) == told


def test_sizes_losses_and_repeated_rounds_are_in_the_account(tmp_path: Path) -> None:
    config = config_of(defense=[{"name": "fed-sdp", "placement": "client", "noise": 2.0}])
    nodes, folder = Puppets(), RunFolder.create(tmp_path / "run")
    nodes.answers = silent((1, 0), (1, 1), (1, 2))
    with pytest.raises(RunError, match="quorum"):
        conduct(config, nodes, folder, Terms())
    result = conduct(config, Puppets(), folder, Terms())
    made = transcript_of(folder.path)
    assert result["rounds"] == 3 and result["rounds_asked"] == made.rounds == 4 and made.lost == 3
    assert [r.as_dict() for r in ledger.rows(made, accountants=("paper", "pld"))] == result["ledger"]
    assert all("of all who answer together" not in row["reason"] for row in result["ledger"])
    three = replace(made, groups=((made.groups[0][0], 3),))  # as if no round had been repeated
    once, twice = (ledger.certified(one, "server", "client", 1e-5).epsilon for one in (three, made))
    assert once is not None and twice is not None and twice > once


def test_a_budget_counts_rounds_that_were_asked_for(tmp_path: Path) -> None:
    defense = [{"name": "fed-sdp", "placement": "client", "noise": 4.0}]
    probe = RunFolder.create(tmp_path / "probe")
    conduct(config_of(defense=defense, train={"rounds": 1}), Puppets(), probe, Terms())
    header = replace(transcript_of(probe.path), groups=())
    three = ledger.certified(header.then(3), "server", "client", 1e-5).epsilon
    assert three is not None
    budget = {"epsilon": three * 1.001, "delta": 1e-5, "tap": "server", "unit": "client"}
    config = config_of(defense=defense, train={"rounds": 6, "budget": budget})
    nodes, folder = Puppets(), RunFolder.create(tmp_path / "run")
    nodes.answers = silent((0, 0), (0, 1), (0, 2))
    with pytest.raises(RunError, match="quorum"):
        conduct(config, nodes, folder, Terms())
    result = conduct(config, Puppets(), folder, Terms())
    assert result["rounds_asked"] == 3 and result["rounds"] == 2 and "budget" in result["stopped"]
    row = ledger.certified(transcript_of(folder.path), "server", "client", 1e-5)
    assert row.rounds == 3 and row.epsilon <= budget["epsilon"]
    # A deployed run without its transcript cannot be accounted for.
    (folder.path / transcript.FILE).unlink()
    with pytest.raises(RunError, match="was deployed"):
        transcript_of(folder.path)


# --- one neighbouring relation for all rounds of a node


def test_a_mixed_account_is_labelled_by_what_it_composes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The ledger is written before anything is computed.
    monkeypatch.setattr(node.NodeRound, "_compute", lambda own, planned, received, state: (received, 0.0, {}))
    config = alone()
    (home,) = nodes_of(config, tmp_path)
    assert ask(home, config)[0].refused == ""
    assert ask(home, alone(defense=[{"name": "fed-sdp", "placement": "client"}]), run="b")[0].refused == ""
    rows = {(r["unit"], r["adjacency"]): r["epsilon"] for r in status.of_node(home)["accounts"]}
    uses = [e.use("example", "replace") for e in NodeLedger(home).entries()]
    assert all(use is not None and use.replace for use in uses)
    assert rows["example", "replace"] > rows["example", "zero-out"]


def test_an_account_of_the_first_version_is_read(tmp_path: Path) -> None:
    made = NodeLedger(tmp_path)
    use = {"z": 2.0, "steps": 2, "rate": 0.1, "hidden": True, "law": "gaussian", "replace": False}
    line = {"run": "a", "round": 0, "config": "c", "example": use, "client": None, "time": ""}
    made.path.write_text(json.dumps({"ledger": 1, "entries": 1}) + "\n" + json.dumps(line) + "\n")
    (entry,) = made.entries()
    assert entry.use("example", "zero-out") == Use(**use) and entry.use("client", "replace") is None
    assert total([entry], "example", 1e-5, "replace") > total([entry], "example", 1e-5)


# --- budgets against a server that chooses by past replies


def test_the_budget_is_kept_by_a_filter(tmp_path: Path) -> None:
    """Rounds that the filter allows stay within the budget by composition, whatever their mixture."""
    from fedveil.accounting.filters import RenyiFilter

    budget = RenyiFilter.for_budget(1.0, 1e-5)
    rng = np.random.default_rng(0)
    spent: list[Round] = []
    for _ in range(200):
        one = Round(((1.0, float(rng.uniform(4.0, 60.0))),), rate=float(rng.choice([1.0, 0.1])), hidden=True)
        if budget.allows([*(budget.cost(r) for r in spent), budget.cost(one)]):
            spent.append(one)
    assert len(spent) > 3
    found = accountants.epsilon(tuple((one, 1) for one in spent[:40]), 1e-5, "pld")
    assert found is not None and found <= 1.0
