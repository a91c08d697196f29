"""The ten faults that an audit has to catch, each applied to the mechanism layer or to the executed path."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from fedveil.config import from_dict
from fedveil.core import keys
from fedveil.core.events import Release
from fedveil.defenses.base import Defense
from fedveil.federation import Federation, prepare
from fedveil.kernels import clipping
from fedveil.mechanisms import clip
from fedveil.models.layers import Activation, Conv, Dense, Flatten, GroupNorm, affine
from fedveil.models.net import Net
from fedveil.random import noise, secure
from fedveil.simulation import client

Patch = pytest.MonkeyPatch

CDP = {"defense": [{"name": "fed-cdp", "placement": "batch"}]}  # a fused clip, Poisson micro-batches
MLP = Net((Flatten(), Dense("hidden1", 16), Activation("relu"), Dense("dense", 10)), (8, 8, 1))


def federation(own: Net | None = None, **sections: object) -> Federation:
    """The default federation (digits, 100 clients, the CNN) under Fed-CDP, or with these sections of the config."""
    return prepare(from_dict({**CDP, **sections}), model=own)


def small(own: Net = MLP) -> Federation:
    return federation(own, train={"local_steps": 3})


def normalised() -> Net:
    """A small network with a normalisation and biases."""
    act = Activation("relu")
    return Net((Conv("conv", 8, 3), GroupNorm("norm", 4), act, Flatten(), Dense("dense", 10)), (8, 8, 1))


# --- noise


def a_layer_without_noise(patch: Patch) -> None:
    whole = noise.gaussian

    def gaussian(key, like, deviation):
        drawn = whole(key, like, deviation)
        return {name: jax.tree.map(jnp.zeros_like, a) if name == list(drawn)[1] else a for name, a in drawn.items()}

    patch.setattr(noise, "gaussian", gaussian)


def noise_halved(patch: Patch) -> None:
    whole = noise.gaussian
    patch.setattr(noise, "gaussian", lambda key, like, deviation: whole(key, like, deviation / 2))


def deployed_noise_halved(patch: Patch) -> None:
    whole = secure.gaussian
    patch.setattr(secure, "gaussian", lambda key, count, dtype: whole(key, count, dtype) / 2)


def one_noise_for_all_steps(patch: Patch) -> None:
    whole = client.keys_of_step
    patch.setattr(client, "keys_of_step", lambda task, context, number: whole(task, context, 0 * number))


def one_noise_for_all_rounds(patch: Patch) -> None:
    patch.setattr(keys, "round_key", lambda root, number: keys.device(root, "round", 0 * number))


def micro_batches_without_noise(patch: Patch) -> None:
    whole, noised = client._train_microbatches, client._add_noise

    def bare(*args):
        client._add_noise = lambda task, total, *rest: total
        try:
            return whole(*args)
        finally:
            client._add_noise = noised

    patch.setattr(client, "_train_microbatches", bare)


# --- clip


def norms_up_to_ten_times_the_clip_pass(patch: Patch) -> None:
    whole = clip.factor

    def factor(norm, bound):
        return jnp.where(norm <= 10.0 * bound, jnp.ones_like(norm), whole(norm, bound))

    for module in (clip, clipping):
        patch.setattr(module, "factor", factor)


def clip_ten_times_as_wide(patch: Patch) -> None:
    whole = clip.factor
    for module in (clip, clipping):
        patch.setattr(module, "factor", lambda norm, bound: whole(norm, 10.0 * bound))


def bias_unclipped(patch: Patch) -> None:
    whole = clipping._dense_gradient

    def gradient(params, x, g, bound, known):
        found = whole(params, x, g, bound, known)
        return {**found, "b": g.sum(axis=0)} if "b" in params else found

    patch.setattr(clipping, "_dense_gradient", gradient)


def normalisation_unclipped(patch: Patch) -> None:
    patch.setattr(clipping, "_affine", lambda params, x, bound: affine("", params, x))


# --- the learning rate


@dataclasses.dataclass(frozen=True)
class NextRate(Defense):
    """2dp-fl `same` as it was: noise of round t has the learning rate of round t, and covers what round t − 1 has added."""

    name = "next-rate"
    private = True
    averages_models = True

    def fills(self, stage: str) -> bool:
        return stage in ("example", "broadcast")

    def example(self, each, mask, at):
        return clip.clip_examples(each, 1.0, "flat"), None

    def broadcast(self, params, at):
        scale = at.lr * at.setting.local_steps / at.setting.per_round
        return noise.add(params, noise.gaussian(at.shared, params, scale))

    def events(self, setting):
        return [Release("broadcast", "client", "gaussian", 1.0, "round", "broadcast", on_sum=True)]


def next_rate(lr_end: float) -> Federation:
    train = {
        "lr": 0.1, "lr_end": lr_end, "rounds": 6, "local_steps": 3, "sampling": "fixed", "batching": "shuffle",
        "aggregation": "fedavg",
    }  # fmt: skip
    made = federation(MLP, train=train, defense=[{"name": "none"}])
    task = dataclasses.replace(made.simulator.task, defenses=(NextRate(),))
    return dataclasses.replace(made, simulator=made.simulator.variant(task=task))


def nothing(patch: Patch) -> None:
    """The defence itself is the fault."""


Make = Callable[[], Federation]
# What is broken, at the default size, and in a small federation for the quick suite.
MUTATIONS: dict[str, tuple[Callable[[Patch], None], Make, Make]] = {
    "a layer without noise": (a_layer_without_noise, federation, small),
    "norms up to 10 C pass": (norms_up_to_ten_times_the_clip_pass, federation, small),
    "a clip of 10 C": (clip_ten_times_as_wide, federation, small),
    "one noise for all steps": (one_noise_for_all_steps, federation, small),
    "one noise for all rounds": (one_noise_for_all_rounds, federation, small),
    "bias unclipped": (bias_unclipped, lambda: federation(MLP), small),
    "normalisation unclipped": (
        normalisation_unclipped,
        lambda: federation(normalised()),
        lambda: small(normalised()),
    ),
    "deployed noise halved": (deployed_noise_halved, federation, small),
    "micro-batches without noise": (micro_batches_without_noise, federation, federation),
    "noise halved": (noise_halved, federation, small),
    "learning rate of the next round": (nothing, lambda: next_rate(0.01), lambda: next_rate(0.01)),
}


def _sound(own: Net | None = None, train: dict[str, object] | None = None, **sections: object) -> SoundMake:
    return lambda seed: federation(own, train={**(train or {}), "seed": seed}, **sections)


SoundMake = Callable[[int], Federation]
FIXED = {"sampling": "fixed", "batching": "shuffle"}
SOUND: dict[str, SoundMake] = {
    "fed-cdp batch, fused, cnn, micro-batches": _sound(),
    "fed-cdp flat, mlp": _sound(defense=[{"name": "fed-cdp", "clip_scope": "flat"}], model={"name": "mlp"}),
    "fed-sdp server-sum": _sound(defense=[{"name": "fed-sdp"}]),
    "2dp-fl same": _sound(defense=[{"name": "2dp-fl", "server_noise_mode": "same"}], train=FIXED),
    "fed-cdp, normalisation": _sound(normalised()),
    "fed-cdp example, cnn": _sound(defense=[{"name": "fed-cdp"}]),
}
