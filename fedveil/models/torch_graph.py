"""Any `torch.nn.Module` that `torch.export` can trace, as a graph model.

The module is traced in evaluation mode on one example: dropout does nothing. Two checks follow. PyTorch's output for an
example must not depend on the rest of its batch. The graph's output must agree with PyTorch's on random inputs.
"""

from __future__ import annotations

import copy
import io
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import jax
import numpy as np

from fedveil.core.errors import ConfigError, did_you_mean
from fedveil.models.graph.model import NODE, OPS, Graph, GraphModel, Node, check_ops
from fedveil.models.layers import Shape

AGREES = 1e-4  # of the largest output: the difference between two orders of summation in single precision
IGNORED = ("memory_format", "layout", "device", "pin_memory", "non_blocking", "copy")
MIXES = ("batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "native_batch_norm")
EXAMPLES = 3


def trace(module: Any, input_shape: Shape, integers: bool = False) -> GraphModel:
    """The module as a graph model that starts from the module's weights; frozen parameters stay as they are."""
    module = copy.deepcopy(module).cpu().float().eval()
    graph, start, constants = _translated(module, tuple(input_shape), integers)
    check_ops(graph)
    model = GraphModel(graph, start, constants)
    _check(module, model)
    return model


def _batch(graph_shape: Shape, integers: bool, count: int) -> np.ndarray:
    """Random examples in the shape that data has here: channels last."""
    rng = np.random.default_rng(0)
    if integers:
        return rng.integers(0, 2, (count, *graph_shape)).astype(np.float32)
    return rng.normal(size=(count, *graph_shape)).astype(np.float32)


def _to_torch(x: np.ndarray, integers: bool) -> Any:
    import torch

    if integers:
        return torch.from_numpy(x.astype(np.int64))
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(x, -1, 1) if x.ndim == 4 else x))


# --- translation -------------------------------------------------------------------------------------------------


def _exported(module: Any, input_shape: Shape, integers: bool) -> Any:
    import torch

    one = _to_torch(_batch(input_shape, integers, 1), integers)
    try:
        with warnings.catch_warnings(), _quiet("torch"), torch.no_grad():
            warnings.simplefilter("ignore")
            module(one)  # its own errors are clearer than those of the trace
            found = torch.export.export(module, (one,))
            _refuse_mixing(found)
            return found.run_decompositions({})
    except ConfigError:
        raise
    except Exception as error:  # PyTorch raises many kinds of errors for what it cannot trace
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = lines[0][:160] if lines else type(error).__name__
        takes = f"cannot be traced by torch.export for one example of shape {tuple(input_shape)}: {why}"
        raise ConfigError("model", type(module).__name__, takes) from None


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Keeps a library from logging and printing what it also raises as an error."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        log.setLevel(before)


def _refuse_mixing(exported: Any) -> None:
    """Refuses batch normalisation by name: its statistics mix examples."""
    for node in exported.graph.nodes:
        if node.op == "call_function" and _op(node) in MIXES:
            takes = "batch normalisation mixes examples, so there is no gradient of a single example: use GroupNorm"
            raise ConfigError("model", f"{_where(node)}: {_op(node)}", takes)


def _op(node: Any) -> str:
    """The operation without namespace and overload: `conv2d` of `aten.conv2d.default`."""
    if not hasattr(node.target, "_schema"):
        return str(getattr(node.target, "__name__", node.target))
    name = node.target._schema.name.split("::")[-1]
    return str(name)


