"""The attack on floating point: a server sends the zero model and looks at which values a message can have.

Two neighbouring nodes: one record is in the batch, or its contribution is nothing (zero-out). The server knows the record
and asks which of the two it is. Messages come from the program of a node, under keys of the operating system. With noise in
floating point one message tells; with integers no message tells more than the certificate allows.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from fedveil.config import from_dict, resolve
from fedveil.deploy import node
from fedveil.federation import prepare
from fedveil.random import secure
from fedveil.simulation.inputs import ClientInputs, RoundContext, RoundInputs
from fedveil.simulation.sampling import Batches

MESSAGES = 1000  # of each neighbour; half of them to fit on
CLIP, NOISE, BATCH, LR = 1.0, 12.0, 4, 0.5
CONFIG = {
    "data": {"name": "digits", "clients": 20, "partition": "iid"},
    "model": {"name": "logistic"},
    "train": {"rounds": 1, "per_round": 1, "local_steps": 1, "batch": BATCH, "lr": LR, "batching": "poisson"},
}


def messages(arithmetic: str) -> tuple[Any, np.ndarray, np.ndarray]:
    """The mechanism, and [messages, values] what a node sends without and with the record, as the server scales it back."""
    defense = {"name": "fed-cdp", "placement": "batch", "clip": CLIP, "noise": NOISE, "clip_scope": "flat"}
    task = prepare(resolve(from_dict({**CONFIG, "defense": {**defense, "arithmetic": arithmetic}}))).simulator.task
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.uniform(0, 16, (1, 8, 8, 1)), jnp.float32), jnp.zeros(1, jnp.int32)
    zero = jax.tree.map(jnp.zeros_like, task.model.init(jax.random.key(0)))

    @jax.jit
    def sent(keys: jax.Array, present: jax.Array) -> jax.Array:
        def one(key: jax.Array) -> jax.Array:
            context = RoundContext(key, key, jnp.int32(0), jnp.float32(LR), 0)
            inputs = RoundInputs(zero, x, y, key, context.round, context.lr)
            batches = Batches(jnp.zeros((1, BATCH), jnp.int32), mask, jnp.int32(1))
            found = node.local_round(task, inputs, zero, ClientInputs(0, 0, batches), context)
            return jnp.concatenate([a.ravel() for a in jax.tree.leaves(found.message)])

        mask = (jnp.arange(BATCH) == 0)[None] & present
        return jax.vmap(one)(keys) * (-BATCH / LR)  # powers of two: exact

    keys = jax.random.split(secure.fresh_key(), (2, MESSAGES))
    return task, np.asarray(sent(keys[0], False)), np.asarray(sent(keys[1], True))


def reachable(values: np.ndarray, scale: np.float32) -> np.ndarray:
    """Whether a float32 value is some float32 number times the noise's standard deviation, rounded."""
    near = (values / scale).astype(np.float32)
    tried = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    found: np.ndarray = np.any([(t * scale).astype(np.float32) == values for t in tried], axis=0)
    return found


def features(values: np.ndarray, scale: np.float32, width: np.float32) -> np.ndarray:
    """[messages, features]: reachable values, low bits, whole numbers of grid widths, and the size of the message."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    low = [((bits >> shift) & 1).mean(axis=1) for shift in range(4)]
    whole = np.round(values / width)
    off = np.abs(values - (whole * width).astype(np.float32)).max(axis=1)
    odd = [(whole % 2 == 1).mean(axis=1), (whole % 4 == 1).mean(axis=1), (whole == 0).mean(axis=1)]
    return np.stack([reachable(values, scale).mean(axis=1), *low, off, *odd, np.square(values).sum(axis=1)], axis=1)


def advantage(without: np.ndarray, present: np.ndarray) -> float:
    """True minus false positives, on one half, of the best threshold of any feature on the other half."""
    half = MESSAGES // 2
    best, rule = -1.0, (0, 0.0, 1.0)
    for feature in range(without.shape[1]):
        cuts = np.quantile(np.concatenate([without[:half, feature], present[:half, feature]]), np.linspace(0, 1, 41))
        for cut in cuts:
            for sign in (1.0, -1.0):
                found = (sign * present[:half, feature] > sign * cut).mean() - (
                    sign * without[:half, feature] > sign * cut
                ).mean()
                if found > best:
                    best, rule = found, (feature, float(cut), sign)
    feature, cut, sign = rule
    hit = lambda rows: (sign * rows[half:, feature] > sign * cut).mean()  # noqa: E731
    return float(hit(present) - hit(without))


@pytest.mark.parametrize("arithmetic", ["float", "integer"])
def test_values_that_can_be_reached_tell_neighbours_apart_in_floating_point_alone(arithmetic: str) -> None:
    task, without, present = messages(arithmetic)
    (placed,) = task.defenses[0].mechanisms(task.setting)
    scale = np.float32(NOISE * CLIP)
    width = scale if placed.mechanism.grid is None else np.float32(scale / placed.mechanism.grid.sigma)
    found = advantage(features(without, scale, width), features(present, scale, width))
    z = float(placed.mechanism.multiplier_at(task.setting, 0))
    certified = 2.0 * float(special.ndtr(0.5 / z)) - 1.0  # of the best test on one message: δ at ε = 0
    if arithmetic == "float":
        assert found > 0.9 > 10 * certified
    else:
        assert found <= certified + 4.0 * math.sqrt(0.5 / (MESSAGES // 2))
        assert np.abs(present / width - np.round(present / width)).max() < 0.05  # every value is on the grid
