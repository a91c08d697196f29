"""Federations side by side: the same training again and again, each with its own seed and its own choice of records.

One more axis around the round of `rounds.simulate`: the same pure functions, mapped over federations, in one compiled
program. Every draw is keyed, so a federation with the same seed and draws comes out here as it does alone.

A record that a federation is not given is masked out of the batches after they were drawn from the client's whole table.
Under Poisson batches that is the same as drawing from those given alone, at a rate that does not tell how many they are: a
federation with a record and one without it are neighbours by add and remove, and the account of the ledger holds for
them as it stands. Under the other laws a batch that misses a record is smaller by one, and so is its divisor.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil import kept
from fedveil.core import keys
from fedveil.core.errors import ConfigError, Interrupted
from fedveil.models.layers import Array, Params
from fedveil.models.net import Model
from fedveil.simulation import client as client_part
from fedveil.simulation import sampling, server
from fedveil.simulation.client import RoundContext, Task
from fedveil.simulation.server import ServerRule, ServerState
from fedveil.simulation.simulator import auto_chunk, chunk_sum, parameter_count

if TYPE_CHECKING:
    from fedveil.federation import Federation

Tree = Any
Progress = Callable[[int, int], None]

RECEIVER = 0  # whose model is seen at the tap `broadcast`
CPU_PARAMETERS = 300_000  # of clients computed at once: more would not stay in a CPU's cache


@dataclass(frozen=True)
class Sight:
    """Which model of each federation is looked at."""

    tap: str = "release"  # or broadcast, server, client
    client: int = RECEIVER  # who receives it, or whose local model it is: of the last round in which it took part

    @property
    def local(self) -> bool:
        return self.tap in ("server", "client")


RELEASE = Sight()


@dataclass(frozen=True)
class Trained:
    """What was seen of each federation, and how many updates were left out for not being finite."""

    models: Params  # [federations, ...]
    not_finite: np.ndarray  # [federations]


def check(federation: Federation) -> None:
    """Refuses defences whose state cannot be made again from a federation's seed and records alone."""
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
        """The seed of each one's initial model, its draws, and the rows of the training set that it is given.

        `given` is [federations, examples]. `lanes`: clients at once.
        """
        check(federation)
        self.federation, self.given = federation, np.asarray(given, bool)
        self.seeds, self.draws = list(seeds), list(draws)
        self.simulator = federation.simulator
        self.task: Task = self.simulator.task
        setting, rule = self.task.setting, self.simulator.rule
        slots = slots or _lanes(federation)
        self.chunk = min(slots, setting.per_round)
        most = min(slots // self.chunk, math.ceil(len(self.seeds) / self.simulator.lanes))
        self.at_once = _even(len(self.seeds), max(1, most))
        batches = self.at_once * self.chunk * setting.local_steps
        self.widths = sampling.batch_widths(self.simulator.law, self.simulator.partition, batches)
        self._looks: dict[Sight, Callable[..., Params]] = {}
        empty, advance = partial(server.empty_sum, rule), partial(server.advance, self.task, rule)
        chunk = partial(chunk_sum, self.task, rule)
        shared = (0, 0, None, None, *[0] * 6, None, None)  # the data, the round's number and its rate are everyone's
        self._empty = _mapped(empty, 0)
        self._round_keys = _mapped(keys.round_key, (0, None))
        self._chunk = _mapped(chunk, shared, donate=(0,))
        self._advance = _mapped(advance, (0, 0, 0, None), donate=(0,))

    def train(self, sight: Sight = RELEASE, progress: Progress = lambda done, total: None) -> Trained:
        """Trains all of them to the end, as many at once as fit; on a CPU one part of them on each core."""
        parts, last = self.parts(), self._when(sight)
        done, total = itertools.count(1), len(parts) * self.federation.rounds
        lock, halt = threading.Lock(), threading.Event()

        def step() -> None:
            if halt.is_set():  # an interrupt must not wait for federations that nobody will look at
                raise Interrupted("shadow federations: stopped")
            with lock:
                progress(next(done), total)

        def play(who: np.ndarray) -> tuple[Params, np.ndarray]:
            with jax.enable_x64(self.task.dtype == "float64"):  # belongs to a thread
                seen, lost = self._train(who, sight, last[who], step)
                return jax.device_get(seen), lost

        with ThreadPoolExecutor(self.simulator.lanes) as pool:
            try:
                models, not_finite = zip(*pool.map(play, parts), strict=True)
            except BaseException:
                halt.set()
                raise
        count = len(self.seeds)
        whole = jax.tree.map(lambda *each: np.concatenate(each)[:count], *models)
        return Trained(whole, np.concatenate(not_finite)[:count])

    def parts(self) -> list[np.ndarray]:
        """The federations that are trained together, by number; the last part is filled up with the first ones."""
        count = len(self.seeds)
        return [np.arange(first, first + self.at_once) % count for first in range(0, count, self.at_once)]

    def _train(
        self, who: np.ndarray, sight: Sight, when: np.ndarray, step: Callable[[], None]
    ) -> tuple[Params, np.ndarray]:
        """What is seen of the federations `who`, each in round `when`; and how many updates were not finite in each."""
        roots, state = self.start(who)
        rounds = self.federation.rounds
        seen, not_finite = jax.tree.map(jnp.zeros_like, state.params), []
        for number in range(rounds):
            if (when == number).any():
                seen = _where(when == number, self._look(state, who, roots, number, sight), seen)
            state, broken = self.round(state, who, roots, number)
            not_finite.append(broken)
            step()
        if not sight.local:
            seen = self._look(state, who, roots, rounds, sight)
        return seen, np.sum(jax.device_get(not_finite), axis=0)

    def start(self, who: np.ndarray) -> tuple[Array, ServerState]:
        """The keys of the federations `who`, and their states before the first round."""
        roots = jnp.stack([self.draws[f].root() for f in who])
        first = jnp.stack([keys.root(self.seeds[f]) for f in who])
        return roots, jax.vmap(partial(_start, self.task, self.simulator.rule))(first)

    def round(self, state: ServerState, who: np.ndarray, roots: Array, number: int) -> tuple[ServerState, Array]:
        """One round of the federations `who`; and how many updates were not finite in each."""
        cohorts = [self._cohort(f, number) for f in who]
        round_keys, lr, now = self._moment(roots, number)
        summed, clients = self._empty(state.params), state.clients
        for first in range(0, max(len(c.clients) for c in cohorts), self.chunk):
            index, mask, steps, *rest = self._batches(who, cohorts, number, slice(first, first + self.chunk))
            chunk = ((index, mask, steps), *rest)
            summed, clients = self._chunk(
                (summed, clients), state.params, self.simulator.x, self.simulator.y, *chunk, round_keys, now, lr
            )
        broken = summed.not_finite
        return self._advance(replace(state, clients=clients), summed, round_keys, lr), broken

    def _moment(self, roots: Array, number: int) -> tuple[Array, Array, np.int32]:
        """The round's key in each federation, its learning rate and its number."""
        lr = jnp.asarray(self.task.setting.lr_at(number), self.task.dtype)
        return self._round_keys(roots, np.int32(number)), lr, np.int32(number)

    # --- who takes part, and with which records

    def _cohort(self, f: int, number: int) -> sampling.Cohort:
        return sampling.draw_cohort(self.draws[f], number, self.task.setting, *self.simulator.faults)

    def _when(self, sight: Sight) -> np.ndarray:
        """[federations]: the round in which each is looked at; a model that goes out, after the last one."""
        count, rounds = len(self.seeds), self.federation.rounds
        return np.array([self._last_round(f, sight.client) if sight.local else rounds for f in range(count)])

    def _last_round(self, f: int, client: int) -> int:
        """The last round in which a client took part."""
        for number in reversed(range(self.federation.rounds)):
            if client in self._cohort(f, number).clients:
                return number
        takes = f"takes no part in any round of federation {f}: raise train.rounds or train.per_round"
        raise ConfigError("attack.victim", client, takes)

    def _batches(
        self, who: np.ndarray, cohorts: Sequence[sampling.Cohort], number: int, part: slice
    ) -> tuple[np.ndarray, ...]:
        """A chunk of each federation's cohort, padded to one shape: index, mask, steps, id, occurrence, weight, late."""
        simulator, made = self.simulator, []
        for f, cohort in zip(who, cohorts, strict=True):
            some = replace(
                cohort, clients=cohort.clients[part], occurrence=cohort.occurrence[part], late=cohort.late[part]
            )
            drawn = sampling.draw_batches(simulator.law, simulator.partition, self.draws[f], number, some, self.widths)
            weight = simulator.weights[some.clients].astype(self.task.dtype)
            mask = drawn.mask & self.given[f][drawn.index]
            made.append((drawn.index, mask, drawn.steps, some.clients, some.occurrence, weight, some.late))
        return tuple(_stacked(column, self.chunk) for column in zip(*made, strict=True))

    # --- looking at models that single clients have

    def _look(self, state: ServerState, who: np.ndarray, roots: Array, number: int, sight: Sight) -> Params:
        """[federations, ...]: the model that is published, or received by a client in a round, or its local model."""
        if sight.tap == "release":
            return state.params
        alone = sampling.Cohort(np.array([sight.client]), np.zeros(1, np.int64), np.zeros(1, bool), 1, 0)
        index, mask, steps, *_ = self._batches(who, [alone] * len(who), number, slice(0, 1))
        round_keys, lr, now = self._moment(roots, number)
        memory = jax.tree.map(lambda a: a[:, sight.client], state.clients)
        own = (index[:, 0], mask[:, 0], steps[:, 0])  # what follows is padding
        data = (self.simulator.x, self.simulator.y)
        with jax.default_matmul_precision("highest"):
            return self._looking(sight)(state.params, *data, *own, memory, round_keys, now, lr)

    def _looking(self, sight: Sight) -> Callable[..., Params]:
        """The compiled look, kept for the next one."""
        if sight not in self._looks:
            axes = (0, None, None, 0, 0, 0, 0, 0, None, None)
            self._looks[sight] = _mapped(partial(_seen, self.task, sight), axes)
        return self._looks[sight]


def _mapped(function: Callable[..., Any], axes: Any, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
    """A function of one federation, for several at once."""
    return kept.Jitted(jax.vmap(function, in_axes=axes), (Fleet, function, axes), donate)


def _start(task: Task, rule: ServerRule, root: Array) -> ServerState:
    """The state of one federation before its first round."""
    params = jax.tree.map(lambda a: jnp.asarray(a, task.dtype), task.model.init(keys.device(root, "init")))
    stateful = {str(place): d for place, d in enumerate(task.defenses) if d.stateful}
    memory = {place: d.initial_client_states(params, task.setting.clients) for place, d in stateful.items()}
    return server.initial_state(rule, params, memory)


def _seen(
    task: Task,
    sight: Sight,
    params: Params,
    x: Array,
    y: Array,
    index: Array,
    mask: Array,
    steps: Array,
    memory: Tree,
    round_key: Array,
    number: Array,
    lr: Array,
) -> Params:
    """The model at a tap of one client: as received, or received and moved by its update, or sent whole."""
    now = RoundContext(keys.client_key(round_key, sight.client, 0), keys.shared_key(round_key), number, lr)
    taps = frozenset({"broadcast", sight.tap})
    values = client_part.watched(task, taps, (), params, x, y, index, mask, steps, memory, now)
    if sight.tap == "broadcast" or (sight.tap == "server" and task.setting.aggregation == "fedavg"):
        return values[sight.tap]
    return jax.tree.map(jnp.add, values["broadcast"], values[sight.tap])


def _lanes(federation: Federation) -> int:
    """Clients of all federations together that are computed at once: what a cache holds, or a part of a GPU's memory."""
    chosen, task = federation.config.speed.chunk, federation.simulator.task
    if chosen != "auto":
        return chosen
    if jax.default_backend() != "cpu":
        return auto_chunk(task, federation.dataset)
    return max(auto_chunk(task, federation.dataset), min(64, CPU_PARAMETERS // parameter_count(task)))


def _even(count: int, most: int) -> int:
    """So many at once that all parts are alike and none is larger than `most`."""
    return math.ceil(count / math.ceil(count / most))


def _stacked(arrays: Sequence[np.ndarray], clients: int) -> np.ndarray:
    """[federations, clients, ...]: filled up with nothing to so many clients, and batches to the width of the widest."""
    widest = max(arrays, key=lambda a: a.shape[-1])
    whole = np.zeros((len(arrays), clients, *widest.shape[1:]), widest.dtype)
    for place, a in enumerate(arrays):
        whole[place][tuple(slice(length) for length in a.shape)] = a
    return whole


def _where(flag: np.ndarray, new: Params, old: Params) -> Params:
    """[federations, ...]: new where flagged."""
    return jax.tree.map(lambda a, b: jnp.where(flag.reshape(flag.shape + (1,) * (a.ndim - 1)), a, b), new, old)


# --- asking models about records


def confidences(
    model: Model, models: Params, x: np.ndarray, y: np.ndarray, *, scale: float, dtype: str, block: int = 500
) -> np.ndarray:
    """[federations, records] float64: log(p/(1 − p)) of each record's own label under each model, x as stored.

    From the logits z it is z_y − log Σ_{c≠y} exp z_c, which loses nothing where p is next to 1.
    """
    ask = jax.jit(lambda params, xs: jax.lax.map(lambda p: model.apply(p, xs), params))
    found = []
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):
        for first in range(0, len(y), block):
            xs = jnp.asarray(x[first : first + block]).astype(dtype) * jnp.asarray(scale, dtype)
            found.append(_log_odds(np.asarray(ask(models, xs), np.float64), y[first : first + block]))
    return np.concatenate(found, axis=1)


def _log_odds(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[..., records] from logits [..., records, classes]; a model that is not finite is sure of nothing."""
    logits = np.where(np.isfinite(logits).all(axis=-1, keepdims=True), logits, 0.0)
    own = np.eye(logits.shape[-1], dtype=bool)[y]  # [records, classes]
    others = np.where(own, -np.inf, logits)
    top = others.max(axis=-1, keepdims=True)
    rest = np.log(np.exp(others - top).sum(axis=-1)) + top[..., 0]
    return np.where(own, logits, 0.0).sum(axis=-1) - rest
