"""The idx format of MNIST and Fashion-MNIST: a big-endian header and raw bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from fedveil.core.errors import DataError
from fedveil.data.dataset import Part, Raw
from fedveil.data.info import DatasetInfo, FileInfo, LoadRequest

_UNSIGNED_BYTE = 8


FILES = (  # and their sizes
    ("train-images-idx3-ubyte", 47_040_016),
    ("train-labels-idx1-ubyte", 60_008),
    ("t10k-images-idx3-ubyte", 7_840_016),
    ("t10k-labels-idx1-ubyte", 10_008),
)


def idx_dataset(
    name: str, summary: str, class_names: tuple[str, ...], digests: Sequence[tuple[str, str]], **more: Any
) -> DatasetInfo:
    """A dataset in MNIST's layout, from the digests of its files; its training is that of the Fed-CDP paper."""
    return DatasetInfo(
        name=name,
        summary=summary,
        kind="image",
        shape=(28, 28, 1),
        classes=10,
        load=partial(load_idx, class_names=class_names),
        model="cnn",
        partition="shards",
        per_client=500,
        rounds=100,
        local_steps=100,
        batch=5,
        lr=0.05,
        train_sizes=(("fed-cdp", 50_000), ("cpl", 60_000), ("dpfl", 50_000)),
        files=tuple(FileInfo(*file, *known) for file, known in zip(FILES, digests, strict=True)),
        **more,
    )


def parse_idx(content: bytes, where: str) -> np.ndarray:
    """The array in an idx file of unsigned bytes. Refuses other files and truncated ones."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise DataError(f"{where} is not an idx file of bytes; fetch it again")
    dims = content[3]
    header = 4 + 4 * dims
    if dims == 0 or len(content) < header:
        raise DataError(f"{where} is cut short inside its header; fetch it again")
    shape = struct.unpack(f">{dims}I", content[4:header])
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise DataError(f"{where} has {len(content)} bytes instead of {expected}; fetch it again")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def load_idx(request: LoadRequest, class_names: tuple[str, ...]) -> Raw:
    """The publisher's training part (60,000) and test part (10,000), images as [n, 28, 28, 1] uint8."""
    return Raw(
        request.info.name,
        _part(request, "train"),
        classes=10,
        test=_part(request, "t10k"),
        fed_cdp_train=50_000,
        dpfl_train=50_000,
        dpfl_public=0.1,
        class_names=class_names,
    )


def _part(request: LoadRequest, prefix: str) -> Part:
    images, labels = f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"
    x = parse_idx(request.read(images), f"{request.info.name}: {images}")
    y = parse_idx(request.read(labels), f"{request.info.name}: {labels}")
    return Part(x[..., np.newaxis], y.astype(np.int32))
