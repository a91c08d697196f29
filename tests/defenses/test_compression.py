"""Pruning, DGC, DSSGD, gradient noise, squeezing: exact counts by property tests, noise by statistics, engines against each
other, and a run of each.

Statistical tests compare a sample mean of squares of n values with what it must be, within 5 standard errors: about one
false alarm in 1.7 million per comparison. Seeds are fixed, so a passing test keeps passing.
"""

import math
import signal
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from one_program import at_stage

import fedveil
from fedveil.config import from_dict
from fedveil.core.errors import ConfigError, Interrupted
from fedveil.core.setting import Setting
from fedveil.core.stage import StageContext
from fedveil.defenses import sparse
from fedveil.defenses.catalog import make
from fedveil.defenses.low_rank import LowRank
from fedveil.federation import prepare
from fedveil.runs import RunFolder
from fedveil.training import resume, train

SETTING = Setting(
    clients=12, per_round=4, rounds=3, batch=4, local_steps=2, sampling="fixed", batching="shuffle",
    aggregation="fedsgd", weights="uniform", lr=0.1, layers=2,
)  # fmt: skip


def at(seed=0, divisor=1.0):
    key = jax.random.key(seed)
    return StageContext(setting=SETTING, key=key, shared=key, round=0, lr=0.1, divisor=divisor)


def federation(*defenses, aggregation="fedsgd", data=None, rounds=3, speed=None, **train_keys):
    return prepare(
        from_dict(
            {
                "data": {"partition": "iid", "per_client": 6, "clients": 12, **(data or {})},
                "model": {"name": "logistic"},
                "train": {"rounds": rounds, "per_round": 4, "local_steps": 2, "batch": 4, "lr": 0.1}
                | {"aggregation": aggregation, "sampling": "fixed", "batching": "shuffle", **train_keys},
                "defense": list(defenses),
                "speed": speed or {},
            }
        )
    )


def flat(tree):
    return np.concatenate([np.asarray(a).ravel() for a in jax.tree.leaves(tree)])


def two_layers(values):
    """Any vector of seven or more numbers as a tree of two layers."""
    return {"a": {"w": jnp.asarray(values[:4]).reshape(2, 2)}, "b": {"w": jnp.asarray(values[4:])}}


# --- which entries stay -------------------------------------------------------------------------------------------

VALUES = st.one_of(
    st.floats(-10, 10, width=32),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-40, 3e38, float("nan"), float("inf"), -float("inf")]),
)
VECTORS = hnp.arrays(np.float32, 11, elements=VALUES)


def test_counts_are_those_of_the_decimal_share():
    assert [sparse.dropped(0.29, 100), sparse.dropped(0.3, 10), sparse.dropped(0.0, 7), sparse.dropped(0.99, 7)] == [
        29, 3, 0, 6,
    ]  # fmt: skip
    assert [sparse.shared(0.07, 100), sparse.shared(0.1, 650), sparse.shared(1e-9, 7), sparse.shared(1.0, 7)] == [
        7, 65, 1, 7,
    ]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(values=VECTORS, keep=st.integers(1, 11))
def test_largest_keeps_exactly_so_many_and_none_smaller_than_a_dropped_one(values, keep):
    chosen = flat(sparse.largest(two_layers(values), keep))
    assert chosen.sum() == keep
    size = np.where(np.isfinite(values), np.abs(values), np.inf).astype(np.float64)
    if keep < 11:  # equal up to 16 binary digits is a tie; below the smallest normal number there are fewer digits
        assert size[chosen].min() >= size[~chosen].max() * (1 - 2.0**-15) - 2e-38


@settings(max_examples=100, deadline=None)
@given(values=VECTORS, share=st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.95]))
def test_pruning_leaves_what_stays_unchanged_and_zeroes_the_rest(values, share):
    tree = two_layers(values)
    kept = flat(sparse.prune(tree, share))
    drop = math.floor(share * 11)
    chosen = flat(sparse.largest(tree, 11 - drop))
    np.testing.assert_array_equal(kept[chosen], values[chosen])
    assert (~chosen).sum() == drop and (kept[~chosen] == 0).all()
    assert np.isfinite(kept).all() == np.isfinite(values).all()  # a broken gradient is still seen to be broken


@settings(max_examples=50, deadline=None)
@given(values=hnp.arrays(np.float32, (3, 11), elements=VALUES), share=st.sampled_from([0.1, 0.3, 0.95]))
def test_every_example_has_its_own_threshold(values, share):
    each = jax.vmap(two_layers)(values)
    shown, rest = make({"name": "prune", "share": share, "stage": "example"}, "defense").example(
        each, jnp.ones(3), at()
    )
    assert rest is None
    for place in range(3):
        alone = sparse.prune(two_layers(values[place]), share)
        np.testing.assert_array_equal(flat(jax.tree.map(lambda a, p=place: a[p], shown)), flat(alone))


