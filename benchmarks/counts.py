"""The operations and bytes that training a network takes.

Operations are those of matrix products (`models.net.products`). A backward pass has two products, one for the weights and
one for the inputs; the first layer needs no gradient of its inputs. Activations, losses, clips and noise are not counted:
every way of training needs these products.

Bytes are those of float32 arrays that move to and from memory once if nothing stays in a cache. Forward: weights and
inputs are read, outputs written. Backward: the same inputs and weights are read with the gradients of the outputs, and
gradients of weights and inputs are written. A step reads weights and gradients and writes weights.
"""

from __future__ import annotations

from fedveil.models.net import Net, products

FLOAT_BYTES = 4  # of a float32


def forward_operations(net: Net) -> int:
    """Operations of the forward pass for one example."""
    return sum(p.operations for p in products(net))


def training_operations(net: Net) -> int:
    """Operations of forward and backward pass for one example."""
    first, *rest = products(net)
    return 2 * first.operations + sum(3 * p.operations for p in rest)


def forward_bytes(net: Net, batch: int) -> int:
    """Bytes of the forward pass on a batch."""
    return FLOAT_BYTES * sum(p.weights + batch * p.positions * (p.inputs + p.outputs) for p in products(net))


def training_bytes(net: Net, batch: int) -> int:
    """Bytes of forward pass, backward pass and step on a batch."""
    found = products(net)
    read = sum(p.weights + batch * p.positions * (p.inputs + p.outputs) for p in found)
    written = sum(p.weights + batch * p.positions * p.inputs * (index > 0) for index, p in enumerate(found))
    step = 3 * sum(p.weights for p in found)
    return forward_bytes(net, batch) + FLOAT_BYTES * (read + written + step)
