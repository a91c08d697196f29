"""Each bound against a simulation that it must bound, a case that attains it or comes near, and printed forms that fail.

Means over random draws are compared within 5 standard errors: about one false alarm in 1.7 million per comparison. Seeds
are fixed, so a passing test keeps passing.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import optimize, special

from fedveil.bounds import cpl, fed_cdp, two_dp
from fedveil.bounds.two_dp import Descent
from fedveil.core.errors import ConfigError

ROUNDING = 1.0 + 1e-9
seeds = st.integers(0, 2**32 - 1)


def standard_error(values):
    return values.std(axis=0) / math.sqrt(len(values))


# --- fed-cdp, Proposition 1


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 30), st.integers(2, 10), st.integers(1, 50))
def test_clients_of_equal_size_draw_classes_as_often_as_all_data_has_them(seed, clients, classes, size):
    held = np.random.default_rng(seed).multinomial(size, np.full(classes, 1 / classes), clients)
    np.testing.assert_allclose(*fed_cdp.class_chances(held), atol=1e-12)


def test_clients_of_different_size_do_not():
    drawn, share = fed_cdp.class_chances([[90, 0], [5, 5]])
    assert drawn.tolist() == [0.75, 0.25] and share.tolist() == [0.95, 0.05]
    with pytest.raises(ConfigError, match="held"):
        fed_cdp.class_chances([[1, 0], [0, 0]])


def test_drawn_classes_are_those_of_the_proposition_but_a_batch_is_no_sample_of_all_data():
    """The cohorts and batches of the simulation, on clients of two classes each: singles as stated, pairs not."""
    from fedveil.core.keys import Draws
    from fedveil.data.partition import PartitionSettings, make_partition
    from fedveil.simulation.sampling import BatchSampling, draw_clients, draw_positions

    labels = np.repeat(np.arange(10), 100)
    held = make_partition("shards", labels, PartitionSettings(clients=20, per_client=50))
    draws, batches, found = Draws(0), BatchSampling("without-replacement", 5, 1, None), []
    for round_ in range(600):
        for client in draw_clients(draws.host("cohort", round_), 20, 4, "fixed"):
            rows = held.order[held.start[client] : held.start[client] + held.length[client]]
            found.append(labels[rows[draw_positions(batches, draws, round_, int(client), 0, 50)[0]]])
    drawn = np.array(found)
    counts = [
        np.bincount(labels[held.order[a : a + n]], minlength=10) for a, n in zip(held.start, held.length, strict=True)
    ]
    expected, share = fed_cdp.class_chances(counts)
    np.testing.assert_allclose(expected, share, atol=1e-12)
    shown = np.stack([(drawn == label).mean(axis=1) for label in range(10)], axis=1)  # [batches, classes]
    assert (np.abs(shown.mean(axis=0) - expected) < 5 * standard_error(shown)).all()
    assert (drawn[:, 0] == drawn[:, 1]).mean() > 0.4  # of all data: 0.1


# --- fed-cdp, Proposition 2


def decision(weights, x):
    return int(np.argmax(np.append(x, 1.0) @ weights))


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 6), st.integers(2, 5), st.sampled_from([1.0, 1.5, 2.0, 3.0, math.inf]))
def test_no_shorter_move_changes_a_linear_decision_and_the_worst_longer_one_does(seed, features, classes, norm):
    rng = np.random.default_rng(seed)
    weights, x = rng.normal(size=(features + 1, classes)), rng.normal(size=features)
    label = decision(weights, x)
    margins = fed_cdp.linear_margins(weights, x, label)
    radius = fed_cdp.largest_distortion(margins, fed_cdp.linear_lipschitz(x, norm))
    assume(radius > 1e-6)
    rival = int(np.delete(np.arange(classes), label)[np.argmin(margins)])
    worst = fed_cdp.worst_distortion(x, label, rival, classes, norm)
    assert np.linalg.norm(worst.ravel(), norm) == pytest.approx(1.0)
    assert decision(weights + 0.9999 * radius * worst, x) == label
    assert decision(weights + 1.0001 * radius * worst, x) == rival
    for move in rng.normal(size=(20, *weights.shape)):
        move *= 0.9999 * radius / np.linalg.norm(move.ravel(), norm)
        assert decision(weights + move, x) == label


def test_each_margin_may_have_its_own_constant():
    assert fed_cdp.largest_distortion([3.0, 2.0], 4.0) == 0.5
    assert fed_cdp.largest_distortion([3.0, 2.0], [4.0, 1.0]) == 0.75
    assert fed_cdp.largest_distortion([3.0, 2.0], [0.0, 1.0]) == 2.0
    assert fed_cdp.largest_distortion([3.0, -2.0], 4.0) == 0.0
    with pytest.raises(ConfigError, match="lipschitz: got -1"):
        fed_cdp.largest_distortion([1.0], -1.0)
    with pytest.raises(ConfigError, match="norm: got 0.5"):
        fed_cdp.linear_lipschitz([1.0], 0.5)


def test_the_gradient_at_the_current_weights_is_not_enough_for_relu():
    """A dead unit has no gradient in its own weight: within the radius of the paper's constant the decision is lost."""

    def margin(unit, out, bias):
        return out * max(unit, 0.0) + bias

    weights, gradient = np.array([-0.1, -3.0, 1.0]), np.array([0.0, 0.0, 1.0])
    radius = fed_cdp.largest_distortion([margin(*weights)], np.linalg.norm(gradient))
    move = np.array([0.6, -0.2, -0.3])
    assert np.linalg.norm(move) < 0.71 * radius
    assert margin(*(weights + move)) < 0.0