def test_ties_go_to_the_earlier_entry_and_rounding_makes_no_difference():
    tied = np.array([2, -2, 2, 1, -2, 2, 2, 0, 2, 2, 2], np.float32)
    assert np.flatnonzero(flat(sparse.largest(two_layers(tied), 3))).tolist() == [0, 1, 2]
    blurred = tied * (1 + 2.0**-22 * np.arange(11, dtype=np.float32))
    assert np.flatnonzero(flat(sparse.largest(two_layers(blurred), 3))).tolist() == [0, 1, 2]


def test_random_choices_are_exact_and_even():
    tree = two_layers(np.ones(11, np.float32))
    keys = jax.random.split(jax.random.key(0), 4000)
    masks = jax.vmap(lambda k: sparse.random(k, tree, 3))(keys)
    chosen = np.concatenate([np.asarray(m).reshape(4000, -1) for m in jax.tree.leaves(masks)], axis=1)
    assert (chosen.sum(axis=1) == 3).all()
    rate = 3 / 11
    assert np.abs(chosen.mean(axis=0) - rate).max() < 5 * math.sqrt(rate * (1 - rate) / 4000)


# --- DGC ----------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    steps=st.lists(hnp.arrays(np.float32, 11, elements=st.floats(-10, 10, width=32)), min_size=1, max_size=4),
    share=st.sampled_from([0.0, 0.3, 0.9]),
    divisor=st.sampled_from([1.0, 4.0]),
)
def test_dgc_loses_nothing(steps, share, divisor):
    defense = make({"name": "dgc", "share": share}, "defense")
    memory, sent = defense.initial_client_state(two_layers(steps[0])), np.zeros(11)
    for values in steps:
        message, memory = defense.apply_with_state("upload", two_layers(values), memory, at(divisor=divisor))
        assert (flat(message) == 0).sum() >= math.floor(share * 11)
        assert (flat(message) * flat(memory) == 0).all()  # an entry is either sent or remembered
        sent += flat(message) / divisor
    np.testing.assert_allclose(sent + flat(memory), sum(s.astype(float) for s in steps) / divisor, atol=1e-4)


def test_dgc_remembers_means_where_batches_differ_in_size():
    defense = make({"name": "dgc", "share": 0.95, "stage": "batch"}, "defense")
    value = two_layers(np.arange(1, 12, dtype=np.float32))
    _, memory = defense.apply_with_state("batch", value, defense.initial_client_state(value), at(divisor=4.0))
    np.testing.assert_allclose(flat(memory)[:-1], np.arange(1, 11) / 4)


def test_dgc_memory_in_a_run_is_what_was_not_sent():
    """Over the rounds of a client: messages plus memory are its updates. Then a round in which every answer is broken."""
    simulator = federation({"name": "dgc", "share": 0.8}, per_round=12).simulator
    state, c = simulator.start(), 3
    sent = updates = 0.0
    for number in range(2):
        seen = simulator.observe(state, number, c, frozenset({"client", "server"}))
        sent, updates = sent + flat(seen["server"]), updates + flat(seen["client"])
        state, _ = simulator.round(state, number)
    memory = flat(jax.tree.map(lambda a: a[c], state.clients["0"]))
    np.testing.assert_allclose(sent + memory, updates, atol=1e-6)
    assert np.count_nonzero(memory) > 100 and np.count_nonzero(flat(seen["server"])) <= 650 - 520

    before = flat(jax.device_get(state.clients["0"]))
    broken = replace(state, params=jax.tree.map(lambda a: a * jnp.nan, state.params))
    after, report = simulator.round(broken, 2)
    assert report.row()["not_finite"] == 12
    np.testing.assert_array_equal(before, flat(after.clients["0"]))


@pytest.mark.parametrize("stage", ["batch", "upload"])
def test_dgc_stopped_and_resumed_ends_the_same(stage, tmp_path, monkeypatch):
    made = federation({"name": "dgc", "share": 0.7, "stage": stage}, rounds=6)
    train(made, RunFolder.create(tmp_path / "undisturbed"))
    simulator, quick = made.simulator, made.simulator.round

    def stopping(state, number):
        if number == 3:
            signal.raise_signal(signal.SIGINT)
        return quick(state, number)

    with monkeypatch.context() as patch:
        patch.setattr(simulator, "round", stopping)
        with pytest.raises(Interrupted):
            train(made, RunFolder.create(tmp_path / "stopped"))
    resume(tmp_path / "stopped")  # built anew from its own config
    with (
        np.load(tmp_path / "undisturbed" / "checkpoint.npz") as one,
        np.load(tmp_path / "stopped" / "checkpoint.npz") as two,
    ):
        names = set(one) - {"#seconds", "#digest"}
        assert any("clients" in name for name in names) and set(two) - {"#seconds", "#digest"} == names
        for name in names:
            assert one[name].tobytes() == two[name].tobytes(), name


