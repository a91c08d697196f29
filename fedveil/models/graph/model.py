"""A model that is a graph: operations by name with their arguments, in order, and the arrays that it starts from.

The graph is computed example by example under `vmap`. So one example's output cannot depend on the other examples of the
batch, whatever the graph does, and per-example gradients mean what a defence takes them to mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.core.errors import ConfigError, did_you_mean
from fedveil.models.graph import elementwise, layers, shapes
from fedveil.models.layers import Array, Params

OPS = {**elementwise.OPS, **shapes.OPS, **layers.OPS}
NODE = "node"  # the key of a reference to an earlier node


@dataclass(frozen=True)
class Node:
    """One operation; `args` by PyTorch's argument names, references to earlier nodes as `{"node": name}`."""

    name: str
    op: str
    args: dict[str, Any]


@dataclass(frozen=True)
class Graph:
    """The structure of a model: everything but the values of its arrays. All of it can be written as JSON."""

    input_shape: tuple[int, ...]  # of one example; images are height × width × channels
    integers: bool  # whether the input is whole numbers, such as token ids
    parameters: dict[str, tuple[str, str]]  # node name → layer and name of the array that is trained
    constants: tuple[str, ...]  # nodes whose arrays are not trained
    nodes: tuple[Node, ...]
    output: str
    input: str = "x"


@dataclass(frozen=True, eq=False)
class GraphModel:
    """A graph and the arrays it starts from. Two models are equal if they are the same object."""

    graph: Graph
    start: dict[str, np.ndarray] = field(repr=False)  # `LAYER/NAME` → initial values
    constants: dict[str, np.ndarray] = field(repr=False)  # node name → values

    def init(self, key: Array) -> Params:
        """The initial values, which do not depend on the key."""
        params: Params = {}
        for layer, name in self.graph.parameters.values():
            value = self.start[f"{layer}/{name}"]
            params.setdefault(layer, {})[name] = jnp.asarray(value, jnp.result_type(float))
        return params

    def apply(self, params: Params, x: Array) -> Array:
        """Logits [batch, classes]."""
        return jax.vmap(lambda one: self._one(params, one))(x)

    def _one(self, params: Params, x: Array) -> Array:
        graph = self.graph
        known: dict[str, Any] = {node: params[layer][name] for node, (layer, name) in graph.parameters.items()}
        dtype = next(iter(known.values())).dtype
        for node in graph.constants:
            value = self.constants[node]
            known[node] = jnp.asarray(value, dtype if value.dtype.kind == "f" else value.dtype)
        if graph.integers:
            x = jnp.round(x).astype(jnp.int32)
        elif len(graph.input_shape) == 3:
            x = jnp.moveaxis(x, -1, 0)
        known[graph.input] = x[None]
        for step in graph.nodes:
            known[step.name] = _compute(step, known)
        return known[graph.output][0]


def _compute(node: Node, known: Mapping[str, Any]) -> Any:
    try:
        return OPS[node.op](**{key: _value(value, known) for key, value in node.args.items()})
    except ConfigError:
        raise
    except (TypeError, ValueError, KeyError) as error:  # an argument that the operation here does not read
        raise ConfigError(
            "model", f"{node.name}: {node.op}", f"has arguments that are not supported ({error})"
        ) from None


def _value(given: Any, known: Mapping[str, Any]) -> Any:
    """An argument with its references replaced by values."""
    if isinstance(given, dict):
        return known[given[NODE]]
    if isinstance(given, list):
        return [_value(one, known) for one in given]
    return given


def check_ops(graph: Graph) -> None:
    """Refuses a graph with operations that are not in the table, before anything is computed."""
    for node in graph.nodes:
        if node.op not in OPS:
            raise ConfigError("model", f"{node.name}: {node.op}", "has no translation: " + did_you_mean(node.op, OPS))