def test_gaussian_noise_keeps_more_decisions_than_its_norm_tells():
    rng = np.random.default_rng(0)
    weights, x = rng.normal(size=(21, 5)), rng.normal(size=20)
    label = decision(weights, x)
    margins, lipschitz = fed_cdp.linear_margins(weights, x, label), fed_cdp.linear_lipschitz(x)
    radius = fed_cdp.largest_distortion(margins, lipschitz)
    chances = []
    for share in (0.08, 0.3, 1.0):  # of the radius, on each weight
        noise = share * radius
        noised = weights + noise * rng.normal(size=(4000, *weights.shape))
        kept = (np.einsum("f,nfc->nc", np.append(x, 1.0), noised).argmax(axis=1) == label).astype(float)
        sharp = fed_cdp.linear_chance_kept(margins, lipschitz, noise)
        assert sharp <= kept.mean() + 5.0 * standard_error(kept) <= sharp + 0.06
        chances.append((fed_cdp.chance_kept(radius, noise, weights.size), kept.mean()))
    assert all(bound <= kept for bound, kept in chances)
    assert chances[0][0] > 0.99  # the norm tells all
    assert chances[1][0] < 1e-20 and chances[1][1] > 0.99  # the norm tells nothing
    assert fed_cdp.chance_kept(radius, 0.0, 3) == 1.0


def test_the_chance_is_exact_for_one_weight_and_for_two_classes():
    assert fed_cdp.chance_kept(1.0, 1.0, 1) == pytest.approx(0.682689, abs=1e-6)
    assert fed_cdp.linear_chance_kept([2.0], 2.0, 1.0) == pytest.approx(0.841345, abs=1e-6)
    with pytest.raises(ConfigError, match="noise"):
        fed_cdp.chance_kept(1.0, -1.0, 3)
    with pytest.raises(ConfigError, match="above 0"):
        fed_cdp.linear_chance_kept([2.0], 2.0, 0.0)


# --- 2dp-fl, Theorem 1


def answer(weights, x):
    return special.softmax(np.append(x, 1.0) @ weights)


@settings(max_examples=80, deadline=None)
@given(seeds, st.integers(1, 4), st.integers(2, 6), st.floats(-4.0, 1.0))
def test_a_preimage_from_another_model_is_no_further_than_theorem_1(seed, features, classes, exponent):
    rng = np.random.default_rng(seed)
    real, x = rng.normal(size=(features + 1, classes)), rng.normal(size=features)
    used = real + 10.0**exponent * rng.normal(size=real.shape)
    error = np.linalg.norm(x - two_dp.preimage(used, answer(real, x)))
    assert error <= two_dp.preimage_error(x, used, np.linalg.norm(real - used)) * (1.0 + 1e-6) + 1e-6


def test_theorem_1_is_attained():
    rng = np.random.default_rng(0)
    used, x = rng.normal(size=(3, 5)), np.array([0.6, -1.1])
    centred = (used - used.mean(axis=1, keepdims=True))[:-1].T
    left = np.linalg.svd(centred)[0][:, 1]  # of the smaller of two singular values
    real = used + 0.1 * np.outer(np.append(x, 1.0), left)
    error = np.linalg.norm(x - two_dp.preimage(used, answer(real, x)))
    assert error == pytest.approx(two_dp.preimage_error(x, used, np.linalg.norm(real - used)), rel=1e-9)


