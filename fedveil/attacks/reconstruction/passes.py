"""The gradient of a gradient, in four passes through a network of our own layers.

Gradient matching wants, for every attack, the weight gradient g(x) of dummy inputs x, and then the derivative in x of
⟨g(x), v⟩ for a direction v that the distance gives. Since ⟨g(x), v⟩ is the derivative of the loss when the weights move
along v, that takes two passes more and no general double backward:

1. forward, keeping every layer's input;
2. backward: δ of each layer, hence the weight gradients g;
3. forward again: how each layer's output moves when the weights move along v;
4. backward again: how each δ moves; what arrives at the input is the derivative asked for.

Each attack has its own gradients, so a convolution is a matrix product per attack, on columns [inputs, positions]: with
channels first these products are about twice as fast on a CPU as with channels last, and the copying between layers costs
less when windows are taken along the width first, then along the height. Together that is half the time of automatic
differentiation of the same layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedveil.models.layers import ACTIVATIONS, Activation, Array, Context, Conv, Dense, Layer, Params, Plain, Shape
from fedveil.models.net import Model, Net

FEW = 16  # columns below which products per block are not worth their cost
Pull = Callable[[Params], tuple[Array, Array]]  # direction v -> derivatives of ⟨g, v⟩ in x and in the label weights q


def fits(model: Model) -> bool:
    """Whether every parameter of the model belongs to a dense layer or a convolution of ours."""
    return isinstance(model, Net) and all(isinstance(layer, Dense | Conv | Plain) for layer in model.layers)


def gradients(net: Net, params: Params, x: Array, q: Array) -> tuple[Params, Pull]:
    """Weight gradients of the mean cross-entropy over each attack's examples, and the function that turns a direction.

    x [attacks, examples, ...shape], q [attacks, examples, classes] the weights of the labels (one-hot, or soft); `params`
    shared by all attacks or with a leading axis over them. Gradients [attacks, ...].
    """
    attacks, examples = x.shape[:2]
    steps = [_step(layer, params, examples) for layer in net.layers]
    inputs: list[Array] = []
    a = _channels_first(x.reshape(attacks * examples, *net.input_shape))
    for step in steps:
        kept, a = step.forward(a)
        inputs.append(kept)
    head = _Head(a, q.reshape(attacks * examples, -1), examples)

    found: Params = {}
    deltas: list[Array] = []
    delta = head.delta
    for i in range(len(steps) - 1, -1, -1):
        deltas.insert(0, delta)
        if isinstance(steps[i], _Linear):
            found[steps[i].name] = steps[i].gradient(inputs[i], delta)
        if i:  # the input of the first layer needs no δ
            delta = steps[i].backward(inputs[i], delta)

    def pull(direction: Params) -> tuple[Array, Array]:
        moves: list[Array | None] = []
        move: Array | None = None  # the input does not move
        for step, kept in zip(steps, inputs, strict=True):
            moves.append(move)
            move = step.moved(kept, move, direction)
        assert move is not None, "a network without parameters has no gradients to match"
        turn = head.turned(move)
        for i in range(len(steps) - 1, -1, -1):
            turn = steps[i].turned(inputs[i], deltas[i], moves[i], turn, direction)
        return _channels_last(turn).reshape(x.shape), head.label_slope(move).reshape(q.shape)

    return {layer: found[layer] for layer in params}, pull


class _Head:
    """Softmax and cross-entropy with label weights q; the mean over an attack's examples divides by their number."""

    def __init__(self, logits: Array, q: Array, examples: int):
        self.p, self.examples = jax.nn.softmax(logits), examples
        self.mass = q.sum(axis=1, keepdims=True)
        self.delta = (self.p * self.mass - q) / examples

    def turned(self, move: Array) -> Array:
        """How δ moves when the logits move."""
        return self.p * self._log_move(move) * self.mass / self.examples

    def label_slope(self, move: Array) -> Array:
        """Derivative of ⟨g, v⟩ in q: the loss is −Σ q log p."""
        return -self._log_move(move) / self.examples

    def _log_move(self, move: Array) -> Array:
        return move - (self.p * move).sum(axis=1, keepdims=True)


