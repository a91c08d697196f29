"""The attack benchmark against `breaching`: equal work on both sides, and rows with the quality of both."""

import numpy as np
import pytest

from benchmarks import attack as bench
from benchmarks.peers import breaching_attack
from fedveil.attacks.reconstruction.dlg import DLG

SMALL = bench.Case((16, 16, 3), 5, 150)
QUALITY = {f"{what}_{side}" for what in ("mse", "ssim", "evaluations") for side in ("ours", "theirs")}


@pytest.fixture
def breaching(one_thread):
    """`breaching` with one thread of torch."""
    absent = breaching_attack.missing()
    if absent:
        pytest.skip(f"{absent} is not installed (extra [bench])")


def within_the_edge(self, image):
    """Our total variation. That of `breaching` also counts the step from the last pixels to zeros beyond the edge."""
    return self.scale * sum(image.diff(dim=axis).abs().mean() for axis in (2, 3))


def test_both_sides_do_equally_well(monkeypatch, breaching, capsys):
    from breaching.attacks.auxiliaries.regularizers import TotalVariation

    monkeypatch.setattr(TotalVariation, "forward", within_the_edge)
    monkeypatch.setattr(bench, "CASES", {})
    monkeypatch.setattr(bench, "BREACHING", {"inverting": SMALL})
    monkeypatch.setattr(bench, "THEIRS", 1)
    rows = list(bench.run(images=2, repeats=2))
    assert [row["name"] for row in rows] == ["attack/breaching/inverting", "attack/breaching/inverting/alone"]
    assert capsys.readouterr().out == ""  # stdout is for the JSON document
    for row in rows:
        assert set(row) == {"name", "ratio", "low", "high", "ours", "theirs", "device"} | QUALITY
    assert rows[0]["evaluations_ours"] == rows[0]["evaluations_theirs"] == SMALL.iterations + 1
    # Without the edge both sides compute the same: here 0.030 and 0.032. The gradient of another image gives 0.053.
    assert rows[0]["mse_theirs"] == pytest.approx(rows[0]["mse_ours"], rel=0.25) and rows[0]["mse_ours"] < 0.04


def test_dlg_of_breaching(breaching):
    work, chosen = bench.victims(SMALL, 1, bench._smooth), DLG(iterations=2)
    starts = bench._starts(work, chosen)
    found = breaching_attack.attacks("dlg", work.net, work.params, work.x, work.y, starts, chosen.iterations)(0)
    assert found.image.shape == SMALL.shape and 2 < found.evaluations <= 2 * 25 + 1
    assert np.isfinite(found.image).all() and np.abs(found.image - np.clip(starts[0], 0, 1)).max() > 0


def test_a_torchvision_for_another_torch_is_named(monkeypatch):
    def refuse(name, *args, **kwargs):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("builtins.__import__", refuse)
    assert breaching_attack.missing().startswith("a torchvision built for this torch")
