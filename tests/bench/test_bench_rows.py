"""A row holds the median and quartiles of the turns' ratios, and the median of each side."""

import pytest

from benchmarks.round import take_turns
from benchmarks.rows import row


def test_known_timings_give_known_quartiles():
    found = row("x", [6.0, 1.0, 2.0, 5.0, 3.0, 7.0, 4.0], [1.0] * 7, device="cpu")
    assert found == {"name": "x", "ratio": 4.0, "low": 2.0, "high": 6.0, "ours": 4.0, "theirs": 1.0, "device": "cpu"}


def test_ratios_are_taken_within_a_turn():
    """The ratio of the medians would be 2 / 3."""
    found = row("x", [2.0, 2.0, 9.0], [1.0, 4.0, 3.0], device="cpu")
    assert found["ratio"] == 2.0 and found["ours"] == 2.0 and found["theirs"] == 3.0


def test_a_side_is_divided_by_its_work_and_the_ratio_is_not():
    found = row("x", [10.0, 20.0, 30.0], [5.0, 5.0, 5.0], work=10, device="cpu")
    assert found["ratio"] == 4.0 and found["ours"] == 2.0 and found["theirs"] == 0.5


def test_sides_with_different_numbers_of_turns_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        row("x", [1.0, 2.0, 3.0], [1.0, 2.0], device="cpu")


def test_the_device_is_the_first_of_jax():
    import jax

    assert row("x", [1.0, 1.0], [1.0, 1.0])["device"] == jax.devices()[0].device_kind


def test_sides_alternate_and_the_first_turn_does_not_count():
    played = []

    def side(name, seconds):
        return lambda number: played.append((name, number)) or seconds + number

    found = take_turns({"ours": side("ours", 1.0), "theirs": side("theirs", 5.0)}, 2)
    assert found == {"ours": [2.0, 3.0], "theirs": [6.0, 7.0]}
    assert played == [(name, number) for number in range(3) for name in ("ours", "theirs")]
