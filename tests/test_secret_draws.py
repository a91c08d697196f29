"""Secret draws: what they come from, where the secret is kept and where it must not be, and what a seed costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import fedveil
from fedveil.accounting import ledger
from fedveil.config import from_dict, load
from fedveil.core import keys
from fedveil.core.errors import ConfigError, RunError
from fedveil.core.keys import Draws
from fedveil.federation import plan as planned
from fedveil.federation import prepare
from fedveil.run_account import transcript_of
from fedveil.runs import RunFolder
from fedveil.simulation import sampling
from fedveil.training import resume, train

SECRET = Draws(secret=bytes(range(32)))
SMALL = {
    "data": {"clients": 12, "partition": "iid", "per_client": 20},
    "model": {"name": "logistic"},
    "train": {"rounds": 3, "per_round": 6, "local_steps": 2, "batch": 4},
    "defense": {"name": "fed-cdp", "clip": 1.0, "noise": 1.0},
}
OPTIONS = [
    part
    for setting in (
        "data.clients=12",
        "data.partition=iid",
        "model.name=logistic",
        "train.rounds=24",
        "train.local_steps=1",
    )
    for part in ("-s", setting)
]


def with_train(**changes):
    return {**SMALL, "train": {**SMALL["train"], **changes}}


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def numbers(generator):
    return generator.integers(2**62, size=4).tolist()


# --- where draws come from


def test_a_seed_gives_the_streams_of_its_name():
    assert numbers(Draws(7).host("batch", 1, 2, 0)) == numbers(keys.host(7, "batch", 1, 2, 0))
    assert same(*(jax.random.key_data(key) for key in (Draws(7).root(), keys.root(7))))
    assert [Draws(2**32 - 1).nth(n).seed for n in range(3)] == [2**32 - 1, 0, 1]


def test_a_secret_gives_each_name_a_stream_of_its_own():
    other = Draws(secret=bytes(32))
    streams = [
        numbers(draws.host(*name))
        for draws in (SECRET, other, SECRET.nth(1), SECRET.nth(2))
        for name in (
            ("batch", 1, 2, 0),
            ("batch", 1, 2),
            ("cohort", 1, 2, 0),
            ("batch", 2, 1, 0),
            ("batch", 1, 2, 2**40),
        )
    ]
    assert len({tuple(stream) for stream in streams}) == len(streams)
    assert streams[0] == numbers(SECRET.host("batch", 1, 2, 0)) and SECRET.nth(0) == SECRET
    roots = [jax.random.key_data(draws.root()).tolist() for draws in (SECRET, other, SECRET.nth(1))]
    assert len({tuple(root) for root in roots}) == 3 and jax.random.key_impl(SECRET.root()) == "threefry2x32"


def test_all_bytes_of_a_secret_count():
    streams = set()
    for place in range(32):
        secret = bytearray(32)
        secret[place] = 1
        draws = Draws(secret=bytes(secret))
        streams.add((tuple(numbers(draws.host("cohort", 0))), tuple(jax.random.key_data(draws.root()).tolist())))
    assert len({host for host, _ in streams}) == len({device for _, device in streams}) == 32


def test_draws_have_a_seed_or_a_secret():
    for wrong in ({}, {"seed": 1, "secret": bytes(32)}, {"secret": b"short"}):
        with pytest.raises(ValueError, match="secret"):
            Draws(**wrong)
    assert "secret" not in repr(SECRET) and SECRET.secret.hex() not in repr(SECRET)


def test_the_operating_system_gives_another_secret_each_time(true_secrets, monkeypatch):
    assert len({Draws.fresh().secret for _ in range(5)}) == 5 and Draws.of(3) == Draws(3)
    monkeypatch.setattr(os, "urandom", lambda size: b"\7" * size)
    assert Draws.of(None).secret == b"\7" * 32


def test_no_secret_is_in_the_cache_of_draws():
    law = sampling.BatchSampling("poisson", 4, 3, None)
    before = sampling._cached_draw.cache_info().currsize
    assert same(sampling.draw_positions(law, SECRET, 0, 0, 0, 20), sampling.draw_positions(law, SECRET, 0, 0, 0, 20))
    assert sampling._cached_draw.cache_info().currsize == before
    sampling.draw_positions(law, Draws(987654), 0, 0, 0, 20)
    assert sampling._cached_draw.cache_info().currsize == before + 1


# --- runs that differ, runs that repeat


def cohorts(federation):
    simulator = federation.simulator
    return [simulator.cohort(simulator.start(), number).clients.tolist() for number in range(6)]


def test_two_runs_of_one_config_share_partition_and_first_model_alone(true_secrets):
    one, other = (prepare(from_dict(SMALL)) for _ in range(2))
    assert all(same(one.partition.client(c), other.partition.client(c)) for c in range(12))
    first = [federation.simulator.start() for federation in (one, other)]
    assert same(first[0].params, first[1].params)
    assert cohorts(one) != cohorts(other)
    seen = [f.simulator.observe(s, 0, 0, frozenset({"server"})) for f, s in zip((one, other), first, strict=True)]
    assert not same(*seen)
    assert not same(train(one).params, train(other).params)


def test_a_noise_seed_repeats_a_run_and_a_seed_does_not_touch_it(true_secrets):
    one, again = (fedveil.train(with_train(noise_seed=3)) for _ in range(2))
    assert same(one.params, again.params) and one.history == again.history
    assert not same(one.params, fedveil.train(with_train(noise_seed=4)).params)
    assert cohorts(prepare(from_dict(with_train(noise_seed=3)))) == cohorts(
        prepare(from_dict(with_train(noise_seed=3, seed=9)))
    )


def test_the_command_trains_otherwise_each_time(true_secrets, fedveil_cli, tmp_path):
    options = [part for key in ("train.rounds=2", *OPTIONS[1:8:2]) for part in ("-s", key)]
    for name, more in (("a", ()), ("b", ()), ("c", ("-s", "train.noise_seed=0")), ("d", ("-s", "train.noise_seed=0"))):
        answer = fedveil_cli("train", *options, *more, "--out", name, cwd=tmp_path)
        assert answer.code == 0, answer.err
    found = {name: dict(np.load(tmp_path / name / "checkpoint.npz")) for name in "abcd"}
    different = [not np.array_equal(found[a]["params/dense/w"], found[b]["params/dense/w"]) for a, b in ("ab", "cd")]
    assert different == [True, False]
    assert not (tmp_path / "c" / "secret.key").exists()


# --- the file


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    fedveil.train(SMALL, out=path)
    return path


def test_the_secret_is_in_one_file_that_its_owner_alone_reads(run, tmp_path, fedveil_cli):
    file = run / "secret.key"
    assert file.stat().st_mode & 0o777 == 0o600
    secret = bytes.fromhex(file.read_text())
    assert len(secret) == 32
    attacked = fedveil_cli(
        "attack", "--run", run, "-s", "attack.images=1", "-s", "attack.iterations=2", "--json", cwd=tmp_path
    )
    shown = [
        fedveil_cli(*command, cwd=tmp_path)
        for command in (["ledger", run, "--json", "--all"], ["report", run, "--json"])
    ]
    assert all(answer.code == 0 for answer in (attacked, *shown)), attacked.err
    told = [part.encode() for answer in (attacked, *shown) for part in (answer.out, answer.err)]
    files = [p.read_bytes() for p in run.rglob("*") if p.is_file() and p != file]
    assert any(b"<html" in content for content in files)
    for content in (*told, *files):
        assert secret not in content and secret.hex().encode() not in content.lower()


def test_a_run_without_its_secret_cannot_be_resumed_or_attacked(run, tmp_path, fedveil_cli):
    (run / "secret.key").unlink()
    for command in (
        ["train", "--resume", run],
        ["attack", "--run", run],
        ["attack", "--run", run, "-s", "attack.name=lira"],
    ):
        answer = fedveil_cli(*command, cwd=tmp_path)
        assert answer.code == 1 and len(answer.err.splitlines()) == 1, answer.err
        assert f"{run / 'secret.key'} is missing: without it the draws of this run cannot be made again" in answer.err
    with pytest.raises(RunError, match="is missing"):
        fedveil.train(out=run, resume=True)
    assert fedveil_cli("ledger", run, cwd=tmp_path).code == 0


@pytest.mark.parametrize("content", ["", "words", "00" * 31, "\udcff"], ids=["empty", "words", "short", "not text"])
def test_a_damaged_secret_is_one_clear_line(content, run):
    (run / "secret.key").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(RunError, match=r"secret\.key is damaged"):
        resume(run)


def test_a_run_goes_on_with_its_own_draws_alone(run):
    with pytest.raises(RunError, match="was begun with other draws"):
        train(prepare(from_dict(SMALL), draws=SECRET), RunFolder.open(run))


def test_the_secret_is_written_before_the_config(tmp_path, monkeypatch):
    """A run that has a config can be resumed: so whatever kills it between the two leaves no run at all."""
    monkeypatch.setattr("fedveil.training.write_text", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fedveil.train(SMALL, out=tmp_path / "run")
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["secret.key"]
    monkeypatch.undo()
    assert fedveil.train(SMALL, out=tmp_path / "run").rounds == 3


SLOWLY = """
import sys, time
from fedveil.cli.main import main
from fedveil.simulation.simulator import Simulator
quick = Simulator.round
Simulator.round = lambda *args: (time.sleep(0.05), quick(*args))[1]
sys.exit(main(sys.argv[1:]))
"""


def test_killed_and_resumed_a_secret_run_ends_as_if_undisturbed(tmp_path):
    jax.clear_caches()  # other tests compile in a hurry, with other roundings
    path = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", SLOWLY, "train", *OPTIONS, "--out", str(path)])
    limit = time.monotonic() + 60
    while len(RunFolder(path).read_metrics()) < 6 or not (path / "checkpoint.npz").exists():
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert len(RunFolder(path).read_metrics()) < 24
    draws = RunFolder(path).draws(None)
    resumed = resume(path)
    undisturbed = train(prepare(load(None, OPTIONS[1::2]), draws=draws))
    assert same(resumed.params, undisturbed.params) and resumed.accuracy == undisturbed.accuracy
    assert not same(resumed.params, train(prepare(load(None, OPTIONS[1::2]))).params)


@pytest.mark.slow
def test_an_attack_on_a_run_sees_what_the_run_sent(true_secrets, tmp_path, fedveil_cli):
    """A noise that the attack drew for itself would give another distance, in one run as in two runs of one config."""
    options = ["-s", "attack.images=2", "-s", "attack.iterations=3", "-s", "attack.round=0", "-s", "attack.tap=client"]
    for name in ("one", "other"):
        fedveil.train(SMALL, out=tmp_path / name)
    one, again, other = (
        json.loads(fedveil_cli("attack", "--run", tmp_path / name, *options, "--json", cwd=tmp_path).out)["distance"]
        for name in ("one", "one", "other")
    )
    assert one == again != other


@pytest.mark.slow
def test_attacks_in_one_folder_are_on_the_same_draws(true_secrets, tmp_path, fedveil_cli):
    options = [*OPTIONS, "-s", "defense.name=fed-cdp", "-s", "attack.images=2", "-s", "attack.iterations=3"]
    first, again, apart = (
        json.loads(fedveil_cli("attack", *options, "--out", out, "--json", cwd=tmp_path).out)
        for out in ("kept", "kept", "apart")
    )
    assert first["distance"] == again["distance"] != apart["distance"]


# --- what a seed costs


def account(config):
    made = planned(from_dict(config))
    return ledger.rows(made.transcript()), made


def test_a_seeded_run_keeps_its_epsilon_and_loses_its_certificate():
    secret, _ = account(SMALL)
    seen, made = account(with_train(noise_seed=0))
    assert any(row.certified for row in secret) and not any(row.certified for row in seen)
    says = (
        "not certified: train.noise_seed makes cohorts, batches and noise reproducible, so anyone with the config knows "
        "the draws"
    )
    for before, after in zip(secret, seen, strict=True):
        assert (before.tap, before.unit, before.rule, before.epsilon) == (
            after.tap,
            after.unit,
            after.rule,
            after.epsilon,
        )
        assert after.reason == (f"{before.reason}; {says}" if before.certified else before.reason)
    row = ledger.certified(made.transcript(), "server", "example", 1e-5)
    assert row.epsilon is not None and not row.certified and row.reason.endswith(says)
    assert ledger.as_planned(made.setting).secret_draws


def test_a_run_from_before_secret_draws_is_not_certified(run):
    """It has neither a transcript nor a secret. A run that has ended may lose its secret and keeps its certificate."""
    sure = lambda: any(row.certified for row in ledger.rows(transcript_of(run)))  # noqa: E731
    (run / "secret.key").rename(run / "elsewhere")
    assert sure()
    (run / "transcript.jsonl").unlink()
    assert not sure()
    (run / "elsewhere").rename(run / "secret.key")
    assert sure()


def test_the_result_of_a_seeded_run_says_so(fedveil_cli, tmp_path):
    result = fedveil.train(with_train(noise_seed=0))
    assert result.ledger and not any(row.certified for row in result.ledger)
    given = [
        f"{section}.{key}={value}"
        for section, keys_ in with_train(noise_seed=0).items()
        for key, value in keys_.items()
    ]
    options = [part for setting in given for part in ("-s", setting)]
    answer = fedveil_cli("train", *options, "--out", "run", cwd=tmp_path)
    told = " ".join(answer.out.replace("│", " ").split())
    assert "nothing is certified at any tap: train.noise_seed makes" in told


def test_budgets_and_calibration_go_by_the_plan(fedveil_cli, tmp_path):
    secret, _ = account(SMALL)
    cost = next(row.epsilon for row in secret if row.certified and (row.tap, row.unit) == ("release", "example"))
    budget = {"epsilon": 0.8 * cost, "delta": 1e-5, "tap": "release", "unit": "example"}
    stops = [prepare(from_dict(with_train(budget=budget, **more))) for more in ({}, {"noise_seed": 0})]
    assert stops[0].rounds == stops[1].rounds < 3 and stops[1].stops
    options = ["-s", "defense.name=fed-cdp", "--epsilon", "4", "--json"]
    known, again = (
        json.loads(fedveil_cli("calibrate", *options, *more, cwd=tmp_path).out)
        for more in ((), ("-s", "train.noise_seed=0"))
    )
    assert known["noise"] == again["noise"] and known["epsilon"] == again["epsilon"]
    assert known["row"]["certified"] and not again["row"]["certified"]


def test_a_seed_cannot_be_deployed():
    from fedveil.deploy.limits import check_deployable

    config = from_dict(with_train(noise_seed=0))
    with pytest.raises(ConfigError, match=r"train\.noise_seed: got 0; makes the draws known to everyone"):
        check_deployable(config)
    check_deployable(config, test=True)
