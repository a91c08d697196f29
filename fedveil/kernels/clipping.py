"""The clipped gradient sum of a batch in one backward pass, without storing example gradients.

With layerwise clipping, the clipped gradient of a layer depends on that layer's input and cotangent alone, and clipping
does not change the cotangent of earlier layers. So `jax.grad` of the summed loss gives the sum of the clipped example
gradients once every layer's backward pass clips (`FusedContext`). This module replaces three parts of a network:

- matrix products (`linear`), whose backward pass is written for the machine at hand;
- scale and shift of a normalisation (`affine`);
- a convolution followed by max-pooling (`ConvPool`), computed as one step with fewer bytes moved.

The patches of a convolution are nine (or twenty-five) times as large as the image, and moving them costs more than
multiplying them. `half_patches` stores them in bfloat16: inputs of products are rounded to eight bits, sums stay in
float32. Example gradients are then stored in bfloat16, too. Norms are taken of the rounded numbers, which are the numbers
that are clipped and summed, and the clip leaves a margin for one more rounding. So the bound holds after rounding.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.mechanisms import clip
from fedveil.mechanisms.clip import factor, scaled
from fedveil.models.layers import Activation, Array, Context, Conv, Layer, LayerParams, Params, Pool, Shape, affine

MARGIN_BF16 = 1.0 - 2.0**-8  # for gradients that were rounded to bfloat16, each number by at most 2⁻⁹ of it
SMALL_BATCH = 8  # examples up to which a GPU computes a sum of outer products without a matrix product
THIN, LONG = 32, 512  # most outputs and fewest inputs of a thin product
NARROW = 32  # outputs of a convolution up to which a CPU sums example gradients instead of one product
WINDOW = ((0, 0), (0, 1), (1, 0), (1, 1))  # the four entries of a pooling window


@dataclass(frozen=True)
class FusedContext(Context):
    """How a network is computed in training: `bound` is the clip bound of each example and layer, None without a clip."""

    bound: Array | None = None


def training_context(rng: Array | None, bound: Array | None, bfloat16: bool) -> FusedContext:
    """The context of a training step. `bfloat16`: patches of convolutions are rounded."""
    merge = merged
    if bfloat16 and jax.default_backend() == "gpu":  # the first two convolutions as one step of Pallas kernels
        from fedveil.kernels import gpu

        merge = gpu.paired
    return FusedContext(
        rng=rng,
        linear=fast_linear if bound is None else clipping_linear(bound),
        affine=affine if bound is None else clipping_affine(bound),
        patches=half_patches if bfloat16 else None,
        merge=merge,
        bound=bound,
    )


# --- products of small batches


def outer_sum(x: Array, g: Array) -> Array:
    """`x.T @ g`: [batch, inputs], [batch, outputs] → [inputs, outputs].

    On a GPU a matrix product over few examples costs a kernel launch. An explicit sum is fused with the update of the
    weights.
    """
    if jax.default_backend() != "gpu" or x.shape[0] > SMALL_BATCH:
        return x.T @ g
    return functools.reduce(jnp.add, [a[:, None] * b[None, :] for a, b in zip(x, g, strict=True)])


def outer_margin(x: Array) -> float:
    """The factor on a clip bound that makes `outer_sum` keep it after rounding.

    Accelerators round the inputs of float32 products: a GPU to TF32, each number by at most 2⁻¹¹ of it, others to
    bfloat16, by at most 2⁻⁹. An outer product then grows by twice that at most. The margin is twice as large again.
    """
    backend = jax.default_backend()
    if x.dtype == jnp.float64 or backend == "cpu" or (backend == "gpu" and x.shape[0] <= SMALL_BATCH):
        return 1.0
    return 1.0 - (2.0**-9 if backend == "gpu" else 2.0**-7)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 2, 3))
def half_patches(conv: Conv, x: Array, rows: int, columns: int) -> Array:
    """`conv.patches` in bfloat16. The backward pass adds their derivatives in the type of `x`."""
    return conv.patches(x.astype(jnp.bfloat16), rows, columns)


def _patches_backward(conv: Conv, rows: int, columns: int, x: Array, g: Array) -> tuple[Array]:
    _, back = jax.vjp(lambda v: conv.patches(v, rows, columns), x)
    (dx,) = back(g.astype(x.dtype))
    return (dx,)


half_patches.defvjp(lambda conv, x, rows, columns: (half_patches(conv, x, rows, columns), x), _patches_backward)


def product_and_squares(x: Array, w: Array) -> tuple[Array, Array | None]:
    """`x @ w`, computed in the type of `x` and summed in that of `w`; and the squared norms of the rows of `x` where the
    kernel gives them for free."""
    if jax.default_backend() == "gpu" and is_thin(x, w):
        from fedveil.kernels import pallas

        return pallas.thin_and_squares(x, w)
    return (x @ w if x.dtype == w.dtype else jnp.matmul(x, w.astype(x.dtype), preferred_element_type=w.dtype)), None


def product(x: Array, w: Array) -> Array:
    """`product_and_squares` without the norms."""
    if jax.default_backend() == "gpu" and is_thin(x, w):
        from fedveil.kernels import pallas

        return pallas.thin(x, w)
    return product_and_squares(x, w)[0]


def is_thin(x: Array, w: Array) -> bool:
    """Whether this is a long sum for few rows and columns: a GPU's own product would leave most of the GPU idle."""
    single = x.dtype == w.dtype == jnp.float32
    return single and x.ndim == 2 and x.shape[0] <= SMALL_BATCH and w.shape[1] <= THIN and x.shape[1] >= LONG


