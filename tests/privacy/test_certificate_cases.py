"""Cases in which a printed ε was once lower than the true one: what runs, measured against what is accounted.

The cases on nodes and servers are in tests/deploy/test_certificate_deployed.py, those of the clip in tests/mechanisms.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedveil
from fedveil.accounting import accounts, ledger, transcript
from fedveil.config import from_dict
from fedveil.core.errors import RunError
from fedveil.core.setting import Setting
from fedveil.core.stage import Effect, StageContext
from fedveil.defenses.base import Defense
from fedveil.defenses.catalog import DEFENSES
from fedveil.defenses.dgc import DGC
from fedveil.defenses.dpfl import DPFL
from fedveil.defenses.fed_cdp import FedCDP
from fedveil.defenses.fed_sdp import FedSDP
from fedveil.defenses.lip import LIP
from fedveil.defenses.prune import Prune
from fedveil.defenses.two_dp import TwoDP
from fedveil.federation import _largest_share, plan, prepare
from fedveil.run_account import transcript_of

DELTA = 1e-5
SETTING = Setting(
    clients=10, per_round=10, rounds=20, batch=5, local_steps=1, sampling="fixed", batching="shuffle",
    aggregation="fedavg", weights="uniform", lr=0.1, smallest=50, sizes=((50, 1),), layers=2, examples=500,
)  # fmt: skip


def epsilon(defenses: list[Defense], tap: str, unit: str, setting: Setting = SETTING, rounds: int = 10) -> float | None:
    row = ledger.certified(transcript.planned(defenses, setting, rounds), tap, unit, DELTA)
    return row.epsilon if row.certified else None


# --- filters that read data after the noise


@pytest.mark.parametrize("reader", [LIP(), DPFL(finetune=False, selection="uniform")], ids=["lip", "dpfl pogz"])
def test_noise_by_private_importance_ends_the_certificate_before_it(reader: Defense) -> None:
    setting = replace(SETTING, aggregation="fedsgd")
    assert epsilon([FedCDP()], "server", "example", setting) is not None
    assert epsilon([FedCDP(), reader], "server", "example", setting) is None
    assert epsilon([FedCDP(), reader], "release", "example", setting) is None


def test_noise_on_named_layers_reads_nothing_private() -> None:
    setting = replace(SETTING, aggregation="fedsgd")
    both = [FedCDP(), LIP(layers=("a",))]
    assert epsilon(both, "server", "example", setting) == epsilon([FedCDP()], "server", "example", setting)


@dataclass(frozen=True)
class Silent(Defense):
    """A filter at one stage that does not say what it does."""

    stage: str

    def fills(self, stage: str) -> bool:
        return stage == self.stage


@dataclass(frozen=True)
class Said(Silent):
    what: Effect = Effect.POST_PROCESSING

    def effect(self, stage: str) -> Effect:
        return self.what


@pytest.mark.parametrize("stage", ["batch", "update", "upload", "aggregate", "finish", "broadcast"])
def test_a_filter_that_says_nothing_costs_the_certificate(stage: str) -> None:
    setting = replace(SETTING, aggregation="fedsgd")
    assert epsilon([FedCDP(), Silent(stage)], "client", "example", setting) is None
    assert epsilon([FedCDP(), Said(stage)], "client", "example", setting) is not None


def test_before_the_clip_anything_may_happen() -> None:
    setting = replace(SETTING, aggregation="fedsgd")
    assert epsilon([Silent("batch"), FedSDP(placement="client")], "client", "client", setting) is not None
    assert epsilon([FedSDP(), Said("upload")], "release", "client", setting) is None  # enlarges what was clipped
    assert epsilon([FedSDP(), Prune()], "release", "client", setting) is not None


# --- 2DP-FL: noise of the server


SAME = TwoDP(noise=0.0, server_noise=8.0, server_noise_mode="same")


@pytest.mark.parametrize("lr_end", [None, 0.001, 0.5])
def test_noise_of_a_round_covers_the_learning_rate_of_what_it_covers(lr_end: float | None) -> None:
    """The model of round t holds contributions made at lr(t − 1); noise and sensitivity are measured."""
    setting = replace(SETTING, lr_end=lr_end)
    ones = {"a": {"w": jnp.zeros((100, 200))}}
    for number in (1, 7, 19):
        key = jax.random.key(number)
        at = StageContext(setting, key, key, number, setting.lr_at(number))
        scale = float(np.std(SAME.broadcast(ones, at)["a"]["w"]))
        moved = setting.lr_at(number - 1) * setting.local_steps * SAME.clip / setting.per_round
        (placed,) = SAME.mechanisms(setting)
        assert scale / moved == pytest.approx(placed.multiplier_at(setting, number, setting.lr_at(number)), rel=0.02)
        assert scale / moved == pytest.approx(SAME.server_noise, rel=0.02)


def test_memory_of_batches_is_no_contribution_that_the_server_covers() -> None:
    assert epsilon([SAME], "broadcast", "client") is not None
    assert epsilon([DGC(stage="batch"), SAME], "broadcast", "client") is None


def test_shares_by_size_are_taken_at_their_largest() -> None:
    """Five clients of 200 and five of 2, five in a round: a large one may meet four small ones."""
    weights = np.array([200.0] * 5 + [2.0] * 5)
    setting = replace(
        SETTING, per_round=5, weights="size", max_weight=200 / 101, min_weight=2 / 101,
        max_share=_largest_share(weights / weights.mean(), 5, "fixed"),
    )  # fmt: skip
    assert setting.share == pytest.approx(200 / 208)
    (placed,) = SAME.mechanisms(setting)
    assert placed.multiplier_at(setting, 1, setting.lr) == pytest.approx(8.0 / (5 * 200 / 208))
    even = replace(SETTING, per_round=5)
    assert epsilon([SAME], "broadcast", "client", setting) > 3 * epsilon([SAME], "broadcast", "client", even)


def test_every_attempt_at_a_round_counts() -> None:
    made = transcript.start([SAME], SETTING)
    once, again = transcript.Recorder(made), transcript.Recorder(made)
    for number in range(5):
        for recorder, attempts in ((once, 1), (again, 2)):
            for attempt in range(attempts):
                entry = transcript.executed([SAME], SETTING, number, SETTING.lr_at(number), 10, 0, attempt)
                recorder.append(entry)
                recorder.outcome(number, attempt, dropped=0)
    few, many = (ledger.certified(r.transcript(), "broadcast", "client", DELTA) for r in (once, again))
    assert few.rounds == 5 and many.rounds == 10 and many.epsilon > 1.3 * few.epsilon
    planned = ledger.certified(transcript.planned([SAME], SETTING, 10), "broadcast", "client", DELTA)
    assert many.epsilon == planned.epsilon


def test_a_lost_answer_makes_the_others_weigh_more_than_the_noise_covers() -> None:
    recorder = transcript.Recorder(transcript.start([SAME], SETTING))
    recorder.append(transcript.executed([SAME], SETTING, 0, SETTING.lr, 10, 0))
    recorder.outcome(0, dropped=0, lost=1)
    row = ledger.certified(recorder.transcript(), "broadcast", "client", DELTA)
    assert row.epsilon is None and "weighed more" in row.reason


# --- amplification


def test_a_noise_scale_that_names_the_cohort_does_not_amplify() -> None:
    setting = replace(SETTING, clients=100, aggregation="fedsgd", rounds=50)
    uneven = replace(setting, weights="size", max_weight=1.9, min_weight=0.1)
    for one, amplifies in ((setting, True), (uneven, False)):
        rows = ledger.rows(transcript.planned([FedSDP()], one, 50), DELTA)
        rules = {r.rule for r in rows if r.unit == "client" and r.tap == "release" and r.accountant != "paper"}
        assert ("amplified" in rules) == amplifies


# --- the tap `example` and the model see one draw


CDP = {
    "data": {"name": "digits", "clients": 4, "per_client": 60},
    "model": {"name": "logistic"},
    "train": {"rounds": 1, "per_round": 4, "sampling": "fixed", "local_steps": 1, "batch": 3, "noise_seed": 0},
    "defense": [{"name": "fed-cdp", "clip": 1.0, "noise": 2.0}],
    "speed": {"precision": "float64"},
}


def _taps(batching: str, open_examples: bool = False) -> tuple[Any, Any, Any]:
    document = {**CDP, "train": {**CDP["train"], "batching": batching}}
    federation = prepare(from_dict(document))
    simulator = federation.simulator
    if open_examples:
        simulator = simulator.variant(task=replace(simulator.task, open_examples=True))
    state = simulator.start()
    seen = simulator.observe(state, 0, 0, frozenset({"example", "batch"}))
    closed = simulator.observe(state, 0, 0, frozenset({"batch"}))
    return simulator, seen, closed


def _flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(tree)])


def test_what_the_tap_shows_adds_up_to_what_moves_the_model() -> None:
    """Batches of fixed size: the sum over what the tap shows is the sum that moves the model, open or closed."""
    _, seen, closed = _taps("shuffle")
    shown = jax.tree.map(lambda a: a.sum(axis=0) / 3, seen["example"][0])
    np.testing.assert_allclose(_flat(shown), _flat(seen["batch"][0]), rtol=1e-9)
    np.testing.assert_allclose(_flat(shown), _flat(closed["batch"][0]), rtol=1e-9)


def test_slots_share_one_draw_of_the_right_distribution() -> None:
    defense, batch = FedCDP(clip=1.0, noise=2.0), 4
    setting = replace(SETTING, batch=batch, layers=1)
    each = {"a": {"w": jnp.zeros((6, 300, 200))}}
    key = jax.random.key(3)
    at = StageContext(setting, key, key, 0, 0.1, open=True)
    mask = jnp.arange(6) < 6
    shown, rest = defense.example(each, mask, at)
    noise = np.asarray(shown["a"]["w"]).reshape(6, -1)
    np.testing.assert_allclose(noise.std(axis=1), 2.0, rtol=0.02)
    assert np.abs(np.corrcoef(noise) - np.eye(6)).max() < 0.02
    # Two examples more than the nominal four: all six carry noise in the sum, none is left clean.
    total = noise.sum(axis=0) + np.asarray(rest["a"]["w"]).ravel()
    assert np.std(total) == pytest.approx(2.0 * math.sqrt(6), rel=0.02)
    closed = replace(at, open=False)
    _, rest = defense.example(each, mask, closed)
    total = noise.sum(axis=0) + np.asarray(rest["a"]["w"]).ravel()
    whole = np.asarray(defense.example_sum(each, mask, closed)["a"]["w"]).ravel()
    np.testing.assert_allclose(total, whole, atol=1e-4)  # nobody looks: one draw of nominal size
    assert np.std(whole) == pytest.approx(2.0 * math.sqrt(4), rel=0.02)


def test_no_gradient_is_left_clean_beside_an_open_tap() -> None:
    """Every slot of a large Poisson batch: the sum less what the tap shows holds no gradient."""
    defense = FedCDP(clip=1.0, noise=2.0)
    setting = replace(SETTING, batch=2, layers=1, batching="poisson")
    key = jax.random.key(5)
    at = StageContext(setting, key, key, 0, 0.1, open=True)
    mask = jnp.ones(5, bool)
    zeros = {"a": {"w": jnp.zeros((5, 1, 50))}}
    some = {"a": {"w": jnp.zeros((5, 1, 50)).at[4, 0, 7].set(1.0)}}
    for each in (zeros, some):
        _, rest = defense.example(each, mask, at)
        left = np.asarray(rest["a"]["w"])  # what the sum holds beyond what the tap shows
        assert np.abs(left).max() < 1e-5


# --- the account of a run is that of what it executed


def forty_layers() -> Any:
    def init(key: Any) -> Any:
        made = {f"layer{n:02d}": {"w": jnp.ones((1,))} for n in range(39)}
        return {**made, "out": {"w": 0.01 * jax.random.normal(key, (64, 10))}}

    def apply(params: Any, x: Any) -> Any:
        scale = sum(params[f"layer{n:02d}"]["w"][0] for n in range(39)) / 39
        return scale * x.reshape(len(x), -1) @ params["out"]["w"]

    return fedveil.from_functions(init, apply)


def test_a_model_of_forty_layers_is_accounted_as_such(tmp_path: Path, fedveil_cli: Any) -> None:
    settings = {
        "data": {"name": "digits", "clients": 4, "per_client": 60},
        "train": {"rounds": 2, "per_round": 4, "local_steps": 1, "batch": 5},
        "defense": [{"name": "fed-cdp", "placement": "batch"}],
    }
    result = fedveil.train(settings, model=forty_layers(), out=tmp_path / "run")
    assert transcript_of(tmp_path / "run").setting.layers == 40
    _agree(tmp_path / "run", result.ledger, fedveil_cli)


def _agree(run: Path, rows: list[ledger.Row], cli: Any) -> None:
    """`fedveil ledger RUN` and the run's own account are the same to the digit."""
    told = json.loads(cli("ledger", str(run), "--accountant", "pld", "--json", "--all", cwd=run.parent).out)
    own = [r.as_dict() for r in rows if r.accountant == "pld" and r.rule in ("participation", "amplified", "none")]
    told = [r for r in told if r["rule"] in ("participation", "amplified", "none")]
    assert told == own and own


