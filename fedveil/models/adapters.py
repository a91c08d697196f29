"""Adapters: plain functions and Flax, Equinox or PyTorch modules as Fedveil models.

A round needs parameters as a dict of layers (layer → dict of arrays), because defences clip layer by layer. Frameworks use
other trees. So each array gets two names from its path in the framework's tree: the last part is its name, the rest is its
layer. `apply` rebuilds the framework's tree.

A model's output for one example must not depend on the other examples of the batch: the gradient of a single example would
have no meaning. So modules that carry state across examples are refused. A framework is imported only when its adapter is
called; none is a dependency.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.models.graph.model import GraphModel
from fedveil.models.kept import StartedNet, started
from fedveil.models.layers import Activation, Array, Conv, Dense, Dropout, Flatten, Layer, Params, Pool, Shape

Tree = Any
TOP = "top"  # the layer of arrays at the root of a tree
_MIXES = (
    "keeps state across examples ({}), so that one example's gradient depends on others: use GroupNorm or LayerNorm"
)


# --- names -------------------------------------------------------------------------------------------------------


def two_names(path: tuple[Any, ...]) -> tuple[str, str]:
    """Layer and name of an array by its path in a tree: `Block_0/Dense_0` and `kernel`."""
    parts = [jax.tree_util.keystr((part,), simple=True) for part in path]
    return "/".join(parts[:-1]) or TOP, parts[-1] if parts else "value"


def to_layers(tree: Tree) -> Params:
    """Any tree of arrays as a dict of layers."""
    params: Params = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        layer, name = two_names(path)
        params.setdefault(layer, {})[name] = leaf
    return params


def _structure(tree: Tree) -> tuple[Any, tuple[tuple[str, str], ...]]:
    """A tree's structure and the two names of each leaf; refuses what cannot be trained or named."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = tuple(two_names(path) for path, _ in leaves)
    if not names:
        raise ConfigError("model", None, "has no parameters: give a model with at least one array to train")
    for (layer, name), (_, leaf) in zip(names, leaves, strict=True):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            takes = "parameters are floating-point arrays: keep other values out of init's result"
            raise ConfigError("model", f"{layer}/{name}: {jnp.result_type(leaf)}", takes)
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise ConfigError("model", "/".join(twice), "names two arrays at once: rename one of them")
    return structure, names


@dataclass(frozen=True)
class TreeModel:
    """A model whose parameters are any tree of arrays."""

    make: Callable[[Array], Tree]
    call: Callable[[Tree, Array], Array]
    structure: Any = field(repr=False, compare=False)
    names: tuple[tuple[str, str], ...] = field(repr=False, compare=False)

    def init(self, key: Array) -> Params:
        return to_layers(self.make(key))

    def apply(self, params: Params, x: Array) -> Array:
        return self.call(self.tree(params), x)

    def tree(self, params: Params) -> Tree:
        """The parameters as the framework's own tree, to use them there after training."""
        return jax.tree.unflatten(self.structure, [params[layer][name] for layer, name in self.names])


# --- JAX frameworks ----------------------------------------------------------------------------------------------


def from_functions(init: Callable[[Array], Tree], apply: Callable[[Tree, Array], Array]) -> TreeModel:
    """A model from `init(key)`, which returns any tree of float arrays, and `apply(tree, x)`, the logits of a batch."""
    return TreeModel(init, apply, *_structure(jax.eval_shape(init, jax.random.key(0))))


def from_flax(module: Any, example: Any) -> TreeModel:
    """A `flax.linen` module; `example` is a batch to infer shapes from, such as `x[:1]`.

    Modules with other variables than parameters (BatchNorm's running statistics) are refused. `from_nnx` takes modules of
    `flax.nnx`.
    """
    from flax import linen

    if not isinstance(module, linen.Module):
        takes = "takes a flax.linen module: from_nnx takes those of flax.nnx, from_functions all others"
        raise ConfigError("model", type(module).__name__, takes)
    example = jnp.asarray(example, jnp.float32)
    others = set(jax.eval_shape(module.init, jax.random.key(0), example)) - {"params"}
    if others:
        raise ConfigError("model", type(module).__name__, _MIXES.format(", ".join(sorted(others))))

    def call(params: Tree, x: Array) -> Array:
        logits: Any = module.apply({"params": params}, x)
        return logits

    return from_functions(lambda key: dict(module.init(key, example)).get("params", {}), call)