def back_product(x: Array, w: Array, g: Array) -> Array:
    """The derivative of `product` with respect to `x`, in the type of `x`."""
    return g @ w.T if x.dtype == w.dtype else jnp.matmul(g.astype(x.dtype), w.T.astype(x.dtype))


def by_example(x: Array, g: Array) -> Array:
    """Each example's gradient [batch, inputs, outputs], or [batch, outputs, inputs] where `transposed` is true.

    `x` [batch, positions, inputs], `g` [batch, positions, outputs]. The result has the type of `x`; sums over positions
    are in float32 or float64.
    """
    order = "bmk" if transposed(x, g) else "bkm"
    return jnp.einsum(f"bpk,bpm->{order}", x, g.astype(x.dtype), preferred_element_type=x.dtype)


def transposed(x: Array, g: Array) -> bool:
    """Whether example gradients are [outputs, inputs]: with more inputs than outputs a CPU takes 0.4 to 0.7 of the time."""
    return jax.default_backend() == "cpu" and x.shape[-1] > g.shape[-1]


# --- layers without a clip


def fast_linear(name: str, params: LayerParams, x: Array) -> Array:
    """`layers.linear` with a backward pass for the machine at hand."""
    return _fast(params, x)


@jax.custom_vjp
def _fast(params: LayerParams, x: Array) -> Array:
    y = product(x, params["w"])
    return y + params["b"] if "b" in params else y


def _fast_backward(saved: tuple[LayerParams, Array], g: Array) -> tuple[LayerParams, Array]:
    params, x = saved
    gradient = {"w": (outer_sum if x.ndim == 2 else _summed)(x, g)}
    if "b" in params:
        gradient["b"] = g.sum(axis=tuple(range(g.ndim - 1)))
    return gradient, back_product(x, params["w"], g)


def _summed(x: Array, g: Array) -> Array:
    """The sum of what `by_example` gives [inputs, outputs], as one product.

    Where outputs are few, a CPU is faster with example gradients and their sum, because XLA transposes the inputs of the
    one product.
    """
    if transposed(x, g) and g.shape[-1] <= NARROW:
        return by_example(x, g).sum(axis=0).T
    return jnp.einsum("bpk,bpm->km", x, g.astype(x.dtype), preferred_element_type=g.dtype)


_fast.defvjp(lambda params, x: (_fast(params, x), (params, x)), _fast_backward)


# --- layers whose backward pass clips


def clipping_linear(bound: Array) -> Any:
    """A `linear` whose backward pass returns the sum of the clipped example gradients of its layer."""

    def apply(name: str, params: LayerParams, x: Array) -> Array:
        return _linear(params, x, bound)

    return apply


def clipping_affine(bound: Array) -> Any:
    """An `affine` whose backward pass returns the sum of the clipped example gradients of its layer."""

    def apply(name: str, params: LayerParams, x: Array) -> Array:
        return _affine(params, x, bound)

    return apply


Saved = tuple[LayerParams, Array, Array, Array | None]


@jax.custom_vjp
def _linear(params: LayerParams, x: Array, bound: Array) -> Array:
    return _forward(params, x, bound)[0]


def _forward(params: LayerParams, x: Array, bound: Array) -> tuple[Array, Saved]:
    y, known = product_and_squares(x, params["w"])
    return (y + params["b"] if "b" in params else y), (params, x, bound, known)


