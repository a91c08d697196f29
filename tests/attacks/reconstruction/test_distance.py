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


@pytest.mark.parametrize("name", ("cosine", "entropy"))
def test_small_differences_survive_single_precision(name):
    """A step of 1e-4 off the target: subtracting nearly equal numbers of size 1 would leave nothing of 1e-8."""
    target, other = trees()
    found = {k: {n: v + 1e-4 * other[k][n] for n, v in own.items()} for k, own in target.items()}
    single = [{k: {n: np.float32(v) for n, v in own.items()} for k, own in tree.items()} for tree in (found, target)]
    expected = [WORDS[name]((found, attack), (target, attack)) for attack in range(3)]
    np.testing.assert_allclose(DISTANCES[name](*single), expected, rtol=0.01)


def test_only_the_distance_by_layers_is_blind_to_a_clip_of_layers():
    found, target = trees()
    scaled = {layer: {k: v * factor for k, v in target[layer].items()} for layer, factor in (("a", 0.01), ("z", 3.0))}
    blind = {name for name, d in DISTANCES.items() if np.allclose(d(found, scaled), d(found, target), atol=1e-4)}
    assert blind == {"cosine-layers"}
