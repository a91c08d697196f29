"""Deployed rounds without Flower: nodes in memory, compared with the simulator, and nodes that misbehave."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from deploy_memory import SMALL, UNACCOUNTED, WIDE, InMemory, Puppets, key_of, nodes_of, silent

from fedveil.config import Config, from_dict, resolve, to_toml
from fedveil.core.errors import ConfigError, RunError
from fedveil.deploy import node
from fedveil.deploy.account import NodeLedger
from fedveil.deploy.coordinator import Terms, conduct
from fedveil.deploy.limits import check_deployable
from fedveil.deploy.messages import Payload, Reply, Request, pack
from fedveil.federation import prepare
from fedveil.runs import RunFolder, named_leaves
from fedveil.training import train


def config_of(**sections: Any) -> Config:
    document = copy.deepcopy(SMALL)
    if "model" in sections:
        document["model"] = {}
    for name, keys in sections.items():
        document[name] = {**document[name], **keys} if isinstance(keys, dict) else keys
    return from_dict(document)


def difference(folder: Path, params: Any) -> float:
    with np.load(folder / "checkpoint.npz") as stored:
        return max(float(np.abs(stored[n] - np.asarray(a)).max()) for n, a in named_leaves({"params": params}).items())


def test_test_mode_equals_the_simulator(tmp_path: Path) -> None:
    """With a separate model and noise for each client (2DP-FL), weights by size, and averaging of models."""
    config = config_of(
        data={"clients": 2},
        model={"name": "logistic"},
        train={"rounds": 2, "per_round": 2, "weights": "size", "noise_seed": 3},
        defense=[{"name": "2dp-fl", "noise_factors": [1.0, 3.0]}],
    )
    homes = nodes_of(config, tmp_path, "test = true\n" + UNACCOUNTED)
    result = conduct(config, InMemory(homes), RunFolder.create(tmp_path / "run"), Terms(test=True))
    assert difference(tmp_path / "run", train(prepare(config)).params) < 1e-5
    assert result["ledger"] == [] and result["rounds_asked"] == 2
    for home in homes:  # noise that the server knows protects nothing: no certificate
        assert [entry.use("example", "zero-out") for entry in NodeLedger(home).entries()] == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("defense", ["fed-cdp", "fed-sdp", "nbafl", "dgc", "dpfl"])
def test_test_mode_equals_the_simulator_for_every_kind_of_defence(tmp_path: Path, defense: str) -> None:
    """Server noise, averaged models, client state, layer importance with selection by losses."""
    config = config_of(defense=[{"name": defense}], train={"noise_seed": 3})
    homes = nodes_of(config, tmp_path, "test = true\n" + UNACCOUNTED)
    conduct(config, InMemory(homes), RunFolder.create(tmp_path / "run"), Terms(test=True))
    assert difference(tmp_path / "run", train(prepare(config)).params) < 1e-5


def test_a_node_writes_its_account_before_it_computes_and_draws_fresh_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = resolve(config_of(data={"clients": 1}, train={"per_round": 1}))
    (home,) = nodes_of(config, tmp_path)
    model = node.build_model(config, (8, 8, 1), 10)
    parts = pack(jax.device_get(model.init(jax.random.key(0))))
    request = Request("run", 0, 0, key_of(0), to_toml(config), 60, 1.0, 1.0, -1)
    sent = [node.handle(home, request, parts) for _ in range(2)]
    assert all(reply.refused == "" and np.isnan(reply.loss) for reply, _ in sent)
    assert sent[0][1] != sent[1][1]  # a repeated request gets fresh noise, and counts again
    assert len(NodeLedger(home).entries()) == 2
    found = NodeLedger(home).entries()[0].use("example", "zero-out")
    assert found is not None and found.steps == 2 and found.hidden and found.rate == pytest.approx(5 / 60)
    # Two layers, noise on each of five examples.
    assert found.z == pytest.approx(np.sqrt(5) / np.sqrt(2), rel=0.01)

    def crash(*_: object) -> None:
        raise RuntimeError("record 7 is broken")

    monkeypatch.setattr(node.NodeRound, "_compute", crash)
    reply, nothing = node.handle(home, request, parts)
    assert nothing == {} and len(NodeLedger(home).entries()) == 3
    # The text of an error may reveal data: it stays at the node.
    assert reply.refused.startswith("failed at the node") and "record 7" in (home / "errors.log").read_text()


def test_a_node_refuses_what_its_owner_does_not_allow(tmp_path: Path) -> None:
    config = resolve(config_of(data={"clients": 1}, train={"per_round": 1}))
    (home,) = nodes_of(config, tmp_path, WIDE.replace("epsilon = 1e6", "noise = 1.0\nepsilon = 0.01"))
    model = node.build_model(config, (8, 8, 1), 10)
    parts = pack(jax.device_get(model.init(jax.random.key(0))))

    def said(request: Request, parts: Payload = parts) -> str:
        reply, sent = node.handle(home, request, parts)
        assert sent == {} and NodeLedger(home).entries() == []
        return reply.refused

    good = Request("run", 0, 0, key_of(0), to_toml(config), 60, 1.0, 1.0, -1)
    fewer = {"data": {"clients": 1}, "train": {"per_round": 1}}
    lower = to_toml(resolve(config_of(**fewer, defense=[{"name": "fed-cdp", "noise": 0.9}])))
    assert "over budget" in said(good)
    assert "noise of at least 1" in said(Request("run", 0, 0, key_of(0), lower, 60, 1.0, 1.0, -1))
    assert "test mode" in said(Request("run", 0, 0, key_of(0), good.config, 60, 1.0, 1.0, 7))
    assert "client 0, not 1" in said(Request("run", 0, 1, key_of(0), good.config, 60, 1.0, 1.0, -1))
    assert "no round 99" in said(Request("run", 99, 0, key_of(0), good.config, 60, 1.0, 1.0, -1))
    assert "is not TOML" in said(Request("run", 0, 0, key_of(0), "[", 60, 1.0, 1.0, -1))
    assert "did you mean" in said(Request("run", 0, 0, key_of(0), '[[defense]]\nname = "fed-cpd"', 60, 1.0, 1.0, -1))
    leaky = to_toml(resolve(config_of(**fewer, defense=[{"name": "dpfl", "allocation": "even"}])))
    (home / "node.toml").write_text((home / "node.toml").read_text().split("[limits]")[0] + WIDE)
    assert "loss is sent to the server" in said(Request("run", 0, 0, key_of(0), leaky, 60, 1.0, 1.0, -1))
    assert "wrong shape" in said(good, dict(list(parts.items())[1:]))


PLAIN: dict[str, Any] = {"model": {"name": "logistic"}, "defense": [{"name": "none"}]}


def each(change: Any) -> Any:
    return lambda reply, sent: (reply, {name: change(a) for name, a in sent.items()})


def test_answers_that_cannot_be_used_are_left_out_with_the_reason(tmp_path: Path) -> None:
    nodes = Puppets()
    nodes.answers = {
        (0, 0): each(lambda a: a * np.nan),
        (0, 1): each(lambda a: a[..., None]),
        (1, 0): lambda reply, sent: (Reply(reply.run, 0, reply.client, "", reply.loss), sent),
        (1, 1): each(lambda a: np.concatenate([a.reshape(-1)] * 10 + [np.zeros(5000, a.dtype)])),
        **silent((2, 3)),
    }
    folder = RunFolder.create(tmp_path / "run")
    result = conduct(config_of(train={"local_steps": 1}), nodes, folder, Terms())
    assert result["rounds"] == 3 and result["clients_lost"] == 5
    refused = [row["refused"] for row in folder.read_metrics()]
    assert "not finite" in refused[0]["0"] and "wrong shape" in refused[0]["1"]
    assert "stale" in refused[1]["0"] and "too large" in refused[1]["1"]
    assert refused[2] == {"3": "no reply in time"}
    # A missing update takes its noise with it: the ledger does not rely on sums.
    assert all("of all who answer together" not in row["reason"] for row in result["ledger"])


def test_below_the_quorum_the_run_stops_and_goes_on_later_with_all_that_was_asked(tmp_path: Path) -> None:
    nodes = Puppets()
    nodes.answers = silent((1, 0), (1, 1), (1, 2))
    folder = RunFolder.create(tmp_path / "run")
    with pytest.raises(RunError, match=r"round 1: 1 of 4 nodes .*quorum is 0.5.*--resume"):
        conduct(config_of(**PLAIN), nodes, folder, Terms())
    assert folder.checkpoint_round() == 1
    nodes.answers = {}
    result = conduct(config_of(**PLAIN), nodes, folder, Terms())
    assert result["rounds"] == 3 and result["rounds_asked"] == 4  # round 1 was asked for twice
    assert {row["rounds"] for row in result["ledger"]} == {4}
    assert [row["round"] for row in folder.read_metrics()] == [0, 1, 2]
    assert json.loads((folder.path / "deploy.json").read_text())["asked"] == 4


@pytest.mark.parametrize("damage", ["missing", "empty", "failed attempt cut off"])
def test_a_run_that_lost_part_of_its_transcript_does_not_go_on(tmp_path: Path, damage: str) -> None:
    nodes = Puppets()
    nodes.answers = silent((1, 0), (1, 1), (1, 2))
    folder = RunFolder.create(tmp_path / "run")
    with pytest.raises(RunError, match="quorum"):
        conduct(config_of(**PLAIN), nodes, folder, Terms())
    file, asked = folder.path / "transcript.jsonl", len(nodes.asked)
    lines = file.read_text().splitlines(keepends=True)
    if damage == "missing":
        file.unlink()
    else:  # round 1 was asked for and has no checkpoint: its lines are the last two
        file.write_text("" if damage == "empty" else "".join(lines[:-2]))
    nodes.answers = {}
    for _ in range(2):  # the first refusal must not leave a file that the second attempt takes for whole
        with pytest.raises(RunError, match="account.* is not known"):
            conduct(config_of(**PLAIN), nodes, folder, Terms())
    assert len(nodes.asked) == asked


def test_a_second_coordinator_writes_nothing_into_a_run_that_is_in_use(tmp_path: Path) -> None:
    folder, unfit = RunFolder.create(tmp_path / "run"), config_of(train={"dropout": 0.5})
    with folder.locked():
        folder.write_info(status="running", rounds_done=7)
        with pytest.raises(RunError, match="is in use"):
            conduct(unfit, Puppets(), folder, Terms())
        assert folder.read_info() == {"status": "running", "rounds_done": 7}
    with pytest.raises(ConfigError, match=r"train\.dropout"):  # with the lock, the reason is for who follows the run
        conduct(unfit, Puppets(), folder, Terms())
    assert folder.read_info()["status"] == "failed" and "train.dropout" in folder.read_info()["error"]


def test_the_app_of_the_server_leaves_failures_to_who_has_the_lock(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedveil[flower]'")
    from fedveil.deploy.files import Federation
    from fedveil.deploy.flower import conduct_run

    folder, there = RunFolder.create(tmp_path / "run"), Federation(tmp_path, "127.0.0.1", 1, 4)
    terms = {"folder": str(folder.path), "quorum": 0.5, "timeout": 1.0, "wait": 0.0, "test": False}
    with folder.locked(), pytest.raises(RunError, match="is in use"):
        conduct_run(None, there, {**terms, "config": to_toml(resolve(config_of()))})
    assert not folder.info.exists()


def test_nodes_that_are_away_are_not_asked_and_one_that_never_comes_is_named(tmp_path: Path) -> None:
    nodes = Puppets()
    nodes.there = {0, 1, 2}
    with pytest.raises(RunError, match="3 of 4 nodes are connected after 0.1 s; missing: client 3"):
        conduct(config_of(**PLAIN), nodes, RunFolder.create(tmp_path / "a"), Terms(wait=0.1))
    nodes.there = set(range(4))
    nodes.answers = {(0, 3): lambda reply, sent: nodes.there.discard(3)}
    result = conduct(config_of(**PLAIN), nodes, RunFolder.create(tmp_path / "b"), Terms())
    assert result["clients_lost"] == 3 and (1, 3) not in nodes.asked


@pytest.mark.parametrize(
    ("sections", "word"),
    [
        ({"defense": [{"name": "fed-cdp", "placement": "cohort"}]}, "secure aggregation"),
        ({"train": {"dropout": 0.1}}, "real ones are lost by themselves"),
        ({"train": {"late": 0.1}}, "real ones are lost by themselves"),
        ({"train": {"sampling": "with-replacement"}}, "once in a round"),
        ({"train": {"stop": 2}}, "makes all rounds"),
        ({"data": {"name": "mnist", "features": "scatter"}}, "raw in deployment"),
        ({"defense": [{"name": "dpfl", "public_only": True}]}, "asks no node"),
        ({"defense": [{"name": "2dp-fl", "omega": 1.0, "epsilon": 8.0}]}, "set defense.noise to σ"),
    ],
)
def test_what_has_no_meaning_on_real_machines_is_refused(sections: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        check_deployable(config_of(**sections))
