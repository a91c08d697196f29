"""Many attacks through few lanes: workers that each own a queue and a block of lanes, and blocks that shrink at the end.

A worker plays its block for a while, hands back the attacks that have ended, and fills their lanes from its queue. When the
queue is empty and half of its lanes are, it packs the rest into a block half as wide (down to an eighth of the first width:
each width is one more program to compile). On a CPU there is one worker per core with a block that its cache can hold; on
other devices one worker with all lanes that the memory holds. None of this enters an attack's result but by rounding: lanes
do not see each other, and nothing is keyed by a lane's number. Products of wide and narrow blocks may round differently, so
who shares a block with whom, and when it shrinks, does not depend on how long anything takes: the same attacks on the same
machine end the same.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil import compiler, kept
from fedveil.attacks.catalog import Settings
from fedveil.attacks.optim.first_order import FirstOrder
from fedveil.attacks.optim.lbfgs import INNER, LBFGS, PAIRS
from fedveil.attacks.optim.slots import RUNNING, Optimizer, Seen, Slots, StopRules, begin, play, stop_rules
from fedveil.attacks.reconstruction.objective import Job, Problem, evaluate
from fedveil.core.system import cores
from fedveil.models import flops
from fedveil.models.layers import Params
from fedveil.models.net import Net

Tree = Any
CHUNK = 40  # evaluations between two looks at which attacks have ended
CACHE_BYTES = 6e6  # what a block's pairs may take of a CPU's cache, each worker
MEMORY_SHARE = 0.2  # what blocks may take of another device's memory
FREE = -1  # the status of a lane without an attack
NARROWEST = 8  # a block shrinks to no less than this part of its first width
COMPILING = {"cpu": 3e10}  # operations that take as long as compiling one more width
COMPILING_ELSEWHERE = 3e13


@dataclass(frozen=True)
class Sight:
    """Where the attacks of a block stand after a spell, for whoever watches: arrays with a leading axis over them."""

    attack: np.ndarray  # place among all attacks
    z: np.ndarray  # the best point so far
    distance: np.ndarray  # squared gradient distance there
    iteration: np.ndarray
    evaluations: np.ndarray
    seconds: float  # what the spell took, compiling apart


Watch = Callable[[Sight], int]  # returns how many evaluations the block's next spell makes


@dataclass(frozen=True)
class Ended:
    """One attack's last state, as numpy arrays without the leading axis."""

    z: np.ndarray
    value: float
    distance: float
    status: int
    iterations: int
    evaluations: int
    rescues: int
    trace: np.ndarray


def optimizer_of(problem: Problem) -> Optimizer:
    """The optimiser that the settings name."""
    chosen = problem.settings
    if chosen.optimizer == "lbfgs":
        return LBFGS(chosen.lr)
    box = problem.span if chosen.box else None
    return FirstOrder(chosen.optimizer, chosen.lr, chosen.signed, chosen.decay, box, problem.content)


@dataclass
class Programs:
    """The compiled parts for one problem, by shapes; compiled ahead, so that the time of it is known apart."""

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
                with _exactly():
                    jitted, static = jax.jit(function, donate_argnums=donate), (Programs, name, self.problem, donate)
                    self._made[key] = kept.program(jitted, args, static, compiler.side_by_side())
                self.seconds += time.monotonic() - started
        return self._made[key](*args)

    def spell(self, slots: Slots, job: Job, shared: Params | None, length: int = CHUNK) -> Slots:
        """Up to `length` evaluations of every running lane."""

        def program(slots: Slots, job: Job, shared: Params | None, length: jax.Array) -> Slots:
            optimizer = optimizer_of(self.problem)

            def look(z: jax.Array) -> Seen:
                return Seen(*evaluate(self.problem, shared, job, z))

            def body(carry: tuple[jax.Array, Slots]) -> tuple[jax.Array, Slots]:
                return carry[0] + 1, play(optimizer, look, carry[1])

            def goes_on(carry: tuple[jax.Array, Slots]) -> jax.Array:
                return (carry[0] < length) & (carry[1].status == RUNNING).any()

            return jax.lax.while_loop(goes_on, body, (jnp.zeros((), jnp.int32), slots))[1]

        return self.call("spell", program, slots, job, shared, np.asarray(length, np.int32), donate=(0,))

    def begin(self, z: np.ndarray, rules: StopRules) -> Slots:
        return self.call("begin", lambda z, rules: begin(optimizer_of(self.problem), z, rules, self._room), z, rules)

    @property
    def _room(self) -> int:
        return self.problem.settings.iterations + 1

    def refill(self, slots: Slots, job: Job, z: np.ndarray, fresh: Job, which: np.ndarray) -> tuple[Slots, Job]:
        """New attacks in the lanes `which`; what an optimiser remembers is forgotten, not overwritten."""

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
        """The lanes `rows` alone."""

        def program(slots: Slots, job: Job, rows: jax.Array) -> tuple[Slots, Job]:
            return jax.tree.map(lambda a: a[rows], (slots, job))

        return self.call("pack", program, slots, job, rows)


