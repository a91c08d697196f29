"""Counts agree with counts by hand and with what the layers compute; the phases run and have rates."""

import jax
import jax.numpy as jnp
import pytest

from fedveil.bench import roofline as bench
from fedveil.bench import round as rounds
from fedveil.models import net as counts
from fedveil.models.catalog import build


def test_the_cnn_is_counted_as_by_hand():
    net = build("cnn", (28, 28, 1), 10)
    conv1, conv2, dense = 26 * 26 * 9 * 32, 10 * 10 * 288 * 64, 5 * 5 * 64 * 10
    assert [(p.name, p.operations) for p in counts.products(net)] == [
        ("conv1", 2 * conv1),
        ("conv2", 2 * conv2),
        ("dense", 2 * dense),
    ]
    assert counts.forward_operations(net) == 2 * (conv1 + conv2 + dense)
    assert counts.training_operations(net) == 4 * conv1 + 6 * conv2 + 6 * dense


def test_the_mlp_is_counted_as_by_hand():
    net = build("mlp", (105,), 2)
    weights = 105 * 64 + 64 * 32 + 32 * 2
    assert counts.forward_operations(net) == 2 * weights
    assert counts.training_operations(net) == 6 * weights - 2 * 105 * 64
    inputs, outputs, batch = 105 + 64 + 32, 64 + 32 + 2, 3
    forward = weights + batch * (inputs + outputs)
    assert counts.forward_bytes(net, batch) == 4 * forward
    assert counts.training_bytes(net, batch) == 4 * (2 * forward + weights + batch * (64 + 32) + 3 * weights)


@pytest.mark.parametrize(("model", "shape"), [("lenet-cpl", (32, 32, 3)), ("resnet20", (32, 32, 3))])
def test_forward_passes_hold_every_product(model, shape):
    """Counted while the layers run: the `linear` of a forward pass sees the shapes of each product."""
    from fedveil.kernels.clipping import merged
    from fedveil.models.layers import Context, linear

    net, seen = build(model, shape, 10), []

    def counting(name, params, x):
        seen.append((name, 2 * x[0].size * params["w"].shape[-1]))
        return linear(name, params, x)

    def apply(key, x):
        return net.apply(net.init(key), x, Context(linear=counting, merge=merged))

    jax.eval_shape(apply, jax.random.key(0), jnp.zeros((1, *shape)))
    assert [(p.name, p.operations) for p in counts.products(net)] == seen


def test_the_fastest_size_is_taken(monkeypatch):
    seconds = {8: 8**3 / 1.0, 16: 16**3 / 3.0, 32: 32**3 / 2.0}
    monkeypatch.setattr(bench, "product_turn", lambda side: lambda number: seconds[side])
    assert bench.best_side((8, 16, 32)) == 16


@pytest.mark.slow
def test_every_phase_has_a_share(monkeypatch):
    monkeypatch.setattr(rounds, "CASES", {"mlp": rounds.CASES["mlp"]})
    rows = list(bench.run(repeats=3, size=bench.Size(3, 2, (64, 128), 1 << 20)))
    phases = ("forward", "step", "private", "round")
    names = [f"roofline/mlp/{phase}{tail}" for phase in phases for tail in ("", "/bytes")]
    assert [row["name"] for row in rows] == [*names, "roofline/mlp/noise/bytes"]
    for row in rows:
        assert 0 < row["low"] <= row["ratio"] <= row["high"] and row["ours"] > 0 and row["theirs"] > 0


def test_the_private_phase_is_noisy_and_the_plain_one_is_not():
    """Phases compute what they are named for: without clip and noise the loop is plain SGD."""
    from dataclasses import replace

    from fedveil import api

    case = rounds.CASES["mlp"]
    data = rounds.random_data(case, 2)
    simulator = api.federation(rounds.settings_of(case, 2, 1, rounds.PRIVATE, "shuffle"), data=data).simulator
    loops = bench.Loops(simulator.task, simulator.task.model, simulator.x, simulator.y, 2, 1)
    found = {}
    loops._of_all = lambda one: jax.vmap(one, in_axes=(0, 0, 0, None, None))(
        loops.params, loops.index, loops.keys, loops.x, loops.y
    )
    for name, task in (("plain", replace(simulator.task, defenses=())), ("private", simulator.task)):
        found[name] = loops.local(task)["dense"]["b"] - loops.params["dense"]["b"]
    assert float(jnp.abs(found["plain"]).max()) < 1e-3 < float(jnp.abs(found["private"]).max())
