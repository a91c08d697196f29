"""The audit: its statistics against known values, sound mechanisms never above their certificate, broken ones caught.

Mechanisms are broken by replacing the project's own functions for the length of a test; everything is compiled afresh in
each call of `run`, so that none sees another's programs.
"""

import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedveil import audit
from fedveil.accounting import statistics
from fedveil.assemble import prepare
from fedveil.audit import certificate as certificates
from fedveil.audit.rows import EXCESS
from fedveil.audit.stage import stage, trial_layout
from fedveil.config import from_dict
from fedveil.core import keys
from fedveil.core.errors import ConfigError, RunError
from fedveil.defenses.fed_sdp import FedSDP
from fedveil.mechanisms import clip
from fedveil.random import noise

# --- statistics: one run


@pytest.mark.parametrize(
    ("guesses", "correct", "epsilon"), [(100, 80, 1.0), (100, 100, 4.0), (7, 0, 0.3), (50, 20, 0.0)]
)
def test_p_value_without_delta_is_the_binomial_tail(guesses, correct, epsilon):
    rate = 1 / (1 + math.exp(-epsilon))
    found = statistics.one_run_p_value(200, guesses, correct, epsilon, 0.0)
    assert found == pytest.approx(stats.binom.sf(correct - 1, guesses, rate))


def test_p_value_with_delta_is_the_theorem_term_by_term():
    canaries, guesses, correct, epsilon, delta = 60, 40, 33, 0.7, 1e-3
    law = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    at_least = [
        sum(law.pmf(k) for k in range(max(v, 0), guesses + 1)) for v in range(correct, correct - canaries - 1, -1)
    ]
    steepest = max((at_least[i] - at_least[0]) / i for i in range(1, canaries + 1))
    expected = at_least[0] + 2 * canaries * delta * steepest
    assert statistics.one_run_p_value(canaries, guesses, correct, epsilon, delta) == pytest.approx(expected)


def test_p_value_allows_for_a_mechanism_that_tells_all_with_probability_delta():
    """Telling every coin with probability δ, else nothing, is (0, δ)-private."""
    for canaries in (1, 5, 40):
        right = 0.05 + 0.95 * 0.5**canaries
        assert statistics.one_run_p_value(canaries, canaries, canaries, 0.0, 0.05) >= right


def test_one_run_epsilon_is_where_the_p_value_meets_alpha():
    found = statistics.one_run_epsilon(1000, 1000, 1000, 0.0, 0.05)
    assert (1 / (1 + math.exp(-found))) ** 1000 == pytest.approx(0.05, rel=1e-2)  # all right: q^1000 = 5%
    found = statistics.one_run_epsilon(1000, 800, 700, 1e-5, 0.05)
    assert statistics.one_run_p_value(1000, 800, 700, found, 1e-5) <= 0.05
    assert statistics.one_run_p_value(1000, 800, 700, found + 1e-3, 1e-5) > 0.05
    assert statistics.one_run_epsilon(1000, 1000, 510, 1e-5, 0.05) == 0.0


def test_one_run_is_too_large_no_more_often_than_it_says():
    """Randomised response is exactly ε-private, and its coins are independent: the hardest case."""
    epsilon, alpha, runs = 1.0, 0.2, 400
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(runs):
        coins = rng.random(200) < 0.5
        kept = rng.random(200) < 1 / (1 + math.exp(-epsilon))
        scores = np.where(coins == kept, 1.0, -1.0) * (1 + 1e-3 * rng.random(200))
        wrong += statistics.one_run(scores, coins, 0.0, alpha).epsilon > epsilon
    assert wrong <= runs * alpha + 3 * math.sqrt(runs * alpha)


# --- statistics: trials


@pytest.mark.parametrize(("count", "trials"), [(0, 50), (3, 50), (49, 50), (50, 50)])
def test_clopper_pearson(count, trials):
    exact = stats.binomtest(count, trials).proportion_ci(0.9, method="exact").high  # two-sided: 5% above
    assert float(statistics.clopper_pearson(count, trials, 0.05)) == pytest.approx(exact)


def test_trials_epsilon_is_the_worse_of_both_directions():
    found = statistics.trials_epsilon(10, 900, 1000, 1e-5, 0.05)
    low, high = statistics.clopper_pearson(10, 1000, 0.025), statistics.clopper_pearson(900, 1000, 0.025)
    assert float(found) == pytest.approx(math.log((1 - 1e-5 - high) / low))
    assert float(statistics.trials_epsilon(900, 10, 1000, 1e-5, 0.05)) == pytest.approx(float(found))
    assert float(statistics.trials_epsilon(500, 500, 1000, 1e-5, 0.05)) == 0.0


def test_trials_are_too_large_no_more_often_than_they_say():
    """Randomised response again: here the ratio of the rates is e^ε at every threshold."""
    epsilon, alpha, runs = 1.0, 0.2, 400
    rng = np.random.default_rng(2)
    rate = 1 / (1 + math.exp(-epsilon))
    wrong = 0
    for _ in range(runs):
        without, with_it = (rng.random(500) > rate).astype(float), (rng.random(500) < rate).astype(float)
        wrong += statistics.independent_trials(without, with_it, 0.0, alpha).epsilon > epsilon
    assert wrong <= runs * alpha + 3 * math.sqrt(runs * alpha)