def _backward(saved: Saved, g: Array) -> tuple[LayerParams, Array, Array]:
    params, x, bound, known = saved
    gradient = _dense_gradient(params, x, g, bound, known) if x.ndim == 2 else _conv_gradient(params, x, g, bound)
    return gradient, back_product(x, params["w"], g), jnp.zeros_like(bound)


_linear.defvjp(_forward, _backward)


def _dense_gradient(params: LayerParams, x: Array, g: Array, bound: Array, known: Array | None) -> LayerParams:
    """One position per example: the norm of an outer product is the product of the norms.

    `known`: the squared norms of the rows of `x`, if they were computed before.
    """
    scale = _outer_factors(x, g, bound, "b" in params, known)
    g = scaled(g, scale)
    g = jnp.where(jnp.abs(g) < np.finfo(g.dtype).tiny, 0.0, g)  # denormal numbers are coarse, and `x` multiplies them
    x = jnp.where((scale > 0)[:, None], x, 0.0)  # an example that is left out must not enter as 0 · ∞
    gradient = {"w": outer_sum(x, g)}
    return {**gradient, "b": g.sum(axis=0)} if "b" in params else gradient


def _outer_factors(x: Array, g: Array, bound: Array, bias: bool, known: Array | None) -> Array:
    """The clip factors of outer products. A bias is one more input with the value 1.

    In float32 an example is left out if the norm of its inputs is above 2⁶⁴, or without a bias below 2⁻⁵¹·√inputs:
    squares that were flushed to zero could matter then.
    """
    most = clip.limit(bound * outer_margin(x), g.dtype)
    inputs = (clip.squares(x) if known is None else known) + bias
    least = x.shape[1] * float(np.finfo(inputs.dtype).tiny) * 2.0**24
    length = jnp.where(inputs < least, jnp.inf, jnp.sqrt(inputs))  # an infinite norm leaves the example out
    times = (g * most.unit) * length[:, None]
    found = jnp.where(jnp.isfinite(length), jnp.sqrt(clip.squares(times)), jnp.inf)
    seen = clip.room(x) if known is None else clip.room_for(x.shape[1] + 4, inputs.dtype)
    return factor(found, most.bound * (seen * clip.room(g)))


def _conv_gradient(params: LayerParams, x: Array, g: Array, bound: Array) -> LayerParams:
    """Many positions per example: example gradients as one batched product, then norms, then a weighted sum."""
    most = clip.limit(bound, g.dtype)
    unit = g * most.unit
    each: LayerParams = {"w": by_example(x, unit)}
    if "b" in params:
        each["b"] = unit.sum(axis=1)
    rounded = MARGIN_BF16 if each["w"].dtype == jnp.bfloat16 else 1.0
    scale = factor(jnp.sqrt(clip.squares(each)), most.bound * (clip.room(each) * rounded)) / most.unit
    summed = {name: _weighted_sum(a.astype(g.dtype), scale) for name, a in each.items()}
    return {**summed, "w": summed["w"].T} if transposed(x, g) else summed


def _weighted_sum(each: Array, scale: Array) -> Array:
    """The sum of what `scaled` gives. A GPU fuses it with the update; elsewhere a product is faster."""
    if jax.default_backend() == "gpu":
        return scaled(each, scale).sum(axis=0)
    kept = jnp.where(scale.reshape(scale.shape + (1,) * (each.ndim - 1)) > 0, each, 0.0)
    return jnp.tensordot(scale, kept, axes=1, precision="highest")


@jax.custom_vjp
def _affine(params: LayerParams, x: Array, bound: Array) -> Array:
    return affine("", params, x)


def _affine_backward(saved: tuple[LayerParams, Array, Array], g: Array) -> tuple[LayerParams, Array, Array]:
    """Clips every example's gradient of scale and shift, then sums them.

    They are two numbers per example and channel, so example by example they fit in memory at any image size.
    """
    params, x, bound = saved
    each = {"scale": (g * x).sum(axis=(1, 2)), "shift": g.sum(axis=(1, 2))}
    scale = clip.factors(each, bound)
    summed = {name: scaled(a, scale).sum(axis=0) for name, a in each.items()}
    return summed, g * params["scale"], jnp.zeros_like(bound)


_affine.defvjp(lambda params, x, bound: (_affine(params, x, bound), (params, x, bound)), _affine_backward)


# --- convolution and max-pooling as one step


