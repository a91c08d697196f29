"""Operations that act on each value, by their PyTorch names and argument names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedveil.core.errors import ConfigError
from fedveil.models.layers import Array

Op = Callable[..., Any]


def _scaled(function: Callable[[Any, Any], Array]) -> Op:
    return lambda self, other, alpha=1: function(self, other if alpha == 1 else alpha * other)


def _plain(function: Callable[[Any], Array]) -> Op:
    return lambda self: function(self)


def _two(function: Callable[[Any, Any], Array]) -> Op:
    return lambda self, other: function(self, other)


def gelu(self: Array, approximate: str = "none") -> Array:
    return jax.nn.gelu(self, approximate=approximate == "tanh")


def leaky_relu(self: Array, negative_slope: float = 0.01) -> Array:
    return jax.nn.leaky_relu(self, negative_slope)


def elu(self: Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Array:
    return scale * jnp.where(self > 0, self, alpha * jnp.expm1(input_scale * jnp.minimum(self, 0.0)))


def hardtanh(self: Array, min_val: float = -1.0, max_val: float = 1.0) -> Array:
    return jnp.clip(self, min_val, max_val)


def softplus(self: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    return jnp.where(self * beta > threshold, self, jax.nn.softplus(beta * self) / beta)


def clamp(self: Array, min: Any = None, max: Any = None) -> Array:
    return jnp.clip(self, min, max)


def power(self: Any, exponent: Any) -> Array:
    return jnp.power(self, exponent)


def divide(self: Any, other: Any, rounding_mode: str | None = None) -> Array:
    if rounding_mode is not None:
        raise ConfigError("model", f"div(rounding_mode={rounding_mode!r})", "takes div without rounding")
    return self / other


def where(condition: Array, self: Any, other: Any) -> Array:
    return jnp.where(condition, self, other)


def masked_fill(self: Array, mask: Array, value: Any) -> Array:
    return jnp.where(mask, value, self)


def copied(self: Array, **ignored: Any) -> Array:
    """The value itself: how PyTorch stores it in memory has no meaning here."""
    return self


def converted(self: Array, dtype: str | None = None, **ignored: Any) -> Array:
    """Another type. A floating-point type stays that of the training, which has one precision for all."""
    if dtype is None or (dtype.startswith(("float", "bfloat")) and jnp.issubdtype(self.dtype, jnp.floating)):
        return self
    return self.astype(jnp.result_type(float) if dtype.startswith(("float", "bfloat")) else jnp.dtype(dtype))


OPS: dict[str, Op] = {
    "relu": _plain(jax.nn.relu),
    "relu6": _plain(jax.nn.relu6),
    "gelu": gelu,
    "silu": _plain(jax.nn.silu),
    "mish": _plain(jax.nn.mish),
    "tanh": _plain(jnp.tanh),
    "sigmoid": _plain(jax.nn.sigmoid),
    "hardsigmoid": _plain(jax.nn.hard_sigmoid),
    "hardswish": _plain(jax.nn.hard_silu),
    "log_sigmoid": _plain(jax.nn.log_sigmoid),
    "leaky_relu": leaky_relu,
    "elu": elu,
    "hardtanh": hardtanh,
    "softplus": softplus,
    "add": _scaled(lambda a, b: a + b),
    "sub": _scaled(lambda a, b: a - b),
    "rsub": _scaled(lambda a, b: b - a),
    "mul": _two(lambda a, b: a * b),
    "div": divide,
    "pow": power,
    "exp": _plain(jnp.exp),
    "log": _plain(jnp.log),
    "sqrt": _plain(jnp.sqrt),
    "rsqrt": _plain(jax.lax.rsqrt),
    "reciprocal": _plain(lambda a: 1.0 / a),
    "square": _plain(jnp.square),
    "neg": _plain(jnp.negative),
    "abs": _plain(jnp.abs),
    "sin": _plain(jnp.sin),
    "cos": _plain(jnp.cos),
    "erf": _plain(jax.scipy.special.erf),
    "maximum": _two(jnp.maximum),
    "minimum": _two(jnp.minimum),
    "clamp": clamp,
    "clamp_min": clamp,
    "eq": _two(lambda a, b: a == b),
    "ne": _two(lambda a, b: a != b),
    "gt": _two(lambda a, b: a > b),
    "lt": _two(lambda a, b: a < b),
    "where": where,
    "masked_fill": masked_fill,
    "clone": copied,
    "alias": copied,
    "contiguous": copied,
    "detach": lambda self: jax.lax.stop_gradient(self),
    "to": converted,
    "_to_copy": converted,
    "type_as": lambda self, other: self.astype(other.dtype),
}
