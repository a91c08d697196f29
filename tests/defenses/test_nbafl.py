"""NbAFL: the two noises by hand and by statistics, the clip, what is refused, and a run.

Statistical tests compare a mean of squares of n normal values with its expectation within 5 standard errors: about one
false alarm in 1.7 million per comparison. Seeds are fixed, so a passing test keeps passing.
"""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest
from one_program import at_stage

import fedveil
from fedveil.core.errors import ConfigError
from fedveil.core.setting import Setting
from fedveil.core.stage import StageContext
from fedveil.defenses.nbafl import NbAFL

SETTING = Setting(
    clients=50, per_round=10, rounds=25, batch=4, local_steps=2, sampling="fixed", batching="shuffle",
    aggregation="fedavg", weights="uniform", smallest=40, layers=2,
)  # fmt: skip


def at(setting=SETTING, seed=0):
    key = jax.random.key(seed)
    return StageContext(setting=setting, key=key, shared=key, round=0, lr=0.1)


def a_model(value=1.0, size=20_000):
    first, last = np.full((size // 100, 100), value, np.float32), np.full(7, value, np.float32)
    return {"first": {"w": first}, "last": {"w": last, "b": np.zeros(3, np.float32)}}


def flat(tree):
    return np.concatenate([np.asarray(a, np.float64).ravel() for a in jax.tree.leaves(tree)])


def assert_deviation(noise, deviation):
    squares = np.square(noise / deviation)
    assert abs(squares.mean() - 1.0) < 5.0 * math.sqrt(2.0 / squares.size)


def test_noise_by_hand():
    # ε = 20, δ = 1e-3, C = 0.5, m = 40, T = 25, L = 5, N = 10: c = √(2 ln 1250) = 3.77648
    defense = NbAFL(clip=0.5, epsilon=20.0, delta=1e-3, exposures=5)
    assert defense.uplink(SETTING) == pytest.approx(3.776479 * 5 * 1.0 / 800, rel=1e-6)
    assert defense.downlink(SETTING) == pytest.approx(3.776479 * math.sqrt(625 - 250) / 8000, rel=1e-6)


def test_exposures_are_the_rounds_unless_set_and_then_the_server_adds_nothing():
    assert NbAFL().uplink(SETTING) == NbAFL(exposures=25).uplink(SETTING)
    assert NbAFL().downlink(SETTING) == 0.0


@pytest.mark.parametrize(("rounds", "noised"), [(11, False), (12, False), (13, True)])
def test_the_server_adds_noise_only_beyond_exposures_times_root_of_clients(rounds, noised):
    setting = replace(SETTING, rounds=rounds, per_round=9)  # L√N = 4·3 = 12
    defense = NbAFL(exposures=4)
    assert (defense.downlink(setting) > 0) == noised
    finished = at_stage(defense.finish, a_model(), point=at(setting))
    assert np.array_equal(flat(finished), flat(a_model())) != noised


def test_uploads_are_clipped_models_with_noise():
    defense = NbAFL(clip=3.0, epsilon=20.0, exposures=5)
    large = a_model(1.0)
    unit = flat(large) / np.linalg.norm(flat(large))
    noise = flat(at_stage(defense.upload, large, point=at())) - 3.0 * unit
    assert_deviation(noise, defense.uplink(SETTING))
    silent = replace(defense, epsilon=1e12)
    assert np.linalg.norm(flat(at_stage(silent.upload, large, point=at()))) <= 3.0 * (1 + 1e-6)
    small = a_model(1e-3)
    np.testing.assert_allclose(flat(at_stage(silent.upload, small, point=at())), flat(small), atol=1e-7)


def test_the_servers_noise_is_added_to_the_model_and_does_not_replace_it():
    defense = NbAFL(exposures=5)
    model = a_model(100.0)  # far above the noise
    finished = flat(at_stage(defense.finish, model, point=at()))
    assert finished[:20_000].mean() == pytest.approx(100.0, abs=0.01)
    # Around 100, float32 rounds to 4e-6, far below the deviation of 9e-3.
    assert_deviation(finished - flat(model), defense.downlink(SETTING))


def test_the_sensitivity_is_that_of_a_clipped_model():
    defense = NbAFL(clip=0.5, exposures=5)
    releases = defense.events(SETTING)
    assert [r.tap for r in releases] == ["server"]  # what the client itself holds is open, what follows is made from it
    for release in releases:
        assert (release.unit, release.distribution, release.uses, release.certifiable) == (
            "client",
            "gaussian",
            "round",
            True,
        )
        assert release.multiplier == pytest.approx(defense.uplink(SETTING) / 0.5)  # not over 0.5/40


@pytest.mark.parametrize(
    ("defense", "setting", "says"),
    [
        (NbAFL(), replace(SETTING, aggregation="fedsgd"), "train.aggregation: got 'fedsgd'"),
        (NbAFL(exposures=26), SETTING, "defense.exposures: got 26"),
        (NbAFL(stop=True), SETTING, "defense.stop: got True"),
    ],
)
def test_what_makes_no_sense_is_refused(defense, setting, says):
    with pytest.raises(ConfigError, match=says):
        defense.check(setting)


def run(**speed):
    return fedveil.train(
        {
            "data": {"clients": 12, "partition": "dirichlet"},
            "model": {"name": "logistic"},
            "train": {"rounds": 3, "per_round": 4, "local_steps": 2, "batch": 4, "aggregation": "fedavg"},
            "defense": {"name": "nbafl", "clip": 2.0, "exposures": 1},
            "speed": {"precision": "float64", **speed},
        }
    )


def test_a_run_ends_when_every_upload_that_is_budgeted_for_may_have_happened():
    config = {
        "data": {"clients": 12, "partition": "dirichlet"},
        "model": {"name": "logistic"},
        "train": {"rounds": 5, "per_round": 4, "local_steps": 1, "batch": 4},
        "defense": {"name": "nbafl", "exposures": 2, "stop": True},
    }
    result = fedveil.train(config)
    assert result.rounds == 2 and "nbafl: its budget is spent after round 2 of 5" in result.stopped
    planned = fedveil.federation(config)
    defense, setting = planned.simulator.task.defenses[0], planned.simulator.task.setting
    assert setting.rounds == 5  # the server's noise is that of the planned rounds
    assert defense.downlink(setting) == NbAFL(exposures=2).downlink(setting) > 0.0
    config["defense"]["stop"] = False
    assert fedveil.federation(config).rounds == 5
    config["train"]["budget"] = {"epsilon": 1e9, "delta": 1e-3, "tap": "server", "unit": "client"}
    config["defense"]["stop"] = True
    assert fedveil.federation(config).rounds == 2


def test_it_trains_and_the_engines_agree():
    fast, slow = run(), run(engine="reference")
    assert fast.rounds == 3 and math.isfinite(fast.loss)
    assert np.abs(flat(fast.params) - flat(slow.params)).max() < 1e-9
