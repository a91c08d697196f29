"""Operations and bytes agree with a count by hand and with what the layers compute; rows divide them by seconds."""

import statistics

import jax
import jax.numpy as jnp
import pytest

from benchmarks import counts
from benchmarks import roofline as bench
from benchmarks import round as rounds
from fedveil.models.catalog import build
from fedveil.models.net import products


def test_the_cnn_is_counted_as_by_hand():
    net = build("cnn", (28, 28, 1), 10)
    conv1, conv2, dense = 26 * 26 * 9 * 32, 10 * 10 * 288 * 64, 5 * 5 * 64 * 10
    assert [(p.name, p.operations) for p in products(net)] == [
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
    """Counted while the layers run: every product of a forward pass calls `linear`, which sees its shapes."""
    from fedveil.kernels.clipping import merged
    from fedveil.models.layers import Context, linear

    net, seen = build(model, shape, 10), []

    def counting(name, params, x):
        seen.append((name, 2 * x[0].size * params["w"].shape[-1]))
        return linear(name, params, x)

    def apply(key, x):
        return net.apply(net.init(key), x, Context(linear=counting, merge=merged))

    jax.eval_shape(apply, jax.random.key(0), jnp.zeros((1, *shape)))
    assert [(p.name, p.operations) for p in products(net)] == seen


def test_the_fastest_size_is_taken(monkeypatch):
    seconds = {8: 8**3 / 1.0, 16: 16**3 / 3.0, 32: 32**3 / 2.0}
    monkeypatch.setattr(bench, "product_turn", lambda side: lambda number: seconds[side])
    assert bench.best_side((8, 16, 32)) == 16


def test_shares_are_those_of_known_seconds(monkeypatch):
    """A product of 10×10 matrices in 2 s is 1000 operations per second; a copy of 400 bytes in 4 s moves 200 a second."""
    known = {
        "step": bench.Phase(lambda number: 5.0, operations=1000, bytes=3000),
        "noise": bench.Phase(lambda number: 10.0, operations=0, bytes=500),
    }
    monkeypatch.setattr(rounds, "CASES", {"mlp": rounds.CASES["mlp"]})
    monkeypatch.setattr(bench, "phases", lambda case, size: known)
    monkeypatch.setattr(bench, "product_turn", lambda side: lambda number: 2.0)
    monkeypatch.setattr(bench, "copy_turn", lambda size: lambda number: 4.0)
    rows = list(bench.run(repeats=3, size=bench.Size(products=(10,), copied=400)))
    assert [(row["name"], row["ratio"], row["ours"], row["theirs"]) for row in rows] == [
        ("roofline/mlp/step", 0.2, 200.0, 1000.0),
        ("roofline/mlp/step/bytes", 3.0, 600.0, 200.0),
        ("roofline/mlp/noise/bytes", 0.25, 50.0, 200.0),
    ]


@pytest.mark.slow
def test_real_phases_run_and_are_divided_by_their_counts(monkeypatch):
    """A real run in small: the rate of each row times its seconds gives the operations that are counted by hand."""
    taken, real = {}, rounds.take_turns
    monkeypatch.setattr(rounds, "CASES", {"mlp": rounds.CASES["mlp"]})
    monkeypatch.setattr(rounds, "take_turns", lambda *a: taken.update(real(*a)) or taken)
    rows = {row["name"]: row for row in bench.run(repeats=3, size=bench.Size(3, 2, (64, 128), 1 << 20))}
    phases = ("forward", "step", "private", "round")
    names = [f"roofline/mlp/{phase}{tail}" for phase in phases for tail in ("", "/bytes")]
    assert list(rows) == [*names, "roofline/mlp/noise/bytes"]
    net, examples = build("mlp", (105,), 2), 2 * rounds.CASES["mlp"].batch  # of one client in its 2 steps
    weights = sum(a.size for a in jax.tree.leaves(net.init(jax.random.key(0))))

    def clients(row, phase, per_client):
        return rows[f"roofline/mlp/{row}"]["ours"] * statistics.median(taken[phase]) / per_client

    assert clients("round", "round", examples * counts.training_operations(net)) == pytest.approx(3)
    chunk = clients("forward", "forward", examples * counts.forward_operations(net))  # clients per program
    assert chunk == pytest.approx(round(chunk)) and 1 <= round(chunk) <= 3
    for phase in ("step", "private"):
        assert clients(phase, phase, examples * counts.training_operations(net)) == pytest.approx(chunk)
    assert clients("noise/bytes", "noise", 2 * 2 * 4 * weights) == pytest.approx(chunk)


def test_the_private_phase_is_noisy_and_the_plain_one_is_not():
    """Each phase computes what its name says: without clip and noise the loop is plain SGD."""
    from dataclasses import replace

    import fedveil

    case = rounds.CASES["mlp"]
    data = rounds.random_data(case, 2)
    simulator = fedveil.federation(rounds.settings_of(case, 2, 1, rounds.PRIVATE, "shuffle"), data=data).simulator
    loops = bench.Loops(simulator.task, simulator.task.model, simulator.x, simulator.y, 2, 1)
    found = {}
    loops._of_all = lambda one: jax.vmap(one, in_axes=(0, 0, 0, None, None))(
        loops.params, loops.index, loops.keys, loops.x, loops.y
    )
    for name, task in (("plain", replace(simulator.task, defenses=())), ("private", simulator.task)):
        found[name] = loops.local(task)["dense"]["b"] - loops.params["dense"]["b"]
    assert float(jnp.abs(found["plain"]).max()) < 1e-3 < float(jnp.abs(found["private"]).max())
