"""Trees of arrays as bytes by name, and back: nothing that arrives is used before its names, sizes, types and values are
checked against what was to come."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedveil.core.errors import FedveilError
from fedveil.runs import named_leaves

Tree = Any
HEADER = 4096  # what an .npy may be longer than its numbers


class BadMessage(FedveilError):
    """What arrived cannot be used, and why."""


def pack(tree: Tree) -> dict[str, bytes]:
    """Each leaf as an .npy file, by its path."""
    return {name: _npy(np.asarray(leaf)) for name, leaf in named_leaves(jax.device_get(tree)).items()}


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def unpack(parts: Mapping[str, bytes], like: Tree) -> Tree:
    """A tree of the names, shapes and types of `like`, all values finite; else `BadMessage`."""
    wanted = named_leaves(like)
    if set(parts) != set(wanted):
        odd = sorted(set(parts).symmetric_difference(wanted))[0]
        raise BadMessage(f"wrong shape: '{odd}' is {'missing' if odd in wanted else 'not part of the model'}")
    leaves = []
    for name, leaf in wanted.items():
        size = int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize
        if len(parts[name]) > size + HEADER:  # before anything is decoded
            raise BadMessage(f"too large: '{name}' has {len(parts[name])} bytes, {size} were to come")
        leaves.append(_checked(name, parts[name], tuple(leaf.shape), np.dtype(leaf.dtype)))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _checked(name: str, data: bytes, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # numpy raises a dozen kinds, by where the bytes are damaged
        raise BadMessage(f"unreadable: '{name}' is no array ({type(error).__name__})") from None
    if not isinstance(array, np.ndarray) or array.shape != shape:
        raise BadMessage(f"wrong shape: '{name}' is {list(np.shape(array))}, {list(shape)} was to come")
    if array.dtype != dtype:
        raise BadMessage(f"wrong type: '{name}' is {array.dtype}, {dtype} was to come")
    if not np.isfinite(array).all():
        raise BadMessage(f"not finite: '{name}' holds NaN or infinity")
    return array