class _Linear:
    """z = wᵀh + b on columns h [blocks, inputs, columns], as a dense layer has them.

    A block holds what shares its weights and is summed in one product. Here it is an attack and its columns are the
    examples; activations are [attacks · examples, features].
    """

    rank = 2  # of the weights

    def __init__(self, name: str, own: dict[str, Array], units: int, examples: int):
        self.name, self.units, self.examples = name, units, examples
        self.w, self.b = own["w"], own.get("b")
        self.own_weights = self.w.ndim > self.rank  # a leading axis over attacks
        kept = self.w.shape[:1] if self.own_weights else ()
        self.matrix = self.w.reshape(*kept, -1, units)
        if self.own_weights:
            self.matrix = self.per_block(self.matrix)
            self.b = None if self.b is None else self.per_block(self.b)

    def lift(self, a: Array) -> Array:
        """Columns of activations."""
        return _turn(a.reshape(-1, self.examples, a.shape[-1]))

    def lower(self, h: Array) -> Array:
        """The transpose of `lift`."""
        return _turn(h).reshape(-1, h.shape[1])

    def raised(self, z: Array) -> Array:
        """Columns of outputs [blocks, units, columns] as activations."""
        return self.lower(z)

    def columns(self, d: Array) -> Array:
        """Activations as columns of outputs."""
        return self.lift(d)

    def per_block(self, value: Array) -> Array:
        """[attacks, ...] -> [blocks, ...]."""
        return value

    def per_attack(self, value: Array) -> Array:
        """[blocks, ...] -> [attacks, ...], summed."""
        return value

    def forward(self, a: Array) -> tuple[Array, Array]:
        h = self.lift(a)
        z = _product(_turn(self.matrix), h)
        if self.b is not None:
            z = z + self.b[..., None]
        return h, self.raised(z)

    def gradient(self, h: Array, delta: Array) -> dict[str, Array]:
        d = self.columns(delta)
        shape = self.w.shape[1:] if self.own_weights else self.w.shape
        # One column per block: an outer product, which need not go through a matrix product.
        w = h * _turn(d) if h.shape[-1] == 1 else h @ _turn(d)
        found = {"w": self.per_attack(w).reshape(-1, *shape)}
        return found if self.b is None else {**found, "b": self.per_attack(d.sum(axis=2))}

    def backward(self, h: Array, delta: Array) -> Array:
        return self.lower(_product(self.matrix, self.columns(delta)))

    def moved(self, h: Array, move: Array | None, direction: Params) -> Array:
        out = _turn(self._direction(direction)) @ h
        if self.b is not None:
            out = out + self.per_block(direction[self.name]["b"])[:, :, None]
        if move is not None:
            out = out + _product(_turn(self.matrix), self.lift(move))
        return self.raised(out)

    def turned(self, h: Array, delta: Array, move: Array | None, turn: Array, direction: Params) -> Array:
        v, d, t = self._direction(direction), self.columns(delta), self.columns(turn)
        if d.shape[-1] < FEW:
            return self.lower(_product(self.matrix, t) + v @ d)
        # w·turn + v·δ as one product: the sum of two would write the columns twice.
        w = jnp.broadcast_to(self.matrix, v.shape)
        return self.lower(jnp.concatenate([w, v], axis=2) @ jnp.concatenate([t, d], axis=1))

    def _direction(self, direction: Params) -> Array:
        v = direction[self.name]["w"]
        return self.per_block(v.reshape(v.shape[0], -1, self.units))


class _ConvStep(_Linear):
    """A convolution as a product of matrices: one block per example, one column per output position.

    Activations are [attacks · examples, channels, height, width].
    """

    rank = 4

    def __init__(self, conv: Conv, own: dict[str, Array], examples: int):
        super().__init__(conv.name, own, conv.channels, examples)
        self.conv = conv
        self.inside: Shape = ()

    def lift(self, a: Array) -> Array:
        self.inside = a.shape[1:]
        return unfold(self.conv, a)

    def lower(self, h: Array) -> Array:
        return fold(self.conv, self.inside, h)

    def raised(self, z: Array) -> Array:
        return z.reshape(*z.shape[:2], *_sides(self.conv, self.inside))

    def columns(self, d: Array) -> Array:
        return d.reshape(*d.shape[:2], -1)

    def per_block(self, value: Array) -> Array:
        return value if self.examples == 1 else jnp.repeat(value, self.examples, axis=0)

    def per_attack(self, value: Array) -> Array:
        return value if self.examples == 1 else value.reshape(-1, self.examples, *value.shape[1:]).sum(axis=1)


