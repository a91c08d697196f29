"""Names, keys and defaults of the attacks, the registry, and attacks from outside; the table is cheap to import."""

import dataclasses
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from fedveil.attacks import registry
from fedveil.attacks.adversaries import ADVERSARIES
from fedveil.attacks.inference.base import InferenceAttack
from fedveil.attacks.reconstruction.cpl import CPL
from fedveil.attacks.reconstruction.matching import INITS, GradientMatching
from fedveil.attacks.registry import ATTACKS, attack_kind, checked, make_attack, register_attack
from fedveil.config import load
from fedveil.core import plugins
from fedveil.core.errors import ConfigError
from fedveil.core.plugins import keys, schema


def test_defaults_follow_the_papers():
    cpl, dlg, idlg, inverting = (make_attack(name) for name in ("cpl", "dlg", "idlg", "inverting"))
    assert (cpl.init, cpl.distance, cpl.optimizer, cpl.lr, cpl.iterations) == ("patterned-2x2", "l2", "lbfgs", 1.0, 300)
    assert cpl.stop is None and cpl.label == idlg.label == "infer" and dlg.label == "joint"
    assert dlg.init == idlg.init == "random-normal"
    assert (inverting.distance, inverting.optimizer, inverting.signed) == ("cosine", "adam", True) and inverting.tv > 0
    assert make_attack("cpl", init="patterned") == cpl and make_attack("cpl", optimizer="adam").lr == 0.1
    named = (
        "patterned-2x2 patterned-4x4 random-normal random-uniform dark light red green blue optimal optimal-any file"
    )
    assert list(INITS) == named.split()
    matching = [kind for kind in ATTACKS.values() if issubclass(kind, GradientMatching)]
    assert len(matching) == 4 and all(keys(kind) == keys(GradientMatching) for kind in matching)


def test_every_key_of_every_attack_says_what_it_is():
    for kind in ATTACKS.values():
        fields = schema(kind).model_fields
        assert tuple(fields) == keys(kind) and all(field.description for field in fields.values()), kind.name


def test_every_name_of_the_contract_is_there_and_inference_attacks_refuse_an_adversary_that_sees_too_little():
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
    for name, kind in ATTACKS.items():
        for adversary in ADVERSARIES if issubclass(kind, InferenceAttack) else ():
            if adversary in kind.adversaries:
                assert make_attack(name, adversary=adversary).position.tap in ADVERSARIES[adversary].taps
            else:
                with pytest.raises(ConfigError, match="needs"):
                    make_attack(name, adversary=adversary)
    with pytest.raises(ConfigError, match="which is seen at release or broadcast"):
        make_attack("lira", tap="server")


@pytest.mark.parametrize(
    "name,given,reason",
    [
        ("clp", {}, "did you mean 'cpl'"),
        ("cpl", {"init": "patterned-3x3"}, "did you mean"),
        ("cpl", {"distance": "l1"}, "takes one of"),
        ("cpl", {"iteration": 3}, "did you mean 'iterations'"),
        ("cpl", {"iterations": 0}, "takes 1 or more"),
        ("cpl", {"iterations": 2.5}, "whole number"),
        ("cpl", {"stop": 0.0}, "more than 0"),
        ("cpl", {"tv": -1.0}, "or more"),
        ("cpl", {"alpha": float("nan")}, "finite number"),
        ("cpl", {"restarts": -1}, "0 or more"),
        ("cpl", {"signed": True}, "first-order"),
        ("cpl", {"init": "file"}, "path"),
        ("dlg", {"alpha": 0.1}, "fixed label"),
        ("aono", {"init": "dark"}, "no such key"),
        ("inverting", {"iterations": 0}, "takes 1 or more"),  # a subclass's default keeps the range
        ("cpl", {"signed": 1}, "true or false"),
        ("inversion", {"classes": []}, "at least one"),
        ("inversion", {"method": "close"}, "did you mean 'closed'"),
        ("melis", {"attacker": 1}, "is the attacker itself"),
    ],
)
def test_wrong_settings_say_what_is_wrong(name, given, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        make_attack(name, **given)
    assert str(caught.value).startswith("attack.")


def test_the_table_does_not_import_jax():
    code = (
        "import sys, fedveil.config, fedveil.attacks.registry; sys.exit('jax' in sys.modules or 'scipy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- configs


def test_former_names_of_keys_are_accepted_with_a_warning():
    with pytest.warns(FutureWarning, match=r"attack.seat is now called attack.adversary"):
        by_seat = load(None, ["attack.name=lira", "attack.seat=active"])
    assert by_seat == load(None, ["attack.name=lira", "attack.adversary=active"])
    with pytest.warns(FutureWarning, match=r"attack.trait is now called attack.property"):
        by_trait = load(None, ["attack.name=melis", "attack.trait=class:3"])
    assert by_trait.attack.make() == make_attack("melis", property="class:3")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["attack.imagess=3"], "attack.imagess: got 3; cpl has no such key; did you mean 'images'"),
        (["attack.name=lira", "attack.images=3"], "attack.images: got 3; lira has no such key"),
        (["attack.name=lira", "attack.rule=mse"], "attack.rule: got 'mse'; lira has no such key"),
        (["attack.name=lira", "attack.tap=server"], "attack.tap: got 'server'; lira by passive-global needs"),
        (["attack.seat=active"], "attack.adversary: got 'active'; cpl has no such key"),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_keys_of_the_bench_and_of_the_attack_are_told_apart(settings, says):
    with pytest.raises(ConfigError) as caught:
        load(None, settings)
    assert str(caught.value).startswith(says)


# --- attacks from outside


@dataclasses.dataclass(frozen=True)
class Longer(CPL):
    """cpl with more iterations."""

    iterations: int = 900

    name = "longer"
    summary = "cpl, longer"


@pytest.fixture
def clean():
    known = dict(ATTACKS)
    yield
    ATTACKS.clear()
    ATTACKS.update(known)


def test_a_registered_attack_is_known_by_its_name(clean):
    assert register_attack(Longer) is Longer and make_attack("longer", tv=0.5) == Longer(tv=0.5)
    assert load(None, ["attack.name=longer", "attack.tv=0.5"]).attack.make() == Longer(tv=0.5)
    with pytest.raises(ConfigError, match="attack.tv: got -1.0; takes 0"):
        make_attack("longer", tv=-1.0)
    with pytest.raises(ConfigError, match="takes a dataclass"):
        register_attack(int)


def test_entry_points_are_found_when_a_name_is_looked_up(monkeypatch):
    point = EntryPoint("longer", f"{__name__}:Longer", "fedveil.attacks")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Longer.__module__])
    monkeypatch.setattr(plugins, "entry_points", lambda group: (point,) if group == "fedveil.attacks" else ())
    fresh = plugins.Registry("fedveil.attacks", register_attack, dict(ATTACKS))
    monkeypatch.setattr(registry, "ATTACKS", fresh)
    assert attack_kind("cpl") is ATTACKS["cpl"]
    assert attack_kind("longer") is Longer and list(fresh)[-1] == "longer"
    with pytest.raises(ConfigError, match="did you mean 'longer'"):
        attack_kind("longr")


def test_an_attack_object_is_checked_like_a_config():
    assert checked(Longer()) == Longer()
    with pytest.raises(ConfigError, match=r"attack.iterations: got 0; takes 1 or more"):
        checked(Longer(iterations=0))
    with pytest.raises(ConfigError, match="takes an attack object"):
        checked("cpl")
