"""Fedveil: federated learning under differential privacy. Train it, attack it, account for it.

    import fedveil
    result = fedveil.train({"data": {"name": "digits"}, "train": {"rounds": 20}})
    print(result.accuracy)

Names are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedveil.accounting.accountants import register_accountant
    from fedveil.api import federation, train
    from fedveil.data.arrays import from_arrays
    from fedveil.data.load import load as load_dataset
    from fedveil.defenses.catalog import register_defense
    from fedveil.models.adapters import from_equinox, from_flax, from_functions, from_torch

__all__ = [
    "federation",
    "from_arrays",
    "from_equinox",
    "from_flax",
    "from_functions",
    "from_torch",
    "load_dataset",
    "register_accountant",
    "register_defense",
    "train",
]

_WHERE = {
    "train": ("fedveil.api", "train"),
    "federation": ("fedveil.api", "federation"),
    "from_arrays": ("fedveil.data.arrays", "from_arrays"),
    "load_dataset": ("fedveil.data.load", "load"),
    "register_accountant": ("fedveil.accounting.accountants", "register_accountant"),
    "register_defense": ("fedveil.defenses.catalog", "register_defense"),
    "from_functions": ("fedveil.models.adapters", "from_functions"),
    "from_flax": ("fedveil.models.adapters", "from_flax"),
    "from_equinox": ("fedveil.models.adapters", "from_equinox"),
    "from_torch": ("fedveil.models.adapters", "from_torch"),
}


def __getattr__(name: str) -> object:
    """Names of the API, imported when first used: `import fedveil` itself costs nothing."""
    if name not in _WHERE:
        raise AttributeError(f"module 'fedveil' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    return getattr(import_module(module), attribute)