def test_trials_of_a_gaussian_come_near_what_is_expected_of_them():
    rng = np.random.default_rng(3)
    found = statistics.independent_trials(rng.normal(size=200_000), 0.5 + rng.normal(size=200_000), 1e-5, 0.05)
    assert (
        0.85 * statistics.trials_reach(2.0, 200_000, 1e-5, 0.05)
        < found.epsilon
        < certificates.gaussian_epsilon(2.0, 1e-5)
    )


# --- the audited mechanisms are the project's own


def federation(defense, **sections):
    train = {"per_round": 5, "local_steps": 1, **sections.pop("train", {})}
    data = {"clients": 20, "partition": "dirichlet", "alpha": 0.5}
    return prepare(from_dict({"data": data, "train": train, "defense": [defense], **sections}))


CDP = {"defense": {"name": "fed-cdp", "placement": "batch"}}  # a fused clip, of convolutions too
CDP_EACH = {"defense": {"name": "fed-cdp", "clip_scope": "flat"}, "model": {"name": "mlp"}}  # gradients one by one
SDP = {"defense": {"name": "fed-sdp", "clip_scope": "flat"}, "train": {"weights": "size"}}
SDP_CLIENT = {"defense": {"name": "fed-sdp", "placement": "client"}, "speed": {"precision": "float64"}}

MECHANISMS = {  # config, tap, unit
    "fed-cdp batch": (CDP, "client", "example"),
    "fed-cdp example": (CDP_EACH, "example", "example"),
    "fed-cdp example, in sum": (CDP_EACH, "client", "example"),
    "fed-sdp server": (SDP, "release", "client"),
    "fed-sdp client": (SDP_CLIENT, "client", "client"),
    "fed-sdp client, in sum": (SDP_CLIENT, "release", "client"),
    "fed-sdp server, one record": (SDP, "release", "example"),
}


@functools.cache
def mechanism(name):
    """The federation, the tap and the unit; a federation holds no compiled program until it trains."""
    config, tap, unit = MECHANISMS[name]
    return federation(**config), tap, unit


def silent(key, like, deviation):
    return jax.tree.map(jnp.zeros_like, like)


def halved(key, like, deviation, whole=noise.gaussian):
    return whole(key, like, deviation / 2)


def no_shrinking(norm, bound):
    return jnp.ones_like(norm)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_canary_reaches_the_declared_sensitivity(name, monkeypatch):
    """Without noise a canary moves what the tap shows by the whole sensitivity: √M·C, through clip, step and weights."""
    ready, tap, unit = mechanism(name)
    task = ready.simulator.task
    (defense,), setting = task.defenses, task.setting
    monkeypatch.setattr(noise, "gaussian", silent)
    layout = trial_layout(setting, tap, unit, certificates.cohort(task, tap, unit))
    played = stage(task, layout, tap, 1, 1, EXCESS)
    with jax.enable_x64(task.dtype == "float64"):
        scores = jax.jit(played.scores)
        out, put_in = (float(scores(jnp.asarray([coin]), keys.root(0))[0]) for coin in (0.0, 1.0))
    groups = setting.layers if defense.clip_scope == "layerwise" else 1
    expected = defense.clip * math.sqrt(groups)
    if defense.name == "fed-sdp":
        expected *= 2.0 if unit == "example" else 1.0
        expected *= setting.max_weight / setting.per_round if tap == "release" else 1.0
    elif tap == "client":
        expected *= setting.lr / setting.batch
    assert put_in - out == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", [name for name in MECHANISMS if "," in name or "example" in name])
def test_trials_show_what_the_declared_noise_lets_them(name):
    """The bound measured is the one to expect of the declared z: neither mechanism nor certificate is off."""
    ready, tap, unit = mechanism(name)
    (row,) = audit.run(ready, tap=tap, unit=unit, methods=("trials",), seeds=1, trials=100_000)
    task = ready.simulator.task
    played = stage(task, trial_layout(task.setting, tap, unit, certificates.cohort(task, tap, unit)), tap, 1, 1, 1.0)
    z = certificates.certificate(task.defenses, played, row.delta).together
    expected = statistics.trials_reach(z, 100_000, row.delta, 0.05)
    assert row.epsilon_certified > row.epsilon_lower > expected - 0.15, (z, expected)


# --- twenty seeds of sound mechanisms


@pytest.mark.parametrize("name", ["fed-cdp batch", "fed-sdp client"])
def test_no_bound_of_twenty_seeds_is_above_its_certificate(name):
    ready, tap, unit = mechanism(name)
    rows = audit.run(ready, tap=tap, unit=unit, seeds=20, trials=100_000)
    assert [row.method for row in rows] == ["one-run", "trials"]
    for row in rows:
        assert len(row.by_seed) == 20 and row.confidence == 0.95 and not row.violated
        assert max(row.by_seed) == row.epsilon_lower < row.epsilon_certified
    audit.check_certificates(rows)


