"""Servers and nodes that lie: each lie ends the session with a reason, and nothing is opened that should stay closed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fedveil.deploy.secagg import secrecy, shamir, vectors
from fedveil.deploy.secagg.aggregator import Aggregator
from fedveil.deploy.secagg.errors import Abort
from fedveil.deploy.secagg.member import Member, advert_text, survivors_text
from fedveil.deploy.secagg.messages import (
    Advert,
    Adverts,
    Certificate,
    Delivery,
    Masked,
    Reveal,
    Shares,
    Signed,
    Survivors,
)
from fedveil.deploy.secagg.rehearsal import Federation, MemoryJournal
from fedveil.deploy.secagg.roster import Roster, new_key, public
from fedveil.deploy.secagg.terms import Terms
from tests.deploy.secagg.test_session import federation_of, terms_of

NODES = 6
Change = Callable[[bytes], bytes]


def changed(phase: str, victim: int, change: Change) -> Callable[[str, int, bytes], bytes]:
    """A hook that changes one message of one node."""
    return lambda at, client, message: change(message) if (at, client) == (phase, victim) else message


def reasons(federation: Federation, phase: str, victim: int, change: Change, reply: bool = False) -> str:
    """Runs a session with one changed message; the reason why that node counts as lost. The others' sum stays exact."""
    hook = changed(phase, victim, change)
    server = federation.run(terms_of(NODES), **{"to_server" if reply else "to_node": hook})
    wanted = vectors.reduce(np.sum([federation.vectors[c] for c in server.survivors], axis=0), 20)
    assert np.array_equal(server.total, wanted)
    return server.transcript.lost[phase][victim]


# --- the server lies to one node


def other_key(message: bytes) -> bytes:
    """The advert of client 1 with the server's keys, signed by the server."""
    given = Adverts.decode(message)
    advert, server = Advert.decode(given.adverts[1]), secrecy.Secrets.new()
    forged = replace(advert, mask_key=server.mask_public, channel_key=server.channel_public)
    forged = replace(forged, signature=new_key().sign(advert_text(forged)))
    return replace(given, adverts={**given.adverts, 1: forged.encode()}).encode()


def drop_adverts(message: bytes) -> bytes:
    given = Adverts.decode(message)
    return replace(given, adverts=dict(list(given.adverts.items())[:3])).encode()


def drop_present(message: bytes) -> bytes:
    given = Delivery.decode(message)
    kept = frozenset(sorted(given.present)[:3])
    sealed = {c: s for c, s in given.sealed.items() if c in kept}
    return replace(given, present=kept, sealed=sealed, digests=given.digests[: 32 * 3]).encode()


def swap_sealed(message: bytes) -> bytes:
    given = Delivery.decode(message)
    first, second = sorted(given.sealed)[:2]
    sealed = {**given.sealed, first: given.sealed[second], second: given.sealed[first]}
    return replace(given, sealed=sealed).encode()


def fewer_survivors(message: bytes) -> bytes:
    given = Survivors.decode(message)
    return replace(given, survivors=frozenset({0, 1, 2})).encode()


def without_me(message: bytes) -> bytes:
    given = Survivors.decode(message)
    return replace(given, survivors=given.survivors - {2}).encode()


def forged_signature(message: bytes) -> bytes:
    given = Certificate.decode(message)
    return replace(given, signatures={**given.signatures, 1: new_key().sign(b"x")}).encode()


def few_signatures(message: bytes) -> bytes:
    given = Certificate.decode(message)
    return replace(given, signatures=dict(list(given.signatures.items())[:2])).encode()


@pytest.mark.parametrize(
    ("phase", "change", "word"),
    [
        ("shares", other_key, "not that of client 1 in the roster"),
        ("shares", drop_adverts, "holders of shares take part, 5 are needed"),
        ("masked", drop_present, "take part, 5 are needed: nothing is unmasked"),
        ("masked", swap_sealed, "are not those it encrypted for this node"),
        ("signed", fewer_survivors, "3 survivors, the quorum is 5"),
        ("signed", without_me, "this node's vector was lost"),
        ("reveal", forged_signature, "not that of client 1 in the roster"),
        ("reveal", few_signatures, "signed the survivors, 5 are needed"),
    ],
)
def test_a_node_stops_at_a_lie(phase: str, change: Change, word: str) -> None:
    federation = federation_of(NODES)
    victim = 0 if change is fewer_survivors else 2
    assert word in reasons(federation, phase, victim, change)
    assert federation.members[victim].over and federation.members[victim].secrets is None


