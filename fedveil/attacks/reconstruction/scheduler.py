"""The scheduler: many attacks in few slots. Each worker has a queue of attacks and a block of slots.

A worker runs its block for a chunk of evaluations, hands back the attacks that have ended, and fills their slots from its
queue. When the queue and half of the slots are empty, it packs the rest into a block half as wide (down to an eighth of the
first width, because each width is one more program to compile). On a CPU there is one worker per core with a block that
fits into its cache; on other devices one worker with all slots that fit into memory.

None of this changes a result except by rounding: slots are independent, and nothing is keyed by a slot's number. Products
of wide and narrow blocks may round differently. So which attacks share a block, and when it shrinks, does not depend on
timing: the same attacks on the same machine give the same results.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil import compilation
from fedveil.attacks.optim.first_order import FirstOrder
from fedveil.attacks.optim.lbfgs import INNER, LBFGS, PAIRS
from fedveil.attacks.optim.slots import (
    HOPELESS,
    LATE,
    RUNNING,
    SPENT,
    Evaluation,
    Kept,
    Optimizer,
    Slots,
    StopRules,
    advance,
    begin,
    stop_rules,
)
from fedveil.attacks.reconstruction.matching import GradientMatching
from fedveil.attacks.reconstruction.objective import Job, Problem, evaluate
from fedveil.core.system import cores
from fedveil.models.layers import Params
from fedveil.models.net import Net, products

Tree = Any
CHUNK = 40  # evaluations between two checks for ended attacks
CHUNK_SECONDS = 0.5  # that a chunk may take where there is a deadline
CACHE_BYTES = 6e6  # cache of a CPU that the pairs of one worker's block may fill
MEMORY_SHARE = 0.2  # share of another device's memory that blocks may fill
FREE = -1  # the status of a slot without an attack
NARROWEST = 8  # a block shrinks to no less than its first width divided by this
COMPILING = {"cpu": 3e10}  # operations that take as long as the compilation of one more width
COMPILING_ELSEWHERE = 3e13


@dataclass(frozen=True)
class Snapshot:
    """The attacks of a block after a chunk, for a monitor; arrays have a leading axis over them."""

    attack: np.ndarray  # index among all attacks
    z: np.ndarray  # the best point so far
    distance: np.ndarray  # squared gradient distance there
    iteration: np.ndarray
    evaluations: np.ndarray
    seconds: float  # that the chunk took, without compilation
    idle: np.ndarray  # iterations since the objective last fell by 1 %


@dataclass(frozen=True)
class Order:
    """What a monitor answers."""

    length: int  # evaluations in the block's next chunk
    give_up: np.ndarray | None = None  # [attacks of the block] bool: those to end now


Monitor = Callable[[Snapshot], Order | int]  # an int is the length alone


@dataclass(frozen=True)
class Work:
    """All attacks to run; arrays have a leading axis over them."""

    starts: np.ndarray  # [attacks, size]
    jobs: Job
    shared: Params | None  # parameters that all attacks share
    settings: GradientMatching  # of which the scheduler reads the stop rules; the rest is in the programs


@dataclass(frozen=True)
class Running:
    """Settings of the scheduler: slots per worker, workers, and two callbacks.

    Worker threads call `monitor` after every chunk.
    """

    width: int | None = None
    workers: int | None = None
    progress: Callable[[int], None] = field(default=lambda ended: None)
    monitor: Monitor | None = None
    deadline: float | None = None  # the time of `time.monotonic()` at which attacks end as they stand
    limits: tuple[int, ...] = ()  # iterations after which the best point is kept as well


@dataclass(frozen=True)
class Ended:
    """The last state of one attack."""

    z: np.ndarray
    value: float
    distance: float
    status: int
    iterations: int
    evaluations: int
    rescues: int
    trace: np.ndarray
    earlier: tuple[Ended, ...] = ()  # where it stood at each limit, in their order


def optimizer_of(problem: Problem) -> Optimizer:
    """The optimiser that the settings name."""
    chosen = problem.settings
    if chosen.optimizer == "lbfgs":
        return LBFGS(chosen.step_length)
    box = problem.span if chosen.box else None  # of the inputs themselves: `check` refuses it for another form
    return FirstOrder(chosen.optimizer, chosen.step_length, chosen.signed, chosen.decay, box, problem.content)


@dataclass
class Programs:
    """The compiled programs of one problem, by shapes. They are compiled ahead, so that compilation is timed apart."""

    problem: Problem
    seconds: float = 0.0
    _made: dict[tuple[str, Any, tuple[Any, ...]], Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, name: str, function: Callable[..., Any], *args: Any, donate: tuple[int, ...] = ()) -> Any:
        leaves, tree = jax.tree.flatten(args)
        key = (name, tree, tuple((a.shape, a.dtype) for a in leaves))
        with self._lock:
            if key not in self._made:
                started = time.monotonic()
                # Products in full precision: accelerators round factors to about ten bits, too few to match gradients.
                with jax.default_matmul_precision("highest") if jax.default_backend() != "cpu" else nullcontext():
                    lowered = jax.jit(function, donate_argnums=donate).lower(*args)
                    self._made[key] = lowered.compile(compiler_options=compilation.gpu_options())
                self.seconds += time.monotonic() - started
        return self._made[key](*args)

    def chunk(self, slots: Slots, job: Job, shared: Params | None, length: int = CHUNK) -> Slots:
        """Up to `length` evaluations of every running slot."""

        def program(slots: Slots, job: Job, shared: Params | None, length: jax.Array) -> Slots:
            optimizer = optimizer_of(self.problem)

            def at(z: jax.Array) -> Evaluation:
                return Evaluation(*evaluate(self.problem, shared, job, z))

            def body(carry: tuple[jax.Array, Slots]) -> tuple[jax.Array, Slots]:
                return carry[0] + 1, advance(optimizer, at, carry[1])

            def unfinished(carry: tuple[jax.Array, Slots]) -> jax.Array:
                return (carry[0] < length) & (carry[1].status == RUNNING).any()

            return jax.lax.while_loop(unfinished, body, (jnp.zeros((), jnp.int32), slots))[1]

        return self.call("chunk", program, slots, job, shared, np.asarray(length, np.int32), donate=(0,))

    def begin(self, z: np.ndarray, rules: StopRules) -> Slots:
        return self.call("begin", lambda z, rules: begin(optimizer_of(self.problem), z, rules, self._room), z, rules)

    @property
    def _room(self) -> int:
        return self.problem.settings.iterations + 1

    def refill(self, slots: Slots, job: Job, z: np.ndarray, fresh: Job, which: np.ndarray) -> tuple[Slots, Job]:
        """New attacks in the slots `which`; the optimiser's memory is marked as empty, not overwritten."""

        def program(slots: Slots, job: Job, z: jax.Array, fresh: Job, which: jax.Array) -> tuple[Slots, Job]:
            optimizer = optimizer_of(self.problem)

            def choose(new: jax.Array, old: jax.Array) -> jax.Array:
                return jnp.where(which.reshape(-1, *[1] * (old.ndim - 1)), new, old)

            memory = optimizer.forget(slots.memory, which)
            small = replace(slots, memory=())
            start = replace(begin(optimizer, z, slots.rules, self._room), memory=())
            mixed = jax.tree.map(choose, start, small)
            return replace(mixed, memory=memory), jax.tree.map(choose, fresh, job)

        return self.call("refill", program, slots, job, z, fresh, which, donate=(0, 1))

    def pack(self, slots: Slots, job: Job, rows: np.ndarray) -> tuple[Slots, Job]:
        """The slots `rows` alone."""

        return self.call("pack", _take, (slots, job), rows)


