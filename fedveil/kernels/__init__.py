"""Accelerator code behind two hooks. Without this folder every result is the same up to rounding, and slower.

`Hooks` has the two functions that `simulation/client.py` may call instead of the plain ones:

- `gradient_sum`: the sum of a batch's example gradients, each clipped, in one backward pass;
- `noised`: noise on that sum that the compiler fuses with the update of the weights.

`hooks()` returns them for a new federation, or None within `disabled()`. Pallas, bfloat16 and the order of GPU kernels are
used in this folder only. `pallas.pair_products` also serves the L-BFGS optimiser of the attacks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import jax

from fedveil.kernels import clipping
from fedveil.models.layers import Array, Context, Params
from fedveil.models.net import Model, Net
from fedveil.random import noise

Tree = Any
_enabled: ContextVar[bool] = ContextVar("kernels", default=True)


@dataclass(frozen=True)
class Hooks:
    """The accelerated functions of a training step. `bfloat16`: patches of convolutions are rounded, sums are not."""

    bfloat16: bool = False

    @property
    def exact(self) -> Hooks:
        """The same without bfloat16: attacks need gradients with all bits."""
        return replace(self, bfloat16=False)

    def clips(self, model: Model) -> bool:
        """Whether `gradient_sum` can clip this model's gradients: each parameter is used once, in a layer that clips."""
        return isinstance(model, Net) and model.clips_in_one_pass

    def gradient_sum(
        self,
        net: Net,
        loss: Callable[[Params, Context], Array],
        params: Params,
        x: Array,
        bound: Array | None,
        rng: Array | None,
    ) -> tuple[Tree, Array]:
        """The sum of a batch's example gradients, and the sum of its losses.

        `loss` computes the summed loss of the batch `x` within a context. Each example's gradient is clipped layer by
        layer to `bound`; None: no clip. `rng` is the key of dropout.
        """
        value, total = jax.value_and_grad(loss)(params, clipping.training_context(rng, bound, self.bfloat16))
        if bound is not None and self.bfloat16 and jax.default_backend() == "gpu":
            from fedveil.kernels import gpu

            total = gpu.in_order(net.layers, x, total)
        return total, value

    def noised(self, add_noise: Callable[[Array], Tree], key: Array, loss: Array) -> Tree:
        """`add_noise(key)`; on a GPU with noise that is fused with the update.

        The key waits for the loss: drawing would otherwise take the GPU while the first layer waits for its images.
        """
        if jax.default_backend() == "cpu":
            return add_noise(key)
        from fedveil.kernels import gpu

        with noise.drawn_by(gpu.joined_gaussian):
            return add_noise(gpu.after(key, loss))


def hooks(bfloat16: bool = False) -> Hooks | None:
    """The hooks for a new federation; None within `disabled()`."""
    return Hooks(bfloat16) if _enabled.get() else None


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Federations that are prepared within it use the plain code."""
    token = _enabled.set(False)
    try:
        yield
    finally:
        _enabled.reset(token)
