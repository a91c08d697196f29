"""What one round does, checked against a few lines of plain numpy."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedveil
from fedveil.core.errors import RunError
from fedveil.simulation import server
from fedveil.simulation.inputs import Batch, RoundContext
from fedveil.simulation.server import Answers, ServerRule


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def test_a_round_of_logistic_regression_by_hand():
    """Two clients, two full-batch steps, weights by size: every number recomputed in numpy."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 5)).astype(np.float32), rng.integers(0, 3, 30)
    settings = {
        "data": {"partition": "quantity", "clients": 2, "alpha": 2.0},
        "model": {"name": "logistic"},
        "train": {"rounds": 1, "per_round": 2, "local_epochs": 2, "batch": 1, "lr": 0.1, "weights": "size"},
        "speed": {"precision": "float64"},
    }
    probe = fedveil.federation(settings, data=(x, y, x, y))
    settings["train"]["batch"] = int(probe.partition.length.max())  # each step sees all of a client's data
    federation = fedveil.federation(settings, data=(x, y, x, y))
    simulator = federation.simulator
    state = simulator.start()
    w0 = {k: np.array(v, np.float64) for k, v in state.params["dense"].items()}
    new, _ = simulator.round(state, 0)

    total, weight = dict.fromkeys(w0, 0.0), 0.0
    for c in range(2):
        rows = federation.partition.client(c)
        w = {k: v.copy() for k, v in w0.items()}
        for _ in range(2):
            p = softmax(x[rows] @ w["w"] + w["b"])
            p[np.arange(len(rows)), y[rows]] -= 1
            w["w"] -= 0.1 * x[rows].T @ p / len(rows)
            w["b"] -= 0.1 * p.mean(axis=0)
        for k in w:
            total[k] = total[k] + len(rows) * (w[k] - w0[k])
        weight += len(rows)
    for k, before in w0.items():
        np.testing.assert_allclose(np.asarray(new.params["dense"][k]), before + total[k] / weight, atol=1e-6)


def test_poisson_divides_by_the_nominal_sizes():
    """One client of four drawn with certainty cannot tell a nominal from a real divisor; a lost client can."""
    settings = {
        "data": {"partition": "iid", "clients": 4, "per_client": 8},
        "model": {"name": "logistic"},
        "train": {"rounds": 1, "per_round": 4, "local_steps": 1, "batch": 8, "dropout": 0.5, "noise_seed": 0},
        "speed": {"precision": "float64"},
    }
    real = fedveil.federation(settings)
    start = real.simulator.start()
    before = np.array(start.params["dense"]["b"])
    moved, report = real.simulator.round(start, 0)
    answered = int(report.summed.answered)
    assert 0 < answered < 4, "the seed must lose some clients and keep some"
    step = np.array(moved.params["dense"]["b"]) - before
    # Rates of 1 everywhere: the same clients and batches, so only the divisor differs.
    settings["train"] |= {"sampling": "poisson", "batching": "poisson"}
    nominal = fedveil.federation(settings)
    start = nominal.simulator.start()
    moved, _ = nominal.simulator.round(start, 0)
    np.testing.assert_allclose(np.array(moved.params["dense"]["b"]) - before, step * answered / 4, atol=1e-12)


def answers(messages, weight, late=None):
    n = len(weight)
    return Answers({"w": jnp.asarray(messages)}, jnp.asarray(weight), jnp.asarray(late or [False] * n), jnp.ones(n))


def test_messages_that_are_not_finite_are_left_out_and_counted():
    rule = ServerRule(1.0, 0.0, keeps_late=False)
    empty = server.empty_sum(rule, {"w": jnp.zeros(2)})
    messages = [[1.0, 2.0], [np.nan, 0.0], [np.inf, 1.0], [3.0, 4.0]]
    summed = server.collect(rule, empty, answers(messages, [1.0, 1.0, 1.0, 1.0]))
    np.testing.assert_array_equal(summed.total["w"], [4.0, 6.0])
    assert float(summed.weight) == 2.0 and int(summed.not_finite) == 2 and int(summed.answered) == 4


def test_padding_weighs_nothing():
    rule = ServerRule(1.0, 0.0, keeps_late=False)
    empty = server.empty_sum(rule, {"w": jnp.zeros(2)})
    summed = server.collect(rule, empty, answers([[1.0, 2.0], [9.0, 9.0]], [1.0, 0.0]))
    np.testing.assert_array_equal(summed.total["w"], [1.0, 2.0])
    assert int(summed.answered) == 1


