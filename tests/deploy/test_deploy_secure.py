"""Deployed rounds under secure aggregation: nodes in memory, through the coordinator and the nodes' own checks."""

from __future__ import annotations

import copy
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="comes with Flower: pip install 'fedveil[flower]'")

from deploy_memory import SMALL, UNACCOUNTED, InMemory, nodes_of

from fedveil.config import Config, from_dict, resolve
from fedveil.core.errors import ConfigError, RunError
from fedveil.deploy import sessions, status
from fedveil.deploy.account import NodeLedger
from fedveil.deploy.coordinator import SESSIONS, Terms, conduct
from fedveil.deploy.encoding import FixedPoint
from fedveil.deploy.limits import check_deployable
from fedveil.deploy.messages import pack
from fedveil.deploy.secagg import identity, vectors
from fedveil.deploy.secagg.codec import kind_of
from fedveil.deploy.secagg.errors import Abort
from fedveil.deploy.secagg.messages import Certificate, Delivery, Masked, Survivors
from fedveil.federation import prepare
from fedveil.runs import RunFolder, named_leaves
from fedveil.training import train


def config_of(**keys: Any) -> Config:
    document = copy.deepcopy(SMALL)
    document["train"] |= {"secure_aggregation": True, "local_steps": 1, "rounds": 2, **keys}
    return from_dict(document)


def federation_of(below: Path, config: Config, text: str = "") -> InMemory:
    homes = nodes_of(config, below, text)
    identity.make_keys(dict(enumerate(homes)))
    return InMemory(homes)


def test_the_unmasked_sum_is_the_plain_sum_and_the_run_that_of_the_simulator(tmp_path: Path) -> None:
    """Test mode: the coordinator compares each sum with the integers that the nodes say they masked."""
    config = config_of(noise_seed=3)
    nodes = federation_of(tmp_path, config, "test = true\n" + UNACCOUNTED)
    folder = RunFolder.create(tmp_path / "run")
    result = conduct(config, nodes, folder, Terms(test=True))
    assert result["rounds"] == 2 and result["clients_lost"] == 0
    wanted = named_leaves({"params": train(prepare(resolve(config))).params})
    with np.load(folder.path / "checkpoint.npz") as stored:
        assert max(float(np.abs(stored[n] - np.asarray(a)).max()) for n, a in wanted.items()) < 1e-6
    assert nodes.sent == []  # no update left a node in any other way


def test_a_sum_that_is_not_the_plain_one_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(noise_seed=3)
    nodes = federation_of(tmp_path, config, "test = true\n" + UNACCOUNTED)
    add = sessions._Session.vector

    def off_by_one(self: Any) -> np.ndarray:
        found = add(self)
        found[0] += 1
        return found

    monkeypatch.setattr(sessions._Session, "vector", off_by_one)
    with pytest.raises(RunError, match="differs from the plain sum in 1 values"):
        conduct(config, nodes, RunFolder.create(tmp_path / "run"), Terms(test=True))


def test_a_round_goes_on_without_a_lost_node_and_every_ledger_has_what_was_sent(tmp_path: Path) -> None:
    config = config_of()
    nodes = federation_of(tmp_path, config)

    def lose(client: int, parts: Any) -> Any:
        return None if client == 2 and kind_of(parts["message"]) == Survivors.KIND else parts

    nodes.meddle = lose
    folder = RunFolder.create(tmp_path / "run")
    result = conduct(config, nodes, folder, Terms())
    assert result["clients_lost"] == 0  # its masked vector had arrived
    nodes.meddle = lambda client, parts: None if client == 1 and kind_of(parts["message"]) == Delivery.KIND else parts
    result = conduct(config, nodes, RunFolder.create(tmp_path / "other"), Terms())
    assert result["clients_lost"] == 2
    rows = RunFolder.open(tmp_path / "other").read_metrics()
    assert [row["secagg"]["survivors"] for row in rows] == [3, 3] and rows[0]["secagg"]["noise_share"] == 1.0
    assert [len(NodeLedger(home).entries()) for home in nodes.homes] == [4, 2, 4, 4]
    told = [json.loads(line) for line in (tmp_path / "other" / SESSIONS).read_text().splitlines()]
    assert [session["survivors"] for session in told] == [[0, 2, 3]] * 2
    last = status.of_node(nodes.homes[0])["secure_aggregation"]
    assert (last["last"]["survivors"], last["last"]["quorum"], last["last"]["cohort"]) == (3, 3, 4)
    assert last["roster"] == nodes.keys.fingerprint.hex()[:32]


