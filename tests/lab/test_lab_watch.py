"""Observing an attack does not change it, and shows its progress."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fedveil.attacks.base import Execution
from fedveil.attacks.observation import of_gradients
from fedveil.attacks.reconstruction.idlg import IDLG
from fedveil.attacks.reconstruction.scheduler import Snapshot
from fedveil.models.catalog import ModelConfig, build

pytestmark = pytest.mark.slow


def test_a_watched_attack_is_the_same_attack() -> None:
    import jax
    import jax.numpy as jnp

    model = build("logistic", (6,), 3, ModelConfig())
    params = model.init(jax.random.key(0))
    x = jax.random.uniform(jax.random.key(1), (2, 6))

    def loss(p: object, one: jax.Array) -> jax.Array:
        return -jax.nn.log_softmax(model.apply(p, one[None]))[0, 1]

    each = jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, x)
    observation = of_gradients(model, params, jax.tree.map(jnp.asarray, each), (6,), 3, span=(0.0, 1.0))
    chosen = IDLG(iterations=30)
    alone = chosen.run(observation)
    seen: list[Snapshot] = []

    def monitor(inputs: np.ndarray, labels: np.ndarray, shot: Snapshot) -> int:
        assert inputs.shape == (len(shot.attack), 1, 6) and labels.shape == (len(shot.attack), 1)
        assert (inputs >= 0).all() and (inputs <= 1).all()
        seen.append(shot)
        return 3

    watched = chosen.run(observation, Execution(monitor=monitor))
    np.testing.assert_array_equal(watched.inputs, alone.inputs)
    np.testing.assert_array_equal(watched.iterations, alone.iterations)
    np.testing.assert_array_equal(watched.evaluations, alone.evaluations)
    for attack in range(2):
        steps = [(s.evaluations[i], s.distance[i]) for s in seen for i in np.flatnonzero(s.attack == attack)]
        counts = [count for count, _ in steps]
        assert counts[0] == 1 and all(0 < b - a <= 3 for a, b in pairwise(counts))
        distances = [distance for _, distance in steps]
        assert distances == sorted(distances, reverse=True) and distances[-1] == pytest.approx(alone.distance[attack])
