"""Reads .npz archives: nothing that runs code, and nothing that is larger than the free memory."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from fedveil.core.errors import DataError
from fedveil.core.system import free_memory


def load_npz(path: Path, wanted: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """All arrays of an .npz file, or the `wanted` ones. A file larger than free memory is refused before it is unpacked.

    Only plain arrays: pickled objects could run code when they are read.
    """
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array, not several by name")
        chosen = [name for name in arrays.files if wanted is None or name in wanted]
        with zipfile.ZipFile(path) as archive:
            need = sum(_size(archive, name) for name in chosen)
        if need > free_memory():
            free = free_memory()
            raise DataError(f"{path} unpacks to {need / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free")
        found = {name: arrays[name] for name in chosen}
    for name, value in found.items():
        if not isinstance(value, np.ndarray):  # numpy returns other members as bytes
            raise ValueError(f"{name} is no array")
    return found


def _size(archive: zipfile.ZipFile, name: str) -> int:
    """The bytes that an array needs: the larger of what the archive and the array's own header say."""
    if f"{name}.npy" not in archive.namelist():
        return archive.getinfo(name).file_size
    with archive.open(f"{name}.npy") as member:
        version = npy.read_magic(member)
        shape, _, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(member)
    return max(archive.getinfo(f"{name}.npy").file_size, math.prod(shape) * dtype.itemsize)
