"""The simulator: rounds over many clients on one machine.

Two engines run the same pure functions of `client.py` and `server.py`: `vectorised` (clients in chunks under vmap, local
steps under scan, one compiled program) and `reference` (one client and one step at a time, in plain Python). Their results
agree to rounding; so do different chunk sizes. Cost per round grows with the clients that take part, not with all clients.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil import compiler, kept
from fedveil.core import keys
from fedveil.core.errors import RunError
from fedveil.core.system import cores
from fedveil.core.taps import TAPS
from fedveil.data.dataset import Dataset, Part
from fedveil.data.partition import Partition
from fedveil.models import flops
from fedveil.models.layers import Array, Params
from fedveil.models.net import Model, Net
from fedveil.simulation import client as client_part
from fedveil.simulation import microbatches, sampling, server
from fedveil.simulation.client import RoundContext, Task
from fedveil.simulation.server import Answers, ServerRule, ServerState, Sum

Tree = Any


@dataclass(frozen=True)
class RoundReport:
    """What one round did; the arrays are still on the device."""

    round: int
    chosen: int
    lost: int
    late: int
    summed: Sum

    def row(self) -> dict[str, float | int]:
        """Plain numbers; waits for the device."""
        answered, not_finite = int(self.summed.answered), int(self.summed.not_finite)
        counted = max(1, answered - not_finite)
        return {
            "round": self.round,
            "clients": answered,
            "lost": self.lost,
            "late": self.late,
            "not_finite": not_finite,
            "train_loss": float(self.summed.loss) / counted,
            "update_norm": float(self.summed.norm) / counted,
        }


def _precise(method: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a method with 64-bit numbers on or off as the task says, whatever the rest of the process uses."""

    @wraps(method)
    def inside(self: Simulator, *args: Any, **kwargs: Any) -> Any:
        with jax.enable_x64(self.task.dtype == "float64"):
            return method(self, *args, **kwargs)

    return inside


def _full_products(method: Callable[..., Any]) -> Callable[..., Any]:
    """Matrix products with all bits of their type: graphics cards round float32 to ten bits before, which would look like
    noise of a thousandth on a gradient that is to be attacked."""

    @wraps(method)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return method(*args, **kwargs)

    return inside


class Programs:
    """A function compiled ahead for each set of shapes it meets, so that the time of compiling is known apart."""

    def __init__(self, function: Callable[..., Any], donate: bool, owner: Simulator):
        # Weakly: a simulator in a circle would keep its data until somebody collects garbage.
        self.jitted, self.owner = jax.jit(function, donate_argnums=0 if donate else ()), weakref.proxy(owner)
        self.static = (function, donate)
        self.programs: dict[object, Any] = {}

    def ready(self, *args: Any) -> Any:
        """The program for these arguments, compiled now if it was not yet."""
        shapes = tuple((np.shape(a), a.dtype if hasattr(a, "dtype") else type(a)) for a in jax.tree.leaves(args))
        if shapes not in self.programs:
            started, options = time.monotonic(), compiler.side_by_side() | compiler.wide_vectors()
            self.programs[shapes] = kept.program(self.jitted, args, self.static, options)
            self.owner.compile_seconds += time.monotonic() - started
        return self.programs[shapes]

    def __call__(self, *args: Any) -> Any:
        return self.ready(*args)(*args)


