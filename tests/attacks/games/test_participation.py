"""Client membership: the shares of candidates in a change, the game of coins, and what a certificate says about it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedveil.attacks.games import participation
from fedveil.attacks.games.federations import Target
from fedveil.attacks.games.membership import Certificate, certificate, judge
from fedveil.attacks.games.observe import examples_of, rules_of
from fedveil.attacks.inference import client_membership as shares
from fedveil.attacks.inference import replay, roc
from fedveil.attacks.inference.client_membership import ClientMembership
from fedveil.attacks.registry import make_attack
from fedveil.config import load
from fedveil.core.errors import ConfigError
from fedveil.core.keys import Draws
from fedveil.defenses.catalog import DEFENSES
from fedveil.federation import prepare
from fedveil.simulation.sampling import BatchSampling
from fedveil.simulation.simulator import Simulator

SMALL = [
    "data.name=digits",
    "data.partition=shards",
    "data.clients=24",
    "data.per_client=20",
    "model.name=logistic",
    "train.per_round=12",
    "train.rounds=6",
    "train.local_steps=4",
    "train.sampling=poisson",
    "train.batching=shuffle",
    "attack.name=client-membership",
]
SDP = ["defense.name=fed-sdp", "defense.clip=0.3", "defense.clip_scope=flat", "defense.noise=4"]


def quiet(done: int, total: int) -> None:
    assert 0 <= done <= total


def played(*more: str, **given):
    config = load(None, [*SMALL, *more])
    federation = prepare(config)
    return federation, participation.train(federation, ClientMembership(**given), federation.rounds)


@pytest.fixture(scope="module")
def open_game():
    return played()


# --- shares


def alike(rng, candidates=30, values=400):
    """Updates that have most of their direction in common, as those of real clients have."""
    return rng.normal(size=values) * 3 + rng.normal(size=(candidates, values))


def test_shares_find_who_is_in_a_sum_where_products_do_not():
    rng = np.random.default_rng(0)
    updates = alike(rng) * rng.uniform(0.5, 2.0, (30, 1))
    inside = np.arange(30) % 3 == 0
    change = updates[inside].sum(axis=0) / 10
    found = shares.took_part(shares.shares(updates, change), 1 / 3)
    assert roc.auc(found, inside) == 1.0
    assert ((found > 0) == inside).all()  # a likelihood ratio: its sign is an answer
    assert roc.auc(updates @ change, inside) < 0.9


def test_with_noise_alone_a_round_says_next_to_nothing():
    rng = np.random.default_rng(1)
    updates = alike(rng)
    found = shares.took_part(shares.shares(updates, rng.normal(size=400) * 50), 1 / 3)
    clean = shares.took_part(shares.shares(updates, updates[:10].sum(axis=0)), 1 / 3)
    assert np.abs(found).mean() < 0.02 * np.abs(clean).mean()


def test_noise_over_signal_is_found_by_likelihood():
    rng = np.random.default_rng(2)
    updates = alike(rng, 40, 2000)
    inside = rng.random(40) < 0.5
    clean = updates[inside].sum(axis=0) / 20
    sure = [
        np.abs(shares.took_part(shares.shares(updates, clean + rng.normal(size=2000) * s), 0.5)).mean()
        for s in (0.01, 0.1, 1.0)
    ]
    assert sure[0] > sure[1] > sure[2]


def test_one_sure_round_is_enough_and_no_news_is_none():
    rounds = np.zeros((5, 3))
    rounds[2, 0], rounds[:, 1] = 30.0, -30.0
    present = shares.is_present(rounds, 0.25)
    assert present[0] > 20 and present[1] == pytest.approx(5 * np.log(0.75)) and present[2] == pytest.approx(0.0)


# --- the game


def test_absent_clients_never_answer_and_all_else_is_drawn_as_before(open_game):
    federation, game = open_game
    simulator = federation.simulator
    assert not game.truth.rounds[:, ~game.truth.present].any()
    assert game.truth.rounds[:, game.truth.present].any()
    assert (game.truth.present == participation.coins(0, 24)).all() and simulator.present is None
    drawn = np.zeros((6, 24), bool)
    for number in range(6):
        drawn[number, simulator.cohort(simulator.start(), number).clients] = True
    assert (game.truth.rounds == drawn & game.truth.present).all()


def test_data_of_absent_clients_changes_nothing(open_game):
    federation, game = open_game
    data = federation.dataset
    absent = np.concatenate([federation.partition.client(c) for c in np.flatnonzero(~game.truth.present)])
    y = data.train.y.copy()
    y[absent] = (y[absent] + 1) % 10
    changed = dataclasses.replace(federation, simulator=federation.simulator.variant(y=jnp.asarray(y)))
    again = participation.train(changed, ClientMembership(), federation.rounds)
    assert all(
        map(
            np.array_equal,
            jax.tree.leaves(game.observation.released.models),
            jax.tree.leaves(again.observation.released.models),
        )
    )


def test_the_guess_does_not_depend_on_the_truth(open_game):
    _, game = open_game
    found = ClientMembership().run(game.observation)
    scrambled = dataclasses.replace(
        game, truth=participation.Truth(~game.truth.present, ~game.truth.rounds), accuracy=0.0
    )
    again = ClientMembership().run(scrambled.observation)
    assert (found.present == again.present).all() and (found.rounds == again.rounds).all()
    held = {field.name for part in (game.observation, game.observation.released) for field in dataclasses.fields(part)}
    assert not held & {"present", "there", "truth", "cohort"}


def test_undefended_clients_are_found_and_a_false_certificate_is_refuted(open_game):
    _, game = open_game
    found = ClientMembership().run(game.observation)
    assert roc.auc(found.present, game.truth.present) > 0.95
    each = [roc.auc(s, t) for s, t in zip(found.rounds, game.truth.rounds, strict=True)]
    assert np.mean(each) > 0.95
    said = judge(found.present[None], game.truth.present[None], Certificate(0.1, 1e-5, "client", ""))
    assert said["epsilon_low"] > 0.1


def test_the_receiver_is_present_and_is_not_asked_about(monkeypatch):
    present, real = [], Simulator.variant
    monkeypatch.setattr(Simulator, "variant", lambda self, **new: present.append(new["present"]) or real(self, **new))
    federation, game = played("defense.name=none", tap="broadcast", attacker=3)
    assert present[0][3] and len(game.observation.candidates) == 23 == len(game.truth.present)
    assert (game.observation.released.auxiliary.y == federation.dataset.train.y[federation.partition.client(3)]).all()
    assert len(game.observation.released.models) == 7


# --- the replay


def test_the_replay_clips_as_the_defence_does_and_draws_no_noise():
    federation = prepare(load(None, [*SMALL, "defense.name=fed-sdp", "defense.clip=0.01", "defense.clip_scope=flat"]))
    rules = rules_of(federation)
    batches = replay.local_batches(np.random.default_rng(0), [20], rules.batches)
    records = examples_of(federation, 0)
    params = jax.device_get(federation.simulator.start().params)
    made = replay.updates(rules, params, records, batches, 0)
    assert np.linalg.norm(made) == pytest.approx(0.01, rel=1e-3)
    bare = dataclasses.replace(rules, task=dataclasses.replace(rules.task, defenses=()))
    whole = replay.updates(bare, params, records, batches, 0)
    assert np.linalg.norm(whole) > 0.02
    assert np.allclose(made / np.linalg.norm(made), whole / np.linalg.norm(whole), atol=1e-5)


def test_defences_are_silenced_or_left_out():
    kept = {name: quiet for name, kind in DEFENSES.items() if (quiet := kind().silenced()) is not None}
    assert set(DEFENSES) - set(kept) == {"nbafl", "dpfl", "lip", "dgc"}
    for quiet_one in kept.values():
        noises = [getattr(quiet_one, key) for key in ("noise", "server_noise", "scale") if hasattr(quiet_one, key)]
        assert not any(noises) and not quiet_one.fills("broadcast")
    assert kept["2dp-fl"].clip == DEFENSES["2dp-fl"]().clip


def test_own_batches_use_every_record_before_any_twice():
    sampling = BatchSampling("shuffle", 4, 5, None)
    drawn = replay.local_batches(np.random.default_rng(0), [10, 3], sampling)
    index, mask, steps = drawn.index, drawn.mask, drawn.steps
    assert index.shape == mask.shape == (2, 5, 4) and steps.tolist() == [5, 5]
    assert mask[0].all() and sorted(index[0].ravel()[:10]) == list(range(10))
    assert mask[1, :, :3].all() and not mask[1, :, 3].any() and index[1].max() == 2


# --- what is certified


def test_a_certificate_is_never_exceeded():
    config = load(None, [*SMALL, *SDP, "attack.seeds=2"])
    document = participation.play(Target(config, Draws.of(None)), ClientMembership(), quiet).document
    assert 0 < document["epsilon"] < 3 and document["delta"] == 1e-5
    assert max(document["beyond"].values()) <= 0 and document["epsilon_low"] <= document["epsilon"]
    assert document["interval"][0] < 0.6 and document["federations"] == 2
    assert document["success_rate"] is None and document["tap"] == "release" and document["rounds"] == 6
    assert 0 < document["chance"] < 0.2 and not document["learned"]  # six rounds of σ = 4


def test_where_nothing_is_certified_the_reason_is_told():
    config = load(None, [*SMALL, "defense.name=2dp-fl", "defense.delta=1e-3"])
    proof = certificate(prepare(config), "broadcast", 6, unit="client")
    assert proof.epsilon is None and proof.delta == 1e-3 and "averages" in proof.reason
    lost = certificate(prepare(load(None, [*SMALL, *SDP])), "release", 6, unit="client", not_finite=1)
    assert lost.epsilon is None and "finite" in lost.reason


# --- refusals


@pytest.mark.parametrize(
    ("more", "key"),
    [
        (["data.clients=12"], "data.clients"),
        (["attack.attacker=1"], "attack.attacker"),
        (["attack.tap=broadcast", "attack.attacker=24"], "attack.attacker"),
        (["attack.round=7"], "attack.round"),
        (["attack.round=0"], "attack.round"),
    ],
)
def test_what_cannot_be_played_is_refused(more, key):
    config = load(None, [*SMALL, *more])
    with pytest.raises(ConfigError) as error:
        participation.play(Target(config, Draws.of(None)), config.attack.make(), quiet)
    assert error.value.key == key


def test_a_wrong_adversary_is_refused_with_what_is_missing():
    with pytest.raises(ConfigError, match="the models of all rounds"):
        make_attack("client-membership", adversary="active")