def test_below_the_quorum_nothing_is_unmasked_and_the_run_stops_with_the_reason(tmp_path: Path) -> None:
    config = config_of()
    nodes = federation_of(tmp_path, config)
    nodes.meddle = lambda client, parts: None if client < 2 and kind_of(parts["message"]) == Delivery.KIND else parts
    with pytest.raises(RunError, match="2 nodes are left in the phase 'masked', 3 are needed"):
        conduct(config, nodes, RunFolder.create(tmp_path / "run"), Terms())
    kinds = [kind_of(reply["message"]) for _, reply in nodes.received if reply]
    assert Masked.KIND in kinds and not any(kind > Masked.KIND for kind in kinds)  # no signature, no share
    assert [len(NodeLedger(home).entries()) for home in nodes.homes] == [0, 0, 1, 1]


def test_a_killed_worker_opens_nothing_twice(tmp_path: Path) -> None:
    """Killed after it opened its shares, or before: a new process has no secrets, and the journal is on the disk."""
    config = config_of(rounds=1)
    nodes = federation_of(tmp_path, config)
    asked: list[Any] = []

    def kill(client: int, parts: Any) -> Any:
        if client == 0 and kind_of(parts["message"]) == Certificate.KIND:
            asked.append(parts)
            sessions.forget(nodes.homes[0])
        return parts

    nodes.meddle = kill
    result = conduct(config, nodes, RunFolder.create(tmp_path / "run"), Terms())
    assert result["rounds"] == 1  # three of four opened their shares
    refused, reply = sessions.of(nodes.homes[0]).handle({}, asked[0])
    assert "it was restarted" in refused and reply == {}
    steps = (nodes.homes[1] / identity.JOURNAL).read_text().splitlines()
    assert [line.split()[1] for line in steps] == ["advert", "shares", "masked", "signed", "revealed"]
    journal = identity.FileJournal(nodes.homes[1])  # as a process would read it that starts again
    with pytest.raises(Abort, match="done already"):
        journal.note(bytes.fromhex(steps[-1].split()[0]), "revealed")


@pytest.mark.parametrize(
    ("file", "text", "word"),
    [
        ("roster.txt", None, "roster"),
        ("roster.txt", "0 zz\n", "cannot be read"),
        ("secagg.key", None, "secagg key"),
    ],
)
def test_a_node_without_its_key_or_roster_takes_no_part(tmp_path: Path, file: str, text: str | None, word: str) -> None:
    config = config_of(rounds=1)
    nodes = federation_of(tmp_path, config)
    path = nodes.homes[3] / file
    path.unlink() if text is None else path.write_text(text)
    folder = RunFolder.create(tmp_path / "run")
    conduct(config, nodes, folder, Terms())
    assert "failed at the node" in folder.read_metrics()[0]["refused"]["3"]
    assert word in (nodes.homes[3] / "errors.log").read_text()
    assert NodeLedger(nodes.homes[3]).entries() == []


def test_a_config_is_sent_one_way_only(tmp_path: Path) -> None:
    """A config for secure aggregation is not answered in the clear: its noise may count on the sum."""
    config = config_of(rounds=1)
    nodes = federation_of(tmp_path, config)
    conduct(config, nodes, RunFolder.create(tmp_path / "run"), Terms())
    parts = next(parts for _, parts in nodes.received if parts)
    assert set(parts) == {"message"}  # outside test mode nothing but masked integers leaves a node
    from deploy_memory import key_of

    from fedveil.config import to_toml
    from fedveil.deploy import node
    from fedveil.deploy.messages import Request

    request = Request("run", 0, 0, key_of(0), to_toml(resolve(config)), 60, 1.0, 1.0, -1)
    reply, sent = node.handle(nodes.homes[0], request, {})
    assert "sent by secure aggregation alone" in reply.refused and sent == {}


def model_of_zeros(parts: Any) -> Any:
    """The same message with a model of zeros, on which the gradients of the hidden layer vanish."""
    zeros = {name: pack({"a": np.load(io.BytesIO(data)) * 0})["a"] for name, data in parts.items() if name != "message"}
    return {**parts, **zeros}


