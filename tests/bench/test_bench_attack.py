"""The attack benchmark gives both sides the same work, and its rows compare seconds per image."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import attack as bench
from benchmarks.peers import breaching_attack, torch_attack
from fedveil.attacks.reconstruction import inits
from fedveil.attacks.reconstruction.cpl import CPL
from fedveil.attacks.reconstruction.engine import reconstruct

SMALL = bench.Case((12, 12, 3), 5, 2)


def victims(images):
    """Victims without a network, for tests in which no attack runs."""
    seen = SimpleNamespace(ids=np.arange(images))
    return bench.Work(None, None, np.zeros((images, *SMALL.shape)), np.zeros(images, int), seen)


@pytest.fixture
def without_attacks(monkeypatch):
    """The benchmark runs as if torch were installed, on victims without a network. Tests replace both sides' attacks."""
    monkeypatch.setattr(torch_attack, "missing", lambda: "")
    monkeypatch.setattr(torch_attack, "threads_kept", nullcontext)
    monkeypatch.setattr(bench, "victims", lambda case, images, draw: victims(images))
    monkeypatch.setattr(bench, "_only", lambda work, number: victims(1))
    monkeypatch.setattr(bench, "_starts", lambda work, chosen: work.x)


def test_without_torch_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(torch_attack, "missing", lambda: "torch")
    lines = []
    assert list(bench.run(progress=lines.append)) == [] and "pip install 'fedveil[bench]'" in lines[0]


def test_rows_compare_seconds_per_image(monkeypatch, without_attacks):
    """Ours takes 4 s for 4 images. The other side takes 1, 2 and 3 s for the 3 images that it attacks."""
    attacked, lines = [], []
    monkeypatch.setattr(bench, "CASES", {"small": SMALL})
    monkeypatch.setattr(bench, "reconstruct", lambda observation, chosen: SimpleNamespace(seconds=4.0))
    monkeypatch.setattr(torch_attack, "attacks", lambda *_: lambda number: attacked.append(number) or number + 1.0)
    monkeypatch.setattr(breaching_attack, "missing", lambda: "breaching")
    (row,) = bench.run(images=4, repeats=3, progress=lines.append)
    assert "no comparison with breaching" in lines[-1] and "pip install 'fedveil[bench]'" in lines[-1]
    assert set(row) == {"name", "ratio", "low", "high", "ours", "theirs", "device"} and row["name"] == "attack/small"
    assert (row["ratio"], row["low"], row["high"], row["ours"], row["theirs"]) == (0.5, 0.5, 0.5, 1.0, 2.0)
    assert attacked == [0, 1, 2] * 4  # the first turn warms up


def test_rows_of_breaching_time_whole_calls_without_compilation(monkeypatch, clock, without_attacks):
    """Ours takes 1 s per image and half a second to compile; the other side takes 2, 3 and 4 s."""

    def ours(observation, chosen):
        clock.move(0.5 + len(observation.ids))
        images = np.zeros((len(observation.ids), 1, *SMALL.shape))
        return SimpleNamespace(compile_seconds=0.5, inputs=images, evaluations=np.full(len(images), 7))

    def theirs(number):
        return breaching_attack.Found(np.zeros(SMALL.shape), 2.0 + number, 9)

    monkeypatch.setattr(bench, "CASES", {})
    monkeypatch.setattr(bench, "BREACHING", {"dlg": SMALL})
    monkeypatch.setattr(bench, "time", clock)
    monkeypatch.setattr(bench, "reconstruct", ours)
    monkeypatch.setattr(breaching_attack, "missing", lambda: "")
    monkeypatch.setattr(breaching_attack, "attacks", lambda *_: theirs)
    rows = list(bench.run(images=5, repeats=3))
    assert [row["name"] for row in rows] == ["attack/breaching/dlg", "attack/breaching/dlg/alone"]
    for row in rows:
        assert (row["ratio"], row["ours"], row["theirs"]) == pytest.approx((1 / 3, 1.0, 3.0))
        assert row["evaluations_ours"] == 7 and row["evaluations_theirs"] == 9


def test_quality_is_measured_on_the_images_that_both_attacked():
    real = np.random.default_rng(0).random((3, *SMALL.shape)) * 0.5
    ours = SimpleNamespace(
        inputs=np.concatenate([real[:2] + 0.1, real[2:] + 9.0])[:, None], evaluations=np.array([4, 6, 90])
    )
    theirs = [breaching_attack.Found(image, 1.0, count) for image, count in zip(real[:2], (10, 30), strict=True)]
    found = bench._quality(SimpleNamespace(x=real), ours, theirs)
    assert found["mse_ours"] == pytest.approx(0.01) and found["mse_theirs"] == 0.0
    assert found["ssim_theirs"] == pytest.approx(1.0) and found["ssim_ours"] < 0.999
    assert found["evaluations_ours"] == 5 and found["evaluations_theirs"] == 20


def test_both_sides_find_the_same(one_thread):
    work, chosen = bench.victims(SMALL, 2, bench.noise), CPL(iterations=2)
    ours = reconstruct(work.observation, chosen)
    keys = [(int(i), 0, 0) for i in work.observation.ids]
    starts = inits.starts(chosen, work.observation, work.y[:, None], keys, "float32")[:, 0]
    theirs = torch_attack.attacks(work.net, work.params, work.x, work.y, starts, chosen.iterations)
    assert theirs(1) > 0
    assert np.array_equal(ours.labels[:, 0], work.y)
    assert np.abs(np.clip(theirs.found, 0, 1) - ours.inputs[1, 0]).max() < 0.05


def test_the_real_sides_of_a_row_attack_the_same_images(monkeypatch, one_thread):
    """A real run in small: the torch side gets the victims of ours, their labels, and the starts of our attacks."""
    seen, real = [], torch_attack.attacks
    monkeypatch.setattr(bench, "CASES", {"small": SMALL})
    monkeypatch.setattr(breaching_attack, "missing", lambda: "breaching")
    monkeypatch.setattr(torch_attack, "attacks", lambda *given: seen.append(given) or real(*given))
    assert [row["name"] for row in bench.run(images=4, repeats=3)] == ["attack/small"]
    ((_, _, x, y, starts, iterations, device),) = seen
    work = bench.victims(SMALL, 4, bench.noise)
    assert np.array_equal(x, work.x) and np.array_equal(y, work.y) and iterations == SMALL.iterations
    assert np.array_equal(starts, bench._starts(work, CPL())) and device == "cpu"
