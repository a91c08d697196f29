"""The bench measures what it says: both sides, the same work, a ratio with its spread."""

import json

import pytest

from fedveil.bench.peers import opacus, torch_nets


def test_round_bench_in_small(monkeypatch):
    from fedveil.bench import round as bench

    monkeypatch.setattr(bench, "CASES", {"mlp": bench.CASES["mlp"]})
    lines = []
    rows = bench.run(clients=3, steps=2, repeats=3, progress=lines.append)
    peer = ["round/mlp/opacus"] if not opacus.missing() else []
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

    for case in bench.CASES.values():
        net = build(case.model, case.shape, case.classes)
        ours = sorted(int(a.size) for a in jax.tree.leaves(net.init(jax.random.key(0))))
        assert sorted(p.numel() for p in torch_nets.sequential(net).parameters()) == ours


def test_bench_prints_json_and_refuses_unknown_suites(monkeypatch, tmp_path, fedveil_cli):
    rows = [{"name": "round/x", "ratio": 1.1, "low": 1.0, "high": 1.2, "ours": 1e-3, "theirs": 1e-3, "device": "cpu"}]
    monkeypatch.setattr("fedveil.bench.round.run", lambda **_: rows)
    assert json.loads(fedveil_cli("bench", "round", "--json", cwd=tmp_path).out) == rows
    assert "round/x" in fedveil_cli("bench", cwd=tmp_path).out
    answer = fedveil_cli("bench", "ruond", cwd=tmp_path)
    assert answer.code == 2 and "did you mean 'round'?" in answer.err


@pytest.mark.parametrize("repeats", [0, 2])
def test_too_few_turns_are_refused(repeats, tmp_path, fedveil_cli):
    assert fedveil_cli("bench", "--repeats", repeats, cwd=tmp_path).code == 2
