"""The trainings of the golden record without accelerated code: the same models."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil import kernels

from . import cases, harness, store

QUICK = ("fed-cdp example layerwise",)  # `tests/kernels/test_hooks.py` has others


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in cases.QUICK_TRAINING]
)
def test_training_without_the_hooks(case: str) -> None:
    """In float64, up to the last digits that a sum in another order changes."""
    config = store.read("training")[case]["config"]
    config = {**config, "speed": {**config["speed"], "precision": "float64"}}
    fast = harness.train(config, "vectorised")
    with kernels.disabled():
        plain = harness.train(config, "vectorised")
    for name, found in fast.items():
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, plain[name], rtol=0, atol=1e-9)
