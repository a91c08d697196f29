"""Digits: small handwritten digits that ship with scikit-learn."""

from __future__ import annotations

import numpy as np

from fedveil.data.dataset import Part, Raw
from fedveil.data.info import DatasetInfo, LoadRequest


def load(request: LoadRequest) -> Raw:
    """1,797 images [n, 8, 8, 1] float32: the grey levels 0 to 16 divided by 16, which is exact."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    images = (x / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
    return Raw("digits", Part(images, y.astype(np.int32)), classes=10, class_names=tuple("0123456789"))


DATASET = DatasetInfo(
    name="digits",
    summary="handwritten digits 8x8, ships with scikit-learn",
    kind="image",
    shape=(8, 8, 1),
    classes=10,
    load=load,
    model="cnn",
    partition="shards",
    per_client=12,
    rounds=60,
    local_steps=20,
    batch=4,
    lr=0.1,
    train_sizes=(("fed-cdp", 1_347), ("cpl", 1_347), ("dpfl", 1_347)),
    origin="ships with scikit-learn",
    position=10,
)
