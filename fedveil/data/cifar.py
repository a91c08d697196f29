"""CIFAR-10 from the official binary batches, and CIFAR-100 from a prepared copy of its test images."""

from __future__ import annotations

import io

import numpy as np

from fedveil.core.errors import DataError
from fedveil.data import sources
from fedveil.data.catalog import DATASETS
from fedveil.data.dataset import Part
from fedveil.data.split import Raw

_RECORD = 1 + 3 * 32 * 32  # a label byte, then the red, green and blue planes

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def parse_batch(content: bytes, where: str) -> Part:
    """A binary batch as images [n, 32, 32, 3] uint8 and labels."""
    if not content or len(content) % _RECORD:
        raise DataError(f"{where} has {len(content)} bytes, which is not a multiple of {_RECORD}; fetch it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    planes = records[:, 1:].reshape(-1, 3, 32, 32)
    return Part(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, 0].astype(np.int32))


def load_cifar10(dir: str | None = None) -> Raw:
    """50,000 training and 10,000 test images."""
    parts = {
        file.name: parse_batch(sources.read("cifar10", file.name, dir), f"cifar10: {file.name}")
        for file in DATASETS["cifar10"].files
    }
    test = parts.pop("test_batch.bin")
    x, y = ([part.x for part in parts.values()], [part.y for part in parts.values()])
    train = Part(np.concatenate(x), np.concatenate(y))
    return Raw(
        "cifar10",
        train,
        classes=10,
        test=test,
        fed_cdp_train=40_000,
        dpfl_train=50_000,
        dpfl_public=0.3,
        class_names=CIFAR10_CLASSES,
    )


def load_cifar100(dir: str | None = None) -> Raw:
    """9,999 of the 10,000 test images, to be re-split 4:1: see the note."""
    with np.load(io.BytesIO(sources.read("cifar100", "cifar100_test.npz", dir)), allow_pickle=False) as arrays:
        part = Part(arrays["images"], arrays["labels"].astype(np.int32))
        names = tuple(map(str, arrays["names"]))
    return Raw("cifar100", part, classes=100, share=0.8, class_names=names, note=DATASETS["cifar100"].note)
