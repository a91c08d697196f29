"""Labels are read off the last layer's gradient."""

import dataclasses

import numpy as np
import pytest
from attack_helpers import IMAGES, victims

from fedveil.attacks.reconstruction import labels
from fedveil.core.errors import RunError
from fedveil.models.adapters import from_functions


@pytest.mark.parametrize("activation", ["sigmoid", "relu", "tanh", "leaky-relu"])
def test_one_example_exactly(activation):
    given = victims(count=40, choices={"activation": activation}, dtype="float32")
    assert np.array_equal(labels.infer(given.observation), given.y)


@pytest.mark.parametrize("shape,model", [((12,), "mlp"), ((12,), "logistic"), ((8, 8, 1), "cnn")])
def test_one_example_of_other_models(shape, model):
    given = victims(count=40, shape=shape, model=model, classes=2, dtype="float32")
    assert np.array_equal(labels.infer(given.observation), given.y)


def test_batches_by_counting():
    given = victims(count=30, examples=4, classes=6, dtype="float32", **IMAGES)
    dummies = np.random.default_rng(5).random((32, 8, 8, 1)).astype(np.float32)
    found = labels.infer(given.observation, dummies)
    assert (found == np.sort(given.y, axis=1)).mean() > 0.9
    with pytest.raises(RunError, match="dummies"):
        labels.infer(given.observation)


def test_knowing_that_a_client_holds_one_class():
    given = victims(count=30, examples=4, classes=6, dtype="float32", **IMAGES)
    dummies = np.random.default_rng(5).random((32, 8, 8, 1)).astype(np.float32)
    found = labels.infer(dataclasses.replace(given.observation, held_classes=1), dummies)
    assert all(len(set(row)) == 1 for row in found.tolist())


def test_a_model_from_elsewhere():
    given = victims(count=10, dtype="float32")
    net = given.observation.model
    elsewhere = from_functions(net.init, net.apply)
    assert np.array_equal(labels.infer(dataclasses.replace(given.observation, model=elsewhere)), given.y)
