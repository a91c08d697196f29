"""Files of arrays by name, `.safetensors` or `.npz`, and parameters in them: `LAYER/w`, `LAYER/b`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.archives import load_npz
from fedveil.core.errors import DataError, FedveilError
from fedveil.models.layers import Params

_TYPES = ("F16", "F32", "F64")


def read_parameters(path: Path, like: Mapping[str, Any]) -> Params:
    """The parameters in a file. `like` has their layers, names and shapes: `model.init(key)`, for example."""
    params = tree_of(path, read_arrays(path), "", like)
    for layer, own in like.items():
        for name, leaf in own.items():
            check_shape(path, f"{layer}/{name}", params[layer][name].shape, leaf.shape)
    return params


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a file by name."""
    if not path.is_file():
        raise DataError(f"{path}: no such file: give a .safetensors or .npz file")
    if path.suffix == ".npz":
        try:
            return load_npz(path)
        except FedveilError:
            raise
        except Exception as error:  # zipfile, zlib and numpy raise many kinds of errors for a damaged archive
            raise DataError(f"{path}: cannot be read as .npz ({error}): write it again") from None
    return _safetensors(path)


def tree_of(path: Path, arrays: Mapping[str, np.ndarray], prefix: str, like: Mapping[str, Any]) -> Params:
    """The arrays `PREFIX LAYER/NAME` for all layers and names of `like`."""
    tree: Params = {}
    for layer, own in like.items():
        for name in own:
            key = f"{prefix}{layer}/{name}"
            if key not in arrays:
                known = ", ".join(sorted(arrays)[:6]) or "nothing"
                raise DataError(f"{path}: holds no '{key}', which this model has; it holds {known}")
            tree.setdefault(layer, {})[name] = arrays[key]  # type: ignore[assignment]
    return tree


def check_shape(path: Path, key: str, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Refuses an array of the wrong shape."""
    if tuple(got) != tuple(expected):
        raise DataError(f"{path}: '{key}' has shape {tuple(got)}, the model asks for {tuple(expected)}")


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as stored:
            for name in stored.keys():  # noqa: SIM118 (not a dict: it cannot be iterated)
                kind = stored.get_slice(name).get_dtype()
                if kind not in _TYPES:
                    raise DataError(f"{path}: '{name}' is {kind}: takes F16, F32 or F64")
            return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError):
        raise DataError(f"{path}: is no whole .safetensors file: write it again") from None