def test_theorem_1_with_the_constant_of_the_classifier_itself_fails():
    """σ(wx) on one number has slope at most |x|/4 in w, so the paper's λ is |x|/4; the inverse's is |x|/|w'|."""
    x, real, used = 2.0, 1.0, 0.5
    inferred = special.logit(special.expit(real * x)) / used
    assert abs(x - inferred) > abs(x) / 4.0 * abs(real - used) * 7.9
    two_classes = np.array([[0.0, used], [0.0, 0.0]])
    assert abs(x - inferred) <= two_dp.preimage_error([x], two_classes, abs(real - used))


def test_with_fewer_classes_than_inputs_a_part_stays_hidden_even_from_the_real_model():
    rng = np.random.default_rng(1)
    weights, x = rng.normal(size=(9, 4)), rng.normal(size=8)
    error = np.linalg.norm(x - two_dp.preimage(weights, answer(weights, x)))
    assert error > 0.5 * np.linalg.norm(x)
    assert error == pytest.approx(two_dp.preimage_error(x, weights, 0.0), rel=1e-9)
    assert two_dp.preimage_error(x, np.zeros((9, 4)), 1.0) == pytest.approx(np.linalg.norm(x))


# --- a small federation of softmax regressions: four clients with different label shares


RIDGE = 0.3
SHARES = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.3, 0.7], [0.4, 0.3, 0.3]])
SIZES = np.array([10, 10, 20, 20])
WEIGHTS = SIZES / SIZES.sum()  # P_k


def draw_classes(classes=3, features=4, examples=30, seed=1):
    rng = np.random.default_rng(seed)
    centres = 0.5 * rng.normal(size=(classes, features))
    return [centre + 0.5 * rng.normal(size=(examples, features)) for centre in centres]


@dataclass(frozen=True)
class Problem:
    """The federation's loss and gradients, for many models [..., features + 1, classes] at once."""

    classes: list
    ridge: float

    def inputs(self):
        return [np.c_[x, np.ones(len(x))] for x in self.classes]

    def gradients(self, w):
        out = []
        for label, x in enumerate(self.inputs()):
            residual = special.softmax(x @ w, axis=-1)
            residual[..., label] -= 1.0
            out.append(x.T @ residual / len(x) + self.ridge * w)
        return np.stack(out)

    def gradient(self, w, shares):
        return np.tensordot(shares, self.gradients(w), 1)

    def loss(self, w, shares):
        each = [-special.log_softmax(x @ w, axis=-1)[..., label].mean(axis=-1) for label, x in enumerate(self.inputs())]
        return np.tensordot(shares, np.stack(each), 1) + self.ridge / 2.0 * np.square(w).sum(axis=(-2, -1))

    def local(self, w, shares, lr, steps):
        """The models before each local step, and the last."""
        path = [w]
        for _ in range(steps):
            path.append(path[-1] - lr * self.gradient(path[-1], shares))
        return path


@cache
def problem():
    return Problem(draw_classes(), RIDGE)


@cache
def best():
    """L*, the least loss of the whole federation."""
    whole, shape = WEIGHTS @ SHARES, (5, 3)
    found = optimize.minimize(
        lambda v: float(problem().loss(v.reshape(shape), whole)),
        np.zeros(15),
        jac=lambda v: problem().gradient(v.reshape(shape), whole).ravel(),
        tol=1e-10,
    )
    return found.fun


def test_our_gradients_are_those_of_the_loss():
    w = np.random.default_rng(3).normal(size=(5, 3))
    ours = two_dp.class_gradients(w, problem().classes, RIDGE)
    assert np.allclose(ours, problem().gradients(w), rtol=1e-12)
    for label, gradient in enumerate(ours):
        share = np.eye(3)[label]
        slope = optimize.approx_fprime(w.ravel(), lambda v, s=share: float(problem().loss(v.reshape(5, 3), s)), 1e-7)
        assert np.allclose(gradient.ravel(), slope, atol=1e-5)


def test_the_smoothness_of_a_class_holds_and_is_attained_with_two_classes():
    rng = np.random.default_rng(0)
    constants = two_dp.class_smoothness(problem().classes, RIDGE)
    for scale in (0.01, 0.3, 3.0):
        a, b = scale * rng.normal(size=(2, 200, 5, 3))
        moved = np.linalg.norm(problem().gradients(a) - problem().gradients(b), axis=(2, 3))
        assert np.all(moved <= constants[:, None] * np.linalg.norm(a - b, axis=(1, 2)) * ROUNDING)
    two = Problem(problem().classes[:2], 0.0)
    x = two.inputs()[0]
    direction = np.outer(np.linalg.eigh(x.T @ x)[1][:, -1], [1.0, -1.0]) * 1e-4 / math.sqrt(2.0)
    change = two.gradients(direction)[0] - two.gradients(-direction)[0]
    attained = np.linalg.norm(change) / np.linalg.norm(2.0 * direction)
    assert attained == pytest.approx(two_dp.class_smoothness(two.classes)[0], rel=1e-5)


