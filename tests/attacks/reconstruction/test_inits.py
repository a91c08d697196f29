"""Starts: their shape, their range, their pattern; drawn for whom is attacked, not for a place in a batch."""

import dataclasses

import numpy as np
import pytest
from attack_helpers import blank, only

from fedveil.attacks.observation import AuxiliaryData
from fedveil.attacks.reconstruction import inits
from fedveil.attacks.reconstruction.matching import INITS, GradientMatching
from fedveil.core.errors import ConfigError

DRAWN = ("patterned-2x2", "patterned-4x4", "random-normal", "random-uniform")


def starts(name, observation, seed=0, restart=0, labels=None, file=None):
    keys = [(int(i), seed, restart) for i in observation.ids]
    labels = np.zeros((len(observation), observation.examples), int) if labels is None else labels
    return inits.starts(GradientMatching(init=name, file=file), observation, labels, keys, "float32")


@pytest.mark.parametrize("name", [n for n in INITS if n not in ("optimal", "optimal-any", "file")])
def test_shape_and_range(name):
    observation = blank(shape=(9, 8, 3), examples=2)
    z = starts(name, observation)
    assert z.shape == (3, 2, 9, 8, 3) and z.dtype == np.float32
    if name != "random-normal":
        assert z.min() >= 0 and z.max() <= 1


@pytest.mark.parametrize("parts", [2, 4])
def test_patterns_repeat(parts):
    observation = blank(1, (9, 8, 1))
    (image,) = starts(f"patterned-{parts}x{parts}", observation)[0]
    high, wide = -(-9 // parts), 8 // parts
    assert np.array_equal(image[high:], image[: 9 - high]) and np.array_equal(image[:, wide:], image[:, :-wide])
    assert len(np.unique(image)) == high * wide
    vector = starts(f"patterned-{parts}x{parts}", blank(1, (30,)))[0, 0]
    assert len(np.unique(vector)) == -(-30 // parts**2)


@pytest.mark.parametrize("name", DRAWN)
def test_draws_belong_to_the_attack(name):
    observation = blank(examples=2)
    every = starts(name, observation)
    assert np.array_equal(starts(name, only(observation, [2, 0])), every[[2, 0]])
    others = (starts(name, observation, seed=1), starts(name, observation, restart=1))
    for other in (*others, every[[1, 2, 0]], every[:, ::-1]):
        assert not np.isclose(every, other).all(axis=(2, 3, 4)).any()


def test_plain_colours():
    red = starts("red", blank(1, (8, 8, 3)))[0, 0]
    assert (red[..., 0] == 1).all() and (red[..., 1:] == 0).all()
    with pytest.raises(ConfigError, match="three colours"):
        starts("green", blank(1))


def test_borrowed_examples_have_the_inferred_class():
    held = AuxiliaryData(np.arange(10.0)[:, None, None, None] * np.ones((8, 8, 1)), np.arange(10) % 4)
    observation = dataclasses.replace(blank(), auxiliary=held)
    z = starts("optimal", observation, labels=np.array([[0], [1], [3]]))
    assert [int(i) % 4 for i in z[:, 0, 0, 0, 0]] == [0, 1, 3]
    assert starts("optimal-any", observation).shape == z.shape
    with pytest.raises(ConfigError, match="none were granted"):
        starts("optimal", blank())


def test_a_picture_or_an_array(tmp_path):
    from PIL import Image

    observation = blank(2)
    Image.new("L", (16, 16), 51).save(tmp_path / "grey.png")
    assert np.allclose(starts("file", observation, file=str(tmp_path / "grey.png")), 0.2)
    np.save(tmp_path / "a.npy", np.full((8, 8), 0.3))
    assert np.allclose(starts("file", observation, file=str(tmp_path / "a.npy")), 0.3)
    np.save(tmp_path / "b.npy", np.zeros(5))
    for name, reason in (("b.npy", "has shape"), ("none.png", "cannot be read")):
        with pytest.raises(ConfigError, match=reason):
            starts("file", observation, file=str(tmp_path / name))
