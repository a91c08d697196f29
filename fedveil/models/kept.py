"""Networks in files: one `.safetensors` file holds the structure (JSON in its header) and the initial arrays.

Such a file holds data and no code: reading one runs nothing that it brings along. Graph models and networks of our layers
can be kept; a model made of a caller's own Python functions cannot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedveil.core.errors import ConfigError, DataError
from fedveil.core.files import SHARED, write_atomic
from fedveil.models import layers as ours
from fedveil.models.graph.model import Graph, GraphModel, Node, check_ops
from fedveil.models.layers import Layer, Params
from fedveil.models.net import Model, Net

FORMAT = "fedveil-network"  # the key of the structure in the header
VERSION = 1
KINDS = ("Dense", "Conv", "Activation", "Pool", "MeanOverPositions", "Flatten", "Dropout", "GroupNorm", "Residual")


@dataclass(frozen=True)
class StartedNet(Net):
    """A network of our layers whose initial weights are given."""

    weights: Callable[[], Params] | None = None

    def init(self, key: Any) -> Params:
        assert self.weights is not None
        return self.weights()


def started(layers: Sequence[Layer], shape: Sequence[int], weights: dict[str, dict[str, np.ndarray]]) -> StartedNet:
    """A network of our layers that starts from these arrays."""

    def start() -> Params:
        dtype = jnp.result_type(float)
        return {layer: {name: jnp.asarray(a, dtype) for name, a in named.items()} for layer, named in weights.items()}

    return StartedNet(tuple(layers), tuple(shape), weights=start)


def can_keep(model: Model) -> bool:
    """Whether a file can hold the model."""
    return isinstance(model, GraphModel | StartedNet)


def as_bytes(model: Model) -> bytes:
    """The content of a file that holds the model."""
    from safetensors.numpy import save

    if isinstance(model, GraphModel):
        structure: dict[str, Any] = {"kind": "graph", **asdict(model.graph)}
        arrays = {f"start/{name}": value for name, value in model.start.items()}
        arrays |= {f"constant/{name}": value for name, value in model.constants.items()}
    elif isinstance(model, StartedNet):
        structure = {
            "kind": "layers",
            "input_shape": model.input_shape,
            "layers": [_layer(one) for one in model.layers],
        }
        params = model.init(None)
        arrays = {f"start/{layer}/{name}": np.asarray(a) for layer, own in params.items() for name, a in own.items()}
    else:
        takes = "cannot be kept in a file, as it is Python code: keep a model from from_torch"
        raise ConfigError("model", type(model).__name__, takes)
    header = json.dumps({"version": VERSION, **structure})
    return save({key: np.ascontiguousarray(value) for key, value in arrays.items()}, metadata={FORMAT: header})


def save_model(model: Model, path: str | Path) -> Path:
    """Writes a model from `from_torch` to a file, structure and initial weights: `model.name` in a config may name it."""
    target = Path(path)
    if target.suffix != ".safetensors":
        raise ConfigError("path", str(path), "takes the name of a .safetensors file")
    content = as_bytes(model)
    try:
        write_atomic(target, lambda file: file.write(content), SHARED)
    except OSError as error:
        raise ConfigError("path", str(path), f"cannot be written ({error.strerror})") from None
    return target


def read_network(path: Path) -> Model:
    """The model in a file; `DataError` if the file is damaged or of another kind."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise DataError(f"{path}: no such file: give a file that fedveil.save_model wrote")
    try:
        with safe_open(path, framework="numpy") as stored:
            header = (stored.metadata() or {}).get(FORMAT)
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError):
        raise DataError(f"{path}: is no whole .safetensors file: write it again") from None
    if header is None:
        raise DataError(f"{path}: holds arrays and no network: give a file that fedveil.save_model wrote")
    try:
        return _model(json.loads(header), arrays)
    except ConfigError as error:
        raise DataError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path}: its network cannot be read ({type(error).__name__}: {error}): write it again"
        ) from None


def _model(structure: dict[str, Any], arrays: dict[str, np.ndarray]) -> Model:
    if structure["version"] != VERSION:
        raise ValueError(f"version {structure['version']}, not {VERSION}")
    start = {name.removeprefix("start/"): a for name, a in arrays.items() if name.startswith("start/")}
    shape = tuple(int(side) for side in structure["input_shape"])
    if structure["kind"] == "layers":
        weights: dict[str, dict[str, np.ndarray]] = {}
        for path, value in start.items():
            layer, _, name = path.rpartition("/")
            weights.setdefault(layer, {})[name] = value
        net = Net(tuple(_layer_of(one) for one in structure["layers"]), shape)
        return started(net.layers, shape, {name: weights[name] for name in net.named})
    constants = {name.removeprefix("constant/"): a for name, a in arrays.items() if name.startswith("constant/")}
    parameters = {node: (str(layer), str(name)) for node, (layer, name) in structure["parameters"].items()}
    missing = {f"{layer}/{name}" for layer, name in parameters.values()} - set(start)
    missing |= set(structure["constants"]) - set(constants)
    if missing or not parameters:
        raise ValueError(f"array {sorted(missing)[:1]} is missing")
    nodes = tuple(Node(str(one["name"]), str(one["op"]), dict(one["args"])) for one in structure["nodes"])
    named = (str(structure["output"]), str(structure["input"]))
    graph = Graph(shape, bool(structure["integers"]), parameters, tuple(structure["constants"]), nodes, *named)
    check_ops(graph)
    return GraphModel(graph, start, constants)


# --- our layers as JSON ------------------------------------------------------------------------------------------


def _layer(layer: Any) -> dict[str, Any]:
    kind = type(layer).__name__
    if kind not in KINDS:
        raise ConfigError("model", kind, "is a layer that cannot be kept in a file")
    values = {field.name: getattr(layer, field.name) for field in fields(layer)}
    if "body" in values:
        values["body"] = [_layer(one) for one in values["body"]]
    return {"layer": kind, **values}


def _layer_of(given: dict[str, Any]) -> Layer:
    kind, values = given["layer"], {key: value for key, value in given.items() if key != "layer"}
    if kind not in KINDS:
        raise ValueError(f"layer {kind}")
    if "body" in values:
        values["body"] = tuple(_layer_of(one) for one in values["body"])
    made: Layer = getattr(ours, kind)(**values)
    return made