@pytest.mark.parametrize("victims", [{0}, {1, 2, 3}])
def test_a_server_that_sends_some_nodes_another_model_gets_no_update_of_theirs(tmp_path: Path, victims: set) -> None:
    """Nodes without gradients would leave the others' in the sum: all must have the model that the session names."""
    config = config_of(rounds=1)
    nodes = federation_of(tmp_path, config)

    def other_model(client: int, parts: Any) -> Any:
        swap = client in victims and kind_of(parts["message"]) == Delivery.KIND
        return model_of_zeros(parts) if swap else parts

    nodes.meddle = other_model
    folder = RunFolder.create(tmp_path / "run")
    if len(victims) > 1:
        with pytest.raises(RunError, match="1 nodes are left in the phase 'masked'"):
            conduct(config, nodes, folder, Terms())
    else:
        conduct(config, nodes, folder, Terms())
        assert "the model is not the one" in folder.read_metrics()[0]["refused"]["0"]
    masked = {client for client, parts in nodes.received if parts and kind_of(parts["message"]) == Masked.KIND}
    assert masked == set(range(4)) - victims
    assert [len(NodeLedger(home).entries()) for home in nodes.homes] == [int(c in masked) for c in range(4)]


@pytest.mark.parametrize("field", [{"smallest": 30}, {"max_weight": 2.0}, {"min_weight": 0.5}])
def test_a_session_is_for_nodes_that_are_told_the_same(tmp_path: Path, field: dict[str, Any]) -> None:
    """What the noise of others may depend on cannot differ from what this node accounts for."""
    config = config_of(rounds=1)
    nodes = federation_of(tmp_path, config)
    begin = sessions.Sessions._begin

    def told(self: Any, request: Any, terms: Any) -> bytes:
        return begin(self, replace(request, **field) if request.client == 0 else request, terms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions.Sessions, "_begin", told)
        folder = RunFolder.create(tmp_path / "run")
        conduct(config, nodes, folder, Terms())
    assert "for another round than the request" in folder.read_metrics()[0]["refused"]["0"]


def test_no_session_begins_again_however_many_have_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal drops old steps, but never that a session was begun; two processes of a node share it."""
    monkeypatch.setattr(identity, "KEPT", 8)
    one, other = identity.FileJournal(tmp_path), identity.FileJournal(tmp_path)
    for number in range(20):
        for step in ("advert", "shares", "masked", "signed", "revealed"):
            (one if number % 2 else other).note(bytes([number]), step)
    lines = (tmp_path / identity.JOURNAL).read_text().splitlines()
    assert len(lines) == 20 + 8 and lines[-1].endswith("revealed")
    for number in range(20):
        for journal in (one, other, identity.FileJournal(tmp_path)):
            with pytest.raises(Abort, match="done already"):
                journal.note(bytes([number]), "advert")


def test_an_owner_sets_the_smallest_sum(tmp_path: Path) -> None:
    config = config_of(rounds=1)
    nodes = federation_of(tmp_path, config)
    path = nodes.homes[0] / "node.toml"
    path.write_text(path.read_text() + "survivors = 4\n")
    folder = RunFolder.create(tmp_path / "run")
    conduct(config, nodes, folder, Terms())
    assert "at least 4 nodes, requested: 3" in folder.read_metrics()[0]["refused"]["0"]


@pytest.mark.parametrize(
    ("train_keys", "defense", "word"),
    [
        ({"weights": "size"}, None, "train.weights"),
        ({"per_round": 2}, None, "train.per_round"),
        ({}, {"name": "dpfl"}, "losses"),
    ],
)
def test_what_needs_single_updates_is_refused(train_keys: dict, defense: dict | None, word: str) -> None:
    document = copy.deepcopy(SMALL)
    document["train"] |= {"secure_aggregation": True, **train_keys}
    document["defense"] = [defense] if defense else document["defense"]
    with pytest.raises(ConfigError, match=word):
        check_deployable(resolve(from_dict(document)))


def test_fixed_point_numbers() -> None:
    grid, tree = FixedPoint(), {"a": np.array([[0.5, -3.0]], np.float32), "b": np.array([1e9], np.float32)}
    sent = grid.encode(tree, 10)
    assert abs(sent).max() * 10 < 1 << 47  # ten such values stay in the range
    total = grid.decode(vectors.reduce(sent, grid.bits), tree)
    assert np.array_equal(total["a"], tree["a"]) and total["a"].dtype == np.float32
    assert np.array_equal(grid.encode({"a": np.array([np.nan, 1.0])}, 3), [0, 0])
