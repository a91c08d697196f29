"""A network as a row of layers: what the built-in models are, and what a round may ask of any model.

A model is anything with `init(key) -> params` and `apply(params, x) -> logits`, params a dict of layers (layer → dict of
arrays), `x` a batch. `Net` adds what only our own layers can offer: dropout keys, a replaceable `linear`, a probe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from fedveil.core.system import Lazy
from fedveil.models.layers import (
    Array,
    Context,
    Conv,
    Dense,
    Dropout,
    GroupNorm,
    Layer,
    Params,
    Plain,
    Residual,
    Shape,
    init_all,
)

if TYPE_CHECKING:
    import jax

    from fedveil.models import pooling
else:
    jax, pooling = Lazy("jax"), Lazy("fedveil.models.pooling")


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
            leaves, tree = jax.tree.flatten(params)
            keys = jax.random.split(key, len(leaves))
            drawn = [jax.random.uniform(k, a.shape, a.dtype, -0.5, 0.5) for k, a in zip(keys, leaves, strict=True)]
            params = jax.tree.unflatten(tree, drawn)
        return params

    def apply(self, params: Params, x: Array, context: Context | None = None) -> Array:
        """Logits [batch, classes]. Without a context: evaluation, no dropout."""
        context = context or Context()
        for layer in pooling.paired(self.layers) if context.fused and context.probe is None else self.layers:
            x = layer.apply(params, x, context)
        return x

    @property
    def named(self) -> tuple[str, ...]:
        """The layers that have parameters: the keys of what `init` gives, known without computing it."""
        return tuple(_named(self.layers))

    @property
    def random(self) -> bool:
        """Whether training draws random numbers inside the network."""
        return any(isinstance(layer, Dropout) and layer.rate > 0 for layer in self.layers)

    @property
    def clips_in_one_pass(self) -> bool:
        """Whether all parameters go through `linear` or `affine`, each once: there a backward pass can clip them."""
        return _all_known(self.layers)


def _all_known(layers: Sequence[Layer]) -> bool:
    return all(
        _all_known(layer.body) if isinstance(layer, Residual) else isinstance(layer, Dense | Conv | GroupNorm | Plain)
        for layer in layers
    )


def _named(layers: Sequence[Layer]) -> Iterator[str]:
    for layer in layers:
        if isinstance(layer, Residual):
            yield from _named(layer.body)
        elif layer.name:
            yield layer.name
