"""The rotation: orthogonal, without padding, the same for NumPy and JAX, and even."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from fedveil.mechanisms import rotation

KEY = (np.uint32(7), np.uint32(11))


@pytest.mark.parametrize("values", [1, 2, 3, 8, 13, 1000, 4096])
def test_it_is_orthogonal_and_undone(values: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, values))
    y = rotation.rotate(x, KEY)
    assert y.shape == x.shape
    assert np.linalg.norm(y, axis=1) == pytest.approx(np.linalg.norm(x, axis=1), rel=1e-12)
    assert y[0] @ y[1] == pytest.approx(x[0] @ x[1], abs=1e-9)
    assert rotation.back(y, KEY) == pytest.approx(x, abs=1e-12)


def test_numpy_and_jax_give_the_same() -> None:
    x = np.random.default_rng(1).normal(size=(3, 700)).astype(np.float32)
    of_jax = rotation.rotate(jnp.asarray(x), (jnp.uint32(7), jnp.uint32(11)), jnp)
    assert np.asarray(of_jax) == pytest.approx(rotation.rotate(x, KEY), abs=1e-5)
    assert np.asarray(rotation.back(of_jax, (jnp.uint32(7), jnp.uint32(11)), jnp)) == pytest.approx(x, abs=1e-5)


@pytest.mark.parametrize("where", [0, 900, 1499])
def test_one_large_value_is_spread(where: int) -> None:
    x = np.zeros(1500)
    x[where] = 1.0
    assert np.abs(rotation.rotate(x, KEY)).max() < 6.0 / np.sqrt(rotation.block(1500))


def test_the_key_decides() -> None:
    x = np.ones(64)
    assert np.abs(rotation.rotate(x, KEY) - rotation.rotate(x, (np.uint32(8), np.uint32(11)))).max() > 0.1
