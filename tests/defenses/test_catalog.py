"""The table of defences: standard names lead to the method that they name, or to a sentence that says what differs."""

from __future__ import annotations

import pytest

from fedveil.config import from_dict, from_settings
from fedveil.core.errors import ConfigError
from fedveil.defenses.catalog import CLOSEST, DEFENSES, SAME, SPELLED, make, named
from fedveil.defenses.fed_cdp import FedCDP
from fedveil.defenses.fed_sdp import FedSDP


def test_a_standard_name_is_the_defence_with_its_keys() -> None:
    (found,) = from_dict({"defense": {"name": "dp-sgd", "noise": 2.0}}).defense
    assert found == FedCDP(noise=2.0, placement="batch", clip_scope="flat")
    (found,) = from_settings(["defense.name=ldp"]).defense
    assert found == FedSDP(placement="client", clip_scope="flat")
    (found,) = from_settings(from_dict({}), defense={"name": "dp-fedavg"}).defense
    assert found == FedSDP(placement="server-sum", clip_scope="flat")


def test_a_preset_reaches_a_standard_name() -> None:
    config = from_dict({"preset": "fedveil", "defense": {"name": "dp-sgd"}})
    assert config.defense == from_dict({"preset": "fedveil", "defense": {"name": "fed-cdp"}}).defense


def test_a_key_that_would_make_it_another_method_is_refused() -> None:
    with pytest.raises(ConfigError, match="defense.placement: got 'cohort'; dp-sgd is fed-cdp with placement = batch"):
        from_dict({"defense": {"name": "dp-sgd", "placement": "cohort"}})


@pytest.mark.parametrize("name", CLOSEST)
def test_a_method_that_is_not_here_is_answered(name: str) -> None:
    with pytest.raises(ConfigError) as told:
        from_dict({"defense": {"name": name}})
    assert str(told.value) == f"defense.name: got '{name}'; {CLOSEST[name]}"
    assert any(known in CLOSEST[name] for known in (*SAME, *DEFENSES))  # it leads somewhere


@pytest.mark.parametrize("name", ["dpsgd", "DP-SGD", "dp_sgd", "DP SGD"])
def test_other_spellings_are_the_same_defence(name: str) -> None:
    """`dpsgd` is nearest to `dssgd`, which has no guarantee."""
    assert from_dict({"defense": {"name": name}}).defense == from_dict({"defense": {"name": "dp-sgd"}}).defense


@pytest.mark.parametrize("name", ["dpsdg", "dp-sgd-2", "dp-fedvag", "local-dq", "cental-dp", "fed_cpd"])
def test_a_mistyped_name_of_a_private_method_is_never_taken_for_one_without_a_guarantee(name: str) -> None:
    with pytest.raises(ConfigError) as told:
        make(named({"name": name}), "defense")
    near = told.value.takes.partition("did you mean '")[2].partition("'")[0]
    assert near in SAME or DEFENSES[near].private


def test_no_standard_name_hides_a_defence() -> None:
    assert not {*SAME, *CLOSEST, *SPELLED} & set(DEFENSES)
    assert not set(SAME) & set(CLOSEST) and not set(SPELLED) & {*SAME, *CLOSEST}
    assert set(SPELLED.values()) <= set(SAME)
    assert {keys["name"] for keys in SAME.values()} <= set(DEFENSES)