def test_a_diverging_client_does_not_spoil_the_model():
    """A learning rate that blows up: the model stays finite, and the report counts who was left out."""
    x = np.full((40, 4), 1e30, np.float32)
    y = np.arange(40) % 2
    settings = {
        "data": {"partition": "iid", "clients": 4},
        "model": {"name": "logistic"},
        "train": {"rounds": 2, "per_round": 4, "local_steps": 3, "batch": 2, "lr": 1e6},
    }
    result = fedveil.train(settings, data=(x, y, np.ones((4, 4), np.float32), np.zeros(4, int)))
    assert result.history[0]["not_finite"] == 4
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(result.params))
    assert result.as_dict()["clients_not_finite"] > 0


def test_late_messages_count_one_round_later():
    rule = ServerRule(1.0, 0.0, keeps_late=True)
    params = {"w": jnp.zeros(2)}
    state = server.initial_state(rule, params)
    federation = fedveil.federation({"model": {"name": "logistic"}, "train": {"late": 0.5}})
    task = federation.simulator.task
    key, lr = jax.random.key(0), jnp.asarray(0.1)
    first = server.collect(
        rule, server.empty_sum(rule, params), answers([[2.0, 2.0], [6.0, 0.0]], [1.0, 1.0], [False, True])
    )
    state = server.advance(task, rule, state, first, key, lr)
    np.testing.assert_array_equal(state.params["w"], [2.0, 2.0])
    second = server.collect(rule, server.empty_sum(rule, params), answers([[0.0, 4.0]], [1.0]))
    state = server.advance(task, rule, state, second, key, lr)
    np.testing.assert_array_equal(state.params["w"], [2.0 + 3.0, 2.0 + 2.0])


def test_a_round_without_answers_leaves_the_model_alone():
    rule = ServerRule(1.0, 0.0, keeps_late=False)
    federation = fedveil.federation({"model": {"name": "logistic"}})
    params = {"w": jnp.arange(2.0)}
    empty = server.empty_sum(rule, params)
    state = server.advance(
        federation.simulator.task, rule, server.initial_state(rule, params), empty, jax.random.key(0), jnp.asarray(0.1)
    )
    np.testing.assert_array_equal(state.params["w"], [0.0, 1.0])


# --- taps


@pytest.fixture(scope="module")
def tapped():
    settings = {
        "data": {"clients": 20},
        "model": {"name": "mlp", "hidden": [8]},
        "train": {"per_round": 5, "local_steps": 3, "rounds": 2},
        "speed": {"precision": "float64"},
    }
    federation = fedveil.federation(settings)
    return federation, federation.simulator.start()