@dataclass(frozen=True)
class ConvPool:
    """A convolution, max-pooling over 2×2, then the activation.

    The values are those of the three layers in their own order, because max-pooling commutes with an increasing
    activation. Three things are not computed: outputs in an odd last row or column, which pooling drops; activations
    of entries that are not the largest of their window; and, in the backward pass, the index of the largest entry, which
    the forward pass stores as one byte. If several entries of a window are equal, the first gets the whole derivative.
    """

    conv: Conv
    activation: Layer | None

    @property
    def name(self) -> str:
        return self.conv.name

    def out_shape(self, shape: Shape) -> Shape:
        return Pool().out_shape(self.conv.out_shape(shape))

    def init(self, key: Array, shape: Shape) -> Params:
        return self.conv.init(key, shape)

    def apply(self, params: Params, x: Array, context: Context) -> Array:
        own = params[self.name]
        if isinstance(context, FusedContext) and suits_gpu(self.conv, x):
            from fedveil.kernels import gpu

            y = gpu.first(own, padded(self.conv, x), context.bound)
        else:
            rows, columns, channels = self.out_shape(x.shape[1:])
            seen = context.patches_of(self.conv, x, 2 * rows, 2 * columns)
            flat = {**own, "w": own["w"].reshape(-1, channels)}
            y = max_pool(context.linear(self.name, flat, seen).reshape(-1, 2 * rows, 2 * columns, channels))
        return y if self.activation is None else self.activation.apply(params, y, context)


@functools.cache
def merged(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The layers, with each run of convolution, activation and max-pooling as one `ConvPool`.

    Every activation that a network can name is increasing.
    """
    out: list[Layer] = []
    rest = list(layers)
    while rest:
        conv = rest[0]
        between = len(rest) > 1 and isinstance(rest[1], Activation)
        pool = rest[1 + between] if len(rest) > 1 + between else None
        if isinstance(conv, Conv) and isinstance(pool, Pool) and pool.kind == "max":
            out.append(ConvPool(conv, rest[1] if between else None))
            rest = rest[2 + between :]
        else:
            out.append(rest.pop(0))
    return tuple(out)


def padded(conv: Conv, x: Array) -> Array:
    """The input of a convolution with its padding."""
    p = conv.padding
    return jnp.pad(x, ((0, 0), (p, p), (p, p), (0, 0))) if p else x


FEW_INPUTS = 32  # most values that an output of the GPU's first layer reads


def suits_gpu(conv: Conv, x: Array) -> bool:
    """Whether `gpu.first` computes this layer: on a GPU, in float32, for shapes that suit it."""
    return jax.default_backend() == "gpu" and x.dtype == jnp.float32 and suits(conv, x.shape[-1])


def suits(conv: Conv, inputs: int) -> bool:
    """Whether the shapes suit `gpu.first`."""
    return conv.stride == 1 and is_power_of_two(conv.channels) and conv.kernel**2 * inputs <= FEW_INPUTS


def is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


@jax.custom_vjp
def max_pool(y: Array) -> Array:
    """[batch, 2·rows, 2·columns, channels] → the largest entry of each 2×2 window."""
    return first_winners(_corners(y))[0]


def _corners(y: Array) -> list[Array]:
    """The four entries of every window, each [batch, rows, columns, channels]."""
    batch, rows, columns, channels = y.shape
    windows = y.reshape(batch, rows // 2, 2, columns // 2, 2, channels)
    return [windows[:, :, i, :, j] for i, j in WINDOW]


def winners(corners: list[Array]) -> tuple[Array, Array]:
    """The largest of four arrays, and the index of the winner (the first of equals). NaN wins over every number."""
    a, b, c, d = corners
    best = jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d))
    return best, jnp.where(a == best, 0, jnp.where(b == best, 1, jnp.where(c == best, 2, 3)))


def first_winners(corners: list[Array]) -> tuple[Array, Array]:
    """`winners` with the index as one byte."""
    best, winner = winners(corners)
    return best, winner.astype(jnp.int8)


def unpool(g: Array, winner: Array) -> Array:
    """[batch, rows, columns, channels] → the windows: each entry at the winner's position, zero elsewhere."""
    batch, rows, columns, channels = g.shape
    corner = jnp.arange(4, dtype=winner.dtype).reshape(1, 1, 2, 1, 2, 1)
    wide = jnp.where(winner[:, :, None, :, None, :] == corner, g[:, :, None, :, None, :], 0.0)
    return wide.reshape(batch, 2 * rows, 2 * columns, channels)


max_pool.defvjp(lambda y: first_winners(_corners(y)), lambda winner, g: (unpool(g, winner),))