def test_a_node_does_not_answer_twice_with_another_set() -> None:
    """A node that signed one set of survivors signs no other and opens nothing afterwards."""
    federation, node = federation_of(NODES), 2

    def to_node(phase: str, client: int, message: bytes) -> bytes:
        if (phase, client) == ("reveal", node):
            context = federation.members[node].context
            with pytest.raises(Abort, match="another phase"):
                federation.members[node].answer(Survivors(context, frozenset(range(5))).encode())
        return message

    server = federation.run(terms_of(NODES), to_node=to_node)
    assert "has ended at this node" in server.transcript.lost["reveal"][node]


def split_view(nodes: int, sets: dict[int, frozenset[int]], corrupt: frozenset[int]) -> list[Reveal]:
    """The server tells each honest node its own set of survivors, with all signatures of that set that it can get.

    Corrupt nodes sign every set. Returns what the honest nodes open.
    """
    federation = federation_of(nodes)
    server, opened = Aggregator(terms_of(nodes), federation.roster), list[Reveal]()
    messages = server.begin()
    for _ in range(3):  # up to the masked vectors, which are answered by the set of survivors
        messages = server.advance({c: federation.answer(c, m) for c, m in messages.items()})
    signed: dict[int, bytes] = {}
    for client, told in sets.items():
        reply = federation.answer(client, Survivors(server.context, told).encode())
        signed[client] = Signed.decode(reply).signature
    for client, told in sets.items():
        fitting = {c: s for c, s in signed.items() if sets[c] == told}
        fitting |= {c: federation.keys[c].sign(survivors_text(server.context, told)) for c in corrupt & told}
        try:
            opened.append(Reveal.decode(federation.answer(client, Certificate(server.context, fitting).encode())))
        except Abort:
            continue
    return opened


@pytest.mark.parametrize("corrupt", [0, 1, 2])
@pytest.mark.parametrize("believers", range(9))
def test_a_node_claimed_both_lost_and_alive_stays_masked(corrupt: int, believers: int) -> None:
    """Some honest nodes hear that client 8 survived, the others that it was lost. Never can both its secrets be opened."""
    everyone, victim, liars = frozenset(range(9)), 8, frozenset(range(corrupt))
    honest = [c for c in range(8) if c not in liars]
    sets = {c: everyone if at < believers else everyone - {victim} for at, c in enumerate(honest)}
    opened = split_view(9, {**sets, victim: everyone}, liars)
    seeds = corrupt + sum(victim in reveal.seeds for reveal in opened)
    keys = corrupt + sum(victim in reveal.keys for reveal in opened)
    needed = terms_of(9).threshold
    assert seeds < needed or keys < needed


def test_five_corrupt_of_nine_are_more_than_the_threshold_holds() -> None:
    """The check above can fail: where more than a third of the nodes are corrupt, two sets can each gather a threshold."""
    everyone, liars = frozenset(range(9)), frozenset(range(5))
    opened = split_view(9, {5: everyone, 6: everyone - {8}, 7: everyone - {8}, 8: everyone}, liars)
    assert any(8 in reveal.seeds for reveal in opened) and any(8 in reveal.keys for reveal in opened)


def test_one_view_for_all_opens_exactly_one_secret() -> None:
    opened = split_view(6, dict.fromkeys(range(5), frozenset(range(5))), frozenset())
    assert sum(5 in reveal.keys for reveal in opened) == 5
    assert not any(5 in reveal.seeds for reveal in opened)


def test_a_replayed_session_starts_over_with_new_secrets() -> None:
    """The same terms again: the journal refuses them. A new attempt has other keys, and the old messages do not fit it."""
    federation, stored = federation_of(NODES), dict[tuple[str, int], bytes]()

    def to_node(phase: str, client: int, message: bytes) -> bytes:
        stored.setdefault((phase, client), message)
        return message

    federation.run(terms_of(NODES), to_node=to_node)
    with pytest.raises(Abort, match=r"0 nodes are left in the phase 'advert', 5 are needed .*done already"):
        federation.run(terms_of(NODES))
    again = replace(terms_of(NODES), attempt=b"1" * 16)

    def stale(phase: str, client: int, message: bytes) -> bytes:
        return stored[phase, client] if (phase, client) == ("masked", 2) else message

    server = federation.run(again, to_node=stale)
    assert "another session" in server.transcript.lost["masked"][2]


