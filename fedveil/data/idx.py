"""MNIST and Fashion-MNIST: the idx format, a big-endian header and raw bytes."""

from __future__ import annotations

import struct

import numpy as np

from fedveil.core.errors import DataError
from fedveil.data import sources
from fedveil.data.dataset import Part
from fedveil.data.split import Raw

_UNSIGNED_BYTE = 8

FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def parse_idx(content: bytes, where: str) -> np.ndarray:
    """The array in an idx file of unsigned bytes; refuses what is not one or is cut short."""
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


def load_idx(name: str, dir: str | None = None) -> Raw:
    """The publisher's training part (60,000) and test part (10,000), images as [n, 28, 28, 1] uint8."""
    return Raw(
        name,
        _part(name, "train", dir),
        classes=10,
        test=_part(name, "t10k", dir),
        fed_cdp_train=50_000,
        dpfl_train=50_000,
        dpfl_public=0.1,
        class_names=FASHION_CLASSES if name == "fashion-mnist" else tuple("0123456789"),
    )


def _part(name: str, prefix: str, dir: str | None) -> Part:
    images, labels = f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"
    x = parse_idx(sources.read(name, images, dir), f"{name}: {images}")
    y = parse_idx(sources.read(name, labels, dir), f"{name}: {labels}")
    return Part(x[..., np.newaxis], y.astype(np.int32))