# --- 2dp-fl, Theorems 2 and 3


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 8), st.floats(0.01, 1.5), st.sampled_from([0.0, 0.3]))
def test_two_clients_are_no_further_apart_than_theorem_3(seed, steps, lr, ridge):
    rng = np.random.default_rng(seed)
    here = Problem(problem().classes, ridge)
    u, v = rng.dirichlet(np.full(3, 0.3), size=2)
    first, second = rng.normal(size=(5, 3)), rng.normal(size=(5, 3)) * rng.choice([0.0, 0.1, 1.0])
    path, other = here.local(first, u, lr, steps), here.local(first + second, v, lr, steps)
    steepest = [two_dp.steepest(w, here.classes, ridge) for w in path[:-1]]
    constants, start = two_dp.class_smoothness(here.classes, ridge), np.linalg.norm(second)
    printed = two_dp.growth_printed(v, constants, lr)
    convex = two_dp.contraction(lr, ridge, float(v @ constants))
    apart = np.linalg.norm(path[-1] - other[-1])
    assert convex <= printed
    for growth in (printed, convex):
        assert apart <= two_dp.clients_distance(start, growth, lr, u, v, steepest) * ROUNDING + 1e-12


def test_distances_by_hand():
    # b = 1.5, two steps: 1.5² · 2 + 0.1 · 2 · (5 + 1.5 · 3) = 4.5 + 1.9
    far = two_dp.clients_distance(2.0, 1.5, 0.1, [1.0, 0.0], [0.0, 1.0], [3.0, 5.0])
    assert far == pytest.approx(6.4)
    # Theorem 2: a quarter of the weight is the target's own, which adds 1.5² · 0 and no difference of shares
    shares = [[1.0, 0.0], [0.0, 1.0]]
    mean = two_dp.federated_distance([1, 3], [0.0, 2.0], [1.5, 1.5], 0.1, shares, 0, [3.0, 5.0])
    assert mean == pytest.approx(0.75 * 6.4)
    assert two_dp.growth_printed([0.25, 0.75], [4.0, 8.0], 0.1) == pytest.approx(1.7)


def test_theorem_3_is_attained_when_the_same_inputs_have_opposite_labels():
    x = problem().classes[0]
    here, lr = Problem([x, x], 0.0), 0.1
    shares = np.eye(2)
    ends = [here.local(np.zeros((5, 2)), s, lr, 1)[-1] for s in shares]
    steepest = [two_dp.steepest(np.zeros((5, 2)), here.classes)]
    bound = two_dp.clients_distance(0.0, 1.0, lr, shares[0], shares[1], steepest)
    assert np.linalg.norm(ends[0] - ends[1]) == pytest.approx(bound, rel=1e-12)


def distances(growth_of, rounds=6, steps=5, lr=0.3, server=0.05):
    """FedAvg with its own server noise for each client: (seen, bound) of ‖w^f − w^j‖ for every round and target j."""
    rng, here = np.random.default_rng(4), problem()
    constants = two_dp.class_smoothness(here.classes, RIDGE)
    growths = [growth_of(share, constants, lr) for share in SHARES]
    federated, pairs = rng.normal(size=(5, 3)), []
    for _ in range(rounds):
        starts = federated + server * rng.normal(size=(4, 5, 3))
        paths = [here.local(w, share, lr, steps) for w, share in zip(starts, SHARES, strict=True)]
        federated = np.tensordot(WEIGHTS, np.stack([path[-1] for path in paths]), 1)
        for j, path in enumerate(paths):
            steepest = [two_dp.steepest(w, here.classes, RIDGE) for w in path[:-1]]
            apart = np.linalg.norm(starts - starts[j], axis=(1, 2)).tolist()
            bound = two_dp.federated_distance(SIZES, apart, growths, lr, SHARES, j, steepest)
            pairs.append((np.linalg.norm(federated - path[-1]), bound))
    return np.array(pairs)


def convex_growth(share, constants, lr):
    return two_dp.contraction(lr, RIDGE, float(share @ constants))


@pytest.mark.parametrize(("growth_of", "factor"), [(two_dp.growth_printed, 12.0), (convex_growth, 5.0)])
def test_the_federated_model_is_no_further_from_a_client_than_theorem_2(growth_of, factor):
    seen, bound = distances(growth_of).T
    assert np.all(seen <= bound)
    assert np.median(bound / seen) < factor


