"""The audit as a whole: what it measures is what is declared, its bounds hold and refute, its rows and refusals."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import pytest
from mutations import MLP, federation, noise_halved

import fedveil
from fedveil import audit
from fedveil.accounting import statistics
from fedveil.audit import certificate as certificates
from fedveil.audit import measure
from fedveil.audit.canary import canaries_for, canary_model
from fedveil.audit.certificate import Attacked
from fedveil.audit.checks import declared_z, scale
from fedveil.audit.path import canary_path
from fedveil.core.errors import ConfigError, RunError
from fedveil.core.events import Release
from fedveil.defenses.fed_sdp import FedSDP
from fedveil.models.layers import Conv, Dense, Flatten, GroupNorm
from fedveil.models.net import Net
from fedveil.random import noise
from fedveil.simulation.client import cross_entropy

SIZES = {"data": {"clients": 20, "partition": "dirichlet", "alpha": 0.5}}
FLAT = [{"name": "fed-sdp", "clip_scope": "flat"}]


def mechanism(defense, train=None, **sections):
    return federation(MLP, defense=defense, train={"per_round": 5, "local_steps": 2, **(train or {})}, **sections)


def sdp(**train):
    return mechanism(FLAT, {"weights": "size", **train}, **SIZES)


def silent(patch):
    patch.setattr(noise, "gaussian", lambda key, like, deviation: jax.tree.map(jnp.zeros_like, like))


# --- what is measured


@pytest.mark.parametrize(
    "defense",
    [
        pytest.param({"name": "fed-sdp"}, marks=pytest.mark.slow),
        {"name": "fed-cdp", "placement": "cohort", "clip_scope": "flat"},
        {"name": "nbafl"},
    ],
    ids=["fed-sdp", "fed-cdp", "nbafl"],
)
def test_canaries_reach_the_declared_sensitivity(defense):
    """Noise over the largest contribution is the declared z: neither the canary nor the declaration is off."""
    made = mechanism([defense])
    (one,) = made.simulator.task.defenses
    (release,) = one.events(made.simulator.task.setting)
    path = canary_path(made.simulator, (one,), 32, seed=3)
    found = measure.measure_canaries(path, release, (0,), range(10))
    by_round = [f for f in scale(found) if f.p_value is not None]
    assert [f.statistic for f in by_round] == pytest.approx([1.0], abs=0.25)  # the least noisy bias has 20 draws
    norms = {c.norm for c in found.contributions}
    assert norms == {1.01, 2.0, 10.0, 100.0}
    assert {c.canary for c in found.contributions} >= {"all layers", "biases and shifts", "weights and scales"}


def test_a_canary_has_the_gradient_that_was_asked_for_in_each_of_many_layers():
    layers = [Conv(f"conv{i}", 2, 1, bias=i % 2 == 0) for i in range(6)]
    deep = Net((*layers, *(GroupNorm(f"norm{i}", 1) for i in range(5)), Flatten(), Dense("dense", 10)), (8, 8, 1))
    model, kinds = canary_model(deep, 12, 4)
    assert [k.name for k in kinds] == ["conv"] * 6 + ["norm"] * 5 + ["dense"]
    params = jax.tree.map(jnp.ones_like, model.init(jax.random.key(0)))

    def loss(params, x):
        return cross_entropy(model.apply(params, x[None]), jnp.zeros(1, int)).sum()

    for canary in canaries_for(kinds):
        found = jax.grad(loss)(params, jnp.asarray(canary.record(kinds, 4, 3.0), jnp.float32))
        norms = [math.sqrt(sum(float((a**2).sum()) for a in found[f"layer{i}"].values())) for i in range(12)]
        assert norms == pytest.approx([3.0 if i in canary.layers else 0.0 for i in range(12)], rel=1e-5), canary.name


def test_every_example_shown_carries_its_noise():
    made = mechanism([{"name": "fed-cdp"}])
    rows = audit(made, tap="example", methods=("noise",))
    assert {row.test for row in rows} == {"scale", "correlation", "clip"} and not any(row.alarm for row in rows)
    assert any("correlation of examples" in row.reason for row in rows)


def test_noise_of_a_round_is_compared_with_that_rounds_z():
    by_round = Release("client", "client", "gaussian", 1.0, "round", "update", by_round=(3.0, 2.0, 1.0))
    assert [declared_z(by_round, t) for t in range(3)] == [3.0, 2.0, 1.0]
    later = dataclasses.replace(by_round, stage="broadcast", by_round=(1.0, 2.0, 3.0))
    assert declared_z(later, 2) == 2.0, "which round a broadcast is counted in is left open: the lower one holds"


def test_noise_that_forgets_the_weights_is_caught(patch):
    made = sdp()
    assert made.simulator.task.setting.max_weight > 1.8
    blind = lambda self, total, at: noise.add(total, noise.gaussian(at.key, total, self.noise * self.clip))  # noqa: E731
    patch.setattr(FedSDP, "aggregate", blind)
    rows = audit(made, tap="release", unit="client", methods=("noise",))
    assert any(row.alarm and row.test == "scale" for row in rows)


# --- bounds


def test_trials_show_what_the_declared_noise_lets_them():
    """The bound measured is the one to expect of the declared z: neither mechanism nor certificate is off."""
    where = {"tap": "release", "unit": "example"}  # of which a client's clip bounds half of what it can change
    (row,) = audit(sdp(), **where, methods=("trials",), trials=100_000, rounds=1, steps=1, confidence=0.95)
    expected = statistics.trials_reach(3.0, 100_000, row.delta, 0.05)
    assert row.multiplier == pytest.approx(3.0)
    assert row.epsilon_certified > row.epsilon_lower > expected - 0.15


@pytest.mark.slow
def test_several_steps_and_rounds_compose():
    made = federation(MLP)
    (row,) = audit(made, methods=("trials",), trials=20_000, rounds=3, steps=4)
    z = row.multiplier / math.sqrt(12)
    assert row.releases == 12 and row.epsilon_certified == pytest.approx(certificates.gaussian_epsilon(z, 1e-5))
    assert row.epsilon_certified > row.epsilon_lower > statistics.trials_reach(z, 20_000, 1e-5, 1e-3) - 0.4


def test_one_run_and_the_curve_catch_missing_noise_and_say_by_which_score(patch):
    made = mechanism([{"name": "fed-cdp", "placement": "batch"}])
    silent(patch)
    rows = audit(made, methods=("one-run", "f-dp"), canaries=300)
    assert [row.method for row in rows] == ["one-run", "f-dp"]
    for row in rows:
        assert row.violated and row.alarm and row.score in row.caught_by
        assert set(row.scores) >= {"pooled", "layer 0", "step 1", "round 1", "step 0 minus step 1"}
    with pytest.raises(RunError, match="the certificate does not hold: unit .* leaks ε ≥"):
        audit.check_certificates(rows)


@pytest.mark.slow
def test_half_the_noise_is_caught_by_trials(patch):
    made = sdp()
    noise_halved(patch)
    (row,) = audit(made, tap="release", unit="client", methods=("trials",))
    assert row.violated and row.epsilon_lower > row.epsilon_certified and row.reach > row.epsilon_certified


def test_without_noise_there_is_no_certificate_but_a_bound():
    rows = audit(federation(MLP, defense=[{"name": "none"}]), trials=2000, canaries=60)
    assert {(row.unit, row.tap) for row in rows} == {("example", "client"), ("client", "client")}
    for row in rows:
        assert row.epsilon_certified is None and not row.violated and row.epsilon_lower > 1.5 and row.reason


# --- certificates


def test_the_certificate_is_that_of_the_releases_that_are_read():
    made = federation(MLP)
    task = made.simulator.task
    one, four = (
        certificates.certificate(task.defenses, task.setting, Attacked("client", "example", rounds, 2), 1e-5)
        for rounds in (1, 2)
    )
    assert (one.releases, four.releases) == (2, 4) and one.epsilon < four.epsilon
    assert four.together == pytest.approx(task.defenses[0].noise / math.sqrt(task.setting.layers) / 2)


def test_defences_together_are_compared_where_the_ledger_has_a_row():
    both = [{"name": "fed-cdp", "placement": "batch"}, {"name": "fed-sdp", "placement": "client"}]
    task = mechanism(both).simulator.task
    found = certificates.certificate(task.defenses, task.setting, Attacked("client", "client"), 1e-5)
    assert found.epsilon is not None
    open_tap = certificates.certificate(task.defenses, task.setting, Attacked("example", "example"), 1e-5)
    assert open_tap.epsilon is None and open_tap.reason


# --- rows and refusals


def test_rows_are_plain_data_and_confidence_is_shared():
    made = sdp()
    where = {"tap": "release", "unit": "client"}
    one = audit(made, **where, methods=("one-run",), canaries=50)[0]
    assert json.loads(json.dumps(one.as_dict()))["by_seed"] == [one.epsilon_lower]
    many = audit(made, **where, methods=("one-run",), seeds=4, canaries=50)[0]
    assert many.reach < one.reach, "each of several bounds must have less of the error"
    assert {f.name for f in dataclasses.fields(one)} == set(one.as_dict())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tap": "serve"}, "did you mean 'server'"),
        ({"unit": "record"}, "takes one of: client, example"),
        ({"trials": 5}, "takes 1000 to"),
        ({"seeds": 0}, "takes 1 to"),
        ({"rounds": 0}, "takes 1 to"),
        ({"confidence": 1.0}, "between 0 and 1"),
        ({"methods": ("two-run",)}, "did you mean 'one-run'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, says):
    with pytest.raises(ConfigError, match=says):
        audit(sdp(), **arguments)


def test_a_defence_that_measures_the_model_is_refused():
    with pytest.raises(ConfigError, match="cannot be audited"):
        audit(federation(MLP, defense=[{"name": "dpfl"}]))


def test_the_command_prints_rows_and_fails_on_an_alarm(patch, fedveil_cli, tmp_path):
    settings = ("defense.name=fed-sdp", "model.name=logistic", "train.local_steps=1", "data.clients=20")
    arguments = ["audit", *(part for s in settings for part in ("-s", s)), "--method", "noise"]
    sound = fedveil_cli(*arguments, cwd=tmp_path)
    assert sound.code == 0 and "holds" in sound.out and "ALARM" not in sound.out
    assert sound.err.startswith("preparing")
    silent(patch)
    broken = fedveil_cli(*arguments, "--json", cwd=tmp_path)
    assert broken.code == 1 and "the noise is not what is declared" in broken.err
    assert any(row["alarm"] and row["caught_by"] for row in json.loads(broken.out))


def test_a_run_is_audited_with_its_own_config_and_nothing_else(tmp_path, fedveil_cli):
    settings = {
        "data": {"clients": 6, "per_client": 20},
        "model": {"name": "logistic"},
        "train": {"rounds": 1, "local_steps": 1, "per_round": 3},
        "defense": {"name": "fed-sdp", "placement": "client", "noise": 3.0, "clip_scope": "flat"},
    }
    run = tmp_path / "run"
    fedveil.train(settings, out=run)
    rows = audit(run=run, unit="client", methods=("noise",))
    assert {row.multiplier for row in rows} == {3.0} and not any(row.alarm for row in rows)
    with pytest.raises(ConfigError, match="a run has its own config"):
        audit(settings, run=run)
    refused = fedveil_cli("audit", "--run", run, "-s", "defense.noise=1", cwd=tmp_path)
    assert refused.code == 2 and "--run" in refused.err and "leave the file and -s out" in refused.err
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"own_model": True}))
    told = fedveil_cli("audit", "--run", run, cwd=tmp_path)
    assert told.code == 2 and "a model of Python code, which no file holds" in told.err
