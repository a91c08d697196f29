"""The table of attacks, and how the keys of `[attack]` become an attack object. Cheap to import: no JAX.

An attack from outside is one file: a frozen dataclass below `ReconstructionAttack` or below a base class of
`inference.base`. It becomes known by `register_attack`, or as an entry point of the group `fedveil.attacks` in an installed
package; entry points are loaded when a name is looked up that is not in the table.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from fedveil.attacks.base import Attack, ReconstructionAttack
from fedveil.attacks.inference.base import InferenceAttack
from fedveil.attacks.inference.client_membership import ClientMembership
from fedveil.attacks.inference.inversion import Inversion
from fedveil.attacks.inference.lira import LiRA
from fedveil.attacks.inference.loss_threshold import LossThreshold
from fedveil.attacks.inference.melis import Melis
from fedveil.attacks.inference.rmia import RMIA
from fedveil.attacks.reconstruction.aono import Aono
from fedveil.attacks.reconstruction.cpl import CPL
from fedveil.attacks.reconstruction.dlg import DLG
from fedveil.attacks.reconstruction.idlg import IDLG
from fedveil.attacks.reconstruction.inverting import Inverting
from fedveil.core.errors import ConfigError, unknown_name
from fedveil.core.plugins import Registry, from_keys

Kind = TypeVar("Kind", bound=type[Attack])


def register_attack(kind: Kind) -> Kind:
    """Makes an attack known by its name, so that a config may use it; also as a decorator of the class.

    Registering a class again under its name replaces it.
    """
    bases = (ReconstructionAttack, InferenceAttack)
    if not (isinstance(kind, type) and issubclass(kind, bases) and dataclasses.is_dataclass(kind) and kind.name):
        takes = "takes a dataclass with a name, below ReconstructionAttack or a base class of fedveil.attacks.inference"
        raise ConfigError("register_attack", kind, takes)
    ATTACKS[kind.name] = kind
    return kind


_RECONSTRUCTION = (CPL, DLG, IDLG, Inverting, Aono)
_INFERENCE = (Inversion, LossThreshold, LiRA, RMIA, ClientMembership, Melis)

ATTACKS: Registry[type[Attack]] = Registry(
    __name__.rpartition(".")[0], register_attack, {kind.name: kind for kind in (*_RECONSTRUCTION, *_INFERENCE)}
)


def attack_kind(name: object) -> type[Attack]:
    """The class of the attack called `name`."""
    if not isinstance(name, str) or name not in ATTACKS:
        raise unknown_name("attack.name", name, ATTACKS)
    return ATTACKS[name]


def make_attack(name: str, /, **given: Any) -> Attack:
    """The attack called `name` with its defaults, changed by the given keys; checked. None counts as not given."""
    return made(attack_kind(name), given)


def checked(attack: Attack) -> Attack:
    """A caller's own attack object, checked like one from a config."""
    if not isinstance(attack, ReconstructionAttack | InferenceAttack) or not dataclasses.is_dataclass(attack):
        raise ConfigError("attack", attack, "takes an attack object, such as fedveil.attacks.registry.CPL()")
    return made(type(attack), {f.name: getattr(attack, f.name) for f in dataclasses.fields(attack)})


def made(kind: type[Attack], given: dict[str, Any]) -> Attack:
    """Makes an attack from its keys. Checks names first, then types and ranges, then combinations of keys."""
    given = {key: value for key, value in given.items() if value is not None}
    for key, table in kind.choices.items():
        if key in given and given[key] not in table:
            raise unknown_name(f"attack.{key}", given[key], table)
    attack: Attack = from_keys(kind, given, "attack", f"{kind.name} has no such key")
    attack.check()
    return attack
