"""Each mechanism broken in one way: a test of `test_mechanisms` must fail for it. If one passes, it guards nothing."""

import jax
import jax.numpy as jnp
import pytest
import test_mechanisms as guards
from hypothesis import Phase, given, settings

from fedveil.core import keys
from fedveil.defenses.fed_cdp import FedCDP
from fedveil.defenses.fed_sdp import FedSDP
from fedveil.kernels import clipping
from fedveil.mechanisms import clip
from fedveil.random import noise


def caught(check, *arguments):
    """Whether a test fails."""
    try:
        check(*arguments)
    except (AssertionError, ExceptionGroup):  # a property test may fail in several ways at once
        return True
    return False


def nominal_noise():
    guards.test_fed_cdp_noise_on_the_sum_is_nominal_whatever_the_batch("example", 2)


def empty_batch_noise():
    guards.test_fed_cdp_noise_on_the_sum_is_nominal_whatever_the_batch("batch", 0)


def largest_norm(layer, unit=1.0):
    return jnp.stack([jnp.square(a * unit).reshape(a.shape[0], -1).max(axis=1) for a in jax.tree.leaves(layer)]).max(
        axis=0
    )


def noise_before_clip(self, each, mask, at):
    like = jax.tree.map(lambda a: a[0], each)
    drawn = noise.gaussian(at.key, like, self.noise * self.clip)
    noisy = jax.tree.map(lambda g, n: g + n, each, drawn)
    return jax.tree.map(lambda g: g.sum(axis=0), clip.clip_examples(noisy, self.clip, self.clip_scope))


def only_where_there_are_examples(self, each, mask, at):
    total = jax.tree.map(lambda g: g.sum(axis=0), each)
    drawn = noise.gaussian(at.key, total, self.noise * self.clip)
    return jax.tree.map(lambda t, n: jnp.where(mask.any(), t + n, t), total, drawn)


def unweighted(self, total, at):
    return noise.add(total, noise.gaussian(at.key, total, self.noise * self.clip))


def unclipped_dense(params, x, g, bound, squares):
    gradient = {"w": x.T @ g}
    return {**gradient, "b": g.sum(axis=0)} if "b" in params else gradient


def no_shrinking(norm, bound):
    return jnp.ones_like(norm)


def one_key(of_round, client, occurrence):
    return keys.device(of_round, "client", 0, 0)


def halved(key, like, deviation, whole=noise.gaussian):
    return whole(key, like, deviation / 2)


def fused_clip():
    guards.test_fused_clipping_equals_example_by_example("mlp")


@settings(max_examples=150, deadline=None, phases=[Phase.generate])  # the smallest failing example is not looked for
@given(**guards.CONTRIBUTIONS)
def bound(a, b, bound, scope):
    guards.bounded(a, b, bound, scope)


INDEPENDENCE = guards.test_noise_is_independent_across_clients_rounds_and_steps
WEIGHTS = guards.test_fed_sdp_server_noise_covers_the_largest_weight

MUTATIONS = {
    "the clip forgotten": (clip, "factor", no_shrinking, bound),
    "the wrong norm": (clip, "squares", largest_norm, bound),
    "the fused clip forgotten": (clipping, "_dense_gradient", unclipped_dense, fused_clip),
    "one noise for all clients": (keys, "client_key", one_key, INDEPENDENCE),
    "noise before the clip": (FedCDP, "example_sum", noise_before_clip, nominal_noise),
    "√B missing": (FedCDP, "on_sum", FedCDP.on_example, nominal_noise),
    "an empty batch without noise": (FedCDP, "example_sum", only_where_there_are_examples, empty_batch_noise),
    "server noise blind to weights": (FedSDP, "aggregate", unweighted, WEIGHTS),
    "half the noise": (noise, "gaussian", halved, nominal_noise),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_mechanism_is_caught(name, monkeypatch):
    where, what, broken, check = MUTATIONS[name]
    assert not caught(check), "the guard must pass on the sound mechanism"
    monkeypatch.setattr(where, what, broken)
    assert caught(check)
