"""The idx format of MNIST and Fashion-MNIST: a big-endian header and raw bytes."""

from __future__ import annotations

import struct

import numpy as np

from fedveil.core.errors import DataError
from fedveil.data.dataset import Part, Raw
from fedveil.data.info import FileInfo, LoadRequest

_UNSIGNED_BYTE = 8


def idx_files(train_x: str, train_y: str, test_x: str, test_y: str) -> tuple[FileInfo, ...]:
    """The four files of a dataset in MNIST's layout, from their MD5 digests."""
    return (
        FileInfo("train-images-idx3-ubyte", 47_040_016, "md5", train_x),
        FileInfo("train-labels-idx1-ubyte", 60_008, "md5", train_y),
        FileInfo("t10k-images-idx3-ubyte", 7_840_016, "md5", test_x),
        FileInfo("t10k-labels-idx1-ubyte", 10_008, "md5", test_y),
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
