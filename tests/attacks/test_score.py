"""Scores compare with the truth by stated rules."""

from dataclasses import replace

import numpy as np
import pytest

from fedveil.attacks.base import Reconstruction
from fedveil.attacks.score import RULES, interval, psnr, score, until_belief
from fedveil.core.errors import ConfigError, RunError


def made(inputs, labels, seeds=1, distance=1e-6, trace=None):
    """A reconstruction of so many attacks, repeated for each seed."""
    inputs, labels = np.asarray(inputs, float), np.asarray(labels)
    attacks = len(inputs)
    total = attacks * seeds
    return Reconstruction(
        attack=np.tile(np.arange(attacks), seeds),
        seed=np.repeat(np.arange(seeds), attacks),
        inputs=np.tile(inputs, (seeds, *[1] * (inputs.ndim - 1))),
        labels=np.tile(labels, (seeds, 1)),
        objective=np.full(total, distance),
        distance=np.full(total, distance),
        iterations=np.full(total, 7),
        evaluations=np.full(total, 140),
        ending=np.full(total, "spent"),
        trace=np.tile(trace if trace is not None else np.full((1, 8), 1e-6) ** np.arange(8), (total, 1))[:total],
        seconds=2.0,
        compile_seconds=0.0,
    )


def images(count, examples=1, seed=0):
    return np.random.default_rng(seed).random((count, examples, 9, 9, 3))


def test_a_perfect_copy_and_a_bad_one():
    x, y = images(4), np.arange(4)[:, None]
    found = x.copy()
    found[3] = 1 - found[3]
    summary = score(made(found, y), x, y).summary()
    assert summary["success_rate"] == 0.75 and summary["label_success_rate"] == 1.0
    assert summary["interval"][0] < 0.75 < summary["interval"][1]
    assert summary["iterations"] == 1 and summary["seconds_per_attack"] == 0.5 and summary["rule"].startswith("SSIM")
    assert {"ssim", "mse", "psnr", "iterations", "seconds", "images", "rule", "success_rate"} <= summary.keys()


def test_truth_may_come_without_the_axis_of_examples():
    x, y = images(3), np.arange(3)[:, None]
    assert score(made(x, y), x[:, 0], y[:, 0]).success.all()


def test_rules():
    x, y = images(2), np.zeros((2, 1), int)
    near = np.clip(x + 0.02, 0, 1)
    assert score(made(near, y), x, y, "mse").success.all()
    assert not score(made(near + 0.1, y), x, y, "mse").success.any()
    assert score(made(1 - x, y, distance=1e-5), x, y, "distance").success.all()
    assert not score(made(x, y, distance=1e-3), x, y, "distance").success.any()
    with pytest.raises(ConfigError, match="did you mean 'ssim'"):
        score(made(x, y), x, y, "sim")
    vectors = np.zeros((2, 1, 5))
    assert score(made(vectors, y), vectors, y).rule is RULES["mse"]
    with pytest.raises(RunError, match="for images"):
        score(made(vectors, y), vectors, y, "ssim")


def test_belief_and_success_are_two_things():
    x, y = images(2), np.zeros((2, 1), int)
    summary = score(made(1 - x, y, distance=1e-6), x, y).summary()
    assert summary["success_rate"] == 0.0 and summary["believed_rate"] == 1.0


def test_a_criterion_that_holds_before_the_first_step_is_no_belief():
    """Where gradients vanish, every input is within the threshold; a solution in closed form has no first step."""
    x, y = images(2), np.zeros((2, 1), int)
    vanished = made(1 - x, y, distance=1e-9, trace=np.full((1, 8), 1e-8))
    scored = score(vanished, x, y, "distance")
    assert scored.summary()["believed_rate"] == 0.0 and not scored.success.any()
    assert until_belief(vanished).tolist() == [7, 7]
    closed = replace(vanished, evaluations=np.zeros(2, int))
    assert score(closed, x, y).summary()["believed_rate"] == 1.0 and until_belief(closed).tolist() == [0, 0]


def test_quality_is_also_averaged_over_successes():
    from fedveil.attacks.study import pooled

    x, y = images(4), np.zeros((4, 1), int)
    found = np.clip(x + 0.01, 0, 1)
    found[3] = 1 - x[3]
    document = pooled([score(made(found, y), x, y)])
    assert document["success_rate"] == 0.75
    assert document["mse_of_successes"] < 1.1e-4 < document["mse"]
    assert document["rmse_of_successes"] == pytest.approx(0.01, rel=0.02)
    assert document["rmse_of_successes"] < document["rmse"] < np.sqrt(document["mse"])
    assert document["ssim_of_successes"] > 0.99 > document["ssim"]
    nothing = pooled([score(made(1 - x, y), x, y)])
    assert nothing["mse_of_successes"] is None and nothing["rmse_of_successes"] is None


def test_order_does_not_matter_in_a_batch_and_labels_go_along():
    x, y = images(2, examples=3), np.array([[0, 1, 2], [3, 4, 5]])
    order = [2, 0, 1]
    scored = score(made(x[:, order], y[:, order]), x, y)
    assert scored.success.all() and scored.items.label.all()
    crossed = score(made(x[:, order], y), x, y)
    assert crossed.success.all() and not crossed.items.label.any()


def test_iterations_until_the_attacker_believes():
    trace = np.array([[1.0, 1e-2, 9e-5, 1e-5, np.nan, np.nan, np.nan, np.nan]])
    x, y = images(2), np.zeros((2, 1), int)
    assert until_belief(made(x, y, trace=trace)).tolist() == [2, 2]
    assert until_belief(made(x, y, trace=np.ones((1, 8)))).tolist() == [7, 7]


def test_one_hot_groups():
    x = np.zeros((2, 1, 6))
    x[:, 0, 1] = x[:, 0, 4] = 1.0
    found = x * 0.6
    found[1, 0, 5] = 0.9
    scored = score(made(found, np.zeros((2, 1), int)), x, np.zeros((2, 1), int), groups=((0, 3), (3, 6)))
    assert scored.items.fields[:, 0].tolist() == [1.0, 0.5]


def test_small_images_and_psnr():
    x = np.random.default_rng(0).random((1, 1, 4, 4, 1))
    assert score(made(x, [[0]]), x, [[0]]).items.ssim[0, 0] == 1.0
    assert psnr(np.array([1e-2, 0.0])).tolist() == [20.0, 100.0]


def test_intervals():
    low, high = interval(np.array([1, 1, 1, 1]), np.arange(4))
    assert 0.4 < low < 0.6 and high == 1.0
    # Textbook's: three of four are 0.30 to 0.95.
    assert interval(np.array([1, 1, 0, 1]), np.arange(4)) == pytest.approx((0.3006, 0.9544), abs=1e-4)


def test_more_starts_of_the_same_victims_make_no_narrower_interval():
    once = interval(np.array([1, 1, 0, 1]), np.arange(4))
    assert interval(np.array([1, 1, 0, 1] * 10), np.tile(np.arange(4), 10)) == pytest.approx(once)
