"""Labeled Faces in the Wild: sizes and people."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.core.errors import ConfigError
from fedveil.data.datasets.lfw import halve
from fedveil.data.registry import load


def test_sizes_and_people(need):
    need("lfw")
    many = load("lfw", min_images=14)
    assert (len(many.train) + len(many.held_out), many.classes) == (3_735, 106)
    assert len(load("lfw").train) + len(load("lfw").held_out) == 3_023
    for size in (64, 128):
        large = load("lfw", size=size)
        assert large.shape == (size, size, 3) and len(large.train) == large.classes == 62
        assert "attacks" in large.note and np.array_equal(large.train.x, large.held_out.x)
    assert load("lfw", size=64, min_images=14).class_names == many.class_names
    for given in ({"size": 48}, {"min_images": 13}, {"min_images": 1000}):
        with pytest.raises(ConfigError, match="takes"):
            load("lfw", **given)


def test_halving_is_the_mean_of_squares():
    image = np.array([[10, 20], [30, 41]], np.uint8).reshape(1, 2, 2, 1)
    assert halve(image).tolist() == [[[[25]]]]
