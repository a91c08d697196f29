"""Gradients from elsewhere: a file with a model's parameters and the gradients that were seen.

A `.safetensors` or `.npz` file holds arrays named `params/LAYER/w`, `params/LAYER/b`, `gradients/LAYER/w`,
`gradients/LAYER/b`, in the layout of the built-in models: dense weights [inputs, outputs], convolutions
[height, width, channels in, channels out], images channels last. A gradient may have one more axis in front, over several
attacks.
"""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedveil.core.errors import DataError
from fedveil.models.layers import Params
from fedveil.models.net import Model

_TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


def read_gradients(path: Path, model: Model) -> tuple[Params, Params]:
    """(params, gradients [attacks, ...]) of a file, checked against the model."""
    arrays = _arrays(path)
    like = jax.eval_shape(model.init, jax.random.key(0))
    params = _tree(path, arrays, "params", like)
    gradients = _tree(path, arrays, "gradients", like)
    counts = set()
    for layer, own in like.items():
        for name, leaf in own.items():
            _fits(path, f"params/{layer}/{name}", params[layer][name].shape, leaf.shape)
            found = gradients[layer][name]
            if found.ndim == len(leaf.shape):
                gradients[layer][name] = found = found[None]
            _fits(path, f"gradients/{layer}/{name}", found.shape[1:], leaf.shape)
            counts.add(found.shape[0])
    if len(counts) != 1 or 0 in counts:
        raise DataError(
            f"{path}: the gradients hold {sorted(counts)} attacks: give all layers equally many, at least one"
        )
    for part, tree in (("params", params), ("gradients", gradients)):
        for leaf in jax.tree.leaves(tree):
            if not np.isfinite(leaf).all():
                raise DataError(f"{path}: {part} hold values that are not finite: nothing can be matched to them")
    return params, gradients


def _tree(path: Path, arrays: dict[str, np.ndarray], part: str, like: Any) -> Params:
    tree: Params = {}
    for layer, own in like.items():
        for name in own:
            key = f"{part}/{layer}/{name}"
            if key not in arrays:
                known = ", ".join(sorted(arrays)[:6]) or "nothing"
                raise DataError(f"{path}: holds no '{key}', which this model has; it holds {known}")
            tree.setdefault(layer, {})[name] = arrays[key]  # type: ignore[assignment]
    return tree


def _fits(path: Path, key: str, got: tuple[int, ...], asked: tuple[int, ...]) -> None:
    if tuple(got) != tuple(asked):
        raise DataError(f"{path}: '{key}' has shape {tuple(got)}, the model asks for {tuple(asked)}")


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise DataError(f"{path}: no such file: give a .safetensors or .npz file")
    if path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as stored:
                return {name: np.asarray(stored[name]) for name in stored.files}
        except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
            raise DataError(f"{path}: cannot be read as .npz ({error}): write it again") from None
    return _safetensors(path)


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    """The format: eight bytes with the header's length, a JSON header, then the arrays one after another."""
    raw = path.read_bytes()
    damaged = f"{path}: is no whole .safetensors file: write it again"
    if len(raw) < 8:
        raise DataError(damaged)
    (length,) = struct.unpack("<Q", raw[:8])
    if length > len(raw) - 8:
        raise DataError(damaged)
    try:
        header = json.loads(raw[8 : 8 + length])
        body, made = raw[8 + length :], {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start, stop = entry["data_offsets"]
            kind = _TYPES.get(entry["dtype"])
            if kind is None:
                raise DataError(f"{path}: '{name}' is {entry['dtype']}: takes F16, F32 or F64")
            if not 0 <= start <= stop <= len(body):
                raise DataError(damaged)
            made[name] = np.frombuffer(body[start:stop], kind).reshape(entry["shape"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(damaged) from None
    return made
