"""Whole sessions in memory: the sum is exact, nodes may be lost in every phase, and what arrives looks uniform."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedveil.deploy.secagg import vectors
from fedveil.deploy.secagg.aggregator import PHASES, Aggregator
from fedveil.deploy.secagg.errors import Abort
from fedveil.deploy.secagg.messages import Masked
from fedveil.deploy.secagg.rehearsal import Federation
from fedveil.deploy.secagg.terms import Terms, majority


def terms_of(nodes: int, length: int = 20, bits: int = 20, quorum: int | None = None) -> Terms:
    return Terms("run", 3, bytes(16), "digest", length, bits, quorum or majority(nodes), frozenset(range(nodes)))


def federation_of(nodes: int, length: int = 20, bits: int = 20, seed: int = 0) -> Federation:
    values = np.random.default_rng(seed).integers(-(1 << bits - 1), 1 << bits - 1, (nodes, length))
    return Federation(list(values))


def plain(federation: Federation, survivors: list[int], bits: int) -> np.ndarray:
    return vectors.reduce(np.sum([federation.vectors[c] for c in survivors], axis=0), bits)


def is_exact(federation: Federation, server: Aggregator) -> bool:
    assert server.total is not None
    return np.array_equal(server.total, plain(federation, sorted(server.survivors), server.terms.bits))


@pytest.mark.parametrize(("nodes", "bits"), [(3, 16), (5, 20), (8, 1), (8, 13), (8, 33), (12, 64), (12, 32)])
def test_the_sum_is_exact(nodes: int, bits: int) -> None:
    federation = federation_of(nodes, 33, bits)
    server = federation.run(terms_of(nodes, 33, bits))
    assert is_exact(federation, server) and len(server.survivors) == nodes


@pytest.mark.parametrize("phase", PHASES)
def test_a_node_lost_in_any_phase(phase: str) -> None:
    """Its vector counts if the server has it; the sum of the others is exact in any case."""
    federation = federation_of(5)
    server = federation.run(terms_of(5), {2: phase})
    assert is_exact(federation, server)
    assert (2 in server.survivors) == (phase in ("signed", "challenge", "reveal"))
    if phase != "challenge":  # a phase of sparse graphs only
        assert list(server.transcript.lost) == [phase] and list(server.transcript.lost[phase]) == [2]


def test_nodes_lost_in_different_phases() -> None:
    federation = federation_of(16)
    server = federation.run(terms_of(16), {0: "advert", 3: "shares", 7: "masked", 9: "signed", 12: "reveal"})
    assert is_exact(federation, server) and sorted(server.survivors) == sorted(set(range(16)) - {0, 3, 7})


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase != "challenge"])
def test_below_the_threshold_nothing_is_unmasked(phase: str) -> None:
    federation, seen = federation_of(5), []

    def to_server(at: str, client: int, reply: bytes) -> bytes:
        seen.append((at, client))
        return reply

    with pytest.raises(Abort, match=f"3 nodes are left in the phase '{phase}', 4 are needed"):
        federation.run(terms_of(5), {1: phase, 4: phase}, to_server=to_server)
    if phase in ("advert", "shares", "masked"):
        assert "reveal" not in {at for at, _ in seen}, "shares were opened below the quorum"


def test_a_higher_quorum_is_kept() -> None:
    federation = federation_of(6)
    assert is_exact(federation, federation.run(terms_of(6, quorum=6)))
    with pytest.raises(Abort, match="5 nodes are left in the phase 'masked', 6 are needed"):
        federation_of(6).run(terms_of(6, quorum=6), {0: "masked"})


def test_the_cohort_may_be_a_part_of_the_roster() -> None:
    federation = federation_of(9)
    terms = Terms("run", 0, bytes(16), "c", 20, 20, 4, frozenset({1, 4, 5, 8}))
    server = federation.run(terms)
    assert server.survivors == {1, 4, 5, 8} and is_exact(federation, server)


@pytest.mark.parametrize("nodes", [16, pytest.param(130, marks=pytest.mark.slow)])
def test_a_sparse_graph(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are lost in every phase, and audit signatures drawn at random. With 16 nodes the degree is made smaller."""
    if nodes == 16:
        monkeypatch.setattr("fedveil.deploy.secagg.terms.degree", lambda _: 12)
        monkeypatch.setattr("fedveil.deploy.secagg.degree.AUDITED", 10)
    federation, seen = federation_of(nodes, 4), set()
    terms = terms_of(nodes, 4)

    def to_node(phase: str, client: int, message: bytes) -> bytes:
        seen.add(phase)
        return message

    lost = dict(enumerate(PHASES)) if nodes == 130 else {0: "masked"}
    server = federation.run(terms, lost, to_node)
    assert terms.degree < nodes // 2 + 5 and terms.sparse and seen == set(PHASES)
    assert is_exact(federation, server) and len(server.survivors) == nodes - (3 if nodes == 130 else 1)


def masked_vectors(value: int, rounds: int) -> np.ndarray:
    """Everything of one node that the server receives as a vector, in rounds in which it sends the same numbers."""
    federation, found = Federation([np.full(64, value), *np.zeros((3, 64), np.int64)]), []

    def to_server(phase: str, client: int, reply: bytes) -> bytes:
        if phase == "masked" and client == 0:
            found.append(vectors.unpack(Masked.decode(reply).vector, 64, 8))
        return reply

    for number in range(rounds):
        federation.run(Terms("r", number, bytes(16), "c", 64, 8, 3, frozenset(range(4))), to_server=to_server)
    return np.array(found)


def test_masked_vectors_are_uniform() -> None:
    """Of a constant vector: the values pass a chi-square test, bytes and pairs of neighbouring values alike."""
    sent = masked_vectors(7, 40)
    assert stats.chisquare(np.bincount(sent.ravel(), minlength=256)).pvalue > 1e-6
    pairs = (sent[:, :-1] // 16).astype(int) * 16 + sent[:, 1:] // 16
    assert stats.chisquare(np.bincount(pairs.ravel(), minlength=256)).pvalue > 1e-6
    assert len(np.unique(sent, axis=0)) == len(sent)


def test_the_uniformity_test_sees_a_vector_without_its_own_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: without mask streams the constant vector stands out."""
    monkeypatch.setattr(vectors, "add_stream", lambda *_: None)
    sent = masked_vectors(7, 2)
    assert stats.chisquare(np.bincount(sent.ravel(), minlength=256)).pvalue < 1e-6


@pytest.mark.slow
def test_a_fitted_attack_on_200_rounds_finds_nothing() -> None:
    """A logistic regression tells which of two vectors a node sent no better than chance; unmasked it always can."""
    from sklearn.linear_model import LogisticRegression

    sent = np.concatenate([masked_vectors(3, 200), masked_vectors(250, 200)])
    bits = np.unpackbits(sent.astype(np.uint8), axis=1)
    labels = np.repeat([0, 1], 200)
    order = np.random.default_rng(0).permutation(400)
    train, test = order[:200], order[200:]
    hits = LogisticRegression(max_iter=500).fit(bits[train], labels[train]).score(bits[test], labels[test]) * 200
    assert stats.binomtest(round(hits), 200).pvalue > 1e-3
    bare = np.unpackbits(np.repeat([[3] * 64, [250] * 64], 200, axis=0).astype(np.uint8), axis=1)
    assert LogisticRegression().fit(bare[train], labels[train]).score(bare[test], labels[test]) == 1.0
