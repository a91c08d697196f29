"""A network as a sequence of layers, and its matrix products.

A model is any object with `init(key) -> params` and `apply(params, x) -> logits`; params is a dict of layers (layer → dict
of arrays), `x` a batch. `Net` adds what needs our own layers: dropout keys, replaceable layers, a probe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from fedveil.core.system import Lazy
from fedveil.models.layers import (
    Activation,
    Array,
    Context,
    Conv,
    Dense,
    Dropout,
    GroupNorm,
    Layer,
    Params,
    Plain,
    Pool,
    Residual,
    Shape,
    init_all,
)

if TYPE_CHECKING:
    import jax
else:
    jax = Lazy("jax")


@runtime_checkable
class Model(Protocol):
    """Anything that can be trained."""

    def init(self, key: Array) -> Params: ...
    def apply(self, params: Params, x: Array) -> Array: ...


@dataclass(frozen=True)
class Net:
    """Layers applied in order to inputs of one shape."""

    layers: tuple[Layer, ...]
    input_shape: Shape
    initial: str = "default"  # or "uniform-0.5": every weight and bias uniform in ±0.5 (the public code of cpl)

    def init(self, key: Array) -> Params:
        params = init_all(self.layers, key, self.input_shape)
        if self.initial == "uniform-0.5":
            from fedveil.random.noise import uniform

            leaves, tree = jax.tree.flatten(params)
            keys = jax.random.split(key, len(leaves))
            drawn = [uniform(k, a.shape, -0.5, 0.5) for k, a in zip(keys, leaves, strict=True)]
            params = jax.tree.unflatten(tree, drawn)
        return params

    def apply(self, params: Params, x: Array, context: Context | None = None) -> Array:
        """Logits [batch, classes]. Without a context: evaluation, no dropout."""
        context = context or Context()
        merged = context.merge(self.layers) if context.merge and context.probe is None else self.layers
        for layer in merged:
            x = layer.apply(params, x, context)
        return x

    @property
    def named(self) -> tuple[str, ...]:
        """The layers with parameters: the keys of the dict that `init` returns."""
        return tuple(layer.name for layer in each_layer(self.layers) if layer.name)

    @property
    def random(self) -> bool:
        """Whether training draws random numbers inside the network."""
        return any(isinstance(layer, Dropout) and layer.rate > 0 for layer in self.layers)

    @property
    def clips_in_one_pass(self) -> bool:
        """Whether every parameter goes through `linear` or `affine` exactly once, where a backward pass can clip it."""
        return all(isinstance(layer, Dense | Conv | GroupNorm | Plain) for layer in each_layer(self.layers))


def each_layer(layers: Sequence[Layer]) -> Iterator[Layer]:
    """The layers in order. A `Residual` is replaced by the layers inside it."""
    for layer in layers:
        if isinstance(layer, Residual):
            yield from each_layer(layer.body)
        else:
            yield layer


# --- matrix products


@dataclass(frozen=True)
class Product:
    """The matrix product of one layer for one example."""

    name: str
    positions: int
    inputs: int
    outputs: int

    @property
    def operations(self) -> int:
        """Floating-point operations of one example: 2·positions·inputs·outputs."""
        return 2 * self.positions * self.inputs * self.outputs

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs


def products(net: Net) -> list[Product]:
    """Every matrix product of a network in training, first layer first.

    A convolution before max-pooling is counted without the odd last row and column, as it is computed.
    """
    return list(_products(net.layers, net.input_shape))


def _products(layers: Sequence[Layer], shape: Shape) -> Iterator[Product]:
    for index, layer in enumerate(layers):
        out = layer.out_shape(shape)
        if isinstance(layer, Residual):
            yield from _products(layer.body, shape)
        elif isinstance(layer, Dense):
            yield Product(layer.name, 1, shape[0], layer.units)
        elif isinstance(layer, Conv):
            rows, columns, channels = out
            if _max_pooled(layers[index + 1 :]):
                rows, columns = rows // 2 * 2, columns // 2 * 2
            yield Product(layer.name, rows * columns, layer.kernel**2 * shape[-1], channels)
        shape = out


def _max_pooled(following: Sequence[Layer]) -> bool:
    """Whether max-pooling comes next, after an activation or at once."""
    after = following[1:] if following and isinstance(following[0], Activation) else following
    return bool(after) and isinstance(after[0], Pool) and after[0].kind == "max"
