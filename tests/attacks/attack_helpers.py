"""Small victims for the attacks."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.attacks.observation import GradientObservation
from fedveil.models.catalog import ModelConfig, build


@partial(jax.jit, static_argnums=(0, 4))
def mean_gradients(net, params, x, y, own_params=False):
    """Gradients [attacks, ...] of the mean loss; x [attacks, examples, ...], y [attacks, examples]."""

    def loss(p, xi, yi):
        return -jnp.take_along_axis(jax.nn.log_softmax(net.apply(p, xi)), yi[:, None], axis=1).mean()

    return jax.vmap(jax.grad(loss), in_axes=(0 if own_params else None, 0, 0))(params, x, y)


@dataclasses.dataclass(frozen=True)
class Victims:
    """An observation and the truth behind it, kept apart."""

    observation: GradientObservation
    x: np.ndarray  # [attacks, examples, ...]
    y: np.ndarray  # [attacks, examples]


VECTORS = {"shape": (10,), "model": "mlp", "choices": {"activation": "sigmoid", "hidden": [16]}}
IMAGES = {"shape": (8, 8, 1), "model": "lenet-dlg", "choices": {"channels": 4}}


def victims(
    count=4, shape=(10,), classes=4, examples=1, model="mlp", seed=0, dtype="float64", choices=None, **more
) -> Victims:
    """`count` victims of a small network with weights uniform in ±0.5."""
    net = build(model, shape, classes, ModelConfig(**{"init": "uniform-0.5"} | (choices or {})))
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(net.init, jax.random.key(0))
    params = jax.tree.map(lambda a: rng.uniform(-0.5, 0.5, a.shape).astype(dtype), shapes)
    x = rng.random((count, examples, *shape)).astype(dtype)
    y = rng.integers(0, classes, (count, examples))
    with jax.enable_x64(dtype == "float64"):
        gradients = jax.tree.map(np.asarray, mean_gradients(net, params, x, y))
    ids = np.arange(100, 100 + count)
    return Victims(GradientObservation(net, params, gradients, ids, tuple(shape), classes, examples, **more), x, y)


def blank(count=3, shape=(8, 8, 1), examples=1) -> GradientObservation:
    """An observation of nothing: for what does not look at gradients."""
    net = build("logistic", shape, 4)
    params = jax.tree.map(lambda a: np.zeros(a.shape), jax.eval_shape(net.init, jax.random.key(0)))
    nothing = jax.tree.map(lambda a: np.zeros((count, *a.shape)), params)
    return GradientObservation(net, params, nothing, np.arange(100, 100 + count), tuple(shape), 4, examples)


def only(observation: GradientObservation, rows) -> GradientObservation:
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
