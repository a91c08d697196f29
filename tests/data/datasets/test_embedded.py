"""Digits and breast cancer, which ship with scikit-learn."""

from __future__ import annotations

import numpy as np

from fedveil.data.registry import load


def test_digits_are_exact_and_cancer_is_standardised():
    digits = load("digits")
    assert np.array_equal(digits.train.x * 16, np.round(digits.train.x * 16))
    cancer = load("cancer")
    assert cancer.class_names == ("malignant", "benign") and len(cancer.feature_names) == 30
    whole = np.concatenate([cancer.train.x, cancer.held_out.x])
    assert np.abs(whole.mean(axis=0)).max() < 0.01 and np.abs(whole.std(axis=0) - 1).max() < 0.01
