"""Who was trained on: found where a model learnt by heart, not found behind noise, never beyond what is certified."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from fedveil.attacks.games import membership
from fedveil.attacks.inference import lira, rmia
from fedveil.attacks.inference.lira import LiRA
from fedveil.attacks.inference.rmia import RMIA
from fedveil.attacks.observation import MembershipObservation
from fedveil.attacks.registry import make_attack
from fedveil.config import from_dict
from fedveil.core.errors import ConfigError
from fedveil.federation import prepare

FEDERATIONS, SHADOWS = 6, 12
DATA = {"partition": "iid", "clients": 4, "per_client": 80}
TRAIN = {"per_round": 4, "batch": 20}
BY_HEART = {**TRAIN, "rounds": 15, "local_epochs": 3, "lr": 0.5}
NOISED = {**TRAIN, "rounds": 10, "local_steps": 10, "lr": 1.0, "sampling": "fixed", "batching": "poisson"}
FED_CDP = {"name": "fed-cdp", "placement": "batch", "clip": 1.0, "noise": 40.0}


def federation_of(train, defense=None, data=None):
    made = {"data": {**DATA, **(data or {})}, "model": {"name": "logistic"}, "train": train}
    return prepare(from_dict({**made, "defense": defense or {"name": "none"}}))


def played(federation):
    return membership.train(federation, LiRA(shadows=SHADOWS), FEDERATIONS)


@pytest.fixture(scope="module")
def by_heart():
    """A game on models that are not private, and have learnt their 160 records by heart."""
    return played(federation_of(BY_HEART))


@pytest.fixture(scope="module")
def fed_cdp():
    return federation_of(NOISED, FED_CDP)


@pytest.fixture(scope="module")
def noised(fed_cdp):
    return played(fed_cdp)


@pytest.fixture(scope="module")
def silent(fed_cdp):
    """The same federation with the noise switched off, and its certificate left as it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedveil.random.noise.gaussian", lambda key, like, deviation: jax.tree.map(jnp.zeros_like, like))
        return played(fed_cdp)


def judged(game, name, proof):
    return membership.judge(game.scores(make_attack(name)), game.member, proof)


NO_PROOF = membership.Certificate(None, 1e-5, "example", "none")


# --- what the attacks find


@pytest.mark.parametrize("name", ["lira", "rmia"])
def test_a_model_that_learnt_by_heart_gives_its_members_away(by_heart, name):
    found = judged(by_heart, name, NO_PROOF)
    assert found["federations"] == FEDERATIONS and found["interval"][0] > 0.6
    assert found["tpr_at_fpr"]["0.1"]["interval"][0] > 0.15
    assert found["epsilon_low"] > 1.0 and found["beyond"] is None


def test_shadows_find_more_than_the_loss_alone(by_heart):
    simple, with_shadows = (judged(by_heart, name, NO_PROOF)["auc"] for name in ("loss-threshold", "lira"))
    assert 0.5 < simple < with_shadows


@pytest.mark.parametrize("name", ["lira", "rmia"])
def test_fed_cdp_hides_them_and_keeps_its_certificate(fed_cdp, noised, name):
    proof = membership.certificate(fed_cdp, "release", not_finite=noised.not_finite)
    assert proof.epsilon == pytest.approx(0.205, abs=0.01) and proof.unit == "example"
    found = judged(noised, name, proof)
    most = 0.5 + 0.5 * np.tanh(proof.epsilon / 2)  # the AUC of the best test that (ε, 0)-DP leaves, 0.551 here
    assert found["interval"][0] <= most and found["auc"] < 0.6  # by heart: above 0.6; ten seeds gave 0.47 to 0.55
    assert max(found["beyond"].values()) <= 0 and found["epsilon_low"] <= proof.epsilon


@pytest.mark.parametrize("name", ["lira", "rmia"])
def test_a_defence_that_claims_noise_and_has_none_is_caught(fed_cdp, silent, name):
    found = judged(silent, name, membership.certificate(fed_cdp, "release"))
    assert max(found["beyond"].values()) > 0 and found["epsilon_low"] > found["epsilon"]


# --- what the attacker has


def test_scrambled_truth_changes_no_score(by_heart):
    scrambled = replace(by_heart, member=np.random.default_rng(0).permuted(by_heart.member, axis=1))
    for name in ("loss-threshold", "lira", "rmia"):
        attack = make_attack(name)
        assert np.array_equal(scrambled.scores(attack), by_heart.scores(attack))
        assert judged(scrambled, name, NO_PROOF)["auc"] == pytest.approx(0.5, abs=0.05)


def test_coins_are_fair_and_shadows_split_the_records():
    coins = membership.fair_coins(7, 50, 400)
    assert abs(coins.mean() - 0.5) < 0.02 and abs(np.corrcoef(coins)[np.triu_indices(50, 1)]).max() < 0.25
    assert np.array_equal(membership.fair_coins(7, 3, 400), coins[:3])
    shadows = membership.shadow_choices(7, 5, 400)
    assert np.array_equal(shadows[0], ~shadows[1]) and np.array_equal(shadows[2], ~shadows[3])
    assert not np.array_equal(shadows[0], coins[0]) and 0.4 < shadows[4].mean() < 0.6