def test_a_message_that_arrives_twice_gets_the_same_answer_once_computed() -> None:
    federation, made = federation_of(NODES), []
    federation.vectors = [np.asarray(v) for v in federation.vectors]

    def to_node(phase: str, client: int, message: bytes) -> bytes:
        if phase != "advert":
            made.append(federation.members[client].answer(message) == federation.members[client].answer(message))
        return message

    server = federation.run(terms_of(NODES), to_node=to_node)
    assert made and all(made) and len(server.survivors) == NODES
    assert all(len(j.steps) == len(set(j.steps)) for j in federation.journals)


def test_two_sessions_at_once_do_not_mix() -> None:
    one, other = federation_of(NODES, seed=1), federation_of(NODES, seed=2)
    other.keys, other.roster = one.keys, one.roster
    first, second = terms_of(NODES), replace(terms_of(NODES), run="other")
    servers = [Aggregator(first, one.roster), Aggregator(second, one.roster)]
    messages = [server.begin() for server in servers]
    while any(messages):
        for at, federation in ((0, one), (1, other)):
            replies = {c: federation.answer(c, m) for c, m in messages[at].items()}
            messages[at] = servers[at].advance(replies)
    for federation, server in ((one, servers[0]), (other, servers[1])):
        assert np.array_equal(server.total, vectors.reduce(np.sum(federation.vectors, axis=0), 20))


def test_the_journal_outlives_the_session() -> None:
    """A node restored from a copy of its memory does not open shares a second time: the journal is on its disk."""
    federation, journal = federation_of(3), MemoryJournal()
    first = Member(terms_of(3), 0, federation.keys[0], federation.roster, journal, lambda: federation.vectors[0])
    first.advert()
    with pytest.raises(Abort, match="done already"):
        Member(terms_of(3), 0, federation.keys[0], federation.roster, journal, lambda: federation.vectors[0]).advert()


@pytest.mark.parametrize(
    ("terms", "word"),
    [
        (replace(terms_of(4), quorum=2), "quorum of 2 of 4 nodes is not accepted"),
        (replace(terms_of(4), cohort=frozenset({0, 1}), quorum=2), "a sum over 2 nodes"),
        (replace(terms_of(4), cohort=frozenset({0, 1, 9}), quorum=3), "client 9 of the cohort is not in the roster"),
        (replace(terms_of(4), cohort=frozenset({1, 2, 3}), quorum=3), "client 0 is not in the cohort"),
        (replace(terms_of(4), bits=65), "modulo 2\\^65"),
        (replace(terms_of(4), bits=0), "modulo 2\\^0"),
        (replace(terms_of(4), length=0), "vectors of 0 values"),
        (replace(terms_of(4), attempt=b""), "attempt of 16 bytes"),
    ],
)
def test_terms_that_no_node_accepts(terms: Terms, word: str) -> None:
    federation = federation_of(4)
    with pytest.raises(Abort, match=word):
        federation.join(0, terms.encode())


def test_another_roster_is_another_session() -> None:
    federation = federation_of(4)
    stranger = Roster({**federation.roster.keys, 3: public(new_key())})
    assert terms_of(4).context(stranger) != terms_of(4).context(federation.roster)
    with pytest.raises(Abort, match="another key for client 3"):
        Member(terms_of(4), 3, federation.keys[3], stranger, MemoryJournal(), lambda: federation.vectors[3])


# --- nodes lie


def wrong_length(message: bytes) -> bytes:
    return replace(Masked.decode(message), vector=Masked.decode(message).vector[:-1]).encode()


def beyond_the_range(message: bytes) -> bytes:
    """A vector with more values than the terms have, and one with bits after its end."""
    given = Masked.decode(message)
    return replace(given, vector=given.vector + b"\xff" * 8).encode()


def not_an_element(message: bytes) -> bytes:
    given = Reveal.decode(message)
    return replace(given, seeds=dict.fromkeys(given.seeds, shamir.PRIME.to_bytes(32, "big"))).encode()


