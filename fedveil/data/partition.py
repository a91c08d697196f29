"""Partitions: ways to distribute a training set over clients.

A partition is one flat index table and the range of each client in it, so that clients may differ in size and may share
examples. Every draw comes from a generator keyed by (seed, partition), so that one config always makes the same clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedveil.core.errors import ConfigError, unknown_name
from fedveil.core.keys import generator
from fedveil.core.system import check_memory

ENTRY = 40  # bytes that one example of one client takes while a partition is made
_LABEL_SETS = 0x736574  # the purpose of draws for label sets; partitions use their index in the table

GROUPS_DISJOINT = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9)) + tuple((label,) for label in range(10))
GROUPS_OVERLAP = ((0, 1, 2, 3), (2, 3, 4, 5), (4, 5, 6, 7), (6, 7, 8, 9), (8, 9, 0, 1))
GROUPS_MIXED = GROUPS_DISJOINT + GROUPS_OVERLAP


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

    def set_aside(self, share: float) -> tuple[Partition, Partition]:
        """Splits every client's examples in two: `share` of them, evenly spaced, and the rest.

        Both parts have at least one example of each client, so every client needs two or more.
        """
        length = self.length.astype(np.int64)
        owner = np.repeat(np.arange(self.clients), length)
        rank = np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
        size, count = length[owner], np.clip(np.round(share * length), 1, length - 1).astype(np.int64)[owner]
        aside = (rank + 1) * count // size > rank * count // size
        rows = self.order[self.start[owner] + rank]
        return _pack(owner[aside], rows[aside], self.clients), _pack(owner[~aside], rows[~aside], self.clients)

    def copies(self) -> int:
        """The largest number of clients that hold the same example. An account per distinct image counts them all."""
        # Ranges may overlap (`copies` shares one range), so first count the clients that read each entry of the table.
        edges = np.zeros(len(self.order) + 1, np.int64)
        np.add.at(edges, self.start, 1)
        np.add.at(edges, self.start + self.length, -1)
        readers = np.cumsum(edges[:-1])
        return int(np.bincount(self.order, weights=readers).max())


@dataclass(frozen=True)
class PartitionSettings:
    """The keys of `[data]` that partitions read, and the seed. A partition ignores keys that it does not read."""

    clients: int
    per_client: int | None = None
    classes_per_client: int = 2
    groups_per_client: int = 1
    alpha: float = 0.5
    label_sets: Sequence[Sequence[int]] | None = None  # the first clients hold only these classes
    classes: int | None = None  # None: the largest label and one
    seed: int = 0
    owners: np.ndarray | None = None  # the client of each example, for `own`


@dataclass(frozen=True)
class Request:
    """What a partition is made from."""

    labels: np.ndarray  # [N]
    classes: int
    settings: PartitionSettings
    rng: np.random.Generator

    @property
    def total(self) -> int:
        return len(self.labels)

    @property
    def clients(self) -> int:
        return self.settings.clients

    @property
    def per_client(self) -> int | None:
        return self.settings.per_client


@dataclass(frozen=True)
class PartitionInfo:
    """One way to distribute data; `keys` are the keys of [data] that it reads beside `clients`."""

    name: str
    summary: str
    keys: tuple[str, ...]
    make: Callable[[Request], Partition]


def make_partition(name: str, labels: np.ndarray, settings: PartitionSettings) -> Partition:
    """Distributes the examples with these labels over the clients.

    With `label_sets`, the first clients hold only examples of those classes, and no other client holds these examples.
    """
    if name not in PARTITIONS:
        raise unknown_name("data.partition", name, PARTITIONS)
    labels = np.asarray(labels)
    classes = int(labels.max()) + 1 if settings.classes is None else settings.classes
    if settings.label_sets:
        width = settings.per_client or max(1, len(labels) // settings.clients)
        first, rest = _with_label_sets(labels, settings, width, classes)
        others = replace(settings, clients=settings.clients - len(first), classes=classes, label_sets=None)
        return _in_front(first, rest, make_partition(name, labels[rest], others))
    rng = _generator(settings.seed, list(PARTITIONS).index(name))
    request = Request(labels, classes, settings, rng)
    _check(request, PARTITIONS[name].keys)
    return PARTITIONS[name].make(request)


def _with_label_sets(
    labels: np.ndarray, settings: PartitionSettings, width: int, classes: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """`width` different examples for each set of classes, and all examples that are left."""
    sets, rng = settings.label_sets or (), _generator(settings.seed, _LABEL_SETS)
    if len(sets) >= settings.clients:
        takes = f"takes fewer sets than data.clients = {settings.clients}: the others follow the partition"
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
    """The clients with label sets, followed by the clients of a partition of the rest."""
    order = np.concatenate([*first, rest[others.order]]).astype(np.int32)
    lengths = np.array([len(rows) for rows in first], np.int64)
    start = np.concatenate([np.cumsum(lengths) - lengths, others.start + lengths.sum()])
    return Partition(order, start.astype(np.int64), np.concatenate([lengths, others.length]).astype(np.int32))


def _generator(seed: int, purpose: int) -> np.random.Generator:
    """A separate generator for each purpose, so that no draw depends on other draws."""
    if seed < 0:
        raise ConfigError("train.seed", seed, "takes a whole number from 0")
    return generator(seed, 0x70617274, purpose)


def _check(request: Request, keys: tuple[str, ...]) -> None:
    """Refuses settings that no partition can follow, by the key that is wrong."""
    if request.clients < 1:
        raise ConfigError("data.clients", request.clients, "takes a whole number from 1")
    size, total = request.per_client, request.total
    if "per_client" in keys:
        need = ENTRY * request.clients * (size or 1)
        check_memory("data.clients", request.clients, need, "lower data.clients or data.per_client")
    if size is not None and "per_client" in keys and not 1 <= size <= total:
        raise ConfigError("data.per_client", size, f"takes 1 to {total}, the size of the training set")
    if "classes_per_client" in keys:
        wanted, present = request.settings.classes_per_client, len(np.unique(request.labels))
        if not 1 <= wanted <= present:
            takes = f"takes 1 to {present}, the number of classes in the training set"
            raise ConfigError("data.classes_per_client", wanted, takes)
        if size is not None and size < wanted:
            takes = f"takes at least {wanted}, one example for each of classes_per_client"
            raise ConfigError("data.per_client", size, takes)
    if "alpha" in keys and not (request.settings.alpha > 0 and np.isfinite(request.settings.alpha)):
        raise ConfigError("data.alpha", request.settings.alpha, "takes a number above 0")


def _check_enough(request: Request) -> None:
    """For partitions that never give an example to two clients."""
    if request.clients > request.total:
        takes = f"takes at most {request.total}, the number of examples: this partition gives none of them twice"
        raise ConfigError("data.clients", request.clients, takes)


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
    """Shuffled items, dealt as [hands, width]: each item once before any is dealt again, none twice in one hand."""
    rounds = -(-hands * width // items)
    flat = np.concatenate([rng.permutation(items) for _ in range(rounds)])
    # Only a hand that spans two rounds can hold an item twice. Swap the second copy with another item of its round, which
    # leaves that round complete. Since width <= items, there is always an item that the hand does not hold.
    for edge in range(items, rounds * items, items):
        first = edge // width * width
        last = min(first + width, len(flat))
        for at in range(edge, last if first < edge else edge):
            if flat[at] in flat[first:edge]:
                others = np.arange(last, edge + items)
                free = others[~np.isin(flat[others], flat[first:last])]
                # `others` starts after this hand, so that its items from the new round stay where they are.
                flat[[at, free[0]]] = flat[[free[0], at]]
    return flat[: hands * width].reshape(hands, width)


def _by_label(request: Request) -> np.ndarray:
    """All indices sorted by label, shuffled within a label."""
    shuffled = request.rng.permutation(request.total)
    return shuffled[np.argsort(request.labels[shuffled], kind="stable")]


def _iid(request: Request) -> Partition:
    width = request.per_client or max(1, request.total // request.clients)
    pieces = request.total // width  # clients per permutation; no client spans two, so none holds an example twice
    rounds = -(-request.clients // pieces)
    table = [request.rng.permutation(request.total)[: pieces * width].reshape(pieces, width) for _ in range(rounds)]
    return _equal(np.concatenate(table)[: request.clients])


def _shards(request: Request) -> Partition:
    per_client = request.per_client or max(request.settings.classes_per_client, request.total // request.clients)
    width = per_client // request.settings.classes_per_client
    count = request.total // width
    shards = _by_label(request)[: count * width].reshape(count, width)
    dealt = _deal(count, request.clients, request.settings.classes_per_client, request.rng)
    return _equal(shards[dealt].reshape(request.clients, -1))


def _groups(name: str, groups: tuple[tuple[int, ...], ...]) -> Callable[[Request], Partition]:
    """Client k has the classes of the next `groups_per_client` groups, g·k, g·k + 1, ... mod len(groups).

    A class is divided evenly among the clients that have it.
    """

    def make(request: Request) -> Partition:
        if request.classes != 10:
            raise ConfigError("data.partition", name, f"takes a dataset of 10 classes; this one has {request.classes}")
        _check_enough(request)
        owners, indices = [], []
        got = np.zeros(request.clients, np.int64)
        each = request.settings.groups_per_client
        if each > len(groups):
            raise ConfigError("data.groups_per_client", each, f"takes 1 to {len(groups)}, the groups of '{name}'")
        groups_of = np.arange(request.clients * each).reshape(request.clients, each) % len(groups)
        for label in range(10):
            having = np.array([label in group for group in groups])
            holders = np.flatnonzero(having[groups_of].any(axis=1))
            index = request.rng.permutation(np.flatnonzero(request.labels == label))
            if len(index) < len(holders):  # too few for all: the clients with the fewest examples get one
                holders = np.sort(holders[np.argsort(got[holders], kind="stable")[: len(index)]])
            if len(holders):
                indices.append(index)
                owners.append(holders[np.arange(len(index)) * len(holders) // len(index)])
                got += np.bincount(owners[-1], minlength=request.clients)
        part = _pack(np.concatenate(owners), np.concatenate(indices), request.clients)
        if part.length.min() == 0:
            takes = "takes fewer: a class has too few examples for its clients"
            raise ConfigError("data.clients", request.clients, takes)
        return part if request.per_client is None else _cap(part, request.per_client, request.rng)

    return make


def _cap(part: Partition, most: int, rng: np.random.Generator) -> Partition:
    """At most `most` examples per client, drawn at random from its examples."""
    owner = np.repeat(np.arange(part.clients), part.length)
    shuffled = np.lexsort((rng.random(len(owner)), owner))  # within each client
    rank = np.arange(len(owner)) - np.repeat(part.start, part.length)
    keep = rank < most
    return _pack(owner[keep], part.order[shuffled][keep], part.clients)


def _classes(request: Request) -> Partition:
    by_label = _by_label(request)
    present, first, count = np.unique(request.labels[by_label], return_index=True, return_counts=True)
    hands = _deal(len(present), request.clients, request.settings.classes_per_client, request.rng)
    most = request.per_client or max(request.settings.classes_per_client, request.total // request.clients)
    owners, indices = [], []
    for client, hand in enumerate(hands):
        ends = np.cumsum(count[hand])
        drawn = request.rng.choice(ends[-1], min(most, ends[-1]), replace=False)
        slot = np.searchsorted(ends, drawn, side="right")  # the class of the hand that a draw falls into
        indices.append(by_label[first[hand[slot]] + drawn - (ends - count[hand])[slot]])
        owners.append(np.full(len(drawn), client))
    return _pack(np.concatenate(owners), np.concatenate(indices), request.clients)


def _copies(request: Request) -> Partition:
    if request.per_client is None:  # one range that all clients share
        everything, clients = np.arange(request.total, dtype=np.int32), request.clients
        return Partition(everything, np.zeros(clients, np.int64), np.full(clients, request.total, np.int32))
    rows = [request.rng.choice(request.total, request.per_client, replace=False) for _ in range(request.clients)]
    return _equal(np.stack(rows))


def _dirichlet(request: Request) -> Partition:
    _check_enough(request)
    owners, indices = [], []
    for label in np.unique(request.labels):
        index = request.rng.permutation(np.flatnonzero(request.labels == label))
        indices.append(index)
        owners.append(np.repeat(np.arange(request.clients), _sizes(request, len(index))))
    return _fill_empty(_pack(np.concatenate(owners), np.concatenate(indices), request.clients))


def _quantity(request: Request) -> Partition:
    _check_enough(request)
    owner = np.repeat(np.arange(request.clients), _sizes(request, request.total))
    return _fill_empty(_pack(owner, request.rng.permutation(request.total), request.clients))


def _own(request: Request) -> Partition:
    """Every client holds what is its own."""
    owners = request.settings.owners
    if owners is None:
        takes = "needs the client of each example: an array 'client' in the file, or a folder with one file per client"
        raise ConfigError("data.partition", "own", takes)
    if int(owners.max()) + 1 != request.clients:
        takes = f"the data has {int(owners.max()) + 1} clients: leave it out"
        raise ConfigError("data.clients", request.clients, takes)
    return _pack(owners, np.arange(request.total), request.clients)


def _sizes(request: Request, total: int) -> np.ndarray:
    """Whole numbers that sum to `total`, in proportion to a draw from Dir(alpha) over the clients."""
    share = request.rng.dirichlet(np.full(request.clients, request.settings.alpha))
    ends = np.round(np.cumsum(share) * total).astype(np.int64)
    ends[-1] = total
    return np.diff(np.minimum(ends, total), prepend=0)


def _fill_empty(part: Partition) -> Partition:
    """Gives each empty client one example of the largest client."""
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
            ("per_client", "groups_per_client"),
            _groups("groups-disjoint", GROUPS_DISJOINT),
        ),
        PartitionInfo(
            "groups-overlap",
            "5 label groups of four classes, neighbours share two",
            ("per_client", "groups_per_client"),
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
        PartitionInfo(  # at the end: the rank in this table is part of a partition's random key
            "groups-mixed",
            "all 20 label groups: the 15 disjoint and the 5 overlapping ones",
            ("per_client", "groups_per_client"),
            _groups("groups-mixed", GROUPS_MIXED),
        ),
        PartitionInfo("own", "as your file says: each client holds its own examples", (), _own),
    )
}
