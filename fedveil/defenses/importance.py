"""How much a layer or a parameter matters, measured once at each client before training.

PoGZ (dpfl, Eq. 1): the share of values above zero in a layer's output before its activation. Relevance: layer-wise
relevance propagation through the fully connected layers, one number for each of their parameters.

Both are taken from local data after local pre-training (`DefenseContext.measure_clients`): from the examples of that
training, or from a validation part that it leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from fedveil.models.layers import Array, Context, Dense, LayerParams, Params, linear
from fedveil.models.net import Net

# --- layers: PoGZ


def pogz(model: Net, params: Params, x: Array, y: Array, present: Array) -> dict[str, Array]:
    """PoGZ of every layer with parameters (dpfl, Eq. 1); `present` [examples] tells examples from padding.

    A layer without a single value above zero would get no budget, hence infinite noise: it counts as if it had one. A
    layer that is no matrix product (a normalisation) has no pre-activation: it counts as the mean of the others.
    """
    shares: dict[str, Array] = {}
    count = jnp.maximum(present.sum(), 1)

    def probe(name: str, output: Array) -> None:
        above = (output.reshape(output.shape[0], -1) > 0) & present[:, None]
        shares[name] = jnp.maximum(above.sum(), 1) / (count * above.shape[1]).astype(x.dtype)

    model.apply(params, x, Context(probe=probe))
    mean = jnp.stack(list(shares.values())).mean()
    return {name: shares.get(name, mean) for name in params}


def shares_of_budget(importance: Mapping[str, Array], inverse: bool = False) -> dict[str, Array]:
    """ε_i/ε of each layer: its part of the whole importance (dpfl, Eq. 3).

    `inverse`: its part of the sum of 1/importance, so that less important layers get more.
    """
    weight = {name: 1.0 / value if inverse else value for name, value in importance.items()}
    whole = jnp.stack(list(weight.values())).sum(axis=0)
    return {name: value / whole for name, value in weight.items()}


# --- parameters: layer-wise relevance propagation


def dense_layers(model: object) -> tuple[str, ...]:
    """The fully connected layers of a network, in order; none where the network is not of our layers."""
    return tuple(layer.name for layer in model.layers if isinstance(layer, Dense)) if isinstance(model, Net) else ()


def relevance(model: Net, params: Params, x: Array, y: Array, present: Array) -> dict[str, LayerParams]:
    """Mean absolute relevance of every parameter of the fully connected layers, in the shape of the parameters.

    The logit of the true class is handed back layer by layer: of what output j received, R_j, input i gets the part
    a_i·w_ij / z_j, and that is the relevance of w_ij; activations hand on what they get. Fully connected layers follow
    each other with elementwise layers between, so that nothing but their inputs and outputs is needed.
    """
    inputs: dict[str, Array] = {}

    def watched(name: str, own: LayerParams, a: Array) -> Array:
        inputs[name] = a
        return linear(name, own, a)

    logits = model.apply(params, x, Context(linear=watched))
    back = jnp.where(jax.nn.one_hot(y, logits.shape[-1], dtype=bool) & present[:, None], logits, 0.0)  # R [batch, out]
    found: dict[str, LayerParams] = {}
    for name in reversed(dense_layers(model)):
        own, a = params[name], inputs[name]
        z = linear(name, own, a)
        stable = z + jnp.where(z < 0, -1e-6, 1e-6)  # z may vanish
        part = back / stable
        found[name] = {"w": jnp.abs(own["w"]) * (jnp.abs(a).T @ jnp.abs(part))}
        if "b" in own:
            found[name]["b"] = jnp.abs(own["b"]) * jnp.abs(part).sum(axis=0)
        back = a * (part @ own["w"].T)
    count = jnp.maximum(present.sum(), 1)
    return {name: {k: r / count for k, r in found[name].items()} for name in dense_layers(model)}


def sparing_shares(relevances: dict[str, LayerParams]) -> dict[str, LayerParams]:
    """The share ε_j/ε of every parameter. More relevant parameters get a smaller share.

    Layers share evenly. Within a layer ε_j ∝ 1/(1 + r_j), r_j the relevance over the layer's mean, scaled so that a
    parameter has the layer's part of the budget on average.
    """
    return {name: _sparing(layer, 1.0 / len(relevances)) for name, layer in relevances.items()}


def _sparing(layer: LayerParams, part: float) -> LayerParams:
    mean = _mean(layer)
    raw = {k: 1.0 / (1.0 + jnp.where(mean > 0, r / jnp.where(mean > 0, mean, 1.0), 0.0)) for k, r in layer.items()}
    level = _mean(raw)
    return {k: part * r / level for k, r in raw.items()}


def _mean(layer: LayerParams) -> Array:
    """Over all parameters of a layer."""
    return jnp.concatenate([a.reshape(-1) for a in layer.values()]).mean()