class Simulator:
    """A federation in memory. `start` makes the first state, `round` maps a state to the next.

    The initial model follows `seed`; all that is drawn in rounds comes from `draws`.
    """

    def __init__(
        self,
        task: Task,
        rule: ServerRule,
        dataset: Dataset,
        partition: Partition,
        law: sampling.BatchSampling,
        *,
        seed: int,
        draws: keys.Draws,
        engine: str = "vectorised",
        chunk: int | None = None,
    ):
        self.task, self.rule, self.partition, self.law = task, rule, partition, law
        self.dataset, self.engine = dataset, engine
        self.seed, self.draws, self._root = seed, draws, draws.root()
        self.chunk = min(chunk or auto_chunk(task, dataset), max(1, task.setting.per_round))
        self.weights = sampling.client_weights(task.setting.weights, partition)
        steps = task.setting.local_steps
        self.widths = sampling.batch_widths(law, partition, self.chunk * steps)
        self.cut = self._best_shape()
        # Data lie on the device as stored (pixels as bytes); each batch is scaled when it is gathered.
        self.x, self.y = jnp.asarray(dataset.train.x), jnp.asarray(dataset.train.y)
        self._held_out = _blocks(dataset.held_out)
        self.compile_seconds = 0.0
        self.present: np.ndarray | None = None  # [clients] bool: clients that are not there never answer; None: all are
        self._chunk = self._compiled(partial(chunk_sum, task, rule), donate=True)
        self._advance = self._compiled(partial(server.advance, task, rule), donate=True)
        self._empty = self._compiled(partial(server.empty_sum, rule))
        self._join = self._compiled(server.joined, donate=True)
        self.lanes = cores() if jax.default_backend() == "cpu" else 1
        self._scores = self._compiled(partial(_scores, task))
        self._watching: dict[tuple[frozenset[str], tuple[int, ...]], Callable[..., Any]] = {}
        # The reference loop's three parts; a client's whole round is never one program there.
        self._begin = self._compiled(partial(client_part.begin, task))
        self._step = self._compiled(partial(client_part.step, task))
        self._end = self._compiled(partial(client_part.end, task))

    def _best_shape(self) -> microbatches.Shape | None:
        """How Poisson batches are cut into parts; None where whole ones are as good, or must be seen whole."""
        if self.law.batching != "poisson" or self.engine != "vectorised" or not client_part.in_microbatches(self.task):
            return None
        steps, extra = self.task.setting.local_steps, extra_cost(self.task)
        return microbatches.best_shape(self.law, self.partition, steps, self.chunk, self.widths[0], extra)

    def _compiled(self, function: Callable[..., Any], donate: bool = False) -> Programs:
        return Programs(function, donate, self)

    # --- training

    @_precise
    def start(self, params: Params | None = None) -> ServerState:
        """The state before the first round, from fresh or given parameters."""
        if params is None:
            params = self.task.model.init(keys.device(keys.root(self.seed), "init"))
        params = jax.tree.map(lambda a: jnp.asarray(a, self.task.dtype), params)
        return server.initial_state(self.rule, params, self._blank_memory(params))

    def _blank_memory(self, params: Params) -> Tree:
        """[clients, ...] of what stateful defences remember, and the losses where a selection reads them."""
        clients = self.task.setting.clients
        stateful = {str(place): d for place, d in enumerate(self.task.defenses) if d.stateful}
        memory = {place: d.initial_client_states(params, clients) for place, d in stateful.items()}
        if any(d.reads_losses for d in self.task.defenses):
            memory["loss"] = jnp.full(clients, jnp.nan, self.task.dtype)
        return memory

    @_precise
    def adopt(self, state: ServerState) -> ServerState:
        """A state from a checkpoint, put on the device."""
        return jax.tree.map(jnp.asarray, state)

    @_precise
    def round(self, state: ServerState, number: int) -> tuple[ServerState, RoundReport]:
        """One round. `number` is `state.round` as a plain number, so that nothing waits for the device."""
        cohort = self.cohort(state, number)
        round_key, lr = self.round_key(number), jnp.asarray(self.task.setting.lr_at(number), self.task.dtype)
        collect = self._collect_vectorised if self.engine == "vectorised" else self._collect_reference
        summed, clients = collect(state, cohort, number, round_key, lr)
        # The state is donated to the step, so the report keeps the counters alone.
        counters = replace(summed, total={}, late={})
        report = RoundReport(number, cohort.chosen, cohort.lost, int(cohort.late.sum()), counters)
        return self._advance(replace(state, clients=clients), summed, round_key, lr), report

    def cohort(self, state: ServerState, number: int) -> sampling.Cohort:
        """Who takes part: by a defence's `select` where there is one, else by the sampling law."""
        chooser = next((d for d in self.task.defenses if d.fills("select")), None)
        chosen = None
        if chooser is not None:
            losses = np.asarray(state.clients["loss"]) if chooser.reads_losses else None
            chosen = chooser.select(self.draws.host("cohort", number), number, self.task.setting, losses)
        cohort = sampling.draw_cohort(self.draws, number, self.task.setting, *self.faults, chosen=chosen)
        return cohort if self.present is None else sampling.answering(cohort, self.present)

    @property
    def faults(self) -> tuple[float, float]:
        """The shares of chosen clients that never answer, and that answer one round late."""
        return self.task.setting.dropout, self.task.setting.late

    def round_key(self, number: int) -> Array:
        return keys.round_key(self._root, number)

    def _collect_vectorised(
        self, state: ServerState, cohort: sampling.Cohort, number: int, round_key: Array, lr: Array
    ) -> tuple[Sum, Tree]:
        summed, clients = self._empty(state.params), state.clients
        parts = list(_chunks(cohort, self.chunk))
        inputs = (self._inputs(state, part, number, round_key, lr) for part in parts)
        if self.lanes > 1 and len(parts) > 1 and not clients:
            return self._side_by_side(summed, state.params, inputs), clients
        for args in inputs:
            summed, clients = self._chunk((summed, clients), *args)
        return summed, clients

    def _inputs(
        self, state: ServerState, part: sampling.Cohort, number: int, round_key: Array, lr: Array
    ) -> tuple[Any, ...]:
        """What a chunk's program gets besides the sum so far."""
        missing = self.chunk - len(part.clients)
        weight = self.weights[part.clients].astype(self.task.dtype)
        rest = (part.clients, part.occurrence, weight, part.late)
        padded = [_padded(a, missing) for a in (*self._batches(part, number), *rest)]
        batches = tuple(padded[: -len(rest)])
        return (state.params, self.x, self.y, batches, *padded[-len(rest) :], round_key, np.int32(number), lr)

    def _batches(self, part: sampling.Cohort, number: int) -> tuple[np.ndarray, ...]:
        """The clients' batches in parts where that pays and they fit, else whole."""
        if self.cut is not None:
            cut = microbatches.draw_microbatches(self.law, self.partition, self.draws, number, part, self.cut)
            if cut is not None:
                return cut.index, cut.mask, cut.step, cut.last, cut.steps
        whole = sampling.draw_batches(self.law, self.partition, self.draws, number, part, self.widths)
        return whole.index, whole.mask, whole.steps

    def _side_by_side(self, summed: Sum, params: Params, inputs: Iterator[tuple[Any, ...]]) -> Sum:
        """The chunks' sums, several chunks at a time on a CPU's cores, added in the order of the chunks.

        Most operations of a small network use one core; programs next to each other use all. Each chunk has a sum of its
        own, so that the result does not depend on who is done first.
        """
        waiting: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(self.lanes) as pool:
            for args in inputs:
                args = ((self._empty(params), {}), *args)
                waiting.append(pool.submit(self._in_lane, self._chunk.ready(*args), args))
                if len(waiting) > self.lanes:
                    summed = self._join(summed, waiting.popleft().result())
            while waiting:
                summed = self._join(summed, waiting.popleft().result())
        return summed

    @_precise
    def _in_lane(self, program: Any, args: tuple[Any, ...]) -> Sum:
        """One chunk's sum, finished."""
        found, _ = jax.block_until_ready(program(*args))  # type: ignore[no-untyped-call]
        return found

    def _collect_reference(
        self, state: ServerState, cohort: sampling.Cohort, number: int, round_key: Array, lr: Array
    ) -> tuple[Sum, Tree]:
        summed, clients = self._empty(state.params), state.clients
        for place, c in enumerate(cohort.clients):
            one = _part(cohort, slice(place, place + 1))
            known = jax.tree.map(lambda a, c=int(c): a[c], _without_loss(clients))
            message, loss, memory = self.reference_client(
                state.params, int(c), int(one.occurrence[0]), number, round_key, lr, known
            )
            answers = Answers(
                message=jax.tree.map(lambda a: a[None], message),
                weight=jnp.asarray(self.weights[one.clients], self.task.dtype),
                late=jnp.asarray(one.late),
                loss=jnp.asarray([loss], self.task.dtype),
            )
            memory = jax.tree.map(lambda a: a[None], memory)
            clients = server.remember(clients, jnp.asarray(one.clients), answers, memory)
            summed = server.collect(self.rule, summed, answers)
        return summed, clients

    def reference_client(
        self, params: Params, c: int, occurrence: int, number: int, round_key: Array, lr: Array, memory: Tree
    ) -> tuple[Tree, float, Tree]:
        """One client's round, one step after another, each batch exactly as large as it is."""
        now = RoundContext(keys.client_key(round_key, c, occurrence), keys.shared_key(round_key), number, lr)
        rows = self.partition.client(c)
        received = self._begin(params, now)
        local = client_part.start(self.task, received, memory)
        drawn = sampling.client_batches(self.law, self.draws, number, c, occurrence, len(rows))
        for place, positions in enumerate(drawn):
            # An empty Poisson batch is a step too: one padded row, masked out.
            index = rows[positions] if len(positions) else rows[:1]
            mask = np.full(len(index), len(positions) > 0)
            local = self._step(local, self.x[index], self.y[index], mask, place, now)
        message, memory = self._end(params, received, local, now)
        return message, float(local.loss) / max(1, len(drawn)), memory

    # --- observing

    def observe(
        self, state: ServerState, number: int, c: int, taps: frozenset[str], steps: tuple[int, ...] = (0,)
    ) -> dict[str, Tree]:
        """What the named taps show of client `c` in round `number`, started from `state`.

        Nothing is recorded while training: draws are keyed by (round, client, step), so that a client's round can be
        computed again, with the taps open, from the state it started from. Returned per tap: `example` and `batch` a
        dict by step, `client`, `server` and `broadcast` one tree, `release` the model, all as numpy arrays.
        """
        found = self.observe_many(state, number, [c], taps, steps)
        released = {"release": found.pop("release")} if "release" in taps else {}
        return {**jax.tree.map(lambda a: a[0], found), **released}

    @_precise
    @_full_products
    def observe_many(
        self,
        state: ServerState,
        number: int,
        clients: Sequence[int],
        taps: frozenset[str],
        steps: tuple[int, ...] = (0,),
    ) -> dict[str, Tree]:
        """`observe` of several clients at once, a leading axis over them; `release` is the one model.

        At `example` the axis over examples is as long as the largest of these clients' batches at that step; places of
        a smaller batch that nobody fills hold a gradient of zero, or of noise alone.
        """
        self._check_watch(taps, clients)
        lr = jnp.asarray(self.task.setting.lr_at(number), self.task.dtype)
        round_key = self.round_key(number)
        found: dict[str, Tree] = {}
        inside = taps - {"release"}
        if inside:
            batches = self._whole_batches(number, clients, None if inside & {"client", "server"} else max(steps) + 1)
            ids = np.resize(np.asarray(clients, np.int32), len(batches.steps))
            # One program for what clients and servers see: types 0 and 1 are mostly asked for one after the other.
            wide = inside | {"client", "server"} if inside & {"client", "server"} else inside
            watch = self._watch(wide, steps)
            known = jax.tree.map(lambda a: a[ids], _without_loss(state.clients))
            plan_ = (batches.index, batches.mask, batches.steps, ids)
            found = watch(state.params, self.x, self.y, *plan_, known, round_key, np.int32(number), lr)
            found = jax.device_get({tap: found[tap] for tap in inside})
            found = jax.tree.map(lambda a: a[: len(clients)], found)
            for step, each in found.get("example", {}).items():
                filled = max(1, int(batches.mask[:, step].sum(axis=1).max()))
                found["example"][step] = jax.tree.map(lambda a, n=filled: a[:, :n], each)
        if "release" in taps:
            found = {**found, "release": state.params}
        return jax.device_get(found)

    def _check_watch(self, taps: frozenset[str], clients: Sequence[int]) -> None:
        unknown = taps - set(TAPS)
        if unknown:
            raise RunError(f"no tap is called {sorted(unknown)[0]!r}; there are {', '.join(TAPS)}")
        if "server" in taps and self.task.setting.secure_aggregation:
            raise RunError("the server tap shows sums only: train.secure_aggregation hides what single clients send")
        for c in clients:
            if not 0 <= c < self.partition.clients:
                raise RunError(f"there is no client {c}; clients count from 0 to {self.partition.clients - 1}")

    def _whole_batches(self, number: int, clients: Sequence[int], first: int | None) -> sampling.Batches:
        """The first batches of some clients (None: all), as wide as the widest of these and at least one example wide.

        Poisson batches, and their clients, are filled up to few shapes, so that groups of them share a program.
        """
        ids = np.asarray(clients, np.int64)
        alone = sampling.Cohort(ids, np.zeros(len(ids), np.int64), np.zeros(len(ids), bool), len(ids), 0)
        batches = sampling.draw_batches(self.law, self.partition, self.draws, number, alone, ())
        steps = int(batches.steps.max()) if first is None else first
        width = max(1, int(batches.mask[:, :steps].sum(axis=2).max()))
        cut = replace(batches, index=batches.index[:, :steps, :width], mask=batches.mask[:, :steps, :width])
        if self.law.batching != "poisson":
            return cut
        wider = self.widths[0] if width <= self.widths[0] <= 8 else 1 << (width - 1).bit_length()
        least = 32 if parameter_count(self.task) < 100_000 else 8
        more = ((0, max(least, 1 << (len(ids) - 1).bit_length()) - len(ids)), (0, 0), (0, wider - width))
        return sampling.Batches(
            np.pad(cut.index, more), np.pad(cut.mask, more), np.pad(cut.steps, more[:1], mode="edge")
        )

    def _watch(self, taps: frozenset[str], steps: tuple[int, ...]) -> Callable[..., Any]:
        """The compiled round of several clients with these taps open."""
        wanted = (taps, steps)
        if wanted not in self._watching:
            exact = replace(self.task, half=False)
            self._watching[wanted] = self._compiled(partial(_watched, exact, taps, steps))
        return self._watching[wanted]

    # --- evaluation

    @_precise
    def evaluate(self, params: Params) -> tuple[float, float]:
        """Accuracy and mean loss on the held-out part."""
        return self._evaluate(params, self._held_out, len(self.dataset.held_out))

    @_precise
    def evaluate_on(self, params: Params, part: Part) -> tuple[float, float]:
        """The same on other examples."""
        return self._evaluate(params, _blocks(part), len(part))

    def _evaluate(self, params: Params, blocks: list[tuple[Array, Array, Array]], count: int) -> tuple[float, float]:
        right, loss = 0.0, 0.0
        scores = [self._scores(params, x, y, mask) for x, y, mask in blocks]
        for hits, losses in scores:
            right, loss = right + float(hits), loss + float(losses)
        return right / count, loss / count

    def block(self, state: ServerState) -> None:
        """Waits until a state is computed."""
        for leaf in jax.tree.leaves(state.params):
            leaf.block_until_ready()


