"""Distances of gradients, against the words that define them."""

import numpy as np
import pytest

from fedveil.attacks.reconstruction.distance import DISTANCES


def trees(seed=0, attacks=3):
    rng = np.random.default_rng(seed)
    made = lambda: {  # noqa: E731
        "a": {"w": rng.normal(size=(attacks, 4, 2)), "b": rng.normal(size=(attacks, 2))},
        "z": {"w": rng.normal(size=(attacks, 2, 3))},
    }
    return made(), made()


def flat(tree, attack, layers=("a", "z")):
    return np.concatenate([v[attack].ravel() for layer in layers for v in tree[layer].values()])


def cosine(a, b):
    return 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def divergence(found, target):
    p, q = (np.exp(v) / np.exp(v).sum() for v in (target, found))
    return (p * np.log(p / q)).sum()


WORDS = {
    "l2": lambda a, b: ((flat(*a) - flat(*b)) ** 2).sum(),
    "cosine": lambda a, b: cosine(flat(*a), flat(*b)),
    "cosine-layers": lambda a, b: sum(cosine(flat(*a, (layer,)), flat(*b, (layer,))) for layer in ("a", "z")),
    "entropy": lambda a, b: divergence(flat(*a), flat(*b)),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_each_is_what_it_says(name):
    found, target = trees()
    expected = [WORDS[name]((found, attack), (target, attack)) for attack in range(3)]
    assert np.allclose(DISTANCES[name](found, target), expected, rtol=1e-4)
    assert np.allclose(DISTANCES[name](target, target), 0, atol=1e-5)


def test_only_the_distance_by_layers_is_blind_to_a_clip_of_layers():
    found, target = trees()
    scaled = {layer: {k: v * factor for k, v in target[layer].items()} for layer, factor in (("a", 0.01), ("z", 3.0))}
    blind = {name for name, d in DISTANCES.items() if np.allclose(d(found, scaled), d(found, target), atol=1e-4)}
    assert blind == {"cosine-layers"}
