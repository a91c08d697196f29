"""What the lab says about labels, the order of its pictures, uploads at their size, and where it opens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedveil.lab import measured, pictures, requests, tasks
from fedveil.lab.leak import labels_found
from fedveil.lab.server import FACES, LEARNS, Lab, Options


def test_a_label_that_a_guess_may_hit_is_not_found() -> None:
    one, ten = np.array([True]), np.ones(10, bool)
    assert not labels_found(one, np.array([7]), 10)  # one time in ten
    assert labels_found(one, np.array([7]), 106)
    assert not labels_found(ten, np.full(10, 7), 10)  # one constant guess hits them all
    assert labels_found(np.ones(3, bool), np.array([1, 2, 3]), 10)
    assert not labels_found(~ten, np.arange(10), 10)


def test_pictures_sorted_by_class_are_shown_in_turn() -> None:
    assert tasks._in_turn(np.array([0, 0, 0, 1, 1, 2])).tolist() == [0, 3, 5, 1, 4, 2]
    assert tasks._in_turn(np.array([1, 0, 1])).tolist() == [0, 1, 2] and len(tasks._in_turn(np.zeros(0, int))) == 0


def test_an_upload_is_shown_as_it_is_attacked(tmp_path: Path) -> None:
    name = pictures.keep(Image.new("RGB", (64, 64), "red"), tmp_path)
    told = tasks.sized({"dataset": "digits", "upload": name}, tmp_path, lambda event: None)
    assert told["size"] == "8 × 8, grey" and told["png"].startswith("data:image/png")


def test_the_trade_off_opens_with_a_training_that_learns() -> None:
    """With its measurement, and a certified ε below 5."""
    opened = requests.read(requests.TradeRequest, LEARNS).document()
    (entry,) = [one for one in measured.known() if one["document"] == opened]
    assert entry["accuracy"] > (entry["chance"] + 0.95) / 2
    assert min(r["epsilon"] for r in entry["ledger"] if (r["tap"], r["unit"]) == ("release", "example")) < 5


@pytest.mark.parametrize("here", [True, False])
def test_the_leak_opens_with_faces_where_they_are(here: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(requests, "is_installed", lambda name: here)
    lab = Lab.__new__(Lab)  # without its workers
    lab.options = Options(tmp_path, tmp_path)
    assert lab.start()["leak"]["picture"]["dataset"] == (FACES if here else "digits")
    assert lab.start()["trade"]["lr"] == LEARNS["lr"]
    lab.options = Options(tmp_path, tmp_path, start=(("data", {"name": "mnist"}),))
    assert lab.start()["leak"]["picture"]["dataset"] == "mnist" and lab.start()["trade"]["lr"] is None
