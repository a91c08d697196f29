"""The table of defences: standard names lead to the method that they name, or to a sentence that says what differs."""

from __future__ import annotations

import pytest

from fedveil.config import from_dict, from_settings
from fedveil.core.errors import ConfigError
from fedveil.defenses.catalog import CLOSEST, DEFENSES, SAME
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
    with pytest.raises(ConfigError, match=f"defense.name: got '{name}'; is not here"):
        from_dict({"defense": {"name": name}})


def test_no_standard_name_hides_a_defence() -> None:
    assert not {*SAME, *CLOSEST} & set(DEFENSES)
    assert {keys["name"] for keys in SAME.values()} <= set(DEFENSES)
