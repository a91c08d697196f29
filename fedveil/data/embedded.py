"""Digits and breast cancer: datasets that ship with scikit-learn and need no file."""

from __future__ import annotations

import numpy as np
from sklearn import datasets

from fedveil.data.catalog import DATASETS
from fedveil.data.dataset import Part
from fedveil.data.split import Raw

# Minimum and maximum of each feature as the published dataset description prints them: constants that anyone can look
# up, so that scaling by them reads nothing of the records held by clients.
_CANCER_BOUNDS = np.array(
    [
        (6.981, 28.11),
        (9.71, 39.28),
        (43.79, 188.5),
        (143.5, 2501.0),
        (0.053, 0.163),
        (0.019, 0.345),
        (0.0, 0.427),
        (0.0, 0.201),
        (0.106, 0.304),
        (0.05, 0.097),
        (0.112, 2.873),
        (0.36, 4.885),
        (0.757, 21.98),
        (6.802, 542.2),
        (0.002, 0.031),
        (0.002, 0.135),
        (0.0, 0.396),
        (0.0, 0.053),
        (0.008, 0.079),
        (0.001, 0.03),
        (7.93, 36.04),
        (12.02, 49.54),
        (50.41, 251.2),
        (185.2, 4254.0),
        (0.071, 0.223),
        (0.027, 1.058),
        (0.0, 1.252),
        (0.0, 0.291),
        (0.156, 0.664),
        (0.055, 0.208),
    ]
)


def load_digits() -> Raw:
    """1,797 digits, [n, 8, 8, 1] float32: the 17 grey levels 0..16 divided by 16, which is exact."""
    x, y = datasets.load_digits(return_X_y=True)
    images = (x / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
    return Raw("digits", Part(images, y.astype(np.int32)), classes=10, class_names=tuple("0123456789"))


def load_cancer() -> Raw:
    """569 patients, 30 features in [0, 1]; class 0 is malignant, 1 is benign."""
    bunch = datasets.load_breast_cancer()
    low, high = _CANCER_BOUNDS.T
    # The printed bounds are rounded: values past them by less than that are cut off.
    x = np.clip((bunch.data - low) / (high - low), 0.0, 1.0).astype(np.float32)
    return Raw(
        "cancer",
        Part(x, bunch.target.astype(np.int32)),
        classes=2,
        feature_names=tuple(map(str, bunch.feature_names)),
        class_names=tuple(map(str, bunch.target_names)),
        note=DATASETS["cancer"].note,
    )