def test_theorem_2_is_attained():
    """As Theorem 3's case: the federated model lies between the two clients."""
    x = problem().classes[0]
    here, lr = Problem([x, x], 0.0), 0.1
    ends = [here.local(np.zeros((5, 2)), s, lr, 1)[-1] for s in np.eye(2)]
    federated = 0.25 * ends[0] + 0.75 * ends[1]
    steepest = [two_dp.steepest(np.zeros((5, 2)), here.classes)]
    bound = two_dp.federated_distance([1, 3], [0.0, 0.0], [1.0, 1.0], lr, np.eye(2), 0, steepest)
    assert np.linalg.norm(federated - ends[0]) == pytest.approx(bound, rel=1e-12)


def test_the_largest_entry_of_the_gradient_is_not_enough():
    """The other reading of "maximal gradient" fails: it must be the largest norm."""
    x = draw_classes(1, features=20)[0]
    here, lr = Problem([x, x], 0.0), 0.01
    ends = [here.local(np.zeros((21, 2)), s, lr, 1)[-1] for s in np.eye(2)]
    entry = [np.abs(here.gradients(np.zeros((21, 2)))).max()]
    growth = two_dp.growth_printed([0.0, 1.0], two_dp.class_smoothness(here.classes), lr)
    bound = two_dp.clients_distance(0.0, growth, lr, *np.eye(2), entry)
    assert np.linalg.norm(ends[0] - ends[1]) > 2.0 * bound


def test_the_printed_index_of_theorem_2_looks_at_the_wrong_models():
    """m = T = 2: Eq. (8) takes g_max at w_2 and w_0. Where the server's noise undoes a flat w_0, it misses half the way."""
    common = np.array([0.0, 4.0, 4.0, 4.0])
    here, lr = Problem([common + [[1.0, 0, 0, 0]], common - [[1.0, 0, 0, 0]]], 0.0), 0.001
    flat = np.zeros((5, 2))
    flat[0] = [2.0, -2.0]
    shares, back = np.eye(2), np.zeros((5, 2))  # both clients start the second round at `back`
    paths = [here.local(back, share, lr, 2) for share in shares]
    growth = two_dp.growth_printed(shares[1], two_dp.class_smoothness(here.classes), lr)
    before, first, second = (two_dp.steepest(w, here.classes) for w in (flat, *paths[0][:-1]))
    seen = np.linalg.norm(paths[0][-1] - paths[1][-1])
    assert seen <= two_dp.clients_distance(0.0, growth, lr, *shares, [first, second])
    assert seen > 1.5 * two_dp.clients_distance(0.0, growth, lr, *shares, [before, first])


def test_clients_with_the_same_shares_but_other_examples_are_not_covered():
    lr, share = 0.3, np.array([0.5, 0.3, 0.2])
    ends = [Problem(draw_classes(seed=seed), 0.0).local(np.zeros((5, 3)), share, lr, 1)[-1] for seed in (1, 2)]
    assert two_dp.clients_distance(0.0, 1.5, lr, share, share, [1.0]) == 0.0
    assert np.linalg.norm(ends[0] - ends[1]) > 0.1


# --- 2dp-fl, Theorems 4 to 6


def constants(lr):
    smoothness = float((SHARES @ two_dp.class_smoothness(problem().classes, RIDGE)).max())
    return Descent(lr, smoothness, RIDGE)


START = np.random.default_rng(5).normal(size=(5, 3))


@cache
def noised_training(lr, noise, server, same, rounds=40, runs=200):
    """Gaps L(ŵ_t) − L* [rounds, runs], and distances to the run with the same client noise but none at the server."""
    rng, here = np.random.default_rng(6), problem()
    noised = clean = np.broadcast_to(START, (runs, 5, 3))
    gaps, apart = [], []
    for _ in range(rounds):
        client = noise * rng.normal(size=(4, runs, 5, 3))
        draws = server * rng.normal(size=(1 if same else 4, runs, 5, 3))
        starts = noised + np.broadcast_to(draws, client.shape)
        noised = _mean(here, starts, lr) + np.tensordot(WEIGHTS, client, 1)
        gaps.append(here.loss(noised, WEIGHTS @ SHARES) - best())
        if server:
            clean = clean - lr * here.gradient(clean, WEIGHTS @ SHARES) + np.tensordot(WEIGHTS, client, 1)
            apart.append(np.linalg.norm(noised - clean, axis=(1, 2)))
    return np.array(gaps), np.array(apart)


def _mean(here, starts, lr):
    return sum(
        weight * (w - lr * here.gradient(w, share)) for weight, w, share in zip(WEIGHTS, starts, SHARES, strict=True)
    )