def from_nnx(make: Callable[[Any], Any]) -> TreeModel:
    """A `flax.nnx` module that `make(rngs)` builds; it is called on a batch. Random layers must be deterministic."""
    nnx: Any = importlib.import_module("flax.nnx")

    def split(key: Array) -> tuple[Any, Any, Any]:
        module = make(nnx.Rngs(key))
        module.eval()  # no dropout, and no update of statistics
        structure, params, others = nnx.split(module, nnx.Param, ...)
        return structure, params, others

    name = getattr(make, "__name__", type(make).__name__)
    structure, _, others = split(jax.random.key(0))
    held = {type(one).__name__ for one in jax.tree.leaves(others, is_leaf=lambda one: isinstance(one, nnx.Variable))}
    mixing = sorted(kind for kind in held if not issubclass(getattr(nnx, kind, nnx.Variable), nnx.RngState))
    if mixing:
        raise ConfigError("model", name, _MIXES.format(", ".join(mixing)))

    def call(params: Tree, x: Array) -> Array:
        return nnx.merge(structure, nnx.State(params), others)(x)

    return from_functions(lambda key: nnx.to_pure_dict(split(key)[1]), call)


def from_equinox(make: Callable[[Array], Any]) -> TreeModel:
    """An Equinox module that `make(key)` builds. It is called on one example (images are height × width × channels)."""
    import equinox

    def is_state(leaf: Any) -> bool:
        return isinstance(leaf, equinox.nn.StateIndex)

    module = make(jax.random.key(0))
    if any(is_state(leaf) for leaf in jax.tree.leaves(module, is_leaf=is_state)):
        raise ConfigError("model", type(module).__name__, _MIXES.format("equinox.nn.State"))
    static = equinox.filter(module, equinox.is_inexact_array, inverse=True)

    def call(trained: Tree, x: Array) -> Array:
        return jax.vmap(equinox.combine(trained, static))(x)

    return from_functions(lambda key: equinox.filter(make(key), equinox.is_inexact_array), call)


# --- PyTorch -----------------------------------------------------------------------------------------------------


@dataclass
class _Torch:
    """A translation in progress: the layers so far, their weights, and the input shape of the next layer."""

    shape: Shape
    layers: list[Layer] = field(default_factory=list)
    weights: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    flattened: Shape | None = None  # the image shape before Flatten, until a Linear has been permuted for it
    seen: set[int] = field(default_factory=set)  # ids of modules with weights

    def add(self, layer: Layer) -> None:
        self.layers.append(layer)
        self.shape = layer.out_shape(self.shape)


def from_torch(module: Any, input_shape: Shape, *, integers: bool = False) -> StartedNet | GraphModel:
    """A `torch.nn.Module` as a model that starts from its weights.

    `input_shape` is the shape of one example: (height, width, channels) or (features,); PyTorch gets channels first.
    `integers`: the module takes whole numbers, such as token ids. A `Sequential` of common layers becomes a network of our
    layers, which is faster under a clip. Every other module is traced by `torch.export` in evaluation mode.
    """
    from torch import nn

    if not isinstance(module, nn.Module):
        raise ConfigError("model", type(module).__name__, "takes a torch.nn.Module")
    shape = tuple(input_shape)
    if type(module) is nn.Sequential and not integers:
        try:
            return _layered(module, shape)
        except ConfigError:  # the trace translates more layers, and says what is wrong with the others
            pass
    from fedveil.models.torch_graph import trace

    return trace(module, shape, integers)


def _layered(sequential: Any, input_shape: Shape) -> StartedNet:
    """A `torch.nn.Sequential` as a network of our layers.

    Channels first becomes channels last, and the first Linear after a Flatten is permuted to match.
    """
    from torch import nn

    so_far = _Torch(input_shape)
    for name, layer in _modules(sequential):
        translate = _TRANSLATORS.get(type(layer).__name__)
        if translate is None or type(layer) is not getattr(nn, type(layer).__name__, None):
            raise ConfigError("model", _label(name, layer), "has no layer here")
        translate(so_far, name, layer)
        if min(so_far.shape) < 1:
            raise ConfigError("model", _label(name, layer), f"leaves nothing of inputs of shape {input_shape}")
    if len(so_far.shape) != 1 or so_far.flattened is not None or not so_far.weights:
        raise ConfigError("model", type(sequential).__name__, "does not end in logits")
    return started(so_far.layers, input_shape, so_far.weights)


