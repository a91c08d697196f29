"""Labeled Faces in the Wild: people with enough images, 32 pixels wide for training, larger for attacks."""

from __future__ import annotations

import io

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.data.dataset import Part, Raw
from fedveil.data.info import DatasetInfo, FileInfo, LoadRequest

SIZES = (32, 64, 128)
_FEWEST = 14  # the prepared files hold only people with at least this number of images


def load(request: LoadRequest) -> Raw:
    """Faces of the people with at least `min_images` images: 62 people for 20, 106 for 14.

    At 64 and 128 pixels there is one image per person. Nothing can be held out then: these sizes are for attacks.
    """
    size, min_images = request.size, request.min_images
    if size not in SIZES:
        raise ConfigError("data.size", size, f"takes one of: {', '.join(map(str, SIZES))}")
    images, labels, names = _arrays(request, "lfw_32.npz")
    counts = np.bincount(labels, minlength=len(names))
    kept = np.flatnonzero(counts >= min_images)
    if min_images < _FEWEST or len(kept) < 2:
        second = int(np.sort(counts)[-2])
        raise ConfigError("data.min_images", min_images, f"takes {_FEWEST} to {second} (the papers use 20 and 14)")
    note = ""
    if size > 32:
        images, labels, names = _arrays(request, "lfw_128.npz")
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


def _arrays(request: LoadRequest, file: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, labels and people's names of a prepared file."""
    with np.load(io.BytesIO(request.read(file)), allow_pickle=False) as arrays:
        return arrays["images"], arrays["labels"], arrays["names"]


DATASET = DatasetInfo(
    name="lfw",
    summary="faces (Labeled Faces in the Wild, funneled), people with at least 20 or 14 images",
    kind="image",
    shape=(32, 32, 3),
    classes=62,
    load=load,
    model="cnn",
    partition="classes",
    classes_per_client=15,
    per_client=300,
    rounds=60,
    local_steps=100,
    batch=3,
    lr=0.05,
    files=(
        FileInfo(
            "lfw_32.npz",
            11_120_813,
            "49fd3378e0842a5cb71082c8641bed268f3011b921bea143185a46169b697bb1",
            holds="the 106 people with 14 images or more: images [3735, 32, 32, 3] uint8, labels, names",
        ),
        FileInfo(
            "lfw_128.npz",
            4_404_970,
            "ece5ac9052e5f624d190f165fee7a13900eb499ce78f7eab8bf86a25d6fb1f63",
            holds="one image of each of the 106 people: images [106, 128, 128, 3] uint8, labels, names",
        ),
    ),
    folders=("", "lfw"),
    keys=("split", "dir", "min_images", "size"),
    position=70,
)