@dataclass(frozen=True)
class _PlainStep:
    """A layer without parameters: what the passes need of it follows from its derivatives."""

    apply: Callable[[Array], Array]
    name: str = ""

    def forward(self, a: Array) -> tuple[Array, Array]:
        return a, self.apply(a)

    def backward(self, a: Array, delta: Array) -> Array:
        return jax.vjp(self.apply, a)[1](delta)[0]

    def moved(self, a: Array, move: Array | None, direction: Params) -> Array | None:
        return None if move is None else jax.jvp(self.apply, (a,), (move,))[1]

    def turned(self, a: Array, delta: Array, move: Array | None, turn: Array, direction: Params) -> Array:
        if move is None:
            return self.backward(a, turn)
        return jax.jvp(self.backward, (a, delta), (move, turn))[1]


def _step(layer: Layer, params: Params, examples: int) -> Any:
    match layer:
        case Conv():
            return _ConvStep(layer, params[layer.name], examples)
        case Dense():
            return _Linear(layer.name, params[layer.name], layer.units, examples)
        case Activation():
            return _PlainStep(ACTIVATIONS[layer.kind])
    return _PlainStep(lambda a: _channels_first(layer.apply({}, _channels_last(a), Context())))


def _turn(a: Array) -> Array:
    return a.swapaxes(-1, -2)


def _product(w: Array, h: Array) -> Array:
    """w @ h per block; weights that all blocks share make one large product where columns are few."""
    if w.ndim == 2 and h.shape[-1] < FEW:
        return jnp.einsum("ij,ajn->ain", w, h)
    return jnp.broadcast_to(w, (h.shape[0], *w.shape[-2:])) @ h


def _channels_first(a: Array) -> Array:
    return jnp.moveaxis(a, -1, 1) if a.ndim == 4 else a


def _channels_last(a: Array) -> Array:
    return jnp.moveaxis(a, 1, -1) if a.ndim == 4 else a


# --- windows of a convolution, channels first ---------------------------------------------------------------------


def _sides(conv: Conv, inside: Shape) -> tuple[int, int]:
    height, width, _ = conv.out_shape((inside[1], inside[2], inside[0]))
    return height, width


def unfold(conv: Conv, a: Array) -> Array:
    """[n, channels, height, width] -> [n, kernel · kernel · channels, positions], inputs in the order of the weights."""
    height, width = _sides(conv, a.shape[1:])
    around = (conv.padding, conv.padding)
    a = jnp.pad(a, ((0, 0), (0, 0), around, around))
    a = jnp.concatenate(_windows(conv, a, 3, width), axis=1)
    a = jnp.concatenate(_windows(conv, a, 2, height), axis=1)
    return a.reshape(*a.shape[:2], height * width)


def fold(conv: Conv, inside: Shape, h: Array) -> Array:
    """The transpose of `unfold`: every window's values added back to where they were taken from."""
    channels, rows, columns = inside
    height, width = _sides(conv, inside)
    split = h.reshape(h.shape[0], conv.kernel, conv.kernel * channels, height, width)
    a = _put_back(conv, split, 2, rows)
    split = a.reshape(a.shape[0], conv.kernel, channels, rows, width)
    return _put_back(conv, split, 3, columns)


def _windows(conv: Conv, a: Array, axis: int, count: int) -> list[Array]:
    reach = (count - 1) * conv.stride + 1
    return [jax.lax.slice_in_dim(a, i, i + reach, conv.stride, axis) for i in range(conv.kernel)]


def _put_back(conv: Conv, windows: Array, axis: int, length: int) -> Array:
    """windows [n, kernel, ...] with `count` values along `axis` (of what is left without the kernel axis) -> `length`."""
    stride, padded = conv.stride, length + 2 * conv.padding
    count, room = windows.shape[axis + 1], math.ceil(padded / conv.stride)

    def placed(i: int) -> Array:
        around = [(0, 0)] * (windows.ndim - 1)
        around[axis] = (i // stride, room - count - i // stride)
        return jnp.pad(windows[:, i], around)

    # Values that lie `stride` apart never meet, so each residue is summed by itself and the sums are interleaved.
    # A kernel smaller than the stride leaves residues that no window reaches.
    sums = [sum((placed(i) for i in range(first, conv.kernel, stride)), start=jnp.zeros(())) for first in range(stride)]
    shape = list(windows.shape[:1] + windows.shape[2:])
    shape[axis] = room
    sums = [jnp.broadcast_to(total, shape) for total in sums]
    shape[axis] = room * stride
    joined = jnp.stack(sums, axis=axis + 1).reshape(shape)
    return jax.lax.slice_in_dim(joined, conv.padding, conv.padding + length, axis=axis)
