"""The bench of accounts compares the same work: the same ε, worked out anew, or it says why not."""

import time

import pytest

from fedveil.accounting import accountants, pld, published
from fedveil.bench import ledger as bench


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


def test_sides_that_differ_are_not_compared():
    lines = []
    cases = {
        "other": bench.Case(lambda: 1.0, lambda: 1.02),
        "none": bench.Case(lambda: None, lambda: 1.0),
        "same": bench.Case(lambda: 1.0, lambda: time.sleep(0.002) or 1.005),
    }
    rows = list(bench.run(repeats=3, progress=lines.append, chosen=cases))
    assert [row["name"] for row in rows] == ["ledger/same"]
    assert sum("not compared" in line for line in lines) == 2
    assert rows[0]["low"] <= rows[0]["ratio"] <= rows[0]["high"] < 1 and rows[0]["theirs"] >= 0.002


@pytest.mark.parametrize("cached", [accountants.epsilon, published.moments_pld, pld.two_mixtures])
def test_nothing_is_remembered_between_turns(cached):
    published.moments_pld(6.0, 0.01, 3, 1e-5)
    accountants.epsilon(((accountants.Round(((1.0, 6.0),)), 3),), 1e-5, "pld")
    assert cached.cache_info().currsize
    bench.forget()
    assert not cached.cache_info().currsize
