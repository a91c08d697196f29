"""Curves, areas and rates by their definitions; bounds that hold under privacy and fail without it."""

import numpy as np
import pytest

from fedveil.attacks.inference import roc


@pytest.fixture
def drawn():
    """Scores of 300 records with ties, members a little higher."""
    rng = np.random.default_rng(0)
    member = rng.random(300) < 0.5
    return np.round(rng.normal(size=300) + 0.8 * member, 1), member


def test_the_area_is_the_share_of_pairs_in_order(drawn):
    scores, member = drawn
    inside, outside = scores[member][:, None], scores[~member][None, :]
    pairs = np.mean((inside > outside) + 0.5 * (inside == outside))
    assert roc.auc(scores, member) == pytest.approx(pairs)
    assert roc.auc(np.zeros(300), member) == 0.5


def test_the_curve_has_a_point_for_each_distinct_score(drawn):
    scores, member = drawn
    false, true = roc.curve(scores, member)
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1) and len(false) == len(np.unique(scores)) + 1
    for threshold, f, t in zip(np.unique(scores)[::-1], false[1:], true[1:], strict=True):
        assert (f, t) == (np.mean(scores[~member] >= threshold), np.mean(scores[member] >= threshold))
    assert np.trapezoid(true, false) == pytest.approx(roc.auc(scores, member))


def test_true_positives_at_a_false_positive_rate():
    scores = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    member = np.array([True, False, True, True, False, False])
    assert roc.tpr_at(scores, member, 0.0) == pytest.approx(1 / 3)
    assert roc.tpr_at(scores, member, 0.33) == pytest.approx(1 / 3)
    assert roc.tpr_at(scores, member, 1 / 3) == 1.0
    assert roc.tpr_at(-scores, member, 0.5) == 0.0  # two of three others come first


def test_the_mean_curve_is_taken_at_equal_false_positives(drawn):
    scores, member = drawn
    false, true = roc.mean_curve(np.stack([scores, -scores]), np.stack([member, member]))
    assert false[[0, -1]].tolist() == [0, 1] and true[-1] == 1
    one, other = roc.curve(scores, member), roc.curve(-scores, member)
    for at in (0.05, 0.2, 0.7):
        mean = np.mean([t[f <= at].max() for f, t in (one, other)])
        assert true[false <= at].max() == pytest.approx(mean)


def test_intervals_cover_what_they_should():
    rng = np.random.default_rng(1)
    inside = np.arange(100) < 50
    truth = 0.7602  # P[X + 1 > Y], X and Y normal
    hits = []
    for _ in range(300):
        area = roc.auc(rng.normal(size=100) + inside, inside)
        low, high = roc.auc_interval(area, 50, 50)
        hits.append(low <= truth <= high)
    assert 0.9 < np.mean(hits) < 0.99
    assert roc.rate_interval(0, 20) == (0.0, pytest.approx(0.1684, abs=1e-4))
    assert roc.rate_interval(20, 20)[1] == 1.0
    assert roc.mean_interval(np.array([0.0, 2.0])) == (
        pytest.approx(-11.706, abs=1e-3),
        pytest.approx(13.706, abs=1e-3),
    )
    assert roc.mean_interval(np.full(3, 0.25)) == (0.25, 0.25)


def test_summary_averages_federations_and_never_compares_across_them(drawn):
    scores, member = drawn
    one = roc.summary(scores, member)
    assert one["federations"] == 1 and one["interval"][0] < one["auc"] < one["interval"][1]
    group = np.repeat([0, 1], 300)
    two = roc.summary(np.append(scores, scores + 100), np.append(member, member), group)
    assert two["auc"] == pytest.approx(one["auc"]) and two["federations"] == 2
    assert two["tpr_at_fpr"]["0.1"]["tpr"] == pytest.approx(one["tpr_at_fpr"]["0.1"]["tpr"])


def test_what_privacy_allows():
    assert roc.allowed_tpr(0.1, np.log(3), 0.01) == pytest.approx(0.31)
    assert roc.allowed_tpr(0.9, np.log(3), 0.01) == pytest.approx(1 - 0.09 / 3)
    assert roc.allowed_tpr(0.0, 1e4, 0.0) == 0.0 and roc.allowed_tpr(0.2, 0.0, 0.0) == pytest.approx(0.2)


def answered_at_random(rng, records, epsilon, shared):
    """Coins told by randomised response, which is exactly ε-private. One shared noise shifts all scores of a federation."""
    member = rng.random(records) < 0.5
    truthful = rng.random(records) < 1 / (1 + np.exp(-epsilon))
    told = np.where(truthful, member, ~member)
    return told + 0.1 * rng.random(records) + shared * rng.normal(), member


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_bounds_hold_for_a_mechanism_on_the_edge(epsilon):
    rng = np.random.default_rng(2)
    group = np.repeat([0, 1, 2], 200)
    broken = []
    for _ in range(100):
        parts = [answered_at_random(rng, 200, epsilon, shared=50.0) for _ in range(3)]
        scores, member = np.concatenate([s for s, _ in parts]), np.concatenate([m for _, m in parts])
        found = roc.excess(scores, member, epsilon, 1e-5, group=group)
        broken.append((max(found.values()) > 0, roc.epsilon_low(scores, member, 1e-5, group=group) > epsilon))
    assert np.mean(broken, axis=0).max() <= 0.05 + 0.03  # at most 5 % by design; 100 draws


def test_bounds_catch_a_mechanism_that_claims_too_little():
    rng = np.random.default_rng(3)
    scores, member = answered_at_random(rng, 2000, 2.0, shared=0.0)
    assert roc.excess(scores, member, 1.0, 1e-5)["0.1"] > 0
    assert 1.0 < roc.epsilon_low(scores, member, 1e-5) < 2.0
    assert roc.epsilon_low(scores, rng.random(2000) < 0.5, 1e-5) < 0.2  # scrambled coins tell nothing


def test_too_few_guesses_find_nothing():
    scores, member = np.arange(20.0), np.arange(20) >= 10
    assert max(roc.excess(scores, member, 0.1, 1e-5, fprs=(0.001, 0.05)).values()) <= 0
