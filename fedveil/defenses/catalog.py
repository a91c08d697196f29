"""The table of defences, and how a config's `[[defense]]` becomes objects: names, checked keys, checked combinations.

A standard name of the field is accepted only where a defence here is that method: it then stands for the defence with some
of its keys fixed. Any other standard name is answered with the closest defence and the difference, never taken for a
look-alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedveil.core.errors import ConfigError, did_you_mean, unknown_name
from fedveil.core.plugins import Registry, from_keys
from fedveil.defenses.base import Defense
from fedveil.defenses.dgc import DGC
from fedveil.defenses.dpfl import DPFL
from fedveil.defenses.dssgd import DSSGD
from fedveil.defenses.fed_cdp import FedCDP
from fedveil.defenses.fed_sdp import FedSDP
from fedveil.defenses.gradient_noise import GradientNoise
from fedveil.defenses.lip import LIP
from fedveil.defenses.low_rank import LowRank
from fedveil.defenses.nbafl import NbAFL
from fedveil.defenses.none import NoDefense
from fedveil.defenses.prune import Prune
from fedveil.defenses.squeeze import Squeeze
from fedveil.defenses.two_dp import TwoDP


def register_defense(kind: type[Defense]) -> type[Defense]:
    """Makes a defence known by its name, so that a config may use it; also as a decorator of the class.

    The class is a frozen dataclass below `fedveil.defenses.base.Defense`. Its fields are its keys in `[defense]`.
    Registering a class again under its name replaces the earlier one.
    """
    if not (isinstance(kind, type) and issubclass(kind, Defense) and dataclasses.is_dataclass(kind) and kind.name):
        takes = "takes a dataclass below fedveil.defenses.base.Defense with a name"
        raise ConfigError("register_defense", kind, takes)
    DEFENSES[kind.name] = kind
    return kind


DEFENSES: Registry[type[Defense]] = Registry(
    "fedveil.defenses",
    register_defense,
    {
        kind.name: kind
        for kind in (
            NoDefense,
            FedSDP,
            FedCDP,
            TwoDP,
            NbAFL,
            DPFL,
            LIP,
            DSSGD,
            Prune,
            DGC,
            LowRank,
            GradientNoise,
            Squeeze,
        )
    },
)

# Name → the defence and the keys that make it the method of that name.
SAME: dict[str, dict[str, Any]] = {
    "dp-sgd": {"name": "fed-cdp", "placement": "batch", "clip_scope": "flat"},
    "dp-fedavg": {"name": "fed-sdp", "placement": "server-sum", "clip_scope": "flat"},
    "central-dp": {"name": "fed-sdp", "placement": "server-sum", "clip_scope": "flat"},
    "ldp": {"name": "fed-sdp", "placement": "client", "clip_scope": "flat"},
}
# Other spellings of these names.
SPELLED: dict[str, str] = {
    **dict.fromkeys(("dpsgd", "sgd-dp"), "dp-sgd"),
    **dict.fromkeys(("dpfedavg", "fedavg-dp", "dp-fed-avg"), "dp-fedavg"),
    **dict.fromkeys(("global-dp", "central-differential-privacy"), "central-dp"),
    **dict.fromkeys(("local-dp", "local-differential-privacy"), "ldp"),
}
_SECURE = (
    "is no defence here: set train.secure_aggregation = true beside ldp, or beside fed-cdp with placement cohort; a sum "
    "without noise has no ε"
)
_CORRELATED = (
    "is not here: it adds noise that is correlated over rounds and needs no sampling; the closest is fed-sdp "
    "with placement server-sum, whose noise is independent in each round and whose ε relies on sampled clients"
)
_CLIENTS = (
    "is a guarantee, not a method: dp-fedavg protects whole clients from whoever gets the model and trusts the server, "
    "ldp also from the server"
)
_RECORDS = (
    "is a guarantee, not a method: dp-sgd protects each record from the server and from whoever gets the model, fed-cdp "
    "with placement example also on the client's machine"
)
_PART = "has no ε and is not here: dp-sgd protects records, dp-fedavg whole clients; without an ε there are"
_NOISE = (
    "is noise, not a defence: dp-sgd (records) and dp-fedavg (clients) clip and add it, so that it has an ε; "
    "gradient-noise adds it without a clip and has none"
)
_AGGREGATION = (
    "is a way to train, not a defence: leave it out (train.aggregation chooses between 'fedavg' and 'fedsgd'), or name "
    "dp-fedavg or dp-sgd"
)
_OPTIMISER = (
    "is here only as dp-sgd with train.optimizer = 'adam' for a client's local steps; the server's step has no Adam"
)
# Name → what comes closest, and how it differs.
CLOSEST: dict[str, str] = {
    **dict.fromkeys(("dp-ftrl", "dp-mf", "dp-matrix-factorization", "tree-aggregation"), _CORRELATED),
    "pate": "is not here: its teachers vote on labels of public data; dp-sgd protects records too, without public data",
    **dict.fromkeys(
        ("dp-fedsgd", "fedsgd-dp"), "is dp-fedavg with one local step: name dp-fedavg, and set train.local_steps = 1"
    ),
    **dict.fromkeys(("record-level-dp", "example-level-dp", "sample-level-dp", "record-dp", "example-dp"), _RECORDS),
    "cdp": "can mean fed-cdp, central-dp or concentrated differential privacy: name one of the first two; --accountant rdp "
    "is close to the third",
    **dict.fromkeys(("user-level-dp", "client-level-dp", "user-dp", "client-dp"), _CLIENTS),
    **dict.fromkeys(
        ("secagg", "secagg+", "secure-aggregation", "secure-sum", "mpc", "homomorphic-encryption"), _SECURE
    ),
    **dict.fromkeys(
        ("distributed-dp", "ddp", "ddgauss", "skellam"),
        "adds each client's share of the noise before a secure sum: with train.secure_aggregation = true, fed-cdp with "
        "placement cohort protects records so, and ldp clients",
    ),
    **dict.fromkeys(("fedavg", "fedsgd", "fedprox", "scaffold", "fedadam"), _AGGREGATION),
    **dict.fromkeys(("dp-adam", "dpadam", "dp-adamw"), _OPTIMISER),
    **dict.fromkeys(("gaussian", "laplace", "noise", "gaussian-mechanism", "gradient-perturbation"), _NOISE),
    **dict.fromkeys(("topk", "top-k", "sparsification", "gradient-compression"), f"{_PART} prune, dgc and low-rank"),
    **dict.fromkeys(("soteria", "precode", "instahide"), f"{_PART} prune and gradient-noise"),
    **dict.fromkeys(
        ("clip", "clipping", "gradient-clipping"),
        "bounds a gradient and hides nothing: dp-sgd and dp-fedavg add noise to it",
    ),
    **dict.fromkeys(
        ("dp", "differential-privacy", "privacy"),
        "names no method: dp-sgd protects records, dp-fedavg whole clients, ldp clients from the server as well; "
        "fedveil advise chooses",
    ),
}


def standard(name: str) -> str:
    """A standard name as the tables spell it; any other name as it is."""
    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    found = SPELLED.get(plain, plain)
    return found if name not in DEFENSES and (found in SAME or found in CLOSEST) else name


def named(defenses: object) -> object:
    """Tables of defences with standard names replaced by what they stand for."""
    if isinstance(defenses, Mapping):
        return _one(defenses)
    if isinstance(defenses, list | tuple):
        return [named(one) for one in defenses]
    return defenses


def _one(table: Mapping[str, Any]) -> Mapping[str, Any]:
    name = table.get("name")
    if not isinstance(name, str):
        return table
    name = standard(name)
    if name in CLOSEST:
        raise ConfigError("defense.name", table["name"], CLOSEST[name])
    if name not in SAME:
        return table
    for key, value in SAME[name].items():
        if key != "name" and table.get(key, value) != value:
            takes = f"{name} is {SAME[name]['name']} with {key} = {value}: leave it out, or name {SAME[name]['name']}"
            raise ConfigError(f"defense.{key}", table[key], takes)
    return {**table, **SAME[name]}


def make(defense: object, where: str) -> Defense:
    """One defence from its table of keys, or a defence object as it is; `where` names the table in errors."""
    if isinstance(defense, Defense):
        return _checked_object(defense, where)
    if not isinstance(defense, dict):
        raise ConfigError(where, defense, "is a table of keys: write [[defense]] with a name below it")
    name = defense.get("name")
    if name is None:
        raise ConfigError(f"{where}.name", None, "is required; " + did_you_mean("", DEFENSES))
    if not isinstance(name, str) or name not in DEFENSES:
        raise unknown_name(f"{where}.name", name, (*DEFENSES, *SAME))
    given = {key: value for key, value in defense.items() if key != "name"}
    made: Defense = from_keys(DEFENSES[name], given, where, "unknown key")
    return made


def _checked_object(defense: Defense, where: str) -> Defense:
    """A defence that the caller made. It must have a name and fields, and must be hashable: programs are kept by it."""
    if not (dataclasses.is_dataclass(defense) and defense.name and type(defense).__hash__ is not None):
        takes = "takes an object of a frozen dataclass below fedveil.defenses.base.Defense with a name"
        raise ConfigError(where, defense, takes)
    return defense


def make_all(defenses: object) -> tuple[Defense, ...]:
    """All defences of a config in order: from a table or an object, or a list of them. Combinations that make no sense
    are refused with the reason."""
    if isinstance(defenses, dict | Defense):
        defenses = [defenses]
    if not isinstance(defenses, list | tuple):
        raise ConfigError("defense", defenses, "takes a list")
    if not defenses:
        takes = 'is an empty list: leave it out, or name a defence ("none" for no privacy)'
        raise ConfigError("defense", defenses, takes)
    alone = len(defenses) == 1
    made = tuple(make(d, "defense" if alone else f"defense.{index}") for index, d in enumerate(defenses))
    names = [d.name for d in made]
    if "none" in names and not alone:
        raise ConfigError("defense", names, "'none' fills in nothing: leave it out of a combination")
    noised: dict[str, str] = {}
    for defense in made:
        for stage in defense.noised_stages():
            if stage in noised:
                takes = f"{noised[stage]} and {defense.name} both add their noise at stage '{stage}': keep one of them"
                raise ConfigError("defense", names, takes)
            noised[stage] = defense.name
    return made


def resolved(defense: Defense) -> dict[str, Any]:
    """A defence as its table in a config: its name and every key that has a value."""
    filled = {key: value for key, value in dataclasses.asdict(defense).items() if value is not None}  # type: ignore[call-overload]
    return {"name": defense.name, **filled}
