"""Who holds what: ways to hand a training set out to clients.

A partition is one flat index table and each client's range in it, so that clients may be ragged and may share examples.
Every draw comes from a generator keyed by (seed, partition), so that the same config always makes the same clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedveil.core.errors import ConfigError, unknown_name

GROUPS_DISJOINT = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9)) + tuple((label,) for label in range(10))
GROUPS_OVERLAP = ((0, 1, 2, 3), (2, 3, 4, 5), (4, 5, 6, 7), (6, 7, 8, 9), (8, 9, 0, 1))


@dataclass(frozen=True)
class Partition:
    """Client i holds the examples `order[start[i] : start[i] + length[i]]`, none of them twice."""

    order: np.ndarray  # [total] int32, indices into the training set
    start: np.ndarray  # [clients] int64
    length: np.ndarray  # [clients] int32

    @property
    def clients(self) -> int:
        return len(self.start)

    @property
    def max_length(self) -> int:
        return int(self.length.max())

    def client(self, i: int) -> np.ndarray:
        """Indices of the examples that client i holds."""
        return self.order[self.start[i] : self.start[i] + self.length[i]]

    def copies(self) -> int:
        """The most clients that hold one and the same example: an account per distinct image has to count them all."""
        # Ranges may overlap (`copies` shares one range), so count first how many clients read each place of the table.
        edges = np.zeros(len(self.order) + 1, np.int64)
        np.add.at(edges, self.start, 1)
        np.add.at(edges, self.start + self.length, -1)
        readers = np.cumsum(edges[:-1])
        return int(np.bincount(self.order, weights=readers).max())


@dataclass(frozen=True)
class Request:
    """What a partition is made from, checked."""

    labels: np.ndarray  # [N]
    clients: int
    per_client: int | None
    classes_per_client: int
    alpha: float
    classes: int
    rng: np.random.Generator

    @property
    def total(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class PartitionInfo:
    """One way to hand data out; `keys` are the keys of [data] that it reads beside `clients`."""

    name: str
    summary: str
    keys: tuple[str, ...]
    make: Callable[[Request], Partition]


def make_partition(
    name: str,
    labels: np.ndarray,
    *,
    clients: int,
    per_client: int | None = None,
    classes_per_client: int = 2,
    alpha: float = 0.5,
    seed: int = 0,
    classes: int | None = None,
    label_sets: Sequence[Sequence[int]] | None = None,
) -> Partition:
    """Hand the examples with these labels out to so many clients. Keys that the partition does not read are ignored.

    With `label_sets` the first clients hold examples of these classes alone, which no other client has.
    """
    if name not in PARTITIONS:
        raise unknown_name("data.partition", name, PARTITIONS)
    labels = np.asarray(labels)
    info = PARTITIONS[name]
    classes = int(labels.max()) + 1 if classes is None else classes
    if label_sets:
        width = per_client or max(1, len(labels) // clients)
        first, rest = _chosen(labels, label_sets, width, clients, classes, _generator(seed, 0x736574))
        others = make_partition(
            name, labels[rest], clients=clients - len(first), per_client=per_client,
            classes_per_client=classes_per_client, alpha=alpha, seed=seed, classes=classes,
        )  # fmt: skip
        return _in_front(first, rest, others)
    rng = _generator(seed, list(PARTITIONS).index(name))
    request = Request(labels, clients, per_client, classes_per_client, alpha, classes, rng)
    _check(request, info.keys)
    return info.make(request)


def _chosen(
    labels: np.ndarray,
    sets: Sequence[Sequence[int]],
    width: int,
    clients: int,
    classes: int,
    rng: np.random.Generator,
) -> tuple[list[np.ndarray], np.ndarray]:
    """For each set of classes `width` examples of them, none twice; and all examples that are left."""
    if len(sets) >= clients:
        takes = f"takes fewer sets than data.clients = {clients}: the others follow the partition"
        raise ConfigError("data.label_sets", [list(s) for s in sets], takes)
    free = np.ones(len(labels), bool)
    first = []
    for wanted in sets:
        if not len(wanted) or not all(0 <= label < classes for label in wanted):
            raise ConfigError("data.label_sets", list(wanted), f"takes lists of classes from 0 to {classes - 1}")
        pool = np.flatnonzero(free & np.isin(labels, wanted))
        if len(pool) < width:
            takes = f"only {len(pool)} examples of these classes are left, {width} are needed: lower data.per_client"
            raise ConfigError("data.label_sets", list(wanted), takes)
        rows = rng.choice(pool, width, replace=False)
        free[rows] = False
        first.append(rows)
    return first, np.flatnonzero(free)


def _in_front(first: list[np.ndarray], rest: np.ndarray, others: Partition) -> Partition:
    """Clients with tables of their own before those of a partition of the rest."""
    order = np.concatenate([*first, rest[others.order]]).astype(np.int32)
    lengths = np.array([len(rows) for rows in first], np.int64)
    start = np.concatenate([np.cumsum(lengths) - lengths, others.start + lengths.sum()])
    return Partition(order, start.astype(np.int64), np.concatenate([lengths, others.length]).astype(np.int32))


def _generator(seed: int, purpose: int) -> np.random.Generator:
    """A generator of our own for each purpose: no draw depends on what was drawn elsewhere."""
    if seed < 0:
        raise ConfigError("train.seed", seed, "takes a whole number from 0")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, 0x70617274, purpose])))


def _check(ask: Request, keys: tuple[str, ...]) -> None:
    """Refuse what no partition could serve, by the key that is wrong."""
    if ask.clients < 1:
        raise ConfigError("data.clients", ask.clients, "takes a whole number from 1")
    if ask.per_client is not None and "per_client" in keys and not 1 <= ask.per_client <= ask.total:
        raise ConfigError("data.per_client", ask.per_client, f"takes 1 to {ask.total}, the size of the training set")
    if "classes_per_client" in keys:
        present = len(np.unique(ask.labels))
        if not 1 <= ask.classes_per_client <= present:
            raise ConfigError(
                "data.classes_per_client",
                ask.classes_per_client,
                f"takes 1 to {present}, the number of classes in the training set",
            )
        if ask.per_client is not None and ask.per_client < ask.classes_per_client:
            raise ConfigError(
                "data.per_client",
                ask.per_client,
                f"takes at least {ask.classes_per_client}, one example for each of classes_per_client",
            )
    if "alpha" in keys and not (ask.alpha > 0 and np.isfinite(ask.alpha)):
        raise ConfigError("data.alpha", ask.alpha, "takes a number above 0")


def _check_enough(ask: Request) -> None:
    """For partitions that never give an example twice."""
    if ask.clients > ask.total:
        raise ConfigError(
            "data.clients",
            ask.clients,
            f"takes at most {ask.total}, the number of examples: this partition gives none of them twice",
        )


def _equal(table: np.ndarray) -> Partition:
    """A partition from a [clients, per_client] table of indices."""
    clients, width = table.shape
    start = np.arange(clients, dtype=np.int64) * width
    return Partition(table.reshape(-1).astype(np.int32), start, np.full(clients, width, np.int32))


def _pack(owner: np.ndarray, index: np.ndarray, clients: int) -> Partition:
    """A ragged partition: example index[j] goes to client owner[j]."""
    order = index[np.argsort(owner, kind="stable")].astype(np.int32)
    length = np.bincount(owner, minlength=clients)
    start = np.concatenate([[0], np.cumsum(length)[:-1]]).astype(np.int64)
    return Partition(order, start, length.astype(np.int32))


def _deal(items: int, hands: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Deal shuffled items, [hands, width]: every item once before any comes again, and none twice in one hand."""
    rounds = -(-hands * width // items)
    flat = np.concatenate([rng.permutation(items) for _ in range(rounds)])
    # Only a hand that straddles two rounds can hold an item twice: swap the second one with another of its round, which
    # leaves that round complete. As width <= items there always is one that the hand does not hold.
    for edge in range(items, rounds * items, items):
        first = edge // width * width
        last = min(first + width, len(flat))
        for at in range(edge, last if first < edge else edge):
            if flat[at] in flat[first:edge]:
                others = np.arange(last, edge + items)
                free = others[~np.isin(flat[others], flat[first:last])]
                # Places of this very hand that were dealt in the new round stay put, hence `others` starts after it.
                flat[[at, free[0]]] = flat[[free[0], at]]
    return flat[: hands * width].reshape(hands, width)


def _by_label(ask: Request) -> np.ndarray:
    """All indices sorted by label, shuffled within a label."""
    shuffled = ask.rng.permutation(ask.total)
    return shuffled[np.argsort(ask.labels[shuffled], kind="stable")]


def _iid(ask: Request) -> Partition:
    width = ask.per_client or max(1, ask.total // ask.clients)
    pieces = ask.total // width  # clients served by one permutation: none spans two, so none holds an example twice
    rounds = -(-ask.clients // pieces)
    table = [ask.rng.permutation(ask.total)[: pieces * width].reshape(pieces, width) for _ in range(rounds)]
    return _equal(np.concatenate(table)[: ask.clients])


def _shards(ask: Request) -> Partition:
    per_client = ask.per_client or max(ask.classes_per_client, ask.total // ask.clients)
    width = per_client // ask.classes_per_client
    count = ask.total // width
    shards = _by_label(ask)[: count * width].reshape(count, width)
    dealt = _deal(count, ask.clients, ask.classes_per_client, ask.rng)
    return _equal(shards[dealt].reshape(ask.clients, -1))


def _groups(name: str, groups: tuple[tuple[int, ...], ...]) -> Callable[[Request], Partition]:
    """Client k has the classes of group k mod len(groups); a class is shared out evenly among those that have it."""

    def make(ask: Request) -> Partition:
        if ask.classes != 10:
            raise ConfigError("data.partition", name, f"takes a dataset of 10 classes; this one has {ask.classes}")
        _check_enough(ask)
        owners, indices = [], []
        got = np.zeros(ask.clients, np.int64)
        group_of = np.arange(ask.clients) % len(groups)
        for label in range(10):
            having = np.array([label in group for group in groups])
            holders = np.flatnonzero(having[group_of])
            index = ask.rng.permutation(np.flatnonzero(ask.labels == label))
            if len(index) < len(holders):  # not enough for all: those that have least so far
                holders = np.sort(holders[np.argsort(got[holders], kind="stable")[: len(index)]])
            if len(holders):
                indices.append(index)
                owners.append(holders[np.arange(len(index)) * len(holders) // len(index)])
                got += np.bincount(owners[-1], minlength=ask.clients)
        part = _pack(np.concatenate(owners), np.concatenate(indices), ask.clients)
        if part.length.min() == 0:
            raise ConfigError("data.clients", ask.clients, "takes fewer: a class has too few examples for its clients")
        return part if ask.per_client is None else _cap(part, ask.per_client, ask.rng)

    return make


def _cap(part: Partition, most: int, rng: np.random.Generator) -> Partition:
    """At most so many examples per client, drawn at random from what it holds."""
    owner = np.repeat(np.arange(part.clients), part.length)
    shuffled = np.lexsort((rng.random(len(owner)), owner))  # within each client
    rank = np.arange(len(owner)) - np.repeat(part.start, part.length)
    keep = rank < most
    return _pack(owner[keep], part.order[shuffled][keep], part.clients)


def _classes(ask: Request) -> Partition:
    by_label = _by_label(ask)
    present, first, count = np.unique(ask.labels[by_label], return_index=True, return_counts=True)
    hands = _deal(len(present), ask.clients, ask.classes_per_client, ask.rng)
    most = ask.per_client or max(ask.classes_per_client, ask.total // ask.clients)
    owners, indices = [], []
    for client, hand in enumerate(hands):
        ends = np.cumsum(count[hand])
        drawn = ask.rng.choice(ends[-1], min(most, ends[-1]), replace=False)
        slot = np.searchsorted(ends, drawn, side="right")  # which of the hand's classes a draw falls in
        indices.append(by_label[first[hand[slot]] + drawn - (ends - count[hand])[slot]])
        owners.append(np.full(len(drawn), client))
    return _pack(np.concatenate(owners), np.concatenate(indices), ask.clients)


def _copies(ask: Request) -> Partition:
    if ask.per_client is None:  # one range that all clients share
        everything = np.arange(ask.total, dtype=np.int32)
        return Partition(everything, np.zeros(ask.clients, np.int64), np.full(ask.clients, ask.total, np.int32))
    rows = [ask.rng.choice(ask.total, ask.per_client, replace=False) for _ in range(ask.clients)]
    return _equal(np.stack(rows))


def _dirichlet(ask: Request) -> Partition:
    _check_enough(ask)
    owners, indices = [], []
    for label in np.unique(ask.labels):
        index = ask.rng.permutation(np.flatnonzero(ask.labels == label))
        indices.append(index)
        owners.append(np.repeat(np.arange(ask.clients), _sizes(ask, len(index))))
    return _fill_empty(_pack(np.concatenate(owners), np.concatenate(indices), ask.clients))


def _quantity(ask: Request) -> Partition:
    _check_enough(ask)
    owner = np.repeat(np.arange(ask.clients), _sizes(ask, ask.total))
    return _fill_empty(_pack(owner, ask.rng.permutation(ask.total), ask.clients))


def _sizes(ask: Request, total: int) -> np.ndarray:
    """Shares of `total` by a draw from Dir(alpha) over the clients, as whole numbers that add up."""
    share = ask.rng.dirichlet(np.full(ask.clients, ask.alpha))
    ends = np.round(np.cumsum(share) * total).astype(np.int64)
    ends[-1] = total
    return np.diff(np.minimum(ends, total), prepend=0)


def _fill_empty(part: Partition) -> Partition:
    """Give each client that got nothing one example of the client that has most."""
    owner = np.repeat(np.arange(part.clients), part.length)
    length = part.length.copy()
    for empty in np.flatnonzero(length == 0):
        donor = int(np.argmax(length))
        length[donor] -= 1
        owner[part.start[donor] + length[donor]] = empty  # the donor's last example
        length[empty] += 1
    return _pack(owner, part.order, part.clients)


PARTITIONS: dict[str, PartitionInfo] = {
    info.name: info
    for info in (
        PartitionInfo(
            "iid",
            "equal random pieces; the data is dealt again when clients ask for more than there is",
            ("per_client",),
            _iid,
        ),
        PartitionInfo(
            "shards",
            "sorted by label, cut into shards, a few shards each: about classes_per_client classes",
            ("per_client", "classes_per_client"),
            _shards,
        ),
        PartitionInfo(
            "groups-disjoint",
            "15 label groups: five pairs of classes and ten single classes",
            ("per_client",),
            _groups("groups-disjoint", GROUPS_DISJOINT),
        ),
        PartitionInfo(
            "groups-overlap",
            "5 label groups of four classes, neighbours share two",
            ("per_client",),
            _groups("groups-overlap", GROUPS_OVERLAP),
        ),
        PartitionInfo(
            "classes",
            "a random draw from a client's own classes_per_client classes",
            ("per_client", "classes_per_client"),
            _classes,
        ),
        PartitionInfo(
            "copies",
            "every client holds the whole training set, or a random part of per_client examples",
            ("per_client",),
            _copies,
        ),
        PartitionInfo("dirichlet", "each class shared out by a draw from Dir(alpha)", ("alpha",), _dirichlet),
        PartitionInfo("quantity", "random labels, sizes shared out by a draw from Dir(alpha)", ("alpha",), _quantity),
    )
}
