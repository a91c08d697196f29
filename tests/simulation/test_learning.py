"""Did it learn? Chance, the test against it, and the cause that is named when a training is at chance."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from fedveil.config import from_dict
from fedveil.defenses.catalog import make
from fedveil.federation import plan, prepare
from fedveil.simulation.learning import Outcome, chance_of, diagnosis, diverged, drowning, learned
from fedveil.simulation.simulator import parameter_count
from fedveil.training import train


def test_chance_is_the_share_of_the_most_common_class() -> None:
    assert chance_of([0, 1, 1, 2]) == 0.5 and chance_of(np.array([3, 3])) == 1.0 and chance_of([]) == 0.0


@pytest.mark.parametrize(
    ("accuracy", "chance", "records", "said"),
    [
        (0.12, 0.11, 450, False),
        (0.15, 0.11, 450, True),
        (0.15, 0.11, 100, False),
        (1.0, 1.0, 50, False),
        (math.nan, 0.1, 1000, False),
        (None, 0.1, 1000, False),
        (0.9, 0.1, 0, False),
    ],
)
def test_learned_means_clearly_above_chance(accuracy: float | None, chance: float, records: int, said: bool) -> None:
    assert learned(accuracy, chance, records) is said


def test_a_guess_counts_as_learned_in_one_of_a_hundred_cases_at_most() -> None:
    right = np.random.default_rng(0).binomial(300, 0.2, 4000) / 300
    assert np.mean([learned(one, 0.2, 300) for one in right]) < 0.013


def test_a_loss_far_above_that_of_equal_guesses_has_diverged() -> None:
    assert diverged(math.nan, 10) and diverged(None, 10) and diverged(89_307.0, 10)
    assert not diverged(math.log(10), 10) and not diverged(0.01, 2)


SMALL = {"data": {"clients": 20}, "model": {"name": "logistic"}, "train": {"local_steps": 1, "batch": 5}}
FAILED = Outcome(0.1, 2.3, 0.12, False, 10)


@pytest.mark.parametrize(
    ("defense", "stage"),
    [
        ({"name": "fed-cdp", "placement": "batch"}, "example"),
        ({"name": "fed-cdp", "placement": "example"}, "example"),
        ({"name": "fed-cdp", "placement": "cohort", "clip_scope": "flat"}, "example"),
        ({"name": "fed-sdp"}, "aggregate"),
        ({"name": "fed-sdp", "placement": "server-each"}, "aggregate"),
        ({"name": "fed-sdp", "placement": "client"}, "update"),
        ({"name": "2dp-fl", "server_noise_mode": "none"}, "example"),
        ({"name": "nbafl"}, "upload"),
        ({"name": "dpfl", "allocation": "even", "selection": "uniform", "finetune": False}, "upload"),
    ],
)
def test_the_named_ratio_is_that_of_the_noise_that_runs(defense: dict[str, object], stage: str) -> None:
    """The length of the noise in one global step, measured as the spread of rounds that differ in their noise alone."""
    ready = prepare(from_dict({**SMALL, "train": {**SMALL["train"], "sampling": "fixed"}, "defense": defense}))
    task = ready.simulator.task
    found = drowning(task.defenses, task.setting, parameter_count(task))
    assert found is not None and found.stage == stage
    placed = next(p for p in task.defenses[0].mechanisms(task.setting) if p.tap != "example")
    after = []
    for secret in (1, 2):
        from fedveil.core.keys import Draws

        one = prepare(ready.config, draws=Draws(secret=bytes([secret] * 32)))
        state, _ = one.simulator.round(one.simulator.start(), 0)
        after.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.params)]))
    spread = float(np.linalg.norm(after[0] - after[1])) / math.sqrt(2)
    lr = task.setting.lr if placed.stage == "example" else 1.0
    reach = float(placed.mechanism.clip.reach(task.setting, 2)) * float(placed.mechanism.clip.bound.start) * lr
    assert spread / reach == pytest.approx(found.ratio, rel=0.2)


def test_noise_is_named_with_remedies_that_lower_it() -> None:
    made = plan(from_dict({**SMALL, "defense": {"name": "fed-cdp"}}))
    said = diagnosis(FAILED, made.defenses, made.setting, 650)
    assert "naming the most common class (0.12)" in said and "the noise of fed-cdp on 650 values is" in said
    assert "raise train.batch" in said and "defense.placement = 'batch'" in said
    before = drowning(made.defenses, made.setting, 650)
    for change in ({"train": {**SMALL["train"], "batch": 10}}, {"train": {**SMALL["train"], "per_round": 8}}):
        better = plan(from_dict({**SMALL, **change, "defense": {"name": "fed-cdp", "placement": "batch"}}))
        after = drowning(better.defenses, better.setting, 650)
        assert before is not None and after is not None and after.overall < before.overall


def test_a_defence_without_a_default_that_learns_names_one_that_has() -> None:
    made = plan(from_dict({**SMALL, "defense": {"name": "nbafl"}}))
    said = diagnosis(FAILED, made.defenses, made.setting, 650)
    assert "the noise of nbafl" in said and "No setting of nbafl is known" in said and "take fed-cdp" in said
    made = plan(from_dict({**SMALL, "defense": {"name": "fed-cdp"}}))
    assert "No setting" not in diagnosis(FAILED, made.defenses, made.setting, 650)


def test_without_noise_the_learning_rate_is_named() -> None:
    made = plan(from_dict(SMALL))
    assert "lower train.lr, to 0.01 say" in diagnosis(
        Outcome(0.1, math.inf, 0.12, False, 10, 3), made.defenses, made.setting, 650
    )
    assert "more train.rounds" in diagnosis(FAILED, made.defenses, made.setting, 650)
    noisy = (make({"name": "gradient-noise", "scale": 5.0}, "defense"),)
    assert "the noise of gradient-noise" in diagnosis(FAILED, noisy, made.setting, 650)
    assert "take fed-cdp" in diagnosis(FAILED, noisy, made.setting, 650)
    assert diagnosis(Outcome(0.9, 0.3, 0.12, True, 10), made.defenses, made.setting, 650) == ""


def test_a_training_says_whether_it_learned() -> None:
    good = train({**SMALL, "train": {"rounds": 8, "local_steps": 20}})
    assert good.learned and good.diagnosis == "" and good.chance == pytest.approx(0.12, abs=1e-3)
    bad = train({**SMALL, "train": {"rounds": 2, "lr": 1e6}, "defense": {"name": "fed-cdp", "noise": 50.0}})
    assert bad.diagnosis and bad.as_dict()["learned"] is bad.learned and bad.as_dict()["chance"] == bad.chance