def fewer_shares(message: bytes) -> bytes:
    given = Reveal.decode(message)
    return replace(given, seeds=dict(list(given.seeds.items())[1:])).encode()


def both_kinds(message: bytes) -> bytes:
    given = Reveal.decode(message)
    return replace(given, keys=given.seeds).encode()


def another_sender(message: bytes) -> bytes:
    return replace(Masked.decode(message), sender=1).encode()


def short_shares(message: bytes) -> bytes:
    given = Shares.decode(message)
    return replace(given, sealed={c: s[:-1] for c, s in given.sealed.items()}).encode()


def signs_another_set(message: bytes) -> bytes:
    given = Signed.decode(message)
    return replace(given, signature=new_key().sign(survivors_text(given.context, frozenset(range(5))))).encode()


@pytest.mark.parametrize(
    ("phase", "change", "word"),
    [
        ("shares", short_shares, "not one for each neighbour"),
        ("masked", wrong_length, "a vector of 49 bytes, expected 50"),
        ("masked", beyond_the_range, "a vector of 58 bytes, expected 50"),
        ("masked", another_sender, "another node"),
        ("signed", signs_another_set, "not that of client 2"),
        ("reveal", not_an_element, "not an element of the field"),
        ("reveal", fewer_shares, "the opened shares are not those"),
        ("reveal", both_kinds, "the opened shares are not those"),
    ],
)
def test_a_node_with_a_bad_reply_counts_as_lost(phase: str, change: Change, word: str) -> None:
    assert word in reasons(federation_of(NODES), phase, 2, change, reply=True)


@pytest.mark.parametrize("lost", [{}, {5: "masked"}])
def test_a_node_that_opens_wrong_shares_is_named(lost: dict[int, str]) -> None:
    """Elements of the field that are not the shares it accepted. The round goes on if enough others are left."""

    def wrong(message: bytes) -> bytes:
        given = Reveal.decode(message)
        random = lambda shares: {c: shamir.new_secret() for c in shares}  # noqa: E731
        if lost:
            return replace(given, keys=random(given.keys)).encode()
        return replace(given, seeds=random(given.seeds)).encode()

    federation, hook = federation_of(NODES), changed("reveal", 0, wrong)
    if lost:
        told = r"4 nodes are left .* 5 are needed \(client 0: a wrong share of client 5's mask key"
        with pytest.raises(Abort, match=told):
            federation.run(terms_of(NODES), lost, to_server=hook)
        return
    said = reasons(federation, "reveal", 0, wrong, reply=True)
    assert "a wrong share of client 0's seed: the node had accepted another" in said


def other_digests(message: bytes) -> bytes:
    """The dealer publishes digests of other shares than those that it sends to the holder with the highest number."""
    given = Shares.decode(message)
    return replace(given, digests=given.digests[:-32] + bytes(32)).encode()


def test_a_dealer_that_publishes_other_shares_is_named_by_the_holder() -> None:
    federation = federation_of(NODES)
    server = federation.run(terms_of(NODES), to_server=changed("shares", 2, other_digests))
    assert server.transcript.lost["masked"] == {
        5: "client 2 published other shares for this node than those that it sent"
    }


def test_a_dealer_whose_shares_open_something_else_is_named() -> None:
    """All holders got what the dealer published, but it is not the secret to which the dealer is committed."""
    federation = federation_of(NODES)

    def to_node(phase: str, client: int, message: bytes) -> bytes:
        if (phase, client) == ("shares", 2):
            member = federation.members[2]
            assert member.secrets is not None
            member.secrets = replace(member.secrets, seed=shamir.new_secret())
        return message

    with pytest.raises(Abort, match="client 2 dealt wrong shares: they do not open the seed"):
        federation.run(terms_of(NODES), to_node=to_node)


def test_a_vector_of_another_length_never_leaves_the_node() -> None:
    federation = federation_of(NODES)
    federation.vectors = [np.zeros(7, np.int64), *federation.vectors[1:]]
    server = federation.run(terms_of(NODES))
    assert "shape [7], expected [20]" in server.transcript.lost["masked"][0]


@pytest.mark.parametrize("values", [np.array([0.5] * 20), np.array([True] * 20)])
def test_only_integers_are_masked(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match="instead of integers"):
        vectors.reduce(values, 20)
