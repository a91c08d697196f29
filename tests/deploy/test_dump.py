"""What a server receives under secure aggregation, given to the bench's attacks: they find nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="comes with Flower: pip install 'fedveil[flower]'")

from dump import ATTACKS, CLEAR, COHORT, KINDS, MASKED, attacked, dumped, other_data, told_apart, uniform
from scipy import stats

from fedveil.deploy.secagg import vectors


def test_examples_are_rebuilt_before_masking_and_not_from_what_the_server_receives(tmp_path: Path) -> None:
    """No defence, one example behind each update: the closest that an attacker at the server can get without masks."""
    dump = dumped(MASKED, 4, tmp_path)
    before, after = attacked(dump, ATTACKS[0], bare=True), attacked(dump, ATTACKS[0])
    assert before["rebuilt"] == before["vectors"] > 2 and before["labels"] == 1.0
    assert after["rebuilt"] == 0 and after["best_ssim"] < after["guess_ssim"]
    assert min(uniform(dump).values()) > 1e-6
    assert {message[5] for _, _, message in dump.received} == set(KINDS)  # and no other kind


@pytest.mark.slow
def test_without_masks_the_same_attack_rebuilds_what_the_server_receives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: masks are all that hides the examples in it."""
    monkeypatch.setattr(vectors, "add_stream", lambda *_: None)
    found = attacked(dumped(MASKED, 4, tmp_path), ATTACKS[0])
    assert found["rebuilt"] == found["vectors"] > 2


@pytest.mark.slow
def test_attacks_on_200_rounds_find_nothing_under_masks(tmp_path: Path) -> None:
    """Cohort noise in whole numbers, and no noise at all; in the clear and without noise the same attacks rebuild."""
    clear = dumped(CLEAR, 30, tmp_path / "clear")
    assert all(attacked(clear, one)["rebuilt"] > 0.9 * attacked(clear, one)["vectors"] for one in ATTACKS)
    for what in (MASKED, COHORT):
        dump, other = (dumped(what, 200, tmp_path / what / n, c) for n, c in (("one", None), ("two", other_data)))
        assert min(uniform(dump).values()) > 1e-6
        for kind in KINDS:
            assert stats.binomtest(*told_apart(dump, other, kind)).pvalue > 1e-3
        if what == MASKED:
            # Before masking the same attack wins, except where the batch was empty: one in e, and half of those by chance.
            hits, tries = told_apart(dump, other, None)
            assert 0.7 * tries < hits < 0.95 * tries
        for one in ATTACKS:
            found = attacked(dump, one)
            assert found["rebuilt"] <= found["guess_rate"] * found["vectors"] and found["vectors"] == 200
