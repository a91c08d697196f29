"""Accountants: from what one round does to one unit, to an ε over many rounds.

    epsilon(((Round(noise=((1.0, 6.0),)), 100),), delta=1e-5, accountant="pld")

Three accountants are registered here: `pld` (privacy loss distributions, tight), `rdp` (Rényi divergences) and `paper` (the
papers' own rule, never certified). `pld` and `rdp` bound ε from above. `registry` says how to add one.

Modules that need numpy, scipy or `dp_accounting` are imported on first use: `fedveil --help` does not wait for them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fedveil.accounting.composition import (
    ALWAYS,
    Mixture,
    Round,
    Rounds,
    Terms,
    binomial,
    hypergeometric,
    in_bins,
    without_tail,
)
from fedveil.accounting.filters import RenyiFilter
from fedveil.accounting.paper import Paper
from fedveil.accounting.registry import (
    Accountant,
    accountant_named,
    accountant_names,
    epsilon,
    register_accountant,
    register_later,
)

if TYPE_CHECKING:
    from fedveil.accounting.curves import gdp_mu, trade_off
    from fedveil.accounting.pld import (
        COARSEST,
        LONGEST,
        gaussian_sum,
        grid_for,
        one_step,
        sampled_gaussian,
        swapped,
        two_mixtures,
    )
    from fedveil.accounting.rdp import ORDERS, quietly
    from fedveil.accounting.tuning import tuned_epsilon

__all__ = [
    "ALWAYS",
    "COARSEST",
    "LONGEST",
    "ORDERS",
    "Accountant",
    "Mixture",
    "RenyiFilter",
    "Round",
    "Rounds",
    "Terms",
    "accountant_named",
    "accountant_names",
    "binomial",
    "epsilon",
    "gaussian_sum",
    "gdp_mu",
    "grid_for",
    "hypergeometric",
    "in_bins",
    "one_step",
    "quietly",
    "register_accountant",
    "sampled_gaussian",
    "swapped",
    "trade_off",
    "tuned_epsilon",
    "two_mixtures",
    "without_tail",
]

_PLD = ("COARSEST", "LONGEST", "gaussian_sum", "grid_for", "one_step", "sampled_gaussian", "swapped", "two_mixtures")
_MODULES = {
    **dict.fromkeys(_PLD, "pld"),
    **dict.fromkeys(("ORDERS", "quietly"), "rdp"),
    **dict.fromkeys(("gdp_mu", "trade_off"), "curves"),
    "tuned_epsilon": "tuning",
}


def __getattr__(name: str) -> object:
    """Names of modules that are imported on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"fedveil.accounting.{_MODULES[name]}"), name)


def _pld() -> Accountant:
    from fedveil.accounting.pld import PLD

    return PLD()


def _rdp() -> Accountant:
    from fedveil.accounting.rdp import RDP

    return RDP()


register_later("pld", _pld)
register_later("rdp", _rdp)
register_accountant(Paper())