def _modules(sequential: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Layers by name, with those of nested Sequentials. `named_children` would omit a layer that is used twice."""
    for name, layer in sequential._modules.items():
        if type(layer).__name__ == "Sequential":
            yield from _modules(layer, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", layer


def _label(name: str, layer: Any) -> str:
    return f"{name}: {type(layer).__name__}"


def _need(name: str, layer: Any, holds: bool, takes: str) -> None:
    if not holds:
        raise ConfigError("model", f"{name}: {layer}", takes)


def _pair(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value, value)


def _weights(so_far: _Torch, name: str, layer: Any) -> dict[str, np.ndarray]:
    """A layer's arrays in PyTorch's order, `w` and, with a bias, `b`."""
    twice = "stands twice in the Sequential: shared weights cannot be translated"
    _need(name, layer, id(layer) not in so_far.seen, twice)
    so_far.seen.add(id(layer))
    named = {"w": layer.weight} if layer.bias is None else {"w": layer.weight, "b": layer.bias}
    _need(name, layer, all(p.requires_grad for p in named.values()), "is frozen; every layer is trained here")
    return {key: p.detach().cpu().double().numpy().copy() for key, p in named.items()}


def _linear(so_far: _Torch, name: str, layer: Any) -> None:
    fits = so_far.shape == (layer.in_features,)
    _need(name, layer, fits, f"gets inputs of shape {so_far.shape}: is a Flatten missing?")
    arrays = _weights(so_far, name, layer)
    w = arrays["w"].T  # [in, out]
    if so_far.flattened is not None:
        height, width, channels = so_far.flattened
        w = w.reshape(channels, height, width, -1).transpose(1, 2, 0, 3).reshape(w.shape)
        so_far.flattened = None
    so_far.weights[name] = {**arrays, "w": w}
    so_far.add(Dense(name, layer.out_features, layer.bias is not None))


def _conv(so_far: _Torch, name: str, layer: Any) -> None:
    (kernel, other), (stride, across) = _pair(layer.kernel_size), _pair(layer.stride)
    sides = {"valid": (0, 0), "same": ((kernel - 1) / 2,) * 2}
    padding, aside = sides[layer.padding] if isinstance(layer.padding, str) else _pair(layer.padding)
    _need(name, layer, kernel == other and stride == across, "takes a square kernel and one stride")
    _need(name, layer, padding == aside == int(padding), "takes the same padding on all four sides")
    plain = layer.groups == 1 and set(_pair(layer.dilation)) == {1} and layer.padding_mode == "zeros"
    _need(name, layer, plain, "takes groups 1, dilation 1 and padding with zeros")
    fits = len(so_far.shape) == 3 and so_far.shape[-1] == layer.in_channels
    takes = f"gets inputs of shape {so_far.shape}, which are not images of {layer.in_channels} channels"
    _need(name, layer, fits, takes)
    arrays = _weights(so_far, name, layer)
    so_far.weights[name] = {**arrays, "w": arrays["w"].transpose(2, 3, 1, 0)}  # OIHW to HWIO
    so_far.add(Conv(name, layer.out_channels, kernel, stride, int(padding), layer.bias is not None))


def _pool(so_far: _Torch, name: str, layer: Any) -> None:
    halves = {*_pair(layer.kernel_size), *_pair(layer.stride)} == {2} and set(_pair(layer.padding)) == {0}
    others = (getattr(layer, "divisor_override", None), set(_pair(getattr(layer, "dilation", 1))), layer.ceil_mode)
    plain = halves and others == (None, {1}, False) and not getattr(layer, "return_indices", False)
    _need(name, layer, plain, "takes windows of 2×2, stride 2, no padding")
    _need(name, layer, len(so_far.shape) == 3, f"gets inputs of shape {so_far.shape}, which are no images")
    so_far.add(Pool("max" if type(layer).__name__ == "MaxPool2d" else "mean"))


def _flatten(so_far: _Torch, name: str, layer: Any) -> None:
    _need(name, layer, (layer.start_dim, layer.end_dim) == (1, -1), "takes start_dim 1 and end_dim -1")
    if len(so_far.shape) == 3:
        so_far.flattened = so_far.shape
        so_far.add(Flatten())


def _dropout(so_far: _Torch, name: str, layer: Any) -> None:
    _need(name, layer, layer.p < 1, "takes a share below 1")
    so_far.add(Dropout(layer.p, index=len(so_far.layers)))


def _leaky(so_far: _Torch, name: str, layer: Any) -> None:
    _need(name, layer, layer.negative_slope == 0.01, "takes the slope 0.01")
    so_far.add(Activation("leaky-relu"))


def _activation(kind: str) -> Callable[[_Torch, str, Any], None]:
    return lambda so_far, name, layer: so_far.add(Activation(kind))


_TRANSLATORS: dict[str, Callable[[_Torch, str, Any], None]] = {
    "Linear": _linear,
    "Conv2d": _conv,
    "ReLU": _activation("relu"),
    "Sigmoid": _activation("sigmoid"),
    "Tanh": _activation("tanh"),
    "LeakyReLU": _leaky,
    "MaxPool2d": _pool,
    "AvgPool2d": _pool,
    "Flatten": _flatten,
    "Dropout": _dropout,
}
