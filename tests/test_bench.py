"""The bench measures what it says: both sides, the same work, a ratio with its spread."""

import json
from dataclasses import replace

import pytest

from fedveil.bench.peers import flower_round, opacus, torch_nets


def test_round_bench_in_small(monkeypatch):
    from fedveil.bench import round as bench

    lines = []
    monkeypatch.setattr(bench, "DEEP", {})
    monkeypatch.setattr(bench, "CASES", {"mlp": replace(bench.CASES["mlp"], work=6)})
    rows = list(bench.run(clients=(3,), repeats=3, progress=lines.append))
    peer = [f"round/mlp/{side}" for side in ("opacus", "loop", "vmap")] if not opacus.missing() else []
    peer += ["round/mlp/flower"] if peer and not flower_round.missing() else []
    assert [row["name"] for row in rows] == ["round/mlp", "round/mlp/poisson", *peer]
    assert peer or any("pip install 'fedveil[bench]'" in line for line in lines)
    for row in rows:
        assert set(row) == {"name", "ratio", "low", "high", "ours", "theirs", "device"}
        assert 0 < row["low"] <= row["ratio"] <= row["high"] and row["ours"] > 0 and row["theirs"] > 0


def test_opacus_is_given_the_same_network():
    pytest.importorskip("torch", reason="torch is not installed (extra [bench])")
    pytest.importorskip("opacus", reason="opacus is not installed (extra [bench])")
    import jax

    from fedveil.bench import round as bench
    from fedveil.models.build import build

    for case in (bench.CASES | bench.DEEP).values():
        net = build(case.model, case.shape, case.classes)
        ours = sorted(int(a.size) for a in jax.tree.leaves(net.init(jax.random.key(0))))
        assert sorted(p.numel() for p in torch_nets.sequential(net).parameters()) == ours


def test_rounds_of_flower_average_what_its_clients_trained():
    pytest.importorskip("opacus", reason="opacus is not installed (extra [bench])")
    pytest.importorskip("ray", reason="Flower's simulation is not installed (extra [bench])")
    import numpy as np

    from fedveil.models.build import build
    from fedveil.models.catalog import ModelConfig

    net = build("mlp", (6,), 3, ModelConfig(hidden=[5]))
    x, y = np.random.default_rng(0).random((8, 6), np.float32), np.arange(8) % 3
    how = {"clip": 0.05, "noise": 0.0, "lr": 0.1}
    start = flower_round._first(net)
    alone = [flower_round._trained(net, start, x[at : at + 4], y[at : at + 4], 2, 2, **how) for at in (0, 4)]
    assert not np.allclose(alone[0][0], alone[1][0])
    found = []
    flower_round.in_simulation(
        net, x, y, 2, 2, 2, **how, start=start, turns=lambda play: found.extend([play(0), play.values])
    )
    assert found[0] > 0
    for mean, *each in zip(found[1], *alone, strict=True):
        np.testing.assert_allclose(mean, np.mean(each, axis=0), atol=1e-6)


def test_steps_of_pytorch_clip_and_follow_the_gradient():
    """Without noise both ways make the step that our own clipped gradients make."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra [bench])")
    import jax
    import jax.numpy as jnp
    import numpy as np

    from fedveil.bench.peers import torch_round
    from fedveil.mechanisms.clip import clip_examples
    from fedveil.models.build import build
    from fedveil.models.catalog import ModelConfig
    from fedveil.simulation.client import cross_entropy

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

    model, how = start(), {"clip": 0.05, "noise": 0.0, "lr": 0.1}
    torch_round.loop_steps(model, x, y, 4, **how)(1)
    together = torch_round.vmap_steps(start(), np.concatenate([x, x]), np.concatenate([y, y]), 2, 4, **how)
    together(1)
    for a, b, c in zip(model.parameters(), together.params.values(), wanted, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), c, atol=1e-6)
        np.testing.assert_allclose(b.numpy(), np.stack([c, c]), atol=1e-6)


def test_bench_prints_json_and_refuses_unknown_suites(monkeypatch, tmp_path, fedveil_cli):
    rows = [{"name": "round/x", "ratio": 1.1, "low": 1.0, "high": 1.2, "ours": 1e-3, "theirs": 1e-3, "device": "cpu"}]
    monkeypatch.setattr("fedveil.bench.round.run", lambda **_: rows)
    assert json.loads(fedveil_cli("bench", "round", "--json", cwd=tmp_path).out) == rows
    assert "round/x" in fedveil_cli("bench", cwd=tmp_path).out
    answer = fedveil_cli("bench", "ruond", cwd=tmp_path)
    assert answer.code == 2 and "did you mean 'round'?" in answer.err


def test_a_bench_that_is_stopped_leaves_the_rows_it_has(monkeypatch, tmp_path, fedveil_cli):
    found = {"name": "round/x", "ratio": 1.1, "low": 1.0, "high": 1.2, "ours": 1e-3, "theirs": 1e-3, "device": "cpu"}

    def rows(**_):
        yield found
        raise KeyboardInterrupt

    monkeypatch.setattr("fedveil.bench.round.run", rows)
    assert fedveil_cli("bench", "--out", "rows.jsonl", cwd=tmp_path).code == 130
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == [found]


@pytest.mark.parametrize("repeats", [0, 2])
def test_too_few_turns_are_refused(repeats, tmp_path, fedveil_cli):
    assert fedveil_cli("bench", "--repeats", repeats, cwd=tmp_path).code == 2
