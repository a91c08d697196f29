"""Counts from layer shapes: floating-point operations of a network's matrix products, and bytes that they move.

A product of [positions, inputs] by [inputs, outputs] is 2·positions·inputs·outputs operations. A backward pass has two
of them, by the weights and by the inputs; nobody differentiates by the data, so the first layer has one. A convolution
that max-pooling follows is counted as it is computed (`models/pooling.py`): without the odd last row and column.
Activations, losses, clips and noise are not counted: this is the work that no other way of training could leave out.

Bytes are those of float32 arrays that go to and from memory once if nothing stays in a cache: forward, weights and
product inputs are read, outputs written; backward, the same inputs and weights are read again with the gradients of the
outputs, and gradients of weights and inputs written; a step reads weights and gradients and writes weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedveil.models.layers import Conv, Dense, Layer, Residual, Shape
from fedveil.models.net import Net
from fedveil.models.pooling import ConvPool, fused

SIZE = 4  # bytes of a float32


@dataclass(frozen=True)
class Product:
    """The matrix product of one layer for one example."""

    name: str
    positions: int
    inputs: int
    outputs: int

    @property
    def operations(self) -> int:
        return 2 * self.positions * self.inputs * self.outputs

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs


def products(net: Net) -> list[Product]:
    """Every matrix product of a network in training, first layer first."""
    return list(_walk(fused(net.layers), net.input_shape))


def _walk(layers: Sequence[Layer], shape: Shape) -> Iterator[Product]:
    for layer in layers:
        if isinstance(layer, Residual):
            yield from _walk(layer.body, shape)
        elif isinstance(layer, Dense):
            yield Product(layer.name, 1, shape[0], layer.units)
        elif isinstance(layer, Conv | ConvPool):
            conv = layer.conv if isinstance(layer, ConvPool) else layer
            rows, columns, channels = layer.out_shape(shape)
            pooled = 4 if isinstance(layer, ConvPool) else 1
            yield Product(conv.name, pooled * rows * columns, conv.kernel**2 * shape[-1], channels)
        shape = layer.out_shape(shape)


def forward(net: Net) -> int:
    """Operations of the forward pass for one example."""
    return sum(p.operations for p in products(net))


def training(net: Net) -> int:
    """Operations of forward and backward pass for one example."""
    first, *rest = products(net)
    return 2 * first.operations + sum(3 * p.operations for p in rest)


def forward_bytes(net: Net, batch: int) -> int:
    """Bytes of the forward pass on a batch."""
    return SIZE * sum(p.weights + batch * p.positions * (p.inputs + p.outputs) for p in products(net))


def training_bytes(net: Net, batch: int) -> int:
    """Bytes of forward pass, backward pass and step on a batch."""
    found = products(net)
    read = sum(p.weights + batch * p.positions * (p.inputs + p.outputs) for p in found)
    written = sum(p.weights + batch * p.positions * p.inputs * (place > 0) for place, p in enumerate(found))
    step = 3 * sum(p.weights for p in found)
    return forward_bytes(net, batch) + SIZE * (read + written + step)