def test_taps_show_one_and_the_same_training(tapped):
    """The mean of the example gradients is the batch gradient; the steps add up to the update; fedsgd sends it."""
    federation, state = tapped
    every = frozenset({"example", "batch", "client", "server", "broadcast", "release"})
    seen = federation.simulator.observe(state, 0, 3, every, steps=(0, 1, 2))
    assert set(seen) == every
    for step in (0, 1, 2):
        for one, batch in zip(
            jax.tree.leaves(seen["example"][step]), jax.tree.leaves(seen["batch"][step]), strict=True
        ):
            assert one.shape == (4, *batch.shape)
            np.testing.assert_allclose(one.mean(axis=0), batch, atol=1e-12)
    walked = jax.tree.map(lambda *g: -0.1 * sum(g), *(seen["batch"][step] for step in (0, 1, 2)))
    for a, b in zip(jax.tree.leaves(walked), jax.tree.leaves(seen["client"]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    for tap, tree in (("server", seen["client"]), ("broadcast", state.params), ("release", state.params)):
        for a, b in zip(jax.tree.leaves(seen[tap]), jax.tree.leaves(tree), strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_a_tap_shows_is_what_the_round_used(tapped):
    """A cohort's messages, observed one by one, give the round's own result."""
    federation, state = tapped
    simulator = federation.simulator
    cohort = simulator.cohort(state, 0)
    messages = [simulator.observe(state, 0, int(c), frozenset({"server"}))["server"] for c in cohort.clients]
    before = jax.tree.map(np.array, state.params)
    new, _ = simulator.round(simulator.adopt(jax.tree.map(jnp.copy, state)), 0)
    mean = jax.tree.map(lambda *m: np.mean([np.asarray(a) for a in m], axis=0), *messages)
    for a, b, c in zip(jax.tree.leaves(before), jax.tree.leaves(mean), jax.tree.leaves(new.params), strict=True):
        np.testing.assert_allclose(a + b, c, atol=1e-12)


def test_a_tap_nobody_uses_is_not_in_the_program(tapped):
    """The compiled round of a federation has no per-example gradient: no value with a batch axis before the weights."""
    federation, state = tapped
    simulator = federation.simulator
    from fedveil.simulation import client as part

    context = RoundContext(jax.random.key(0), jax.random.key(1), 0, jnp.asarray(0.1))
    batch = Batch(simulator.x[:4], simulator.y[:4], jnp.ones(4, bool))

    def program(taps):
        task, draws = simulator.task, part.keys_of_step(simulator.task, context, 0)
        step = lambda p: part.batch_gradient(task, p, batch, context, draws, taps)[0]  # noqa: E731
        return str(jax.make_jaxpr(step)(jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), state.params)))

    each = "f32[4,64,8]"  # example gradients of the first layer
    assert each in program(part.OpenTaps(frozenset({"example"})))
    assert each not in program(part.CLOSED)


def test_unknown_taps_and_clients_are_refused(tapped):
    federation, state = tapped
    with pytest.raises(RunError, match="no tap is called 'sever'"):
        federation.simulator.observe(state, 0, 0, frozenset({"sever"}))
    with pytest.raises(RunError, match="no client 20"):
        federation.simulator.observe(state, 0, 20, frozenset({"client"}))


def test_secure_aggregation_closes_the_server_tap():
    federation = fedveil.federation({"model": {"name": "logistic"}, "train": {"secure_aggregation": True}})
    with pytest.raises(RunError, match="sums only"):
        federation.simulator.observe(federation.simulator.start(), 0, 0, frozenset({"server"}))


def test_chunks_side_by_side_give_the_sum_of_chunks_in_turn():
    """To the last bit, whoever is done first; and losses and counts are those of all clients."""
    settings = {
        "data": {"partition": "iid", "clients": 11},
        "model": {"name": "mlp", "hidden": [8]},
        "train": {"rounds": 3, "per_round": 11, "local_steps": 2, "batch": 4},
        "defense": {"name": "fed-cdp", "noise": 0.1},
        "speed": {"chunk": 2},
    }

    def played(workers):
        simulator = fedveil.federation(settings).simulator.variant(workers=workers)
        state, rows = simulator.start(), []
        for number in range(3):
            state, report = simulator.round(state, number)
            rows.append(report.row())
        return jax.device_get(state.params), rows

    alone, rows = played(1)
    for workers in (2, 5):
        together, others = played(workers)
        jax.tree.map(np.testing.assert_array_equal, together, alone)
        assert others == rows and rows[0]["clients"] == 11


def test_a_federation_goes_when_nobody_holds_it():
    """Its data may be gigabytes: they must not wait for a collection of garbage."""
    federation = fedveil.federation({"data": {"clients": 5}, "train": {"rounds": 1, "per_round": 5}})
    state, _ = federation.simulator.round(federation.simulator.start(), 0)
    federation.simulator.evaluate(state.params)
    seen = weakref.ref(federation.simulator)
    gc.disable()
    try:
        del federation
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("model", "batch", "clients"),
    [("mlp", 3, 10), ("cnn", 5, 5), ("cnn", 8, 5), ("cnn", 16, 1), ("resnet20", 4, 1)],
)
def test_fewer_clients_at_once_on_a_cpu_where_each_needs_more(model, batch, clients):
    shape = (32, 32, 3) if model == "resnet20" else (28, 28, 1) if model == "cnn" else (30,)
    x, y = np.zeros((80, *shape), np.float32), np.arange(80) % 4
    settings = {
        "data": {"partition": "iid", "clients": 20, "per_client": 32},
        "model": {"name": model},
        "train": {"per_round": 20, "batch": batch, "local_steps": 50},
    }
    assert fedveil.federation(settings, data=(x, y, x, y)).simulator.chunk == clients