# --- broken mechanisms

BROKEN = {  # what is replaced, by what, the method that catches it
    "no noise": (noise, "gaussian", silent, "one-run"),
    "a missing clip": (clip, "factor", no_shrinking, "one-run"),
    "half the noise": (noise, "gaussian", halved, "trials"),
}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("name", ["fed-cdp batch", "fed-cdp example", "fed-sdp server", "fed-sdp client"])
def test_a_broken_mechanism_is_caught(name, fault, monkeypatch):
    ready, tap, unit = mechanism(name)
    where, what, broken, method = BROKEN[fault]
    monkeypatch.setattr(where, what, broken)
    rows = audit.run(ready, tap=tap, unit=unit, methods=(method,), seeds=2, canaries=500)
    assert rows[0].violated and min(rows[0].by_seed) > rows[0].epsilon_certified
    with pytest.raises(RunError, match="the certificate does not hold: unit .* leaks ε ≥"):
        audit.check_certificates(rows)


def blind_to_weights(self, total, at):
    return noise.add(total, noise.gaussian(at.key, total, self.noise * self.clip))


def test_noise_that_forgets_the_weights_is_caught(monkeypatch):
    ready, tap, unit = mechanism("fed-sdp server")
    assert ready.simulator.task.setting.max_weight > 1.8
    monkeypatch.setattr(FedSDP, "aggregate", blind_to_weights)
    (row,) = audit.run(ready, tap=tap, unit=unit, methods=("trials",), seeds=1)
    assert row.violated


def test_one_run_does_not_catch_half_the_noise(monkeypatch):
    monkeypatch.setattr(noise, "gaussian", halved)
    (row,) = audit.run(mechanism("fed-cdp batch")[0], tap="client", unit="example", methods=("one-run",), seeds=2)
    assert not row.violated


def test_several_steps_and_rounds_compose():
    ready, tap, unit = mechanism("fed-cdp batch")
    (row,) = audit.run(ready, tap=tap, unit=unit, methods=("trials",), seeds=1, trials=20_000, rounds=3, steps=4)
    z = row.multiplier / math.sqrt(12)
    assert row.releases == 12 and row.epsilon_certified == pytest.approx(certificates.gaussian_epsilon(z, 1e-5))
    assert row.epsilon_certified > row.epsilon_lower > statistics.trials_reach(z, 20_000, 1e-5, 0.05) - 0.3


# --- rows, defaults, refusals


def test_without_noise_there_is_no_certificate_but_a_bound():
    rows = audit.run(federation({"name": "none"}, model={"name": "mlp"}), seeds=1, trials=2000, canaries=100)
    assert {(row.unit, row.tap) for row in rows} == {("example", "client"), ("client", "client")}
    clipped = federation({"name": "fed-cdp", "noise": 0.0}, model={"name": "mlp"})
    rows += audit.run(clipped, unit="example", methods=("one-run",), seeds=1, canaries=100)
    for row in rows:
        assert row.epsilon_certified is None and not row.violated and row.epsilon_lower > 2.0 and row.reason


def test_rows_are_plain_data_and_confidence_is_shared():
    ready, tap, unit = mechanism("fed-sdp server")
    one = audit.run(ready, tap=tap, unit=unit, methods=("one-run",), seeds=1, canaries=50)[0]
    assert json.loads(json.dumps(one.as_dict()))["by_seed"] == [one.epsilon_lower]
    many = audit.run(ready, tap=tap, unit=unit, methods=("one-run",), seeds=4, canaries=50)[0]
    assert many.reach < one.reach, "each of several bounds must have less of the error"
    assert {f.name for f in dataclasses.fields(one)} == set(one.as_dict())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tap": "serve"}, "did you mean 'server'"),
        ({"unit": "record"}, "takes one of: client, example"),
        ({"trials": 5}, "takes 1000 to"),
        ({"seeds": 0}, "takes 1 to"),
        ({"confidence": 1.0}, "between 0 and 1"),
        ({"methods": ("two-run",)}, "did you mean 'one-run'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, says):
    with pytest.raises(ConfigError, match=says):
        audit.run(mechanism("fed-cdp batch")[0], **arguments)


def test_a_defence_that_measures_the_model_is_refused():
    with pytest.raises(ConfigError, match="cannot be audited"):
        audit.run(federation({"name": "dpfl"}))


def test_the_command_prints_rows_and_fails_on_a_violation(monkeypatch, capsys):
    from fedveil.cli.audit import run_audit

    settings = ["defense.name=fed-cdp", "data.clients=20"]
    options = {
        "tap": "client", "unit": "example", "method": "one-run", "trials": 1000, "canaries": 300, "seeds": 1,
        "confidence": 0.95, "delta": None, "rounds": 1, "steps": 1,
    }  # fmt: skip
    run_audit(None, settings, **options, json=False)
    assert "holds" in capsys.readouterr().out
    monkeypatch.setattr(noise, "gaussian", silent)
    with pytest.raises(RunError):
        run_audit(None, settings, **options, json=True)
    assert json.loads(capsys.readouterr().out)[0]["violated"] is True
