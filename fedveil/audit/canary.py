"""Canaries: a model whose example gradients the adversary chooses, with every kind of layer that the audited model has.

A record of the canary model is [gain of each layer, input norm a, direction d]. All layers see the input a·d, and the loss
pushes layer i by gain i alone. So the gradient of a record is known exactly, in norm, direction and split between weights
and bias (or between scale and shift of a normalisation), and it does not depend on the parameters. A record of zeros has
no gradient.

The layers go through the same `linear` and `affine` as those of a real model: where the model of the config is clipped in
one fused backward pass so are canaries; where it is not, canaries are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.models.layers import Array, Context, Conv, Dense, GroupNorm, Layer, Params, Shape
from fedveil.models.net import Model, Net, each_layer

LABEL = 0  # of every canary
OUTPUTS = 2
# With logits that are always zero the loss pushes by (p − 1, p) = (−½, ½).
_PUSH = 1.0 / math.sqrt(2.0)
FEW_BIAS = 30.0  # input norm of a canary with hardly any bias in its gradient


@dataclass(frozen=True)
class Kind:
    """What a layer computes, and whether it has a bias (a normalisation always has its shift)."""

    name: str  # dense, conv, norm
    bias: bool


@dataclass(frozen=True)
class Canaries(Dense):
    """Layers side by side on one input [records, M + 1 + width]; the logits are always zero."""

    kinds: tuple[Kind, ...] = ()
    width: int = 1

    def init(self, key: Array, shape: Shape) -> Params:
        return {f"layer{index}": self._zeros(kind) for index, kind in enumerate(self.kinds)}

    def _zeros(self, kind: Kind) -> dict[str, Array]:
        if kind.name == "norm":
            return {"scale": jnp.zeros(self.width), "shift": jnp.zeros(self.width)}
        weights = {"w": jnp.zeros((self.width, OUTPUTS))}
        return {**weights, "b": jnp.zeros(OUTPUTS)} if kind.bias else weights

    def apply(self, params: Params, x: Array, context: Context) -> Array:
        layers = len(self.kinds)
        direction = x[:, layers + 1 :]
        seen = x[:, layers, None] * direction
        logits = jnp.zeros((x.shape[0], OUTPUTS), x.dtype)
        for index, kind in enumerate(self.kinds):
            name = f"layer{index}"  # JAX sorts the keys of a tree, and layer10 comes before layer2
            own = params[name]
            if kind.name == "conv":  # two positions that see the same
                out = context.linear(name, own, jnp.stack([seen, seen], axis=1)).mean(axis=1)
            elif kind.name == "norm":
                along = (context.affine(name, own, seen[:, None, None, :])[:, 0, 0] * direction).sum(axis=1) * _PUSH
                out = jnp.stack([-along, along], axis=1)
            else:
                out = context.linear(name, own, seen)
            logits += x[:, index, None] * out
        return logits - jax.lax.stop_gradient(logits)


@dataclass(frozen=True)
class Opaque:
    """The same model as one that cannot be clipped in a fused pass: gradients are then taken one by one."""

    net: Net

    def init(self, key: Array) -> Params:
        return self.net.init(key)

    def apply(self, params: Params, x: Array) -> Array:
        return self.net.apply(params, x)


def _kinds(layers: Sequence[Layer]) -> Iterator[Kind]:
    for layer in each_layer(layers):
        if isinstance(layer, Conv | Dense):
            yield Kind("conv" if isinstance(layer, Conv) else "dense", layer.bias)
        elif isinstance(layer, GroupNorm):
            yield Kind("norm", True)


def canary_model(like: Model, layers: int, width: int) -> tuple[Model, tuple[Kind, ...]]:
    """A model of `width` orthogonal directions with the layers of the real one, clipped the way the real one is.

    A model that is not ours counts as dense layers with a bias.
    """
    found = tuple(_kinds(like.layers)) if isinstance(like, Net) else ()
    kinds = found if len(found) == layers else (Kind("dense", True),) * layers
    net = Net((Canaries("canary", OUTPUTS, False, kinds, width),), (layers + 1 + width,))
    fused = isinstance(like, Net) and like.clips_in_one_pass
    return (net if fused else Opaque(net)), kinds


# --- records


@dataclass(frozen=True)
class Canary:
    """A canary's gradient: which layers, which share of its norm is bias, which direction."""

    name: str
    layers: tuple[int, ...]
    input_norm: float = 1.0  # a: 0 leaves the bias alone, a large one hardly any bias
    direction: int = 0  # −1: along all directions at once

    def record(self, kinds: Sequence[Kind], width: int, norm: float) -> np.ndarray:
        """[M + 1 + width]: a record whose gradient has the norm `norm` in each layer of `layers`."""
        along = np.full(width, 1.0 / math.sqrt(width)) if self.direction < 0 else np.eye(width)[self.direction]
        gains = np.zeros(len(kinds))
        for index in self.layers:
            # The gradient of a scale is its input times the push, channel by channel: both are along d.
            spread = np.linalg.norm(along**2) if kinds[index].name == "norm" else 1.0
            size = math.sqrt((self.input_norm * spread) ** 2 + kinds[index].bias)
            gains[index] = norm / (size * _PUSH) if size else 0.0
        return np.concatenate([gains, [self.input_norm], along])


def canaries_for(kinds: Sequence[Kind]) -> list[Canary]:
    """All layers together, with and without bias, along one and along all directions; and a layer of each kind alone."""
    every = tuple(range(len(kinds)))
    found = [Canary("all layers", every), Canary("all layers, all directions", every, direction=-1)]
    if any(kind.bias for kind in kinds):
        biased = tuple(index for index in every if kinds[index].bias)
        found += [Canary("biases and shifts", biased, 0.0), Canary("weights and scales", every, FEW_BIAS)]
    for kind in dict.fromkeys(kinds):
        index = kinds.index(kind)
        found.append(Canary(f"layer {index} ({kind.name})", (index,)))
    return found


def projections(leaves: dict[str, np.ndarray], layer: int, kind: Kind) -> np.ndarray:
    """[width] one layer's part of a message along the gradient of each direction, of canaries with hardly any bias."""
    name = f"layer{layer}"
    if kind.name == "norm":
        return leaves[f"{name}/scale"]
    return (leaves[f"{name}/w"][:, 1] - leaves[f"{name}/w"][:, 0]) * _PUSH