KEYS: dict[str, dict[str, Any]] = {
    "fed-cdp": {"noise": 2.0, "noise_end": 1.0},
    "fed-sdp": {"placement": "client"},
    "2dp-fl": {"server_noise_mode": "same"},
    "dpfl": {"allocation": "even", "finetune": False},
    "squeeze": {"steps": 1},
}
AGREEING = [
    pytest.param([{"name": name, **KEYS.get(name, {})}], marks=() if kind.private else pytest.mark.slow)
    for name, kind in DEFENSES.items()
] + [[{"name": "dgc"}, {"name": "fed-cdp"}]]


@pytest.mark.parametrize("defense", AGREEING)
def test_run_result_and_plan_agree(defense: list[dict], tmp_path: Path, fedveil_cli: Any) -> None:
    settings = {
        "data": {"name": "digits", "clients": 4, "per_client": 60},
        "model": {"name": "logistic"},
        "train": {"rounds": 2, "per_round": 2, "local_steps": 1, "batch": 5, "lr_end": 0.01, "lr": 0.1},
        "defense": defense,
    }
    result = fedveil.train(settings, out=tmp_path / "run")
    planned = ledger.rows(plan(from_dict(settings)).transcript(), accountants=("paper", "pld"))
    assert [r.as_dict() for r in result.ledger] == [r.as_dict() for r in planned]
    assert transcript_of(tmp_path / "run").groups == plan(from_dict(settings)).transcript().groups
    _agree(tmp_path / "run", result.ledger, fedveil_cli)