# --- noise --------------------------------------------------------------------------------------------------------

WIDE = {"a": {"w": np.zeros((100, 80), np.float32)}, "b": {"w": np.zeros(2000, np.float32)}}
# Kurtosis E x⁴ / (E x²)²: how much squares scatter.
KURTOSIS = {"gaussian": 3.0, "laplace": 6.0}
PER_SCALE = {"gaussian": 1.0, "laplace": math.sqrt(2)}


def near(sample, deviation, kurtosis):
    """Whether the mean of squares is what it must be, within five standard errors."""
    ratio = np.square(np.asarray(sample, np.float64)).mean() / deviation**2
    return abs(ratio - 1) < 5 * math.sqrt((kurtosis - 1) / np.size(sample))


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_noise_has_its_size_at_every_stage(law):
    unit = PER_SCALE[law]
    noise = {stage: make({"name": "gradient-noise", "law": law, "scale": 0.3, "stage": stage}, "defense")
             for stage in ("example", "batch", "upload")}  # fmt: skip
    assert near(flat(at_stage(noise["upload"].upload, WIDE, point=at(1))), 0.3 * unit, KURTOSIS[law])
    mean = flat(at_stage(noise["batch"].batch, WIDE, point=at(2, divisor=4.0))) / 4.0
    assert near(mean, 0.3 * unit, KURTOSIS[law])
    each, mask = jax.tree.map(lambda a: np.zeros((6, *a.shape), np.float32), WIDE), np.arange(6) < 4
    shown, rest = at_stage(noise["example"].example, each, mask, point=at(3))
    assert rest is None
    shown = jax.device_get(shown)
    rows = [flat(jax.tree.map(lambda a, p=place: a[p], shown)) for place in range(6)]
    assert all(near(row, 0.3 * unit, KURTOSIS[law]) for row in rows[:4])
    assert not np.any(rows[4:])  # padding shows nothing
    assert abs(np.corrcoef(rows[0], rows[1])[0, 1]) < 5 / math.sqrt(10_000)
    # The sum of four: a sum of Laplace draws has kurtosis 3 + 3/4.
    summed = flat(at_stage(noise["example"].example_sum, each, mask, point=at(4)))
    assert near(summed, 0.3 * unit * 2, 3.0 if law == "gaussian" else 3.75)
    if law == "laplace":
        fourth = np.mean(summed**4) / np.mean(summed**2) ** 2
        assert 3.4 < fourth < 4.2  # not a single Laplace draw, whose kurtosis is 6


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("pick", ["largest", "random"])
def test_dssgd_noises_the_shared_entries_alone(law, pick):
    keys = {"name": "dssgd", "share": 0.5, "pick": pick, "law": law, "scale": 0.2}
    tree = jax.tree.map(lambda a: np.random.default_rng(9).standard_normal(a.shape, np.float32), WIDE)
    for stage, divisor in (("upload", 1.0), ("batch", 4.0)):
        quiet = make({**keys, "stage": stage, "law": "none", "scale": 0.0}, "defense")
        noisy = make({**keys, "stage": stage}, "defense")
        clean, shown = (flat(at_stage(getattr(d, stage), tree, point=at(5, divisor))) for d in (quiet, noisy))
        assert np.count_nonzero(clean) == np.count_nonzero(shown) == 5000
        assert not np.any(shown[clean == 0])
        noise = (shown - clean)[clean != 0] / divisor
        assert near(noise, 0.2 * PER_SCALE[law], KURTOSIS[law])
        np.testing.assert_array_equal(clean[clean != 0], flat(tree)[clean != 0])


def test_dssgd_draws_its_random_choice_for_each_example_apart():
    defense = make({"name": "dssgd", "pick": "random", "share": 0.25, "stage": "example"}, "defense")
    each, mask = {"a": {"w": np.ones((3, 40), np.float32)}}, np.array([True, True, False])
    shown = np.asarray(at_stage(defense.example, each, mask, point=at())[0]["a"]["w"])
    assert shown.sum(axis=1).tolist() == [10, 10, 0] and not np.array_equal(shown[0], shown[1])
    again = np.asarray(
        at_stage(defense.example, jax.tree.map(lambda a: a[:2], each), mask[:2], point=at())[0]["a"]["w"]
    )
    np.testing.assert_array_equal(shown[:2], again)  # padding changes no draw


