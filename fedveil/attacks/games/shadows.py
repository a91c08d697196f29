"""Federations trained side by side: the same training many times, each with its own seed and its own choice of records.

This adds one axis to the round of `simulation.simulator`: the same pure functions, mapped over federations, in one compiled
program. Every draw is keyed, so a federation with the same seed and draws gives the same result here as alone.

A record that a federation is not given is masked out of the batches after they were drawn from the client's whole table.
Under Poisson batches that equals drawing from the given records alone, at a rate that does not depend on their number: a
federation with a record and one without it are neighbours by add and remove, so the account of the ledger holds for them.
With other ways of drawing, a batch that misses a record is smaller by one, and so is its divisor.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.attacks.base import Progress, silent
from fedveil.attacks.limit import NO_LIMIT, Limit
from fedveil.compilation import Compiler, Program
from fedveil.core import keys
from fedveil.core.errors import ConfigError, Interrupted, RunError
from fedveil.models.layers import Array, Params
from fedveil.models.net import Model
from fedveil.simulation import sampling, server
from fedveil.simulation.client import Task
from fedveil.simulation.inputs import ClientInputs, RoundInputs
from fedveil.simulation.observation import observed
from fedveil.simulation.sampling import Cohort
from fedveil.simulation.server import ServerRule, ServerState
from fedveil.simulation.simulator import FEDERATIONS, Rounds, auto_chunk, parameter_count

if TYPE_CHECKING:
    from fedveil.federation import Federation

Tree = Any
RECEIVER = 0  # the client whose received model is observed at the tap `broadcast`
CPU_PARAMETERS = 300_000  # parameters of all clients computed at once: more would not fit into a CPU's cache


@dataclass(frozen=True)
class ObservedModel:
    """The model of each federation that is observed."""

    tap: str = "release"  # or broadcast, server, client
    client: int = RECEIVER  # the client that receives it, or whose local model it is, in the last round it took part in

    @property
    def local(self) -> bool:
        return self.tap in ("server", "client")


RELEASE = ObservedModel()


@dataclass(frozen=True)
class Trained:
    """The observed model of each federation, and the number of updates that were left out for not being finite.

    Federations that the time limit left unfinished are missing.
    """

    models: Params  # [federations, ...]
    not_finite: np.ndarray  # [federations]
    numbers: np.ndarray  # [federations] the number of each


class OutOfTime(RunError):
    """The time limit ended a training that an attack cannot do without."""


def check(federation: Federation) -> None:
    """Refuses defences whose state does not follow from a federation's seed and records alone."""
    for defense in federation.simulator.task.defenses:
        if defense.fills("select"):
            takes = (
                "chooses clients by what they report, one federation at a time: shadow federations need drawn cohorts"
            )
            raise ConfigError("defense.name", defense.name, takes)
        if defense.stateful and defense.held is not None:
            takes = (
                "measures all data of every client before training, which shadow federations, lacking some, cannot use"
            )
            raise ConfigError("defense.name", defense.name, takes)


