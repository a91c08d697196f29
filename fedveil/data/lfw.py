"""Labeled Faces in the Wild: people with enough images, 32 pixels wide for training, larger for attacks."""

from __future__ import annotations

import io

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.data import sources
from fedveil.data.dataset import Part
from fedveil.data.split import Raw

SIZES = (32, 64, 128)
_FEWEST = 14  # the prepared files hold the people with this many images or more


def load_lfw(dir: str | None = None, min_images: int = 20, size: int = 32) -> Raw:
    """Faces of the people with at least `min_images` images: 62 people for 20, 106 for 14.

    At 64 and 128 pixels there is one image per person: nothing can be held out, and they are for attacks.
    """
    if size not in SIZES:
        raise ConfigError("data.size", size, f"takes one of: {', '.join(map(str, SIZES))}")
    images, labels, names = _read("lfw_32.npz", dir)
    counts = np.bincount(labels, minlength=len(names))
    kept = np.flatnonzero(counts >= min_images)
    if min_images < _FEWEST or len(kept) < 2:
        second = int(np.sort(counts)[-2])
        raise ConfigError("data.min_images", min_images, f"takes {_FEWEST} to {second} (the papers use 20 and 14)")
    note = ""
    if size > 32:
        images, labels, names = _read("lfw_128.npz", dir)
        images = images if size == 128 else halve(images)
        note = f"one image per person at {size}x{size}, held out and trained on alike: for attacks, not for accuracy"
    within = np.isin(labels, kept)
    part = Part(images[within], np.searchsorted(kept, labels[within]).astype(np.int32))
    return Raw(
        "lfw",
        part,
        classes=len(kept),
        indivisible=size > 32,
        note=note,
        class_names=tuple(str(name).replace("_", " ") for name in names[kept]),
    )


def halve(images: np.ndarray) -> np.ndarray:
    """Images of half the size: the mean of each 2x2 square, rounded to the nearest level."""
    n, height, width, channels = images.shape
    squares = images.reshape(n, height // 2, 2, width // 2, 2, channels)
    levels: np.ndarray = np.rint(squares.mean(axis=(2, 4))).astype(np.uint8)
    return levels


def _read(file: str, dir: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, labels and people's names of a prepared file."""
    with np.load(io.BytesIO(sources.read("lfw", file, dir)), allow_pickle=False) as arrays:
        return arrays["images"], arrays["labels"], arrays["names"]