def test_the_mean_norm_of_noise_is_not_zero():
    rng = np.random.default_rng(0)
    for dimension in (1, 3, 50):
        norms = np.linalg.norm(0.2 * rng.normal(size=(20_000, dimension)), axis=1)
        assert abs(norms.mean() - two_dp.mean_norm(0.2, dimension)) < 5.0 * standard_error(norms)
    assert two_dp.mean_norm(1.0, 10_000) == pytest.approx(100.0, rel=1e-4)


@pytest.mark.parametrize("same", [False, True])
def test_the_servers_noise_moves_the_model_but_no_further_than_the_corrected_theorem_4(same):
    step = constants(0.5)
    shrink = two_dp.contraction(step.lr, step.convexity, step.smoothness)
    _, apart = noised_training(0.5, 0.1, 0.1, same)
    for rounds in (1, 5, 20, 40):
        bound = two_dp.server_noise_drift(0.1, 15, rounds, shrink)
        seen = apart[rounds - 1]
        assert 0.1 * bound < seen.mean() < bound
    if same:
        assert apart[0].mean() > 0.9 * two_dp.server_noise_drift(0.1, 15, 1, shrink)


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3])
def test_one_noised_step_changes_the_loss_no_more_than_theorem_5(scale, noise):
    step, rng, whole = constants(0.5), np.random.default_rng(7), WEIGHTS @ SHARES
    w = scale * rng.normal(size=(5, 3))
    gradient = problem().gradient(w, whole)
    moved = w - step.lr * gradient + noise * rng.normal(size=(2000, 5, 3))
    change = problem().loss(moved, whole) - problem().loss(w, whole)
    size, mean, square = np.linalg.norm(gradient), two_dp.mean_norm(noise, 15), 15 * noise**2
    error = 5.0 * standard_error(change) + 1e-12
    sharp = two_dp.step_change(step, size, square)
    assert change.mean() - error <= sharp <= two_dp.step_change_printed(step, size, mean, square) + 1e-12
    assert np.abs(change).mean() - error <= two_dp.step_change_absolute(step, size, mean, square)


def test_theorem_5_as_printed_cannot_bound_an_absolute_value():
    step, whole = constants(0.5), WEIGHTS @ SHARES
    gradient = problem().gradient(START, whole)
    change = problem().loss(START - step.lr * gradient, whole) - problem().loss(START, whole)
    assert two_dp.step_change_printed(step, np.linalg.norm(gradient), 0.0, 0.0) < 0.0 < abs(change)


def test_theorem_5_is_attained_by_a_round_bowl():
    """L = μ‖w‖²/2 in 8 dimensions; without the term in E‖N‖."""
    step, rng = Descent(lr=0.4, smoothness=2.0, convexity=2.0), np.random.default_rng(8)
    w = rng.normal(size=8)
    moved = (1.0 - 0.8) * w + 0.3 * rng.normal(size=(20_000, 8))
    change = np.square(moved).sum(axis=1) - w @ w
    bound = two_dp.step_change(step, 2.0 * np.linalg.norm(w), 8 * 0.09)
    assert abs(change.mean() - bound) < 5.0 * standard_error(change)
    # and the absolute form, uphill: a step of −η, without noise
    uphill = (1.0 + 0.8) ** 2 * (w @ w) - w @ w
    assert two_dp.step_change_absolute(step, 2.0 * np.linalg.norm(w), 0.0, 0.0) == pytest.approx(uphill)


def test_theorem_6_as_printed_fails():
    """Its noise term is negative: after enough rounds it says that the loss is below the least loss."""
    gaps, _ = noised_training(0.5, 0.1, 0.0, False)
    step = constants(0.5)
    for rounds in (20, 40):
        printed = two_dp.gap_printed(step, rounds, noised_start(), 0.1)
        assert printed < 0.0 < gaps[rounds - 1].mean() - 5.0 * standard_error(gaps[rounds - 1])


def noised_start():
    return float(problem().loss(START, WEIGHTS @ SHARES) - best())


@pytest.mark.parametrize(
    ("lr", "noise", "server", "same", "factor"),
    [
        (0.5, 0.1, 0.0, False, 7.0),
        (0.2, 0.05, 0.0, False, 5.0),
        (0.5, 0.1, 0.1, False, 9.0),
        (0.5, 0.1, 0.1, True, 8.0),
    ],
)
def test_the_corrected_theorem_6_bounds_training(lr, noise, server, same, factor):
    gaps, _ = noised_training(lr, noise, server, same)
    step = constants(lr)
    for rounds in (1, 2, 5, 10, 20, 40):
        seen, bound = gaps[rounds - 1], two_dp.gap(step, rounds, noised_start(), 15, SIZES, noise, server, same)
        assert seen.mean() + 5.0 * standard_error(seen) < bound < factor * seen.mean()