class Fleet:
    """Federations like a given one that are trained together."""

    def __init__(
        self,
        federation: Federation,
        seeds: Sequence[int],
        draws: Sequence[keys.Draws],
        given: np.ndarray,
        slots: int | None = None,
    ):
        """`seeds`: one for each initial model. `given` [federations, examples]: the dataset rows that each federation gets.

        `slots`: clients computed at once, of all federations together.
        """
        check(federation)
        self.federation, self.given = federation, np.asarray(given, bool)
        self.seeds, self.draws = list(seeds), list(draws)
        self.simulator = federation.simulator
        self.task: Task = self.simulator.task
        setting, rule = self.task.setting, self.simulator.rule
        slots = slots or _slots(federation)
        self.chunk = min(slots, setting.per_round)
        count = len(self.seeds)
        most = min(slots // self.chunk, math.ceil(count / self.simulator.workers))
        self.at_once = math.ceil(count / math.ceil(count / max(1, most)))  # equal parts, none larger than `most`
        batches = self.at_once * self.chunk * setting.local_steps
        self.widths = sampling.batch_widths(self.simulator.sampling, self.simulator.partition, batches)
        self._compiler = Compiler(dict)
        self._observers: dict[ObservedModel, Program] = {}
        self._round_keys = self._compiler.program(jax.vmap(keys.round_key, in_axes=(0, None)))
        self._rounds = Rounds(self.task, rule, self._compiler, federations=True)

    def train(self, observed: ObservedModel = RELEASE, progress: Progress = silent, limit: Limit = NO_LIMIT) -> Trained:
        """Trains all federations to the end, as many at once as fit in memory. On a CPU each core trains a part of them.

        The federations with the smallest numbers come first. Parts that the limit leaves no time for are left out.
        """
        parts, last = self.parts(), self._observed_rounds(observed)
        clock = _Clock(limit, self.federation.rounds, len(parts), progress)

        def train_part(index: int) -> tuple[Params, np.ndarray] | None:
            if not clock.begin(index):
                return None
            who = parts[index]
            with jax.enable_x64(self.task.dtype == "float64"):  # a setting of the thread
                try:
                    seen, lost = self._train(who, observed, last[who], partial(clock.step, index))
                except _Late:
                    return None
                clock.end(index)
                return jax.device_get(seen), lost

        with ThreadPoolExecutor(self.simulator.workers) as pool:
            try:
                made = list(pool.map(train_part, range(len(parts))))
            except BaseException:
                clock.halt.set()
                raise
        kept = [index for index, one in enumerate(made) if one is not None]
        if not kept:
            raise OutOfTime(clock.says())
        models, not_finite = zip(*(one for one in made if one is not None), strict=True)
        # The last part is padded with the first federations: each is taken once.
        numbers, rows = np.unique(np.concatenate([parts[index] for index in kept]), return_index=True)
        whole = jax.tree.map(lambda *each: np.concatenate(each)[rows], *models)
        return Trained(whole, np.concatenate(not_finite)[rows], numbers)

    def parts(self) -> list[np.ndarray]:
        """The federations that are trained together, by number; the last part is padded with the first ones."""
        count = len(self.seeds)
        return [np.arange(first, first + self.at_once) % count for first in range(0, count, self.at_once)]

    def _train(
        self, who: np.ndarray, observed: ObservedModel, when: np.ndarray, step: Callable[[], None]
    ) -> tuple[Params, np.ndarray]:
        """The observed models of the federations `who`, each in round `when`; and their numbers of non-finite updates."""
        roots, state = self.start(who)
        rounds = self.federation.rounds
        seen, not_finite = jax.tree.map(jnp.zeros_like, state.params), []
        for number in range(rounds):
            if (when == number).any():
                seen = _where(when == number, self._observe(state, who, roots, number, observed), seen)
            state, broken = self.round(state, who, roots, number)
            not_finite.append(broken)
            step()
        if not observed.local:
            seen = self._observe(state, who, roots, rounds, observed)
        return seen, np.sum(jax.device_get(not_finite), axis=0)

    def start(self, who: np.ndarray) -> tuple[Array, ServerState]:
        """The keys of the federations `who`, and their states before the first round."""
        roots = jnp.stack([self.draws[f].root() for f in who])
        first = jnp.stack([keys.root(self.seeds[f]) for f in who])
        return roots, jax.vmap(partial(_start, self.task, self.simulator.rule))(first)

    def round(self, state: ServerState, who: np.ndarray, roots: Array, number: int) -> tuple[ServerState, Array]:
        """One round of the federations `who`; and the number of non-finite updates in each."""
        cohorts = [self._cohort(f, number) for f in who]
        starts = range(0, max(len(c.clients) for c in cohorts), self.chunk)
        chunks = (self._clients(who, cohorts, number, slice(first, first + self.chunk)) for first in starts)
        state, counters = self._rounds.run(state, self._inputs(state, roots, number), chunks)
        return state, counters.not_finite

    def _inputs(self, state: ServerState, roots: Array, number: int) -> RoundInputs:
        """The inputs that all clients of a round share. Models and keys have a leading axis over federations."""
        lr = jnp.asarray(self.task.setting.lr_at(number), self.task.dtype)
        round_keys = self._round_keys(roots, np.int32(number))
        return RoundInputs(state.params, self.simulator.x, self.simulator.y, round_keys, np.int32(number), lr)

    # --- cohorts and batches

    def _cohort(self, f: int, number: int) -> Cohort:
        return sampling.draw_cohort(self.draws[f], number, self.task.setting, *self.simulator.faults)

    def _observed_rounds(self, observed: ObservedModel) -> np.ndarray:
        """[federations]: the round in which each is observed; a model that goes out, after the last one."""
        count, rounds = len(self.seeds), self.federation.rounds
        return np.array([self._last_round(f, observed.client) if observed.local else rounds for f in range(count)])

    def _last_round(self, f: int, client: int) -> int:
        """The last round in which a client took part."""
        for number in reversed(range(self.federation.rounds)):
            if client in self._cohort(f, number).clients:
                return number
        takes = f"takes no part in any round of federation {f}: raise train.rounds or train.per_round"
        raise ConfigError("attack.victim", client, takes)

    def _clients(self, who: np.ndarray, cohorts: Sequence[Cohort], number: int, part: slice) -> ClientInputs:
        """A chunk of each federation's cohort, [federations, clients, ...], padded to one shape."""
        simulator, made = self.simulator, []
        for f, cohort in zip(who, cohorts, strict=True):
            some, source = cohort.part(part), (simulator.sampling, simulator.partition, self.draws[f])
            drawn = sampling.draw_batches(*source, number, some, self.widths)
            given = replace(drawn, mask=drawn.mask & self.given[f][drawn.index])
            made.append(simulator.client_inputs(some, given))
        return jax.tree.map(lambda *arrays: _stacked(arrays, self.chunk), *made)

    # --- models of single clients

    def _observe(
        self, state: ServerState, who: np.ndarray, roots: Array, number: int, observed: ObservedModel
    ) -> Params:
        """[federations, ...]: the observed model: published, received by a client in a round, or a client's local model."""
        if observed.tap == "release":
            return state.params
        alone = Cohort.only([observed.client])
        chunk = self._clients(who, [alone] * len(who), number, slice(0, 1))
        own = jax.tree.map(lambda a: a[:, 0], chunk)  # what follows is padding
        own = replace(own, state=jax.tree.map(lambda a: a[:, observed.client], state.clients))
        with jax.default_matmul_precision("highest"):
            return self._observer(observed)(self._inputs(state, roots, number), own)

    def _observer(self, observed: ObservedModel) -> Program:
        """The compiled observation, kept for the next call."""
        if observed not in self._observers:
            observer = jax.vmap(partial(_model_at, self.task, observed), in_axes=(FEDERATIONS, 0))
            self._observers[observed] = self._compiler.program(observer)
        return self._observers[observed]


class _Late(Exception):
    """The time limit is over."""


class _Clock:
    """Counts rounds, and keeps the parts of a fleet within the time limit."""

    def __init__(self, limit: Limit, rounds: int, parts: int, progress: Progress):
        self.limit, self.rounds, self.progress = limit, rounds, progress
        self.done, self.total = itertools.count(1), parts * rounds
        self.lock, self.halt = threading.Lock(), threading.Event()
        self.made: dict[int, int] = {}  # rounds of each part
        self.began: dict[int, float] = {}  # when each part ended its first round, which compiles
        self.longest = 0.0  # seconds of a finished part

    def begin(self, index: int) -> bool:
        """Whether there is time for another part, judged by those that have ended."""
        self.made[index] = 0
        return not (index and self.limit.left < max(self.longest, 1e-9))

    def step(self, index: int) -> None:
        """Counts one more round of part `index`, and stops the part if time is up or cannot suffice."""
        if self.halt.is_set():  # an interrupt must not wait for the other federations
            raise Interrupted("shadow federations: stopped")
        self.made[index] += 1
        self.began.setdefault(index, time.monotonic())
        if self.made[index] < self.rounds and (self.limit.over or self._hopeless(index)):
            raise _Late
        with self.lock:
            self.progress(next(self.done), self.total)

    def end(self, index: int) -> None:
        with self.lock:
            self.longest = max(self.longest, self._needs(index))

    def _needs(self, index: int) -> float:
        """Seconds that a part takes for all rounds, at the pace of those after its first."""
        made = self.made[index] - 1
        return (time.monotonic() - self.began[index]) * self.rounds / made if made > 0 else 0.0

    def _hopeless(self, index: int) -> bool:
        """Whether a part will not end within twice the limit: judged after a quarter of the time."""
        seconds = self.limit.seconds
        if seconds is None or self.limit.left > 0.75 * seconds:
            return False
        return self._needs(index) > 2 * seconds

    def says(self) -> str:
        """What came of it where nothing did."""
        seconds = self.limit.seconds or 0.0
        needs = max((self._needs(index) for index in self.began), default=0.0)
        told = f"; all {self.rounds} rounds take about {needs:.0f} s" if needs else ""
        return (
            f"attack.seconds: {seconds:g} s are too few for the federations that this attack trains: they were at round "
            f"{max(self.made.values())} of {self.rounds}{told}; allow more time, or train fewer rounds"
        )


def _start(task: Task, rule: ServerRule, root: Array) -> ServerState:
    """The state of one federation before its first round."""
    params = jax.tree.map(lambda a: jnp.asarray(a, task.dtype), task.model.init(keys.device(root, "init")))
    return server.initial_state(rule, params, server.initial_client_states(task, params, task.setting.clients))


def _model_at(task: Task, where: ObservedModel, inputs: RoundInputs, own: ClientInputs) -> Params:
    """The model at a tap of one client: as received, or received and moved by its update, or sent whole."""
    values = observed(task, frozenset({"broadcast", where.tap}), (), inputs, own)
    if where.tap == "broadcast" or (where.tap == "server" and task.setting.aggregation == "fedavg"):
        return values[where.tap]
    return jax.tree.map(jnp.add, values["broadcast"], values[where.tap])


def _slots(federation: Federation) -> int:
    """The number of clients computed at once, all federations together: what a cache or a part of a GPU's memory holds."""
    chosen, task = federation.config.speed.chunk, federation.simulator.task
    if chosen != "auto":
        return chosen
    if jax.default_backend() != "cpu":
        return auto_chunk(task, federation.dataset)
    return max(auto_chunk(task, federation.dataset), min(64, CPU_PARAMETERS // parameter_count(task)))


def _stacked(arrays: Sequence[np.ndarray], clients: int) -> np.ndarray:
    """[federations, clients, ...]: padded with zeros to `clients` clients and to the width of the widest batch."""
    widest = max(arrays, key=lambda a: a.shape[-1])
    whole = np.zeros((len(arrays), clients, *widest.shape[1:]), widest.dtype)
    for row, a in enumerate(arrays):
        whole[row][tuple(slice(length) for length in a.shape)] = a
    return whole


def _where(flag: np.ndarray, new: Params, old: Params) -> Params:
    """[federations, ...]: `new` where the flag is set, otherwise `old`."""
    return jax.tree.map(lambda a, b: jnp.where(flag.reshape(flag.shape + (1,) * (a.ndim - 1)), a, b), new, old)


# --- querying models about records


def confidences(
    model: Model, models: Params, x: np.ndarray, y: np.ndarray, *, scale: float, dtype: str, block: int = 500
) -> np.ndarray:
    """[federations, records] float64: log(p/(1 − p)) of each record's own label under each model, x as stored.

    From the logits z it is z_y − log Σ_{c≠y} exp z_c, which stays exact where p is close to 1.
    """
    logits = jax.jit(lambda params, xs: jax.lax.map(lambda p: model.apply(p, xs), params))
    found = []
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):
        for first in range(0, len(y), block):
            xs = jnp.asarray(x[first : first + block]).astype(dtype) * jnp.asarray(scale, dtype)
            found.append(_log_odds(np.asarray(logits(models, xs), np.float64), y[first : first + block]))
    return np.concatenate(found, axis=1)


def _log_odds(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[..., records] from logits [..., records, classes]; a model that is not finite counts as uniform."""
    logits = np.where(np.isfinite(logits).all(axis=-1, keepdims=True), logits, 0.0)
    own = np.eye(logits.shape[-1], dtype=bool)[y]  # [records, classes]
    others = np.where(own, -np.inf, logits)
    top = others.max(axis=-1, keepdims=True)
    rest = np.log(np.exp(others - top).sum(axis=-1)) + top[..., 0]
    return np.where(own, logits, 0.0).sum(axis=-1) - rest