@lru_cache(maxsize=16)
def _kept(problem: Problem, device: str, x64: bool) -> Programs:
    return Programs(problem)


def programs_for(problem: Problem, dtype: str) -> Programs:
    """Compiled programs, kept from one study to the next where the model can be hashed."""
    try:
        return _kept(problem, str(jax.devices()[0]), dtype == "float64")
    except TypeError:  # a model that cannot be hashed
        return Programs(problem)


def run(programs: Programs, work: Work, running: Running) -> list[Ended | None]:
    """Runs all attacks until they end; None for those that did not start before the deadline.

    Every block makes at least one evaluation, however late it is.
    """
    attacks = len(work.starts)
    on_cpu = jax.default_backend() == "cpu"
    workers = running.workers or (cores() if on_cpu else 1)
    width = running.width
    if width is None:
        width = auto_width(programs.problem, work.starts.itemsize, work.jobs, on_cpu)
        width = min(width, _share(-(-attacks // workers), on_cpu))
    workers = min(workers, -(-attacks // width))
    halt = threading.Event()
    ended: dict[int, Ended] = {}

    def serve(first: int) -> None:
        # The switch to 64 bits is a setting of the thread.
        with jax.enable_x64(work.starts.dtype == np.float64), jax.default_matmul_precision("highest"):
            worker = _Worker(programs, work, width, deque(range(first, attacks, workers)), running)
            while not halt.is_set() and worker.turn(ended):
                running.progress(len(ended))
                if running.deadline is not None and time.monotonic() >= running.deadline:
                    worker.end(ended)
                    running.progress(len(ended))
                    return

    with ThreadPoolExecutor(workers) as pool:
        try:
            for _ in pool.map(serve, range(workers)):
                pass
        except BaseException:
            halt.set()  # an interrupt must not wait for the other attacks
            raise
    return [ended.get(a) for a in range(attacks)]


class _Worker:
    """A block of slots, and the attack in each; None for a slot that is free."""

    def __init__(self, programs: Programs, work: Work, width: int, queue: deque[int], running: Running):
        self.programs, self.work, self.settings = programs, work, work.settings
        self.queue, self.narrowest, self.longest = queue, max(1, width // NARROWEST), 0
        self.monitor, self.hurried = running.monitor, running.deadline is not None
        self.length = CHUNK if self.monitor is None and not self.hurried else 1
        self.owners = [queue.popleft() if queue else None for _ in range(width)]
        rows = self._rows()
        self.limits = running.limits
        rules = stop_rules(work.settings, width, work.starts.dtype, running.limits)
        self.slots, self.job = programs.begin(work.starts[rows], rules), _take(work.jobs, rows)
        free = jnp.asarray([a is None for a in self.owners])
        self.slots = replace(self.slots, status=jnp.where(free, FREE, self.slots.status))

    def turn(self, ended: dict[int, Ended]) -> bool:
        """Runs one chunk, hands back finished attacks and refills their slots; returns whether anything ran."""
        if all(a is None for a in self.owners):
            return False
        began, compiled = time.monotonic(), self.programs.seconds
        self.slots = self.programs.chunk(self.slots, self.job, self.work.shared, self.length)
        status = np.asarray(self.slots.status)
        taken = max(0.0, time.monotonic() - began - (self.programs.seconds - compiled))
        if self.monitor is not None:
            status = self._obey(self.monitor(self._snapshot(taken)), status)
        elif self.hurried:
            self.length = max(1, min(CHUNK, 2 * self.length, int(self.length * CHUNK_SECONDS / max(taken, 1e-4))))
        done = [slot for slot, a in enumerate(self.owners) if a is not None and status[slot] != RUNNING]
        if done:
            self._hand_back(done, ended)
            self._refill(done)
        self._shrink()
        return True

    def end(self, ended: dict[int, Ended]) -> None:
        """Hands back the attacks that still run, as they stand."""
        late = np.asarray(self.slots.status) == RUNNING
        self.slots = replace(self.slots, status=jnp.where(late, LATE, self.slots.status))
        self._hand_back([slot for slot, a in enumerate(self.owners) if a is not None], ended)

    def _obey(self, order: Order | int, status: np.ndarray) -> np.ndarray:
        """Takes the next chunk's length from the monitor's order, and ends the attacks that it gives up."""
        if isinstance(order, int):
            order = Order(order)
        self.length = max(1, order.length)
        if order.give_up is None or not order.give_up.any():
            return status
        owned = np.array([slot for slot, a in enumerate(self.owners) if a is not None])
        which = np.isin(np.arange(len(self.owners)), owned[order.give_up]) & (status == RUNNING)
        status = np.where(which, HOPELESS, status)
        self.slots = replace(self.slots, status=jnp.asarray(status, self.slots.status.dtype))
        return status

    def _rows(self) -> np.ndarray:
        return np.array([0 if a is None else a for a in self.owners])

    def _snapshot(self, seconds: float) -> Snapshot:
        slots, own = np.array([slot for slot, a in enumerate(self.owners) if a is not None]), self.slots
        shown = jax.device_get(
            (own.best, own.best_distance, own.iteration, own.evaluations, own.iteration - own.marked)
        )
        best, distance, iteration, evaluations, idle = (np.asarray(a)[slots] for a in shown)
        return Snapshot(self._rows()[slots], best, distance, iteration, evaluations, seconds, idle)

    def _hand_back(self, done: list[int], ended: dict[int, Ended]) -> None:
        host: Slots = jax.device_get(replace(self.slots, memory=(), z=self.slots.status))
        for slot in done:
            owner = self.owners[slot]
            assert owner is not None
            ended[owner] = Ended(
                z=np.asarray(host.best[slot]),
                value=float(host.best_value[slot]),
                distance=float(host.best_distance[slot]),
                status=int(host.status[slot]),
                iterations=int(host.iteration[slot]),
                evaluations=int(host.evaluations[slot]),
                rescues=int(host.rescues[slot]),
                trace=np.asarray(host.trace[slot, : self.settings.iterations + 1]),
            )
            if host.kept is not None:
                ended[owner] = replace(ended[owner], earlier=_earlier(ended[owner], host.kept, slot, self.limits))
            self.longest = max(self.longest, ended[owner].iterations)
            self.owners[slot] = None

    def _refill(self, done: list[int]) -> None:
        for slot in done:
            self.owners[slot] = self.queue.popleft() if self.queue else None
        new = [slot for slot in done if self.owners[slot] is not None]
        if new:
            which, rows = np.isin(np.arange(len(self.owners)), new), self._rows()
            fresh = _take(self.work.jobs, rows)
            self.slots, self.job = self.programs.refill(self.slots, self.job, self.work.starts[rows], fresh, which)

    def _shrink(self) -> None:
        """Packs the block into half the slots, or fewer, where that saves more than a compilation costs.

        The remaining work is an estimate: no attack is expected to need more iterations than the longest so far.
        """
        alive = [slot for slot, a in enumerate(self.owners) if a is not None]
        width = narrower = len(self.owners)
        while narrower > self.narrowest and len(alive) <= narrower // 2:
            narrower //= 2
        if not alive or narrower == width:
            return
        left = min(self.longest, self.settings.iterations - int(np.asarray(self.slots.iteration)[alive].min()))
        inner = INNER if self.settings.optimizer == "lbfgs" else 1
        saved = operations(self.programs.problem) * (width - narrower) * left * inner
        if saved < COMPILING.get(jax.default_backend(), COMPILING_ELSEWHERE):
            return
        free = [slot for slot in range(width) if self.owners[slot] is None]
        rows = alive + free[: narrower - len(alive)]
        self.slots, self.job = self.programs.pack(self.slots, self.job, np.array(rows))
        self.owners = [self.owners[slot] for slot in rows]


def _earlier(end: Ended, kept: Kept, slot: int, limits: tuple[int, ...]) -> tuple[Ended, ...]:
    """The attack as it stood at each limit; as it ended, where it ended before."""
    return tuple(
        replace(
            end,
            z=np.asarray(kept.z[slot, i]),
            value=float(kept.value[slot, i]),
            distance=float(kept.distance[slot, i]),
            status=SPENT,
            iterations=int(kept.iteration[slot, i]),
            evaluations=int(kept.evaluations[slot, i]),
            trace=end.trace[: limit + 1],
        )
        if kept.reached[slot, i]
        else replace(end, trace=end.trace[: limit + 1])
        for i, limit in enumerate(limits)
    )


def _take(tree: Tree, rows: Any) -> Any:
    return jax.tree.map(lambda a: a[rows], tree)


def operations(problem: Problem) -> float:
    """The approximate cost of one evaluation of one attack: ten forward passes, and four passes over the pairs."""
    if isinstance(problem.model, Net):
        forward = sum(product.operations for product in products(problem.model)) * problem.examples
    else:
        forward = 100 * problem.content
    pairs = 8 * PAIRS * problem.size if problem.settings.optimizer == "lbfgs" else 0
    return 10.0 * forward * problem.steps + pairs


def auto_width(problem: Problem, itemsize: int, jobs: Job, on_cpu: bool) -> int:
    """The number of slots in a block. On a CPU the optimiser states of all slots fit into its cache.

    On other devices all slots fit into a share of the memory.
    """
    pairs = (2 * PAIRS if problem.settings.optimizer == "lbfgs" else 4) * problem.size * itemsize
    if on_cpu:
        return _power_of_two(int(min(32, max(1, CACHE_BYTES // pairs))))
    job = sum(a.nbytes // max(1, len(a)) for a in jax.tree.leaves(jobs))
    return _power_of_two(int(max(1, _room() // (pairs + 6 * job + 200 * problem.content * itemsize))))


def _room() -> float:
    """Bytes that blocks may take on a device that is no CPU; 8 GB where it does not report its memory."""
    try:
        limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 40e9)
    except Exception:  # a device that does not answer
        limit = 40e9
    return MEMORY_SHARE * float(limit)


def _share(attacks: int, on_cpu: bool) -> int:
    """The slots for `attacks` attacks, a power of two: on a CPU no more than attacks.

    Elsewhere some may stay empty, because attacks that are left for a second turn take as long as the first.
    """
    width = _power_of_two(attacks)
    return width if on_cpu or width == attacks else 2 * width


def _power_of_two(number: int) -> int:
    """The largest power of two that is not above `number`."""
    return 1 << (max(1, number).bit_length() - 1)
