"""Federations side by side are what each of them is alone, on the records that it was given."""

import jax
import numpy as np
import pytest

from fedveil.attacks.games import shadows
from fedveil.attacks.games.shadows import Fleet, ObservedModel, confidences
from fedveil.attacks.limit import limited
from fedveil.config import from_dict
from fedveil.core import keys
from fedveil.core.errors import ConfigError
from fedveil.core.stage import AccountPoint
from fedveil.federation import prepare
from fedveil.simulation import sampling

BASE = {
    "data": {"partition": "dirichlet", "alpha": 0.5, "clients": 5},
    "model": {"name": "logistic"},
    "train": {"rounds": 3, "per_round": 3, "local_steps": 2, "batch": 4},
    "speed": {"precision": "float64"},
}
# All that a round can have: noise on the way out and in every step, memories, late and lost answers, ragged clients.
EVERYTHING = {
    "sampling": "poisson",
    "batching": "poisson",
    "local_steps": None,
    "local_epochs": 1,
    "batch": 100,
    "dropout": 0.1,
    "late": 0.2,
    "weights": "size",
    "server_momentum": 0.5,
}
DEFENSES = [{"name": "2dp-fl"}, {"name": "dgc", "stage": "batch"}]
SEEDS = (3, 4, 5)
DRAWS = (keys.Draws(6), keys.Draws(secret=bytes(32)), keys.Draws(8))
VICTIM = 2


def configured(train=None, defense=None, **sections):
    document = {**BASE, **sections, "train": {**BASE["train"], **(train or {})}}
    return from_dict({**document, "defense": defense or [{"name": "none"}]})


def given_to(federation, count, share=0.5):
    return np.random.default_rng(0).random((count, len(federation.dataset.train))) < share


@pytest.fixture(scope="module")
def fleet():
    """Three federations, two of them at once: the second part is filled up."""
    federation = prepare(configured(EVERYTHING, DEFENSES))
    made = Fleet(federation, SEEDS, DRAWS, given_to(federation, len(SEEDS)), slots=6)
    assert made.at_once == 2 and len(made.parts()) == 2
    return made


def alone(federation, seed, draws, given, monkeypatch, watch=False):
    """The plain simulator on a federation whose clients never draw what they were not given: the model after the last
    round, and where asked for what the victim sends when it takes part for the last time."""
    simulator, real = federation.simulator.variant(seed=seed, draws=draws), sampling.draw_positions

    def without(law, draws, round_, client, occurrence, size):
        positions, counts = real(law, draws, round_, client, occurrence, size)
        step = np.repeat(np.arange(len(counts)), counts)
        kept = given[federation.partition.client(client)[positions]]
        return positions[kept], np.bincount(step[kept], minlength=len(counts))

    with monkeypatch.context() as patch:
        patch.setattr(sampling, "draw_positions", without)
        state, sent = simulator.start(), None
        last = max(n for n in range(federation.rounds) if VICTIM in simulator.cohort(state, n).clients)
        for number in range(federation.rounds):
            if watch and number == last:
                sent = simulator.observe(state, number, VICTIM, frozenset({"server"}))["server"]
            state, _ = simulator.round(state, number)
    return jax.device_get(state.params), sent


def distance(many, place, one):
    pairs = zip(jax.tree.leaves(many), jax.tree.leaves(one), strict=True)
    return max(float(np.abs(a[place] - b).max()) for a, b in pairs)


def at(many, place):
    return jax.tree.map(lambda a: a[place], many)


def test_each_federation_is_as_it_is_alone(fleet, monkeypatch):
    released, sent = fleet.train().models, fleet.train(ObservedModel("server", VICTIM)).models
    for place, (seed, draws) in enumerate(zip(SEEDS, DRAWS, strict=True)):
        model, own = alone(fleet.federation, seed, draws, fleet.given[place], monkeypatch, watch=place == 1)
        assert distance(released, place, model) < 1e-9
        assert own is None or distance(sent, place, own) < 1e-9
    assert distance(released, 0, at(released, 1)) > 1e-3  # seeds and records matter
    local = fleet.train(ObservedModel("client", VICTIM)).models  # here the whole local model is what is sent
    assert max(distance(local, place, at(sent, place)) for place in range(3)) < 1e-9