def _exactly() -> AbstractContextManager[Any]:
    """Products in full precision: accelerators would round their factors to some ten bits, too few to match gradients."""
    return nullcontext() if jax.default_backend() == "cpu" else jax.default_matmul_precision("highest")


@lru_cache(maxsize=16)
def _kept(problem: Problem, device: str, x64: bool) -> Programs:
    return Programs(problem)


def programs_for(problem: Problem, dtype: str) -> Programs:
    """Compiled programs, kept from one study to the next where the model can be told from others."""
    try:
        return _kept(problem, str(jax.devices()[0]), dtype == "float64")
    except TypeError:  # a model that cannot be hashed
        return Programs(problem)


def run(
    programs: Programs,
    shared: Params | None,
    starts: np.ndarray,
    jobs: Job,
    settings: Settings,
    *,
    width: int | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda ended: None,
    watch: Watch | None = None,
) -> list[Ended]:
    """All attacks to their ends. starts [attacks, size]; jobs with a leading axis over the attacks.

    Of `settings` only the stop rules are read here; the rest is in the programs. `watch` is called by the workers' threads
    after every spell; the first spell of a watched block is one evaluation.
    """
    attacks = len(starts)
    on_cpu = jax.default_backend() == "cpu"
    workers = workers or (cores() if on_cpu else 1)
    if width is None:
        width = auto_width(programs.problem, starts.itemsize, jobs, on_cpu)
        width = min(width, _share(-(-attacks // workers), on_cpu))
    workers = min(workers, -(-attacks // width))
    halt = threading.Event()
    ended: dict[int, Ended] = {}
    x64 = starts.dtype == np.float64

    def work(place: int) -> None:
        # The switch to 64 bits belongs to a thread.
        with jax.enable_x64(x64), jax.default_matmul_precision("highest"):
            queue = deque(range(place, attacks, workers))
            worker = _Worker(programs, shared, starts, jobs, settings, width, queue, watch)
            while not halt.is_set() and worker.turn(ended):
                progress(len(ended))

    with ThreadPoolExecutor(workers) as pool:
        try:
            for _ in pool.map(work, range(workers)):
                pass
        except BaseException:
            halt.set()  # an interrupt must not wait for attacks that nobody will read
            raise
    return [ended[a] for a in range(attacks)]


class _Worker:
    """A block of lanes, and the attack in each; None for a lane that is free."""

    def __init__(
        self,
        programs: Programs,
        shared: Params | None,
        starts: np.ndarray,
        jobs: Job,
        settings: Settings,
        width: int,
        queue: deque[int],
        watch: Watch | None = None,
    ):
        self.programs, self.shared, self.starts, self.jobs, self.settings = programs, shared, starts, jobs, settings
        self.queue, self.narrowest, self.longest = queue, max(1, width // NARROWEST), 0
        self.watch, self.length = watch, CHUNK if watch is None else 1
        self.owners = [_next(queue) for _ in range(width)]
        rows = self._rows()
        self.slots, self.job = (
            programs.begin(starts[rows], stop_rules(settings, width, starts.dtype)),
            _take(jobs, rows),
        )
        free = jnp.asarray([a is None for a in self.owners])
        self.slots = replace(self.slots, status=jnp.where(free, FREE, self.slots.status))

    def turn(self, ended: dict[int, Ended]) -> bool:
        """A spell, and what follows from it; whether there is more to do."""
        if all(a is None for a in self.owners):
            return False
        began, compiled = time.monotonic(), self.programs.seconds
        self.slots = self.programs.spell(self.slots, self.job, self.shared, self.length)
        status = np.asarray(self.slots.status)
        taken = max(0.0, time.monotonic() - began - (self.programs.seconds - compiled))
        done = [slot for slot, a in enumerate(self.owners) if a is not None and status[slot] != RUNNING]
        if self.watch is not None:
            self.length = max(1, self.watch(self._sight(taken)))
        if done:
            self._hand_back(done, ended)
            self._refill(done)
        self._shrink()
        return True

    def _rows(self) -> np.ndarray:
        return np.array([0 if a is None else a for a in self.owners])

    def _sight(self, seconds: float) -> Sight:
        slots = np.array([slot for slot, a in enumerate(self.owners) if a is not None])
        own = self.slots
        shown = jax.device_get((own.best, own.best_distance, own.iteration, own.evaluations))
        best, distance, iteration, evaluations = (np.asarray(a)[slots] for a in shown)
        return Sight(self._rows()[slots], best, distance, iteration, evaluations, seconds)

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
            self.longest = max(self.longest, ended[owner].iterations)
            self.owners[slot] = None

    def _refill(self, done: list[int]) -> None:
        for slot in done:
            self.owners[slot] = _next(self.queue)
        new = [slot for slot in done if self.owners[slot] is not None]
        if new:
            which, rows = np.isin(np.arange(len(self.owners)), new), self._rows()
            fresh = _take(self.jobs, rows)
            self.slots, self.job = self.programs.refill(self.slots, self.job, self.starts[rows], fresh, which)

    def _shrink(self) -> None:
        """Half the lanes, or fewer, where they hold all that is left and what is saved is worth a compilation.

        What is left to do is guessed: no attack takes more iterations again than the longest that has ended.
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


def _next(queue: deque[int]) -> int | None:
    try:
        return queue.popleft()
    except IndexError:
        return None


def _take(jobs: Job, rows: np.ndarray) -> Job:
    return jax.tree.map(lambda a: a[rows], jobs)


def operations(problem: Problem) -> float:
    """Roughly what one evaluation of one attack costs: some ten forward passes, and four passes over the pairs."""
    if isinstance(problem.model, Net):
        forward = sum(product.operations for product in flops.products(problem.model)) * problem.examples
    else:
        forward = 100 * problem.content
    pairs = 8 * PAIRS * problem.size if problem.settings.optimizer == "lbfgs" else 0
    return 10.0 * forward * problem.steps + pairs


def auto_width(problem: Problem, itemsize: int, jobs: Job, on_cpu: bool) -> int:
    """Lanes in a block: as many as the cache of a CPU can hold the pairs of, or as a part of a device's memory holds."""
    pairs = (
        2 * PAIRS * problem.size * itemsize if problem.settings.optimizer == "lbfgs" else 4 * problem.size * itemsize
    )
    if on_cpu:
        return _power_of_two(int(min(32, max(1, CACHE_BYTES // pairs))))
    job = sum(a.nbytes // max(1, len(a)) for a in jax.tree.leaves(jobs))
    return _power_of_two(int(max(1, _room() // (pairs + 6 * job + 200 * problem.content * itemsize))))


def _room() -> float:
    """Bytes that blocks may take on a device that is no CPU; 8 GB where it does not say how many it has."""
    try:
        limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 40e9)
    except Exception:  # a device that cannot be asked
        limit = 40e9
    return MEMORY_SHARE * float(limit)


def _share(attacks: int, on_cpu: bool) -> int:
    """Lanes for so many attacks: a power of two, on a CPU no lane more than attacks; elsewhere some may stay empty rather
    than leave attacks for a second turn that takes as long as the first."""
    width = _power_of_two(attacks)
    return width if on_cpu or width == attacks else 2 * width


def _power_of_two(number: int) -> int:
    """The largest power of two that is not above `number`."""
    return 1 << (max(1, number).bit_length() - 1)