def test_turning_the_sign_alone_does_not_repair_theorem_6():
    """On a bowl μ‖w‖²/2 in d dimensions the corrected form is attained: σ² in the place of dσ² is d times too little."""
    dimension, noise, rounds = 30, 0.1, 25
    step, rng = Descent(lr=0.3, smoothness=1.0, convexity=1.0), np.random.default_rng(9)
    w = np.zeros((2000, dimension))
    w[:, 0] = 1.0
    for _ in range(rounds):
        w = 0.7 * w + noise * rng.normal(size=w.shape)
    gaps = np.square(w).sum(axis=1) / 2.0
    exact = two_dp.gap(step, rounds, 0.5, dimension, [1], noise)
    assert abs(gaps.mean() - exact) < 5.0 * standard_error(gaps)
    turned = step.rate**rounds * 0.5 - step.gamma3 * noise**2 / (2.0 * step.convexity * step.gamma1)
    assert gaps.mean() > 25.0 * turned


@pytest.mark.parametrize(("same", "whole"), [(False, 0.28), (True, 1.0)])
def test_the_servers_noise_enters_theorem_6_as_on_a_bowl(same, whole):
    """There the corrected form is exact but for the two terms μdς²/2: a bowl that noise blurs keeps its shape."""
    rng, sizes, step = np.random.default_rng(11), np.array([0.2, 0.4, 0.2, 0.2]), Descent(0.3, 1.0, 1.0)
    w = np.zeros((4000, 6))
    w[:, 0] = 1.0
    for rounds in (1, 2, 3):
        client = np.tensordot(sizes, 0.1 * rng.normal(size=(4, *w.shape)), 1)
        draws = 0.2 * rng.normal(size=(4, *w.shape))
        w = 0.7 * (w + (draws[0] if same else np.tensordot(sizes, draws, 1))) + client
        gaps, left = np.square(w).sum(axis=1) / 2.0, step.rate**rounds
        bound = two_dp.gap(step, rounds, 0.5, 6, 10 * sizes, 0.1, 0.2, same)
        exact = bound - (1.0 + left) * 6 * 0.2**2 / 2.0
        assert abs(gaps.mean() - exact) < 5.0 * standard_error(gaps)
    settled = 6 * (0.1**2 * 0.28 + 0.7**2 * 0.2**2 * whole) / (2.0 * (1.0 - 0.49))
    assert exact == pytest.approx(0.49**3 * 0.5 + (1.0 - 0.49**3) * settled)


def test_without_the_blur_theorem_6_fails_even_with_many_clients():
    """A bowl ten times as steep on one side: the server's noise moves what is learned; a mean over clients keeps that."""
    rng, clients, step = np.random.default_rng(12), 400, Descent(1.0, 1.0, 0.1)
    w = np.zeros(50)
    for _ in range(60):
        starts = w + rng.normal(size=(clients, 50))
        w = (starts - np.where(starts < 0.0, 1.0, 0.1) * starts).mean(axis=0)
    gaps = np.where(w < 0.0, 1.0, 0.1) * w**2 / 2.0
    bound = two_dp.gap(step, 60, 0.0, 1, np.ones(clients), 0.0, server=1.0)
    assert gaps.mean() + 5.0 * standard_error(gaps) < bound
    blur = 0.5
    assert gaps.mean() > 3.0 * (bound - (1.0 + step.rate**60) * blur)


def test_for_large_steps_theorem_6_needs_the_dimension_too():
    dimension, noise = 30, 0.1
    step, rng = Descent(lr=2.2, smoothness=1.0, convexity=1.0), np.random.default_rng(10)
    w = np.full((2000, dimension), 0.01)
    for _ in range(4):
        gradient = math.sqrt(np.square(w).sum(axis=1).mean())
        w = (1.0 - 2.2) * w + noise * rng.normal(size=w.shape)
        gaps = np.square(w).sum(axis=1) / 2.0
        bound = two_dp.gap_large_step(step, gradient, dimension * noise**2)
        assert abs(gaps.mean() - bound) < 5.0 * standard_error(gaps)
        assert gaps.mean() > two_dp.gap_large_step(step, gradient, noise**2) + 5.0 * standard_error(gaps)