def test_the_model_that_a_client_receives(fleet):
    released, received = fleet.train().models, fleet.train(ObservedModel("broadcast", VICTIM)).models
    noise = np.concatenate([np.ravel(a - b) for a, b in zip(*map(jax.tree.leaves, (received, released)), strict=True)])
    two_dp, setting = fleet.task.defenses[0], fleet.task.setting
    deviation = two_dp.at_server(setting).scale(AccountPoint(setting, 0, setting.lr))
    assert noise.std() == pytest.approx(deviation, rel=0.1)


def test_records_that_were_not_given_leave_no_trace(fleet, monkeypatch):
    """Any values in their place, and the model is the same: also through divisors, clips and empty batches."""
    before, x = fleet.train().models, fleet.simulator.x
    for rows, changed in ((~fleet.given.any(axis=0), False), (fleet.given.all(axis=0), True)):
        monkeypatch.setattr(fleet, "simulator", fleet.simulator.variant(x=x.at[np.flatnonzero(rows)].set(0.123)))
        after = fleet.train().models
        apart = max(distance(after, place, at(before, place)) for place in range(3))
        assert apart > 1e-4 if changed else apart == 0


def test_confidence_is_the_log_odds_of_the_label():
    federation = prepare(configured())
    models = jax.vmap(federation.simulator.task.model.init)(jax.random.split(jax.random.key(0), 3))
    models = jax.tree.map(lambda a: a.at[2].set(np.nan), models)
    part = federation.dataset.train.take(np.arange(7))
    found = confidences(federation.simulator.task.model, models, part.x, part.y, scale=1.0, dtype="float64", block=4)
    logits = jax.vmap(lambda p: federation.simulator.task.model.apply(p, part.x))(models)
    p = np.take_along_axis(np.asarray(jax.nn.softmax(logits), float), part.y[None, :, None], axis=2)[..., 0]
    assert found[:2] == pytest.approx(np.log(p / (1 - p))[:2], abs=1e-5)
    assert found[2] == pytest.approx(np.log(0.1 / 0.9))  # a model that has burst is sure of nothing


@pytest.mark.parametrize(
    ("defense", "why"), [({"name": "dpfl"}, "drawn cohorts"), ({"name": "lip"}, "before training")]
)
def test_defences_that_cannot_be_made_again_are_refused(defense, why):
    federation = prepare(configured(defense=[defense], speed={}))
    with pytest.raises(ConfigError, match=why):
        Fleet(federation, [0], [keys.Draws(0)], given_to(federation, 1))


def test_a_victim_that_never_takes_part_is_refused():
    federation = prepare(configured({"rounds": 1, "per_round": 1}))
    fleet = Fleet(federation, range(8), [keys.Draws(f) for f in range(8)], given_to(federation, 8))
    with pytest.raises(ConfigError, match=r"attack.victim: got 2; takes no part .* raise train.rounds"):
        fleet.train(ObservedModel("server", VICTIM))


def test_parts_without_time_are_left_out_and_the_others_are_as_ever(fleet, monkeypatch):
    whole = fleet.train()
    assert whole.numbers.tolist() == [0, 1, 2]
    with monkeypatch.context() as patch:
        real = shadows._Clock.begin
        patch.setattr(shadows._Clock, "begin", lambda clock, index: index == 0 and real(clock, index))
        part = fleet.train(limit=limited(600))
    assert part.numbers.tolist() == [0, 1] and part.not_finite.tolist() == whole.not_finite[:2].tolist()
    for ours, theirs in zip(jax.tree.leaves(part.models), jax.tree.leaves(whole.models), strict=True):
        assert (ours == theirs[:2]).all()
    with pytest.raises(shadows.OutOfTime, match="1e-09 s are too few"):
        fleet.train(limit=limited(1e-9))