def _where(node: Any) -> str:
    """The path of the module that an operation comes from."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return paths[-1].removeprefix("L['self'].") if paths and paths[-1] else str(node.name)


def _translated(
    module: Any, input_shape: Shape, integers: bool
) -> tuple[Graph, dict[str, np.ndarray], dict[str, np.ndarray]]:
    exported = _exported(module, input_shape, integers)
    signature, used = exported.graph_signature, {n.name: bool(n.users) for n in exported.graph.nodes}
    trained = {name: value for name, value in module.named_parameters(remove_duplicate=False) if value.requires_grad}
    parameters: dict[str, tuple[str, str]] = {}
    start: dict[str, np.ndarray] = {}
    constants: dict[str, np.ndarray] = {}
    for spec in signature.input_specs:
        node, target = spec.arg.name, spec.target
        if target is None or not used[node]:  # the input itself, or an array that nothing reads
            continue
        if target in trained:
            layer, _, name = target.rpartition(".")
            parameters[node] = (layer or "top", name)
            start[f"{layer or 'top'}/{name}"] = trained[target].detach().numpy().copy()
        else:
            held = exported.state_dict.get(target)
            constants[node] = (exported.constants[target] if held is None else held).detach().numpy().copy()
    if not parameters:
        raise ConfigError("model", type(module).__name__, "has no parameters to train: give a module with some")
    (entered,), (output,) = signature.user_inputs, _outputs(exported, module)
    nodes = tuple(_node(node) for node in exported.graph.nodes if node.op == "call_function")
    graph = Graph(input_shape, integers, parameters, tuple(constants), nodes, output, entered)
    return graph, start, constants


def _outputs(exported: Any, module: Any) -> tuple[str]:
    outputs = exported.graph_signature.user_outputs
    if len(outputs) != 1:
        raise ConfigError("model", type(module).__name__, f"returns {len(outputs)} values: return the logits alone")
    return (outputs[0],)


def _node(node: Any) -> Node:
    op = _op(node)
    if not hasattr(node.target, "_schema"):
        if op != "getitem":
            raise ConfigError("model", f"{_where(node)}: {op}", "is no tensor operation: shapes must be constant")
        return Node(node.name, op, {"self": _plain(node.args[0]), "index": node.args[1]})
    names = [argument.name for argument in node.target._schema.arguments]
    args = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    if op not in OPS:
        raise ConfigError("model", f"{_where(node)}: {op}", "has no translation; " + did_you_mean(op, OPS))
    return Node(node.name, op, {key: _plain(value) for key, value in args.items() if key not in IGNORED})


def _plain(value: Any) -> Any:
    """An argument as JSON: nodes as references, types by name."""
    import torch

    if isinstance(value, torch.fx.Node):
        return {NODE: value.name}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError("model", repr(value), "cannot be kept: arguments are numbers, names and arrays")


# --- checks ------------------------------------------------------------------------------------------------------


def _check(module: Any, model: GraphModel) -> None:
    """PyTorch's outputs for single examples, for their batch, and ours agree."""
    import torch

    shape, integers = model.graph.input_shape, model.graph.integers
    x = _batch(shape, integers, EXAMPLES)
    with torch.no_grad():
        single = np.concatenate([module(_to_torch(one[None], integers)).numpy() for one in x])
        try:
            together = module(_to_torch(x, integers)).numpy()
        except Exception:  # the module takes batches of one only, so that its rows cannot be compared
            together = single
    name = type(module).__name__
    if single.ndim != 2 or len(single) != EXAMPLES:
        takes = f"for a batch of one it must give logits of shape (1, classes); it gives {list(single[:1].shape)}"
        raise ConfigError("model", name, takes)
    room = AGREES * max(1.0, float(np.abs(single).max()))
    if together.shape != single.shape or not np.abs(together - single).max() <= room:
        takes = "gives an example another output in another batch, so there is no gradient of a single example"
        raise ConfigError("model", name, f"{takes}: compute each example by itself")
    ours = np.asarray(jax.jit(model.apply)(model.init(jax.random.key(0)), x))
    apart = float(np.abs(ours - single).max()) if ours.shape == single.shape else math.inf
    if not apart <= room:
        raise ConfigError("model", name, f"its translation differs from PyTorch by {apart:.2g}: it cannot be used")