def test_a_premise_that_fails_is_refused():
    with pytest.raises(ConfigError, match="takes less than 2/smoothness = 0.5"):
        two_dp.gap(Descent(0.5, 4.0, 1.0), 3, 1.0, 2, [1], 0.1)
    with pytest.raises(ConfigError, match="convexity: got 2"):
        Descent(0.1, 1.0, 2.0)
    with pytest.raises(ConfigError, match="lr: got 0"):
        Descent(0.0, 1.0, 1.0)


# --- cpl, Theorem 1


def descend(gradient, x, step, steps):
    for _ in range(steps):
        x = x - step * gradient(x)
    return x


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 10), st.integers(1, 60))
def test_descent_on_a_quadratic_is_no_slower_than_theorem_1(seed, dimension, steps):
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(rng.integers(1, dimension + 1), dimension))  # may be flat in some directions
    hessian, best_x = factor.T @ factor, rng.normal(size=dimension)
    smoothness, x = np.linalg.eigvalsh(hessian)[-1], rng.normal(size=dimension)
    last = descend(lambda x: hessian @ (x - best_x), x, 1.0 / smoothness, steps)
    gap, distance = (last - best_x) @ hessian @ (last - best_x) / 2.0, np.linalg.norm(x - best_x)
    exact, usual, printed = (
        bound(smoothness, distance, steps)
        for bound in (cpl.quadratic, cpl.gradient_descent, cpl.gradient_descent_printed)
    )
    assert gap <= exact * ROUNDING
    assert exact < usual < printed


@pytest.mark.parametrize("steps", [1, 5, 100])
def test_the_exact_bound_is_attained_by_one_eigenvalue(steps):
    smoothness, distance = 3.0, 2.0
    curvature = smoothness / (2 * steps + 1)
    last = descend(lambda x: curvature * x, distance, 1.0 / smoothness, steps)
    assert curvature * last**2 / 2.0 == pytest.approx(cpl.quadratic(smoothness, distance, steps), rel=1e-9)


@pytest.mark.parametrize("steps", [1, 5, 100])
def test_the_usual_constant_is_at_most_three_times_the_best(steps):
    """A bowl that goes on straight (Huber): descent leaves LR²/(4T + 2), between a third and half of LR²/(2T)."""
    smoothness, distance = 3.0, 2.0
    bend = distance / (2 * steps + 1)
    last = descend(lambda x: smoothness * np.clip(x, -bend, bend), distance, 1.0 / smoothness, steps)
    gap = smoothness * bend * (last - bend / 2.0)
    assert gap == pytest.approx(smoothness * distance**2 / (4 * steps + 2), rel=1e-9)
    assert gap <= cpl.gradient_descent(smoothness, distance, steps) <= 3.01 * gap


def test_theorem_1_needs_its_step():
    last = descend(lambda x: 3.0 * x, 2.0, 2.1 / 3.0, 40)
    assert 1.5 * last**2 > cpl.gradient_descent_printed(3.0, 2.0, 40)


def test_matching_gradients_is_not_convex_and_breaks_the_bound():
    """Logistic regression on one number, weight 1, label 1: its gradient at x is −x/(1 + eˣ)."""

    def gradient(x):
        return -x / (1.0 + np.exp(x))

    def slope(x):
        return -1.0 / (1.0 + np.exp(x)) + x * np.exp(x) / (1.0 + np.exp(x)) ** 2

    truth, start, steps = 0.5, 20.0, 20_000

    def objective(x):
        return (gradient(x) - gradient(truth)) ** 2

    def descent(x):
        return 2.0 * (gradient(x) - gradient(truth)) * slope(x)

    grid = np.linspace(0.0, start, 20_001)
    smoothness = 1.01 * np.abs(np.diff(descent(grid)) / np.diff(grid)).max()
    middle = objective((grid[:-2] + grid[2:]) / 2.0)
    assert np.any(middle > (objective(grid[:-2]) + objective(grid[2:])) / 2.0 + 1e-12)  # not convex
    last = descend(descent, start, 1.0 / smoothness, steps)
    bound = cpl.gradient_descent_printed(smoothness, start - truth, steps)
    assert objective(last) > 1.2 * bound
    twin = optimize.brentq(lambda x: gradient(x) - gradient(truth), 1.3, 10.0)
    assert objective(twin) < 1e-20 and twin > truth + 1.0  # another input with the same gradient


def test_wrong_arguments_are_named():
    for arguments, key in (((-1.0, 1.0, 1), "smoothness"), ((1.0, -1.0, 1), "distance"), ((1.0, 1.0, 0), "steps")):
        with pytest.raises(ConfigError, match=key):
            cpl.quadratic(*arguments)