# --- engines ------------------------------------------------------------------------------------------------------

CASES = {
    "prune": [{"name": "prune", "stage": stage} for stage in ("example", "batch", "upload")],
    "dgc": [{"name": "dgc", "share": 0.8, "stage": stage} for stage in ("batch", "upload")],
    "dssgd": [
        {"name": "dssgd", "share": 0.6, "stage": "example", "pick": "random", "law": "laplace", "scale": 0.1},
        {"name": "dssgd", "share": 0.6, "stage": "batch", "law": "gaussian", "scale": 0.1},
        {"name": "dssgd", "share": 0.6, "pick": "random"},
    ],
    "noise": [
        {"name": "gradient-noise", "stage": "example", "law": "laplace"},
        {"name": "gradient-noise"},
        {"name": "gradient-noise", "stage": "upload", "law": "laplace"},
    ],
    "noise-summed": [{"name": "gradient-noise", "stage": "example"}],
    "fed-cdp-then-prune": [{"name": "fed-cdp", "noise": 0.1}, {"name": "prune", "stage": "example"}],
    "fed-sdp-then-prune": [{"name": "fed-sdp", "placement": "client", "noise": 0.01}, {"name": "prune"}],
}


def end(*defenses, rounds=2, speed=None, **keys):
    """The parameters after some rounds; with 6 examples a client's batches are of 4 and of 2, so that padding is met."""
    simulator = federation(*defenses, rounds=rounds, speed={"precision": "float64", **(speed or {})}, **keys).simulator
    state = simulator.start()
    for number in range(rounds):
        state, report = simulator.round(state, number)
    values = flat(state.params)
    assert values.dtype == np.float64 and np.isfinite(values).all() and report.row()["not_finite"] == 0
    return values


SLOW = ("dssgd", "noise-summed", "fed-sdp-then-prune")  # the golden record has these too


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow if c in SLOW else ()) for c in CASES])
def test_chunks_and_reference_agree_in_float64(case):
    whole = end(*CASES[case], speed={"chunk": 4})
    # One without and one with memory also in chunks of one client; the others only against the reference.
    for other in [{"engine": "reference"}] + [{"chunk": 1}] * (case in ("prune", "dgc")):
        np.testing.assert_allclose(whole, end(*CASES[case], speed=other), rtol=0, atol=1e-11, err_msg=str(other))


def test_engines_agree_where_every_number_is_there_twice():
    """Two classes: the gradient of one is minus that of the other, but for rounding; an odd count splits a pair."""

    def after(speed):
        data = {"name": "cancer", "per_client": 30}
        defense = {"name": "prune", "share": 0.5, "stage": "batch"}
        return end(defense, data=data, batch=6, local_steps=5, rounds=4, speed=speed)

    one = after({"chunk": 4})
    assert math.floor(0.5 * one.size) % 2 == 1
    np.testing.assert_allclose(one, after({"engine": "reference"}), rtol=0, atol=1e-11)


# --- runs, taps and combinations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["prune", "dgc", "dssgd", "gradient-noise"])
def test_each_trains_on_digits(name):
    result = fedveil.train(
        {
            "data": {"clients": 10, "partition": "iid"},
            "model": {"name": "mlp", "hidden": [8]},
            "train": {"rounds": 3, "per_round": 10, "local_steps": 10, "lr": 0.5, "eval_every": 3},
            "defense": {"name": name},
        }
    )
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"] - 0.02
    assert all(row.epsilon is None for row in result.ledger)


@pytest.mark.parametrize(
    ("name", "stage", "tap"),
    [
        ("prune", "example", "example"),
        ("prune", "batch", "batch"),
        ("prune", "upload", "server"),
        ("dgc", "upload", "server"),
    ],
)
def test_the_tap_of_the_stage_sees_exactly_the_pruned_count(name, stage, tap):
    simulator = federation({"name": name, "share": 0.9, "stage": stage}).simulator
    seen = simulator.observe(simulator.start(), 0, 0, frozenset({tap, "client"}))
    shown = seen[tap][0] if tap in ("example", "batch") else seen[tap]
    rows = jax.tree.map(lambda a: a[0], shown) if tap == "example" else shown
    assert 0 < np.count_nonzero(flat(rows)) <= 65
    if stage == "upload":
        assert np.count_nonzero(flat(seen["client"])) > 65