@pytest.mark.parametrize("sigma", [0.001, pytest.param(0.02, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["fed-cdp", "fed-sdp", "2dp-fl"])
def test_small_noise_never_loses_a_result(name: str, sigma: float, tmp_path: Path) -> None:
    settings = {
        "data": {"name": "digits", "clients": 4, "per_client": 60},
        "model": {"name": "logistic"},
        "train": {"rounds": 2, "per_round": 2, "local_steps": 1, "batch": 5},
        "defense": [{"name": name, "noise": sigma}],
    }
    result = fedveil.train(settings, out=tmp_path / "run")
    assert result.rounds == 2 and result.ledger
    assert fedveil.train(out=tmp_path / "run", resume=True).rounds == 2


# --- plug-ins


def test_company_is_decided_by_types_not_by_names() -> None:
    """A defence from outside the package, with a mechanism of its own, gets an account like any other."""

    @dataclass(frozen=True)
    class Mine(Defense):
        name = "mine"

        def fills(self, stage: str) -> bool:
            return stage == "update"

        def effect(self, stage: str) -> Effect:
            return Effect.MECHANISM

        def mechanisms(self, setting: Setting) -> list[Any]:
            return FedSDP(placement="client", noise=3.0).mechanisms(setting)

    setting = replace(SETTING, aggregation="fedsgd")
    theirs = epsilon([Mine()], "client", "client", setting)
    assert theirs == epsilon([FedSDP(placement="client", noise=3.0)], "client", "client", setting)
    assert not accounts.declared([Mine(), Silent("upload")], setting)[0].certifiable


# --- curves


def test_the_curve_of_a_row_is_that_of_its_gaussian() -> None:
    """Ten rounds of one client's noise z = 6/√2, all seen: μ = √10/z, and the trade-off of that Gaussian."""
    from scipy.stats import norm

    setting = replace(SETTING, aggregation="fedsgd")
    made = transcript.planned([FedSDP(placement="client")], setting, 10)
    row = ledger.certified(made, "client", "client", DELTA, "zero-out")
    found = ledger.curve(made, row, (0.01, 0.1))
    mu = math.sqrt(10) / (6 / math.sqrt(2))
    assert found is not None and found.mu == pytest.approx(mu, rel=0.01)
    for alpha, miss in found.trade_off:
        assert miss == pytest.approx(norm.cdf(norm.ppf(1 - alpha) - mu), abs=0.01)
    assert ledger.curve(made, replace(row, accountant="rdp")) is None


# --- found by attacking the transcript


TRAINED = {
    "data": {"name": "digits", "clients": 4, "per_client": 60},
    "model": {"name": "logistic"},
    "train": {"rounds": 3, "per_round": 2, "local_steps": 1, "batch": 5},
    "defense": [{"name": "fed-cdp"}],
}


def test_a_transcript_that_lost_lines_is_refused(tmp_path: Path) -> None:
    fedveil.train(TRAINED, out=tmp_path / "run")
    file = tmp_path / "run" / transcript.FILE
    lines = file.read_text().splitlines()
    kept = [line for line in lines if json.loads(line).get("round", json.loads(line).get("outcome")) != 2]
    file.write_text("\n".join(kept) + "\n")
    with pytest.raises(RunError, match="lacks round 2"):
        transcript_of(tmp_path / "run")


def test_rounds_made_again_with_other_draws_are_refused(tmp_path: Path) -> None:
    """The same rounds with the same draws count once; with another secret they would be a second release."""
    fedveil.train(TRAINED, out=tmp_path / "run")
    (tmp_path / "run" / "checkpoint.npz").unlink()
    before = transcript_of(tmp_path / "run")
    fedveil.train(out=tmp_path / "run", resume=True)
    assert transcript_of(tmp_path / "run").groups == before.groups
    (tmp_path / "run" / "checkpoint.npz").unlink()
    key = tmp_path / "run" / "secret.key"
    assert key.stat().st_mode & 0o777 == 0o600
    key.write_bytes(bytes(32)[: len(key.read_bytes())] if len(key.read_bytes()) == 32 else b"0" * 64)
    with pytest.raises(RunError, match="draws"):
        fedveil.train(out=tmp_path / "run", resume=True)


def test_a_config_edited_half_way_is_refused(tmp_path: Path) -> None:
    fedveil.train(TRAINED, out=tmp_path / "run")
    (tmp_path / "run" / "checkpoint.npz").unlink()
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("noise = 6.0", "noise = 60.0"))
    with pytest.raises(RunError, match="was changed after the run began"):
        fedveil.train(out=tmp_path / "run", resume=True)
    info = tmp_path / "run" / "run.json"
    info.write_text(
        json.dumps(json.loads(info.read_text()) | {"config_sha256": None})
    )  # a run from before there was a digest
    with pytest.raises(RunError, match="does not fit"):
        fedveil.train(out=tmp_path / "run", resume=True)


def test_a_dropped_message_makes_the_divisor_depend_on_data() -> None:
    setting = replace(SETTING, aggregation="fedsgd")
    for sampling, held in (("fixed", False), ("poisson", True)):
        made = transcript.planned([FedSDP()], replace(setting, sampling=sampling), 5)
        assert ledger.certified(made, "release", "client", DELTA).epsilon is not None
        broken = ledger.certified(replace(made, dropped=1), "release", "client", DELTA)
        assert (broken.epsilon is not None) == held
        assert held or "depends on data" in broken.reason


def test_a_transcript_with_the_former_names_of_fields_is_read(tmp_path: Path) -> None:
    """Fields of a release were renamed; the account of an older run stays readable."""
    fedveil.train(CDP, out=tmp_path / "run")
    file = tmp_path / "run" / transcript.FILE
    now, text = transcript.read(file), re.sub(r', "check": "\w+"}', "}", file.read_text())  # older files have no checks
    for new, old in (("distribution", "law"), ("client_noise_sums", "adds_up"), ("certifiable", "covered")):
        assert f'"{new}"' in text
        text = text.replace(f'"{new}"', f'"{old}"')
    file.write_text(text)
    assert transcript.read(file) == now
