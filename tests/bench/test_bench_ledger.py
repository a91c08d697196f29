"""The ledger benchmark compares the same work: the same ε, computed from empty caches, or it says why not."""

import pytest

from benchmarks import ledger as bench
from fedveil.accounting import accountants, pld, published


def test_both_sides_find_the_same_epsilon():
    cases = bench.cases()
    for name in ("table-6/fed-cdp-10000", "participation/10000", "steps/10000"):
        assert bench.agree(cases[name].ours(), cases[name].theirs()), name
    assert cases["participation/10000"].ours() < cases["steps/10000"].ours()


def test_the_table_holds_every_distinct_account_of_the_recipe():
    from fedveil.recipes.cell import FULL
    from fedveil.recipes.fed_cdp import table_6

    wanted = set()
    for cell in table_6(FULL):
        (steps,) = (int(s.partition("=")[2]) for s in cell.settings if s.startswith("train.local_steps="))
        kind, count = cell.row[:7].lower(), dict(cell.options)["rounds"]
        wanted.add(f"{kind}-{count * steps if kind == 'fed-cdp' else count}")
    assert set(bench.TABLE) == wanted


def test_only_sides_that_agree_are_compared(monkeypatch, clock):
    """Ours takes 1 s and theirs 2, 4, 8 and 16 s, of which the first warms up."""
    lines, theirs = [], iter((2.0, 4.0, 8.0, 16.0))
    monkeypatch.setattr(bench, "time", clock)
    cases = {
        "other": bench.Case(lambda: 1.0, lambda: 1.02),
        "none": bench.Case(lambda: None, lambda: 1.0),
        "same": bench.Case(lambda: clock.move(1.0) or 1.0, lambda: clock.move(next(theirs)) or 1.005),
    }
    (row,) = bench.run(repeats=3, progress=lines.append, chosen=cases)
    assert sum("not compared" in line for line in lines) == 2
    assert row["name"] == "ledger/same" and row["epsilon_ours"] == 1.0 and row["epsilon_theirs"] == 1.005
    assert (row["low"], row["ratio"], row["high"], row["ours"], row["theirs"]) == (1 / 16, 1 / 8, 1 / 4, 1.0, 8.0)


@pytest.mark.parametrize("cached", [accountants.epsilon, published.moments_pld, pld.two_mixtures])
def test_every_turn_starts_with_empty_caches(cached):
    published.moments_pld(6.0, 0.01, 3, 1e-5)
    accountants.epsilon(((accountants.Round(((1.0, 6.0),)), 3),), 1e-5, "pld")
    assert cached.cache_info().currsize
    bench.forget()
    assert not cached.cache_info().currsize
