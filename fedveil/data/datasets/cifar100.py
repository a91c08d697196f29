"""CIFAR-100: photographs of a hundred kinds of things, from a prepared copy of the test images."""

from __future__ import annotations

import io

import numpy as np

from fedveil.data.dataset import Part, Raw
from fedveil.data.info import DatasetInfo, FileInfo, LoadRequest


def load(request: LoadRequest) -> Raw:
    """9,999 of the 10,000 test images, to be split 4:1 (see the note)."""
    with np.load(io.BytesIO(request.read("cifar100_test.npz")), allow_pickle=False) as arrays:
        part = Part(arrays["images"], arrays["labels"].astype(np.int32))
        names = tuple(map(str, arrays["names"]))
    return Raw("cifar100", part, classes=100, share=0.8, class_names=names, note=request.info.note)


DATASET = DatasetInfo(
    name="cifar100",
    summary="photographs 32x32 in colour, 100 kinds: the 9,999 test images, re-split",
    kind="image",
    shape=(32, 32, 3),
    classes=100,
    load=load,
    model="cnn",
    partition="shards",
    per_client=60,
    rounds=100,
    local_steps=100,
    batch=4,
    lr=0.05,
    files=(
        FileInfo(
            "cifar100_test.npz",
            28_070_699,
            "1ef29cfb7cb561342254ca20bfefd023c3aeaa1e50059a0e059e5b9cf98e84d3",
            holds="the CIFAR-100 test part: images [9999, 32, 32, 3] uint8, labels, names",
        ),
    ),
    folders=("", "cifar100"),
    note="not the published training set: 9,999 CIFAR-100 test images re-split 4:1 with a fixed seed; accuracy "
    "on it does not compare with published figures",
    position=60,
)
