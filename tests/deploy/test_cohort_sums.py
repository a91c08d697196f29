"""Cohort noise on real machines: each node adds a share, and the server sees integer sums over a quorum."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("cryptography", reason="comes with Flower: pip install 'fedveil[flower]'")

from deploy_memory import SMALL, UNACCOUNTED, InMemory, nodes_of

from fedveil.accounting import ledger
from fedveil.accounting.accountants import Round, epsilon
from fedveil.config import Config, from_dict, resolve, to_toml
from fedveil.core.errors import ConfigError, RunError
from fedveil.deploy import node, secure
from fedveil.deploy.account import NodeLedger
from fedveil.deploy.coordinator import Terms, conduct
from fedveil.deploy.files import fingerprint
from fedveil.deploy.limits import Refused, deployable
from fedveil.deploy.messages import Request
from fedveil.deploy.secagg import identity
from fedveil.deploy.secagg.codec import kind_of
from fedveil.deploy.secagg.messages import Masked
from fedveil.deploy.secagg.terms import Terms as SessionTerms
from fedveil.federation import plan, prepare
from fedveil.runs import RunFolder, named_leaves
from fedveil.training import train

COHORT = {"name": "fed-cdp", "placement": "cohort", "clip": 1.0, "noise": 6.0, "clip_scope": "flat"}


def config_of(defense: dict[str, Any] | None = None, **keys: Any) -> Config:
    document = copy.deepcopy(SMALL)
    sums = {"secure_aggregation": True, "quorum": 0.75, "local_steps": 1, "rounds": 2, "batching": "poisson"}
    document["train"] |= {**sums, **keys}
    return from_dict({**document, "defense": {**COHORT, **(defense or {})}})


def federation_of(below: Path, config: Config, text: str = "") -> InMemory:
    homes = nodes_of(config, below, text)
    identity.make_keys(dict(enumerate(homes)))
    return InMemory(homes)


def test_the_sum_is_the_plain_one_and_the_run_that_of_the_simulator_up_to_coins_of_the_rounding(tmp_path: Path) -> None:
    """Test mode: the coordinator compares the unmasked sum with the integers that the nodes say they masked."""
    config = config_of({"arithmetic": "integer"}, noise_seed=3)
    folder = RunFolder.create(tmp_path / "run")
    result = conduct(config, federation_of(tmp_path, config, "test = true\n" + UNACCOUNTED), folder, Terms(test=True))
    assert result["rounds"] == 2
    wanted = named_leaves({"params": train(prepare(resolve(config))).params})
    with np.load(folder.path / "checkpoint.npz") as stored:
        for name, leaf in wanted.items():  # a grid width is 1e-5 here, the noise of a round 0.3
            assert np.abs(stored[name] - np.asarray(leaf)).max() < 5e-4


def test_nodes_account_for_the_noise_of_those_they_trust(tmp_path: Path) -> None:
    config = config_of()
    nodes = federation_of(tmp_path, config)
    result = conduct(config, nodes, RunFolder.create(tmp_path / "run"), Terms())
    assert result["rounds"] == 2 and nodes.sent == []
    made = plan(deployable(resolve(config)))
    share = float(made.defenses[0].mechanisms(made.setting)[0].multiplier_at(made.setting, 0, 1.0))
    assert share == pytest.approx(6.0 / math.sqrt(3), rel=0.01) and made.setting.quorum == 3
    for home in nodes.homes:
        (first, _) = NodeLedger(home).entries()
        use = first.use("example", "zero-out")
        assert use is not None and 0 < use.slip < 1e-20
        assert use.z == pytest.approx(share * math.sqrt(2), rel=1e-6)  # of a quorum of 3, 0.9 are trusted: 2 nodes
    (row,) = [
        r
        for r in result["ledger"]
        if (r["tap"], r["unit"], r["adjacency"], r["accountant"]) == ("server", "example", "zero-out", "pld")
    ]
    assert row["certified"] and row["epsilon"] < 2.0
    assert any("train.honest = 1" in told for told in row["assumptions"]) and ledger.WHOLE in row["assumptions"]


def test_a_node_adds_nothing_to_a_sum_over_fewer_nodes_than_the_noise_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(quorum=1.0)
    nodes = federation_of(tmp_path, config)
    monkeypatch.setattr(secure, "quorum_of", lambda cohort, share: 3)
    with pytest.raises(RunError, match=r"train\.quorum"):
        conduct(config, nodes, RunFolder.create(tmp_path / "run"), Terms())
    assert all(not NodeLedger(home).entries() for home in nodes.homes)


# --- the account


def server_row(config: Config) -> ledger.Row:
    made = plan(config)
    return ledger.certified(made.transcript(), "server", "example", 1e-5, "zero-out")


def test_the_account_counts_the_honest_part_of_the_quorum() -> None:
    whole = server_row(config_of({"arithmetic": "integer"}, quorum=1.0))
    fewer = server_row(config_of({"arithmetic": "integer"}, quorum=1.0, honest=0.75))
    assert whole.epsilon is not None and fewer.epsilon is not None and whole.epsilon < fewer.epsilon
    made = plan(config_of({"arithmetic": "integer"}, quorum=1.0, honest=0.75))
    z = made.defenses[0].mechanisms(made.setting)[0].release(made.setting).multiplier * math.sqrt(3)
    one = Round(((1.0, z),), rate=5 / made.setting.smallest, hidden=True)
    assert fewer.epsilon == pytest.approx(epsilon(((one, 2),), 1e-5, "pld"), rel=2e-3)
    assert any("at least 3 of the 4 clients" in told and "0.75" in told for told in fewer.assumptions)


def test_lost_answers_do_not_end_the_account_of_a_quorum() -> None:
    for quorum in (0.75, None):
        made = plan(config_of({"arithmetic": "integer"}, quorum=quorum)).transcript()
        whole, lost = (
            ledger.certified(one, "server", "example", 1e-5, "zero-out") for one in (made, replace(made, lost=1))
        )
        assert whole.epsilon is not None and lost.epsilon is not None
        assert (lost.epsilon == whole.epsilon) if quorum else (lost.epsilon > 1.5 * whole.epsilon)


def test_rounds_below_the_quorum_do_not_move_the_model_of_a_simulation() -> None:
    config = resolve(config_of({"arithmetic": "integer"}, quorum=1.0, dropout=0.5, rounds=6, noise_seed=1))
    simulator = prepare(config).simulator
    state, moved, short = simulator.start(), [], []
    for number in range(6):
        before = jax.tree.map(np.asarray, state.params)
        state, report = simulator.round(state, number)
        short.append(int(report.summed.answered) < 4)
        moved.append(
            any(
                (np.asarray(a) != b).any()
                for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(before), strict=True)
            )
        )
    assert True in short and moved == [not one for one in short]


# --- configs


@pytest.mark.parametrize(
    ("defense", "keys", "word"),
    [
        ({}, {"secure_aggregation": False}, "train.quorum"),
        ({}, {"quorum": None, "honest": 0.9}, "train.honest"),
        ({}, {"quorum": None}, "placement"),
        ({}, {"local_steps": 2}, "train.quorum"),
        ({}, {"optimizer": "adam"}, "train.quorum"),
        ({"placement": "example"}, {}, "train.quorum"),
        ({"arithmetic": "float"}, {}, "train.quorum"),
    ],
)
def test_what_a_quorum_cannot_have_is_refused_in_one_line(
    defense: dict[str, Any], keys: dict[str, Any], word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        deployable(resolve(config_of(defense, **keys)))


# --- what is sent


def test_a_message_has_16_bits_for_each_parameter_and_no_other_number_of_bits_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(rounds=1)
    nodes = federation_of(tmp_path, config)
    conduct(config, nodes, RunFolder.create(tmp_path / "run"), Terms())
    sent = [parts["message"] for _, parts in nodes.received if kind_of(parts["message"]) == Masked.KIND]
    assert len(sent) == 4 and {len(Masked.decode(one).vector) for one in sent} == {2 * 610}
    made = secure.terms_of
    monkeypatch.setattr(secure, "terms_of", lambda *given: replace(made(*given), bits=17))
    with pytest.raises(RunError, match="610 values of 16 bits, requested: 610 of 17"):
        conduct(config, nodes, RunFolder.create(tmp_path / "other"), Terms())


def test_a_node_adds_nothing_to_a_sum_over_more_nodes_than_its_account_is_for(tmp_path: Path) -> None:
    config = config_of(rounds=1)
    nodes = federation_of(tmp_path, config)
    fewer = config_of(rounds=1, per_round=3).model_copy(
        update={"data": config.data.model_copy(update={"clients": 3})}
    )  # fmt: skip
    terms = SessionTerms("run", 0, bytes(16), "", 610, 16, 3, frozenset(range(4)))
    request = Request("run", 0, 0, fingerprint(nodes.homes[0] / "key.pub"), to_toml(resolve(fewer)), 60, 1.0, 1.0, -1)
    round_ = node.NodeRound(nodes.homes[0], request, secure=True)
    with pytest.raises(Refused, match="at most 3 nodes, requested: 4"):
        round_.check_terms(replace(terms, config=request.common))
