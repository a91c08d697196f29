"""The attack bench gives both sides the same work."""

import numpy as np
import pytest

from fedveil.attacks.reconstruction import inits
from fedveil.attacks.reconstruction.cpl import CPL
from fedveil.bench import attack as bench
from fedveil.bench.peers import breaching_attack, torch_attack

SMALL = bench.Case((12, 12, 3), 5, 2)


def test_without_torch_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(torch_attack, "missing", lambda: "torch")
    lines = []
    assert list(bench.run(progress=lines.append)) == [] and "pip install 'fedveil[bench]'" in lines[0]


@pytest.fixture
def one_thread():
    """Torch's threads wait busily for each other, which takes long where tests run side by side."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra [bench])")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_rows_in_small(monkeypatch, one_thread):
    monkeypatch.setattr(bench, "CASES", {"small": SMALL})
    monkeypatch.setattr(breaching_attack, "missing", lambda: "breaching")
    lines = []
    (row,) = bench.run(images=4, repeats=3, progress=lines.append)
    assert "no comparison with breaching" in lines[-1] and "pip install 'fedveil[bench]'" in lines[-1]
    assert set(row) == {"name", "ratio", "low", "high", "ours", "theirs", "device"} and row["name"] == "attack/small"
    assert 0 < row["low"] <= row["ratio"] <= row["high"] and row["ours"] > 0 and row["theirs"] > 0


def test_both_sides_find_the_same(one_thread):
    work, chosen = bench.victims(SMALL, 2, bench.noise), CPL(iterations=2)
    ours = chosen.run(work.observation)
    keys = [(int(i), 0, 0) for i in work.observation.ids]
    starts = inits.starts(chosen, work.observation, work.y[:, None], keys, "float32")[:, 0]
    theirs = torch_attack.attacks(work.net, work.params, work.x, work.y, starts, chosen.iterations)
    theirs(1)
    assert np.array_equal(ours.labels[:, 0], work.y)
    assert np.abs(np.clip(theirs.found, 0, 1) - ours.inputs[1, 0]).max() < 0.05
