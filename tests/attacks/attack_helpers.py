"""Small victims for the attacks."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.attacks.observe import Observation
from fedveil.models.build import Choices, build


def mean_gradients(net, params, x, y, own_params=False):
    """Gradients [attacks, ...] of the mean loss; x [attacks, examples, ...], y [attacks, examples]."""

    def loss(p, xi, yi):
        return -jnp.take_along_axis(jax.nn.log_softmax(net.apply(p, xi)), yi[:, None], axis=1).mean()

    return jax.vmap(jax.grad(loss), in_axes=(0 if own_params else None, 0, 0))(params, x, y)


@dataclasses.dataclass(frozen=True)
class Victims:
    """An observation and the truth behind it, kept apart."""

    observation: Observation
    x: np.ndarray  # [attacks, examples, ...]
    y: np.ndarray  # [attacks, examples]


def victims(
    count=4, shape=(8, 8, 1), classes=4, examples=1, model="lenet-dlg", seed=0, dtype="float64", choices=None, **more
) -> Victims:
    """So many victims of a small network with weights uniform in ±0.5."""
    given = {"init": "uniform-0.5"} | ({"channels": 4} if model.startswith("lenet") else {}) | (choices or {})
    net = build(model, shape, classes, Choices(**given))
    with jax.enable_x64(dtype == "float64"):
        params = jax.tree.map(lambda a: a.astype(dtype), net.init(jax.random.key(seed)))
        rng = np.random.default_rng(seed)
        x = rng.random((count, examples, *shape)).astype(dtype)
        y = rng.integers(0, classes, (count, examples))
        gradients = jax.tree.map(np.asarray, mean_gradients(net, params, x, y))
        params = jax.tree.map(np.asarray, params)
    ids = np.arange(100, 100 + count)
    return Victims(Observation(net, params, gradients, ids, shape, classes, examples, **more), x, y)


def only(observation: Observation, rows) -> Observation:
    """Some of the attacks alone."""
    rows = np.asarray(rows)
    take = lambda tree: jax.tree.map(lambda a: a[rows], tree)  # noqa: E731
    params = take(observation.params) if observation.own_params else observation.params
    labels = None if observation.known_labels is None else observation.known_labels[rows]
    return dataclasses.replace(
        observation,
        gradients=take(observation.gradients),
        params=params,
        ids=observation.ids[rows],
        known_labels=labels,
    )
