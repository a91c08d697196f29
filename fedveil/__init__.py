"""Fedveil: federated learning under differential privacy. Train it, attack it, account for it.

    import fedveil
    result = fedveil.train({"data": {"name": "digits"}, "train": {"rounds": 20}})
    print(result.accuracy)

The command line, the lab and the recipes call the same functions. Names are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedveil.accounting.accountants import register_accountant
    from fedveil.advice.advise import advise
    from fedveil.attacks.orchestrate import attack
    from fedveil.attacks.registry import register_attack
    from fedveil.audit.run import audit
    from fedveil.data.arrays import from_arrays
    from fedveil.data.registry import load as load_dataset
    from fedveil.data.registry import register_dataset
    from fedveil.defenses.catalog import register_defense
    from fedveil.federation import federation
    from fedveil.models.adapters import from_equinox, from_flax, from_functions, from_nnx, from_torch
    from fedveil.models.kept import save_model
    from fedveil.report.write import report
    from fedveil.run_account import account, calibrate
    from fedveil.sweeps.run import sweep
    from fedveil.sweeps.tune import tune
    from fedveil.training import train

__all__ = [
    "account",
    "advise",
    "attack",
    "audit",
    "calibrate",
    "federation",
    "from_arrays",
    "from_equinox",
    "from_flax",
    "from_functions",
    "from_nnx",
    "from_torch",
    "load_dataset",
    "register_accountant",
    "register_attack",
    "register_dataset",
    "register_defense",
    "report",
    "save_model",
    "sweep",
    "train",
    "tune",
]

# The module and the function of each name. `audit`, `federation` and `report` are modules too, which can be called.
FUNCTIONS = {
    "train": ("fedveil.training", "train"),
    "attack": ("fedveil.attacks.orchestrate", "attack"),
    "account": ("fedveil.run_account", "account"),
    "calibrate": ("fedveil.run_account", "calibrate"),
    "audit": ("fedveil.audit.run", "audit"),
    "report": ("fedveil.report.write", "report"),
    "sweep": ("fedveil.sweeps.run", "sweep"),
    "tune": ("fedveil.sweeps.tune", "tune"),
    "advise": ("fedveil.advice.advise", "advise"),
    "federation": ("fedveil.federation", "federation"),
    "register_defense": ("fedveil.defenses.catalog", "register_defense"),
    "register_attack": ("fedveil.attacks.registry", "register_attack"),
    "register_accountant": ("fedveil.accounting.accountants", "register_accountant"),
    "register_dataset": ("fedveil.data.registry", "register_dataset"),
    "from_arrays": ("fedveil.data.arrays", "from_arrays"),
    "load_dataset": ("fedveil.data.registry", "load"),
    "from_functions": ("fedveil.models.adapters", "from_functions"),
    "from_flax": ("fedveil.models.adapters", "from_flax"),
    "from_equinox": ("fedveil.models.adapters", "from_equinox"),
    "from_nnx": ("fedveil.models.adapters", "from_nnx"),
    "from_torch": ("fedveil.models.adapters", "from_torch"),
    "save_model": ("fedveil.models.kept", "save_model"),
}


def __getattr__(name: str) -> object:
    """A name of the API, imported when first used: `import fedveil` itself costs nothing."""
    if name not in FUNCTIONS:
        raise AttributeError(f"module 'fedveil' has no attribute {name!r}")
    module, function = FUNCTIONS[name]
    found = getattr(import_module(module), function)
    # The import may have put a callable module of this name here: the result is the same in any order of imports.
    return globals().get(name, found)
