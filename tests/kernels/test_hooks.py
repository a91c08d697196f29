"""The two hooks: with them and without them a federation trains to the same model, and without them nothing is fused."""

import subprocess
import sys

import jax
import numpy as np
import pytest

import fedveil
from fedveil import kernels
from fedveil.config import from_dict
from fedveil.federation import prepare
from fedveil.simulation import client

DATA = {"partition": "dirichlet", "alpha": 0.4, "clients": 12}
TRAIN = {"rounds": 2, "per_round": 6, "local_steps": 3, "batch": 4, "noise_seed": 0}
# Random images: on images with equal pixels a window may have two winners, which share the gradient in plain code alone.
IMAGES = np.random.default_rng(0).random((300, 8, 8, 1))
LABELS = np.arange(300) % 10


def federation(model="cnn", defense="none", settings=None, **train):
    document = {
        "data": DATA,
        "model": {"name": model},
        "train": {**TRAIN, **train},
        "defense": {"name": defense, **(settings or {})},
        "speed": {"precision": "float64"},
    }
    return fedveil.federation(document, data=(IMAGES, LABELS, IMAGES[:50], LABELS[:50]))


def model_after(made, rounds=2):
    simulator = made.simulator
    state = simulator.start()
    for number in range(rounds):
        state, _ = simulator.round(state, number)
    return jax.device_get(state.params)


CASES = {
    "no defence": {},
    "no defence, poisson": {"batching": "poisson"},
    "fed-cdp, fused": {"defense": "fed-cdp"},
    "fed-cdp, batch placement, shuffled": {
        "defense": "fed-cdp", "settings": {"placement": "batch", "clip": 0.5}, "batching": "shuffle",
    },
    "fed-cdp, flat": {"defense": "fed-cdp", "settings": {"clip_scope": "flat"}},
    "fed-sdp": {"defense": "fed-sdp"},
    "2dp-fl, mlp": {"model": "mlp", "defense": "2dp-fl"},
    "dropout": {"model": "mlp", "defense": "gradient-noise", "settings": {"scale": 0.1}},
}  # fmt: skip


SLOW = ("no defence", "fed-cdp, batch placement, shuffled", "fed-sdp")  # each has a sibling above


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow if c in SLOW else ()) for c in CASES])
def test_training_is_the_same_without_the_hooks(case):
    fast = federation(**CASES[case])
    with kernels.disabled():
        plain = federation(**CASES[case])
    assert fast.simulator.task.kernels is not None and plain.simulator.task.kernels is None
    found, wanted = model_after(fast), model_after(plain)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-9), found, wanted)


def test_observations_are_the_same_without_the_hooks():
    fast = federation(defense="fed-cdp")
    with kernels.disabled():
        plain = federation(defense="fed-cdp")
    taps = frozenset({"example", "batch", "client"})
    found, wanted = (made.simulator.observe(made.simulator.start(), 0, 1, taps) for made in (fast, plain))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-9), found, wanted)


def test_without_hooks_a_private_batch_is_computed_example_by_example():
    config = from_dict({"defense": {"name": "fed-cdp"}, "model": {"name": "cnn"}})
    assert client.one_pass(prepare(config).simulator.task)
    with kernels.disabled():
        task = prepare(config).simulator.task
    assert not client.one_pass(task) and not client.in_microbatches(task)
    assert kernels.hooks() is not None, "the switch holds within the block alone"


def test_the_tool_trains_without_the_folder():
    """As if `fedveil/kernels` were deleted: a private training runs, and nothing of the folder is imported."""
    code = (
        "import sys; sys.modules['fedveil.kernels'] = None\n"
        "import fedveil\n"
        "train = {'rounds': 1, 'per_round': 4, 'local_steps': 2, 'batch': 4}\n"
        "model, defense = {'name': 'mlp', 'hidden': [8]}, {'name': 'fed-cdp'}\n"
        "made = fedveil.train({'train': train, 'data': {'clients': 8}, 'model': model, 'defense': defense})\n"
        "assert made.accuracy > 0 and not [m for m in sys.modules if m.startswith('fedveil.kernels.')]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
