"""From weight updates to gradients, and gradients of any model in the form that attacks use.

A client that made L steps of length η sends the update −η Σ gₗ. Divided by −ηL this is the mean of its gradients. The
simple reading uses that mean as the gradient at the start (cpl, Algorithm 1 lines 4–6). The simulated reading repeats the
L steps on the dummy inputs and compares the means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedveil.core.errors import RunError
from fedveil.models.layers import Array, Params
from fedveil.models.net import Model

Tree = Any
Pull = Callable[[Params], tuple[Array, Array]]


def from_update(update: Tree, lr: float, local_steps: int = 1) -> Tree:
    """The mean gradient behind an update (local minus received model) of `local_steps` SGD steps."""
    if not lr > 0 or local_steps < 1:
        raise RunError(f"an update is divided by lr · local_steps: got {lr} · {local_steps}")
    return jax.tree.map(lambda u: -u / (lr * local_steps), update)


def _loss(model: Model, params: Params, x: Array, q: Array) -> Array:
    """Mean cross-entropy of one attack's examples; x [examples, ...], q [examples, classes]."""
    return -(q * jax.nn.log_softmax(model.apply(params, x))).sum(axis=1).mean()


def of_any_model(model: Model, params: Params, own_params: bool, x: Array, q: Array) -> tuple[Params, Pull]:
    """The same as `passes.gradients`, for any model, by automatic differentiation."""
    axis = 0 if own_params else None
    slopes = jax.vmap(jax.grad(_loss, argnums=1), in_axes=(None, axis, 0, 0))(model, params, x, q)

    def along(v: Params, p: Params, xi: Array, qi: Array) -> Array:
        return jax.jvp(lambda w: _loss(model, w, xi, qi), (p,), (v,))[1]

    def pull(direction: Params) -> tuple[Array, Array]:
        return jax.vmap(jax.grad(along, argnums=(2, 3)), in_axes=(0, axis, 0, 0))(direction, params, x, q)

    return slopes, pull


def of_local_steps(
    model: Model,
    params: Params,
    own_params: bool,
    x: Array,
    q: Array,
    *,
    lr: float,
    steps: int,
    order: tuple[tuple[int, ...], ...] | None,
) -> tuple[Params, Pull]:
    """Mean gradient of `steps` SGD steps on each attack's examples, made one after another.

    `order` says which examples each step uses; without it, all of them in every step.
    """
    examples = x.shape[1]
    rows = jnp.asarray(order if order is not None else [tuple(range(examples))] * steps)

    def one(p: Params, xi: Array, qi: Array) -> Params:
        def step(w: Params, row: Array) -> tuple[Params, None]:
            g = jax.grad(_loss, argnums=1)(model, w, xi[row], qi[row])
            return jax.tree.map(lambda a, b: a - lr * b, w, g), None

        last, _ = jax.lax.scan(step, p, rows)
        return jax.tree.map(lambda a, b: (a - b) / (lr * steps), p, last)

    all_of_them = jax.vmap(one, in_axes=(0 if own_params else None, 0, 0))
    slopes, back = jax.vjp(lambda x, q: all_of_them(params, x, q), x, q)
    return slopes, back
