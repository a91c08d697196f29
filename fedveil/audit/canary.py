"""Canaries: a model whose example gradients an attacker chooses, so that the round's code is attacked at its worst case.

The gradient of a canary is a matrix with one row other than zero, in every layer, far longer than any clip bound: after a
sound clip it has the bound's length in each clip group, so that all groups together reach the sensitivity √M·C. It does
not depend on the parameters, so a canary shows itself in full in every step of every round.

The layers go through the same `linear` as those of a real model: where the model of the config is clipped in one fused
backward pass so are canaries, its convolutions over several positions; where it is not, canaries are not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedveil.models.layers import Array, Context, Conv, Dense, Params, Shape
from fedveil.models.net import Model, Net
from fedveil.rounds.client import can_fuse

Tree = Any
LABEL = 0  # of every canary
OUTPUTS = 2
# With logits that are always zero the loss pushes by (p − 1, p) = (−½, ½): a canary's gradient is 1/√2 of its input.
_PUSH = 1.0 / math.sqrt(2.0)


@dataclass(frozen=True)
class Canaries(Dense):
    """Layers side by side on one input [records, width], each with weights [width, 2]; its logits are always zero."""

    convolutions: tuple[bool, ...] = ()

    def init(self, key: Array, shape: Shape) -> Params:
        (width,) = shape
        return {f"layer{place}": {"w": jnp.zeros((width, OUTPUTS))} for place in range(len(self.convolutions))}

    def apply(self, params: Params, x: Array, context: Context) -> Array:
        logits = jnp.zeros((x.shape[0], OUTPUTS), x.dtype)
        for (name, own), convolution in zip(params.items(), self.convolutions, strict=True):
            if convolution:  # two positions that each see half of the input
                logits += context.linear(name, own, jnp.stack([x / 2.0, x / 2.0], axis=1)).sum(axis=1)
            else:
                logits += context.linear(name, own, x)
        return logits - jax.lax.stop_gradient(logits)


@dataclass(frozen=True)
class Opaque:
    """The same model as one that cannot be clipped in a fused pass: gradients are then taken one by one."""

    net: Net

    def init(self, key: Array) -> Params:
        return self.net.init(key)

    def apply(self, params: Params, x: Array) -> Array:
        return self.net.apply(params, x)


def canary_model(like: Model, layers: int, width: int) -> Model:
    """A model of `width` orthogonal canaries with as many layers as the real one, clipped the way the real one is."""
    fused = can_fuse(like)
    kinds = [isinstance(layer, Conv) for layer in like.layers if layer.name] if isinstance(like, Net) and fused else []
    convolutions = tuple(kinds) if len(kinds) == layers else (False,) * layers
    net = Net((Canaries("canary", OUTPUTS, False, convolutions),), (width,))
    return net if fused else Opaque(net)


def canary_input(norm: float) -> float:
    """The one entry of a canary's input that makes its gradient `norm` long in every layer."""
    return norm / _PUSH


def projections(tree: Tree) -> Array:
    """A gradient, or a sum of gradients, projected on the direction of each canary: [..., width]."""
    layers = list(tree.values())
    along = sum(layer["w"][..., 1] - layer["w"][..., 0] for layer in layers)
    return along * _PUSH / math.sqrt(len(layers))
