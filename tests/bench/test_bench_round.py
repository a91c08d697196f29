"""The round benchmark gives all sides the same work, and its rows compare the sides they name."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import round as bench
from benchmarks.peers import flower_round, opacus, torch_nets, torch_round
from benchmarks.peers.private_step import PrivateStep
from fedveil.config import from_dict, resolve
from fedveil.defenses import presets
from fedveil.mechanisms.clip import clip_examples
from fedveil.models.catalog import ModelConfig, build
from fedveil.simulation.client import cross_entropy

STEP = PrivateStep(batch=4, clip=0.05, noise=0.0, lr=0.1)


@pytest.fixture
def mlp(monkeypatch):
    """Only the MLP, with 6 client iterations in a turn."""
    monkeypatch.setattr(bench, "DEEP", {})
    monkeypatch.setattr(bench, "CASES", {"mlp": replace(bench.CASES["mlp"], work=6)})


def test_our_side_clips_and_adds_noise_as_its_peers_do(monkeypatch):
    monkeypatch.setattr(presets, "DEFAULT", "fedveil")  # as outside of tests
    config = resolve(from_dict(bench.settings_of(bench.CASES["mlp"], 3, 2, bench.PRIVATE, "shuffle")))
    (ours,) = config.defense
    assert (ours.clip, ours.noise, ours.clip_scope, ours.placement) == (bench.CLIP, bench.NOISE, "layerwise", "example")
    assert (config.train.lr, config.train.server_momentum, config.train.sampling) == (bench.LR, 0.0, "fixed")


def test_rows_compare_the_sides_they_name(monkeypatch, mlp):
    """A turn of 3 clients and 2 steps takes known seconds, which the rows give per client iteration."""
    turn = {("fed-cdp", "shuffle"): 3.0, ("none", "shuffle"): 2.0, ("fed-cdp", "poisson"): 9.0}
    peers = {"opacus": 5.0, "loop": 10.0, "vmap": 0.25}
    monkeypatch.setattr(bench, "rounds", lambda *a: lambda number: turn[a[4]["name"], a[5]])
    monkeypatch.setattr(bench, "_peers", lambda *_: {name: lambda n, s=s: s for name, s in peers.items()})
    monkeypatch.setattr(opacus, "missing", lambda: "")
    monkeypatch.setattr(flower_round, "missing", lambda: "ray")
    lines = []
    rows = {row["name"]: row for row in bench.run(clients=(3,), repeats=3, progress=lines.append)}
    found = {name: (row["ratio"], row["ours"], row["theirs"]) for name, row in rows.items()}
    assert found == {
        "round/mlp": pytest.approx((1.5, 0.5, 1 / 3)),
        "round/mlp/poisson": pytest.approx((3.0, 1.5, 0.5)),
        "round/mlp/opacus": pytest.approx((0.1, 0.5, 5.0)),
        "round/mlp/loop": pytest.approx((0.05, 0.5, 10.0)),
        "round/mlp/vmap": pytest.approx((2.0, 0.5, 0.25)),
    }
    assert any("no comparison with Flower, ray is not installed" in line for line in lines)


def test_other_numbers_of_clients_are_compared_with_opacus_alone(monkeypatch, mlp):
    monkeypatch.setattr(bench, "rounds", lambda *_: lambda number: 12.0)
    monkeypatch.setattr(bench, "_peers", lambda case, data, clients, main: {"opacus": lambda number: 4.0})
    monkeypatch.setattr(opacus, "missing", lambda: "")
    monkeypatch.setattr(flower_round, "missing", lambda: "ray")
    rows = list(bench.run(clients=(3, 6), repeats=3))
    assert [row["name"] for row in rows] == ["round/mlp/opacus/3", "round/mlp/opacus/6"]
    assert [row["ratio"] for row in rows] == pytest.approx([12 / (3 * 2) / 4, 12 / (6 * 2) / 4])


@pytest.mark.slow
def test_all_sides_train_the_same_federation(monkeypatch, mlp):
    """A real run in small: the federations differ only in what the rows compare."""
    lines, played, real = [], [], bench.play_rounds

    def play_rounds(settings, data):
        play, numbers = real(settings, data), []
        played.append((settings, numbers))
        return lambda number: numbers.append(number) or play(number)

    monkeypatch.setattr(bench, "play_rounds", play_rounds)
    rows = list(bench.run(clients=(3,), repeats=3, progress=lines.append))
    peer = [f"round/mlp/{side}" for side in ("opacus", "loop", "vmap")] if not opacus.missing() else []
    peer += ["round/mlp/flower"] if peer and not flower_round.missing() else []
    assert [row["name"] for row in rows] == ["round/mlp", "round/mlp/poisson", *peer]
    assert peer or any("pip install 'fedveil[bench]'" in line for line in lines)
    assert all(set(row) == {"name", "ratio", "low", "high", "ours", "theirs", "device"} for row in rows)
    (private, numbers), (plain, _), (poisson, _) = played
    assert private["defense"] == {"name": "fed-cdp"} and private["train"]["batching"] == "shuffle"
    assert plain == private | {"defense": {"name": "none"}}
    assert poisson == private | {"train": private["train"] | {"batching": "poisson"}}
    assert numbers == [0, 1, 2, 3] * (2 if "round/mlp/flower" in peer else 1)


def test_compilation_is_no_part_of_a_round(monkeypatch, clock):
    simulator = SimpleNamespace(compile_seconds=0.0, start=lambda: 0, block=lambda state: clock.move(0.25))

    def one(state, number):
        clock.move(5.0)
        simulator.compile_seconds += 4.0 if number == 0 else 0.0
        return state + 1, None

    simulator.round = one
    monkeypatch.setattr(bench, "time", clock)
    monkeypatch.setattr(bench, "federation", lambda settings, data: SimpleNamespace(simulator=simulator))
    play = bench.play_rounds({}, None)
    assert [play(0), play(1)] == [1.25, 5.25]


@pytest.mark.parametrize("faster", [1, 2])
def test_pytorch_gets_the_number_of_threads_that_is_faster(faster):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra [bench])")
    before, seen = torch.get_num_threads(), []

    def steps(count):
        seen.append((torch.get_num_threads(), count))
        return count * (1.0 if torch.get_num_threads() == faster else 2.0)

    torch.set_num_threads(2)
    try:
        play = bench._with_threads(steps, 40)
        assert play(0) == 40.0 and seen[-1] == (faster, 40) and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_opacus_is_given_the_same_network():
    pytest.importorskip("torch", reason="torch is not installed (extra [bench])")
    pytest.importorskip("opacus", reason="opacus is not installed (extra [bench])")
    for case in (bench.CASES | bench.DEEP).values():
        net = build(case.model, case.shape, case.classes)
        ours = sorted(int(a.size) for a in jax.tree.leaves(net.init(jax.random.key(0))))
        assert sorted(p.numel() for p in torch_nets.sequential(net).parameters()) == ours


def test_rounds_of_flower_average_what_its_clients_trained():
    pytest.importorskip("opacus", reason="opacus is not installed (extra [bench])")
    pytest.importorskip("ray", reason="Flower's simulation is not installed (extra [bench])")
    net = build("mlp", (6,), 3, ModelConfig(hidden=[5]))
    x, y = np.random.default_rng(0).random((8, 6), np.float32), np.arange(8) % 3
    work = flower_round.ClientWork(net, replace(STEP, batch=2), steps=2)
    start, found = flower_round._first(net), []
    alone = [flower_round._trained(work, start, x[at : at + 4], y[at : at + 4]) for at in (0, 4)]
    assert not np.allclose(alone[0][0], alone[1][0])
    flower_round.in_simulation(work, x, y, 2, lambda play: found.extend([play(0), play.values]), start)
    assert found[0] > 0
    for mean, *each in zip(found[1], *alone, strict=True):
        np.testing.assert_allclose(mean, np.mean(each, axis=0), atol=1e-6)


def test_an_error_inside_flower_reaches_the_caller():
    pytest.importorskip("opacus", reason="opacus is not installed (extra [bench])")
    pytest.importorskip("ray", reason="Flower's simulation is not installed (extra [bench])")
    work = flower_round.ClientWork(build("mlp", (6,), 3, ModelConfig(hidden=[5])), replace(STEP, batch=2), steps=1)

    def turns(play):
        raise ValueError("from a turn")

    with pytest.raises(ValueError, match="from a turn"):
        flower_round.in_simulation(work, np.zeros((4, 6), np.float32), np.zeros(4, int), 2, turns)


def test_steps_of_pytorch_clip_and_follow_the_gradient():
    """Without noise, both ways make the step of our clipped gradients."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra [bench])")
    net = build("mlp", (6,), 3, ModelConfig(hidden=[5]))
    x, y = np.random.default_rng(0).random((4, 6), np.float32), np.arange(4) % 3
    params = net.init(jax.random.key(0))
    loss = lambda p, a, b: cross_entropy(net.apply(p, a[None]), b[None])[0]  # noqa: E731
    each = jax.vmap(jax.grad(loss), (None, 0, 0))(params, jnp.asarray(x), jnp.asarray(y))
    stepped = jax.tree.map(lambda p, g: p - 0.1 * g.sum(0) / 4, params, clip_examples(each, 0.05, "layerwise"))
    wanted = [np.asarray(stepped[layer][key]).T for layer in net.named for key in ("w", "b")]

    def start():
        model = torch_nets.sequential(net)
        ours = [np.asarray(params[layer][key]).T for layer in net.named for key in ("w", "b")]
        with torch.no_grad():
            for p, a in zip(model.parameters(), ours, strict=True):
                p.copy_(torch.tensor(a.copy()))
        return model

    model = start()
    torch_round.loop_steps(model, x, y, STEP)(1)
    together = torch_round.VmapSteps(start(), np.concatenate([x, x]), np.concatenate([y, y]), 2, STEP)
    together(1)
    for a, b, c in zip(model.parameters(), together.params.values(), wanted, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), c, atol=1e-6)
        np.testing.assert_allclose(b.numpy(), np.stack([c, c]), atol=1e-6)