WHOLE: dict[int, Callable[..., tuple[Tree, Array, Tree]]] = {3: client_part.whole, 5: client_part.whole_in_microbatches}


def chunk_sum(
    task: Task,
    rule: ServerRule,
    so_far: tuple[Sum, Tree],
    params: Params,
    x: Array,
    y: Array,
    batches: tuple[Array, ...],
    ids: Array,
    occurrence: Array,
    weight: Array,
    late: Array,
    round_key: Array,
    number: Array,
    lr: Array,
) -> tuple[Sum, Tree]:
    """Rounds of a chunk of clients, added to the sum; and what is now remembered of each client.

    `batches`: what `client.whole` takes of them (three arrays), or `client.whole_in_parts` (five).
    """
    summed, clients = so_far
    whole = WHOLE[len(batches)]

    def one(own: tuple[Array, ...], c: Array, again: Array, memory: Tree) -> tuple[Tree, Array, Tree]:
        now = RoundContext(keys.client_key(round_key, c, again), keys.shared_key(round_key), number, lr)
        return whole(task, params, x, y, *own, memory, now)

    known = jax.tree.map(lambda a: a[ids], _without_loss(clients))
    message, loss, memory = jax.vmap(one)(batches, ids, occurrence, known)
    answers = Answers(message, weight, late, loss)
    return server.collect(rule, summed, answers), server.remember(clients, ids, answers, memory)