def some_observation(shadows, records=5, population=9):
    rng = np.random.default_rng(0)
    inside = membership.shadow_choices(0, shadows, records)
    about = rng.normal(size=(shadows, records)) + inside
    return MembershipObservation(
        rng.normal(size=records), about, inside, rng.normal(size=population), rng.normal(size=(shadows, population))
    )


def test_lira_is_the_ratio_of_two_gaussians():
    seen = some_observation(shadows=2 * lira.ENOUGH)
    scores = LiRA().run(seen)
    for r in range(5):
        with_it, without = seen.shadows[seen.inside[:, r], r], seen.shadows[~seen.inside[:, r], r]
        logs = [norm.logpdf(seen.target[r], s.mean(), s.std(ddof=1)) for s in (with_it, without)]
        assert scores[r] == pytest.approx(logs[0] - logs[1])
    few = some_observation(shadows=8)
    moved = replace(few, shadows=few.shadows + 0.3 * few.inside)  # each group as wide as before, farther apart
    apart = [np.mean(np.square(e.shadows - e.shadows.mean())) for e in (few, moved)]
    assert apart[1] > apart[0]
    spread = [_shared_variance(e) for e in (few, moved)]
    assert spread[0] == pytest.approx(spread[1])


def _shared_variance(seen):
    """The one variance of all records, read off the curvature of a score: −½(t − μ)²/σ² taken at three points."""
    density = [lira.log_density(seen.target + step, seen.shadows, seen.inside) for step in (-1.0, 0.0, 1.0)]
    curvature = density[0] - 2 * density[1] + density[2]
    assert np.ptp(curvature) < 1e-9
    return -1 / curvature[0]


def test_rmia_counts_population_records():
    seen = some_observation(shadows=4)
    scores = RMIA().run(seen)
    for r in range(5):
        inside = seen.inside[:, r]
        expected = (expit(seen.shadows[inside, r]).mean() + expit(seen.shadows[~inside, r]).mean()) / 2
        ratio = expit(seen.target[r]) / expected
        others = expit(seen.target_population) / expit(seen.shadows_population).mean(axis=0)
        assert scores[r] == pytest.approx(np.mean(ratio / others >= rmia.GAMMA))


# --- adversaries, certificates, refusals


def test_the_active_adversary_asks_about_the_victims_records(fed_cdp):
    active = LiRA(adversary="active", victim=2)
    assert set(membership.asked_rows(fed_cdp, active)) == set(fed_cdp.partition.client(2))
    few = membership.asked_rows(fed_cdp, replace(active, records=10))
    assert len(few) == 10 and set(few) <= set(fed_cdp.partition.client(2))
    assert len(membership.asked_rows(fed_cdp, LiRA())) == 320


def test_certificates_go_by_tap_unit_and_batches(fed_cdp):
    at_server = membership.certificate(fed_cdp, "server").epsilon
    assert at_server >= membership.certificate(fed_cdp, "release").epsilon
    shuffled = federation_of({**NOISED, "batching": "shuffle"}, FED_CDP)
    assert membership.certificate(shuffled, "release").epsilon is None  # a missing record shows in the divisor
    lost = membership.certificate(fed_cdp, "release", not_finite=1)
    assert lost.epsilon is None and "not being finite" in lost.reason
    copied = federation_of(NOISED, FED_CDP, data={"partition": "copies"})
    proof = membership.certificate(copied, "release")
    assert proof.unit == "image" and proof.epsilon > at_server


@pytest.mark.parametrize(
    ("given", "train", "why"),
    [
        ({"shadows": 3}, {}, "attack.shadows: got 3; lira compares"),
        ({"adversary": "active", "victim": 4}, {}, "attack.victim: got 4; clients count from 0 to 3"),
        ({"adversary": "active"}, {"secure_aggregation": True}, "attack.tap: got 'server'; shows sums only"),
    ],
)
def test_what_cannot_be_played_is_refused(given, train, why):
    federation = federation_of({**BY_HEART, **train})
    with pytest.raises(ConfigError, match=why):
        membership.check(federation, make_attack("lira", **given))


def test_too_few_records_are_refused():
    with pytest.raises(ConfigError, match="attack.records: got 1; all coins fell alike"):
        membership.fair_coins(0, 1, 1)


def test_the_command_answers_in_json(tmp_path, fedveil_cli):
    keys = ["data.clients=3", "data.partition=iid", "data.per_client=40", "model.name=logistic", "train.rounds=2"]
    keys += [
        "train.per_round=2",
        "train.noise_seed=0",
        "attack.name=loss-threshold",
        "attack.adversary=active",
        "attack.victim=0",
        "attack.seeds=2",
    ]
    answer = fedveil_cli("attack", *(part for key in keys for part in ("-s", key)), "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert (found["attack"], found["adversary"], found["tap"]) == ("loss-threshold", "active", "server")
    assert found["records"] == 40 and found["federations"] == 2 and found["shadows"] == 0
    assert found["members"] + found["others"] == 80 and found["success_rate"] is None
    assert set(found["tpr_at_fpr"]) == {"0.001", "0.01", "0.1"} and 0 <= found["auc"] <= 1 and found["seconds"] > 0
    assert found["epsilon"] is None and found["beyond"] is None and "open" in found["account"]