def test_prune_after_fed_cdp_prunes_the_noised_gradients():
    simulator = federation({"name": "fed-cdp"}, {"name": "prune", "stage": "example", "share": 0.3}).simulator
    shown = simulator.observe(simulator.start(), 0, 0, frozenset({"example"}))["example"][0]
    first = flat(jax.tree.map(lambda a: a[0], shown))
    assert np.count_nonzero(first) == 650 - 195  # the noise leaves no other zeros
    assert np.abs(first[first != 0]).min() > 1.0  # σC = 24: all that is small is gone


def test_combinations_that_noise_a_stage_twice_are_refused():
    noise = {"name": "gradient-noise", "stage": "example"}
    with pytest.raises(ConfigError, match="both add their noise at stage 'example'"):
        federation({"name": "fed-cdp"}, noise)
    federation({"name": "dssgd", "stage": "example"}, noise)  # without a law it adds none


@pytest.mark.parametrize(
    ("defense", "keys", "key", "says"),
    [
        ({"name": "prune"}, {"aggregation": "fedavg"}, "train.aggregation", "use fedsgd"),
        ({"name": "dgc"}, {"aggregation": "fedavg"}, "train.aggregation", "use fedsgd"),
        ({"name": "dssgd"}, {"aggregation": "fedavg"}, "train.aggregation", "use fedsgd"),
        ({"name": "low-rank"}, {"aggregation": "fedavg"}, "train.aggregation", "use fedsgd"),
        ({"name": "low-rank", "rank": 0}, {}, "defense.rank", "1"),
        ({"name": "dgc", "stage": "example"}, {}, "defense.stage", "examples are not sent"),
        ({"name": "dgc"}, {"sampling": "with-replacement"}, "train.sampling", "remembers each client"),
        ({"name": "dssgd", "scale": 0.1}, {}, "defense.scale", "set law"),
        ({"name": "prune", "share": 1.0}, {}, "defense.share", "takes less than 1"),
        ({"name": "dssgd", "share": 0.0}, {}, "defense.share", "takes more than 0"),
        ({"name": "gradient-noise", "law": "none"}, {}, "defense.law", "laplace"),
        ({"name": "squeeze", "steps": 0}, {}, "defense.steps", "1"),
        ({"name": "squeeze", "steps": 3}, {}, "train.local_steps", "set train.local_steps to 3"),
    ],
)
def test_what_makes_no_sense_is_refused(defense, keys, key, says):
    with pytest.raises(ConfigError, match=says) as caught:
        federation(defense, **keys)
    assert caught.value.key == key


@pytest.mark.parametrize("name", ["prune", "dgc"])
def test_fedavg_takes_what_is_done_before_the_message(name):
    one, other = (end({"name": name, "stage": "batch"}, aggregation=kind) for kind in ("fedsgd", "fedavg"))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_low_rank_keeps_the_largest_singular_values_of_each_layer(rank, seed):
    rng = np.random.default_rng(seed)
    update = {
        "conv": {"w": rng.normal(size=(2, 2, 2, 4))},
        "dense": {"w": rng.normal(size=(5, 3)), "b": rng.normal(size=3)},
    }
    with jax.enable_x64(True):
        kept = at_stage(LowRank(rank).upload, update, point=at())
    for layer, own in update.items():
        whole, found = own["w"].reshape(-1, own["w"].shape[-1]), np.asarray(kept[layer]["w"])
        assert found.shape == own["w"].shape
        left = np.linalg.svd(whole, compute_uv=False)[rank:]
        assert np.linalg.matrix_rank(found.reshape(whole.shape), tol=1e-9) == min(rank, *whole.shape)
        np.testing.assert_allclose(np.linalg.norm(found.reshape(whole.shape) - whole), np.linalg.norm(left), atol=1e-12)
    np.testing.assert_array_equal(kept["dense"]["b"], update["dense"]["b"])


def test_low_rank_hides_nothing_of_one_example_in_a_dense_layer():
    """Its gradient is an outer product. A batch of four examples is cut."""
    whole, cut = ({"name": "low-rank", "rank": 1, "stage": stage} for stage in ("example", "batch"))
    plain = end({"name": "none"})
    np.testing.assert_allclose(end(whole), plain, rtol=0, atol=1e-9)
    assert np.abs(end(cut) - plain).max() > 1e-4


def test_squeeze_is_local_steps_and_nothing_else():
    np.testing.assert_array_equal(end({"name": "squeeze", "steps": 2}), end({"name": "none"}))
    assert make({"name": "squeeze"}, "defense").steps == 5
