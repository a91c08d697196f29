"""Names, keys and defaults of the attacks; the table is cheap to import."""

import subprocess
import sys

import pytest
from fedveil.attacks.catalog import ATTACKS, INITS, inference_settings, keys, settings

from fedveil.attacks.adversaries import ADVERSARIES
from fedveil.core.errors import ConfigError


def test_defaults_follow_the_papers():
    cpl, dlg, idlg, inverting = (settings(name) for name in ("cpl", "dlg", "idlg", "inverting"))
    assert (cpl.init, cpl.distance, cpl.optimizer, cpl.lr, cpl.iterations) == ("patterned-2x2", "l2", "lbfgs", 1.0, 300)
    assert cpl.stop is None and cpl.label == idlg.label == "infer" and dlg.label == "joint"
    assert dlg.init == idlg.init == "random-normal"
    assert (inverting.distance, inverting.optimizer, inverting.signed) == ("cosine", "adam", True) and inverting.tv > 0
    assert settings("cpl", init="patterned") == cpl
    named = (
        "patterned-2x2 patterned-4x4 random-normal random-uniform dark light red green blue optimal optimal-any file"
    )
    assert list(INITS) == named.split()
    reconstructing = [info for info in ATTACKS.values() if not info.seats]
    assert all(set(info.keys) <= set(keys()) and set(info.defaults) <= set(info.keys) for info in reconstructing)


def test_every_name_of_the_contract_is_there_and_inference_attacks_refuse_a_seat_they_have_nothing_from():
    names = [
        "cpl",
        "dlg",
        "idlg",
        "inverting",
        "aono",
        "inversion",
        "loss-threshold",
        "lira",
        "rmia",
        "client-membership",
        "melis",
    ]
    assert list(ATTACKS) == names
    for name, info in ATTACKS.items():
        for seat in ADVERSARIES if info.seats else ():
            if seat in info.seats:
                assert inference_settings(name, seat=seat).stands_at in ADVERSARIES[seat].taps
            else:
                with pytest.raises(ConfigError, match="needs"):
                    inference_settings(name, seat=seat)
    with pytest.raises(ConfigError, match="which is seen at release or broadcast"):
        inference_settings("lira", tap="server")


@pytest.mark.parametrize(
    "name,given,reason",
    [
        ("clp", {}, "did you mean 'cpl'"),
        ("cpl", {"init": "patterned-3x3"}, "did you mean"),
        ("cpl", {"distance": "l1"}, "takes one of"),
        ("cpl", {"iteration": 3}, "did you mean 'iterations'"),
        ("cpl", {"iterations": 0}, "at least 1"),
        ("cpl", {"iterations": 2.5}, "whole number"),
        ("cpl", {"stop": 0.0}, "above 0"),
        ("cpl", {"tv": -1.0}, "0 for none"),
        ("cpl", {"alpha": float("nan")}, "takes a number"),
        ("cpl", {"restarts": -1}, "whole number"),
        ("cpl", {"signed": True}, "first-order"),
        ("cpl", {"init": "file"}, "path"),
        ("dlg", {"alpha": 0.1}, "fixed label"),
        ("aono", {"init": "dark"}, "no such key"),
    ],
)
def test_wrong_settings_say_what_is_wrong(name, given, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        settings(name, **given)
    assert str(caught.value).startswith("attack.")


def test_the_table_does_not_import_jax():
    code = "import sys, fedveil.attacks.catalog; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
