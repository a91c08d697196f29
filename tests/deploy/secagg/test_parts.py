"""The parts of the protocol: secret sharing, packing, mask streams, the degree of the graph, the encoding of messages."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.deploy.secagg import degree, secrecy, shamir, vectors
from fedveil.deploy.secagg.errors import Abort
from fedveil.deploy.secagg.messages import Delivery


def test_any_threshold_of_shares_opens_the_secret_and_fewer_do_not() -> None:
    secret = shamir.new_secret()
    shares = shamir.split(secret, range(6), 4)
    for holders in itertools.combinations(range(6), 4):
        assert shamir.join({h: shares[h] for h in holders}, 4) == secret
    with pytest.raises(Abort, match="3 shares, 4 are needed"):
        shamir.join({h: shares[h] for h in range(3)}, 4)
    assert shamir.join({h: shares[h] for h in range(3)}, 3) != secret


def test_fewer_shares_fit_every_secret() -> None:
    """Three shares of four: for any other secret there is a fourth share that opens it, so they say nothing."""
    shares = shamir.split(shamir.new_secret(), range(4), 4)
    weights = shamir._weights((0, 1, 2, 3))
    known = sum(w * int.from_bytes(shares[h], "big") for h, w in enumerate(weights[:3]))
    for wanted in (0, 1, shamir.PRIME - 1):
        last = (wanted - known) * pow(weights[3], -1, shamir.PRIME) % shamir.PRIME
        given = {**{h: shares[h] for h in range(3)}, 3: last.to_bytes(32, "big")}
        assert int.from_bytes(shamir.join(given, 4), "big") == wanted


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 64), st.integers(1, 70), st.integers(0, 1 << 32))
def test_packing_takes_the_stated_bits_and_loses_nothing(bits: int, length: int, seed: int) -> None:
    values = vectors.reduce(np.random.default_rng(seed).integers(-(1 << 62), 1 << 62, length), bits)
    data = vectors.pack(values, bits)
    assert len(data) == -(-length * bits // 8)
    assert np.array_equal(vectors.unpack(data, length, bits), values)


def test_packing_in_chunks() -> None:
    values = vectors.reduce(np.arange(2 * vectors.CHUNK + 5), 11)
    assert np.array_equal(vectors.unpack(vectors.pack(values, 11), len(values), 11), values)


def test_centred_values_are_those_before_reduction() -> None:
    values = np.array([-128, -1, 0, 5, 127])
    assert np.array_equal(vectors.centred(vectors.reduce(values, 8), 8), values)
    assert np.array_equal(vectors.centred(vectors.reduce(np.array([-(1 << 63)]), 64), 64), [-(1 << 63)])


@pytest.mark.parametrize("bits", [1, 7, 8, 16, 20, 33, 64])
def test_a_stream_added_and_subtracted_is_gone(bits: int) -> None:
    values = vectors.reduce(np.arange(vectors.CHUNK + 9), bits)
    total = values.copy()
    vectors.add_stream(total, b"k" * 32, bits, 1)
    assert np.mean(vectors.clear_high_bits(total, bits) == values) < 0.6
    vectors.add_stream(total, b"k" * 32, bits, -1)
    assert np.array_equal(vectors.clear_high_bits(total, bits), values)


def test_a_mask_needs_a_key_of_256_bits() -> None:
    with pytest.raises(ValueError, match="256 bits"):
        vectors.add_stream(np.zeros(3, np.uint16), b"k" * 31, 16, 1)


def test_both_nodes_derive_the_same_mask_and_other_sessions_another() -> None:
    one, other = secrecy.Secrets.new(), secrecy.Secrets.new()
    a, b = (1, one.mask_public), (2, other.mask_public)
    ours, theirs = secrecy.mask_private(one.mask_secret), secrecy.mask_private(other.mask_secret)
    assert secrecy.pair_mask(b"c", ours, a, b) == secrecy.pair_mask(b"c", theirs, b, a)
    assert secrecy.pair_mask(b"c", ours, a, b) != secrecy.pair_mask(b"d", ours, a, b)


@pytest.mark.parametrize("point", [bytes(32), b"\1" + bytes(31)])
def test_a_public_key_of_small_order_is_refused(point: bytes) -> None:
    with pytest.raises(Abort, match="X25519"):
        secrecy.pair_mask(b"c", secrecy.mask_private(shamir.new_secret()), (1, bytes(32)), (2, point))


def test_the_threshold_is_above_two_thirds_of_the_holders() -> None:
    for k in range(2, 300):
        assert 3 * degree.threshold(k) > 2 * (k + 1) and degree.threshold(k) <= k + 1


def test_the_degree_grows_with_the_logarithm() -> None:
    small = {n: degree.degree(n) for n in (3, 10, 128)}
    assert small == {3: 2, 10: 9, 128: 127}
    large = [degree.degree(n) for n in (300, 1000, 3000, 10_000)]
    assert large == sorted(large) and large[-1] < 2 * large[0] + 20


def test_the_tail_is_that_of_the_hypergeometric_distribution() -> None:
    from scipy.stats import hypergeom

    for population, marked, drawn, least in ((50, 10, 20, 8), (999, 100, 116, 30), (20, 15, 10, 3)):
        exact = hypergeom(population, marked, drawn).sf(least - 1)
        assert 2.0 ** degree._tail(population, marked, drawn, least) == pytest.approx(exact, rel=1e-9)
        if exact < 0.5:
            assert 2.0 ** degree._chernoff(drawn, least / drawn, marked / population) >= exact


def test_sets_and_parts_have_one_encoding() -> None:
    message = Delivery(b"c", frozenset({0, 9, 200}), {3: b"x", 1: b""}, b"d")
    data = message.encode()
    assert Delivery.decode(data) == message
    assert data == Delivery(b"c", frozenset({200, 0, 9}), {1: b"", 3: b"x"}, b"d").encode()
    with pytest.raises(Abort, match="too many"):
        Delivery.decode(data + b"\0")
    with pytest.raises(Abort, match="repeated, out of order"):
        swapped = data.replace(b"\0\0\0\1\0\0\0\0\0\0\0\3\0\0\0\1x", b"\0\0\0\3\0\0\0\1x\0\0\0\1\0\0\0\0")
        assert swapped != data
        Delivery.decode(swapped)


def test_the_protocol_needs_no_jax() -> None:
    code = "import sys, fedveil.deploy.secagg.rehearsal; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
