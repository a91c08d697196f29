"""Cryptographic randomness: ChaCha20 as RFC 8439 has it, and noise of the right laws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedveil.random import noise, secure

COUNT = 40_000


def test_the_block_of_rfc_8439() -> None:
    """Section 2.3.2."""
    key = jnp.asarray(np.frombuffer(bytes(range(32)), np.uint32))
    nonce = jnp.asarray(np.array([0x09000000, 0x4A000000, 0], np.uint32))
    found = np.asarray(secure.blocks(key, jnp.array([1], jnp.uint32), nonce))[0]
    expected = (
        "e4e7f110 15593bd1 1fdd0f50 c47120a3 c7f4d1c7 0368c033 9aaa2204 4e6cd4c3 "
        "466482d2 09aa9f07 05d7c214 a2028bd9 d19c12b5 b94e16de e883d0cb 4e3c50a2"
    )
    assert [f"{word:08x}" for word in found] == expected.split()


def test_keys_are_fresh_and_derived_keys_apart() -> None:
    one, two = secure.fresh_key(), secure.fresh_key()
    assert noise.is_secure(one) and not noise.is_secure(jax.random.key(0))
    data = [jax.random.key_data(k) for k in (one, two, jax.random.fold_in(one, 0), jax.random.fold_in(one, 1))]
    data += list(jax.random.key_data(jax.random.split(one, 2)))
    assert len({bytes(np.asarray(d)) for d in data}) == 6
    again = secure.key_of(bytes(range(32)))
    same = [np.asarray(jax.random.bits(jax.random.fold_in(again, 7), (5,))) for _ in range(2)]
    assert np.array_equal(*same)


def test_a_seed_makes_no_such_key() -> None:
    with pytest.raises(TypeError, match="fresh_key"):
        jax.random.key(0, impl=secure._kind())


def test_bits_are_even_in_every_place() -> None:
    bits = np.asarray(jax.random.bits(secure.fresh_key(), (COUNT,), "uint32"))
    ones = (bits[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    assert np.abs(ones.mean(axis=0) - 0.5).max() < 6 * 0.5 / np.sqrt(COUNT)
    small = np.asarray(jax.random.bits(secure.fresh_key(), (COUNT,), "uint8"))
    assert stats.chisquare(np.bincount(small, minlength=256)).pvalue > 1e-6


@pytest.mark.parametrize(("law", "name", "spread"), [("gaussian", "norm", 1.0), ("laplace", "laplace", np.sqrt(2.0))])
def test_noise_has_its_law(law: str, name: str, spread: float) -> None:
    like = {"a": jnp.zeros(COUNT // 2), "b": jnp.zeros((COUNT // 4, 2))}
    drawn = noise.draw(law, secure.fresh_key(), like, 3.0)
    flat = np.concatenate([np.asarray(leaf).reshape(-1) for leaf in drawn.values()]) / 3.0
    assert stats.kstest(flat, name).pvalue > 1e-6
    assert flat.std() == pytest.approx(spread, rel=0.02)
    first, second = np.asarray(drawn["a"]), np.asarray(drawn["b"]).reshape(-1)
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / np.sqrt(len(first))


def test_a_number_is_made_of_several_draws() -> None:
    """A single float32 draw takes few values: far fewer different ones than numbers that are drawn."""
    count = 200_000
    single = np.unique(np.asarray(jax.random.normal(jax.random.key(1), (count,)))).size
    several = np.unique(np.asarray(secure.gaussian(secure.fresh_key(), count, jnp.float32))).size
    assert several > single