def _watched(
    task: Task,
    taps: frozenset[str],
    steps: tuple[int, ...],
    params: Params,
    x: Array,
    y: Array,
    index: Array,
    mask: Array,
    count: Array,
    ids: Array,
    memory: Tree,
    round_key: Array,
    number: Array,
    lr: Array,
) -> dict[str, Tree]:
    """`client.watched` of several clients at once."""

    def one(index: Array, mask: Array, count: Array, c: Array, memory: Tree) -> dict[str, Tree]:
        now = RoundContext(keys.client_key(round_key, c, 0), keys.shared_key(round_key), number, lr)
        return client_part.watched(task, taps, steps, params, x, y, index, mask, count, memory, now)

    return jax.vmap(one)(index, mask, count, ids, memory)


def _without_loss(clients: Tree) -> Tree:
    """The memory that belongs to defences; losses are the server's."""
    return {place: memory for place, memory in clients.items() if place != "loss"}


FITS = ((300_000, 10), (2_000_000, 5), (math.inf, 1))  # values of a client, and clients at once on a CPU


def auto_chunk(task: Task, dataset: Dataset) -> int:
    """Clients at once: what fits a CPU core's cache; a GPU takes as many as a part of its memory holds, and not above 250.

    On the CNN an H200 needs 2.65, 2.38, 2.23, 2.21, 2.27, 2.41 µs per client and step with 64, 100, 200, 334, 500, 1000.
    Two CPU cores need 862, 958, 945 µs with 5, 8, 10 for the CNN, 687, 867, 775 for LeNet, 35, 29, 31 for the MLP. With one
    local step on one example of `digits` 64 clients at once take a third of the time of 10. Batches of 32 take the CNN 118,
    131, 170 µs an example with 1, 2, 5; ResNet-20 takes 5.2, 6.6, 7.0 ms. LeNet takes a tenth longer with 2 than with 5.
    """
    # Per client: parameters, gradients, optimiser and the batch's activations (some 150 values per input value).
    values = 8 * parameter_count(task) + 150 * task.setting.batch * math.prod(dataset.shape)
    if jax.default_backend() == "cpu":
        fits = next(clients for most, clients in FITS if values <= most)
        # A chunk that is done in a moment costs more to start than to compute.
        return max(fits, min(64, 2_000_000 // (values * task.setting.local_steps)))
    return int(max(1, min(250, 8e9 // (4 * values))))


def parameter_count(task: Task) -> int:
    """Numbers that a model has."""
    try:
        return _counted(task.model)  # type: ignore[arg-type]
    except TypeError:  # a model that cannot be hashed
        return _counted.__wrapped__(task.model)


@lru_cache(maxsize=16)
def _counted(model: Model) -> int:
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return sum(math.prod(a.shape) for a in jax.tree.leaves(shapes))


def extra_cost(task: Task) -> float:
    """What noise and update of a step cost, in examples: little for convolutions, which use a weight many times.

    On two CPU cores a Poisson round takes 1.4 times as long as one of fixed batches on the CNN with 0.5 (parts of two), 1.8
    with 2, 3.4 in whole batches; LeNet 1.8, 1.8, 3.6; the MLP 1.4 with 8 and more, 2 with 1. From an H200's times at two
    widths follow 2.5, 1.5 and 12.
    """
    least = 0.5 if jax.default_backend() == "cpu" else 2.0
    if not isinstance(task.model, Net):
        return 2.0
    products = flops.products(task.model)
    used = sum(p.weights * p.positions for p in products)
    return least + 10.0 * sum(p.weights for p in products) / max(1, used)


def _padded(a: np.ndarray, missing: int) -> np.ndarray:
    return np.pad(a, [(0, missing)] + [(0, 0)] * (a.ndim - 1))


def _chunks(cohort: sampling.Cohort, width: int) -> Iterator[sampling.Cohort]:
    for start in range(0, len(cohort.clients), width):
        yield _part(cohort, slice(start, start + width))


def _part(cohort: sampling.Cohort, where: slice) -> sampling.Cohort:
    return replace(cohort, clients=cohort.clients[where], occurrence=cohort.occurrence[where], late=cohort.late[where])


def _blocks(part: Part, size: int = 2000) -> list[tuple[Array, Array, Array]]:
    """Examples in equal blocks, the last one padded."""
    x, y = part.x, part.y
    size = min(size, len(y))
    missing = -len(y) % size
    mask = np.pad(np.ones(len(y), bool), (0, missing))
    x = np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1))
    y = np.pad(y, (0, missing))
    cuts = range(0, len(y), size)
    return [(jnp.asarray(x[i : i + size]), jnp.asarray(y[i : i + size]), jnp.asarray(mask[i : i + size])) for i in cuts]


def _scores(task: Task, params: Params, x: Array, y: Array, mask: Array) -> tuple[Array, Array]:
    """Right answers and summed loss over one block."""
    logits = task.model.apply(params, x.astype(task.dtype) * jnp.asarray(task.scale, task.dtype))
    right = jnp.where(mask, logits.argmax(axis=1) == y, False).sum()
    return right, jnp.where(mask, client_part.cross_entropy(logits, y), 0.0).sum()
