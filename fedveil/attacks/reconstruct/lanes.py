"""Attacks side by side: what is known of each one's progress, and the rules by which it ends.

Every attack has a lane and goes its own way in it: its own iteration count, its own end, its own rescue. One call of
`play` makes one evaluation in each lane that still runs; lanes that have ended are carried along untouched.

An attack diverges when its objective is not finite, when its optimiser finds that it strays (L-BFGS: an iteration opens
above where the attack began), or when it comes to rest clearly above its best point. It then goes back to the best point
with an empty memory and bounded steps, at most `RESCUES` times. Without a finite value to go back to, or with no rescue
left, what is not finite ends as `failed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.attacks.catalog import Settings
from fedveil.models.layers import Array

Tree = Any
RUNNING, STOPPED, CONVERGED, STALLED, PLATEAU, SPENT, FAILED = range(7)
ENDINGS = {
    RUNNING: "running",
    STOPPED: "stop",  # the gradient distance that was asked for is reached
    CONVERGED: "converged",  # the objective has no slope left
    STALLED: "stalled",  # the optimiser finds no way down
    PLATEAU: "plateau",
    SPENT: "spent",  # all iterations made
    FAILED: "failed",
}
RESCUES = 4
NEVER = 2**30
PROGRESS = 0.99  # a plateau is left when the best objective falls below this share of what it was


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StopRules:
    """When attacks end. Numbers, not part of a compiled program: studies of stop rules share one."""

    iterations: Array | np.ndarray  # [attacks] the most to make
    distance: Array | np.ndarray  # [attacks] a squared gradient distance that is enough; negative: none is
    plateau: Array | np.ndarray  # [attacks] iterations without progress that are too many


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Lanes:
    """Where each attack stands."""

    z: Array  # [attacks, size] the point to evaluate next
    memory: Tree  # the optimiser's
    rules: StopRules
    made: Array  # [attacks] steps since the start or the last rescue
    inner: Array  # [attacks] steps in the current iteration
    iteration: Array  # [attacks] iterations completed
    evaluations: Array  # [attacks]
    status: Array  # [attacks]
    rescues: Array  # [attacks]
    began: Array  # [attacks] the objective at the start
    best: Array  # [attacks, size]
    best_value: Array  # [attacks] the objective there
    best_distance: Array  # [attacks] the squared gradient distance there
    mark: Array  # [attacks] the objective that progress is measured against
    marked: Array  # [attacks] the iteration it was set in
    trace: Array  # [attacks, room] squared gradient distance at the start of each iteration


@dataclass(frozen=True)
class Seen:
    """One evaluation of all lanes."""

    value: Array
    distance: Array
    slope: Array


class Optimizer(Protocol):
    """How a lane moves. `ended` may close the current iteration, `rests` ends the attack, `move` makes the next step."""

    def empty(self, attacks: int, size: int, dtype: Any) -> Tree: ...
    def forget(self, memory: Tree, which: Array) -> Tree: ...
    def ended(self, lanes: Lanes, seen: Seen) -> Array: ...
    def strays(self, lanes: Lanes, seen: Seen) -> Array: ...
    def rests(self, seen: Seen) -> Array: ...
    def move(self, lanes: Lanes, seen: Seen, moving: Array) -> tuple[Array, Tree, Array, Array]: ...


def stop_rules(settings: Settings, attacks: int, dtype: Any) -> StopRules:
    """The same rules for so many attacks."""
    return StopRules(
        iterations=np.full(attacks, settings.iterations, np.int32),
        distance=np.full(attacks, -1.0 if settings.stop is None else settings.stop, dtype),
        plateau=np.full(attacks, NEVER if settings.plateau is None else settings.plateau, np.int32),
    )


def begin(optimizer: Optimizer, z: Array, rules: StopRules, room: int) -> Lanes:
    """Lanes at their starts z [attacks, size], with room for the trace of one iteration less."""
    attacks, dtype = z.shape[0], z.dtype
    count, infinite = jnp.zeros(attacks, jnp.int32), jnp.full(attacks, jnp.inf, dtype)
    return Lanes(
        z=z,
        memory=optimizer.empty(attacks, z.shape[1], dtype),
        rules=rules,
        made=count,
        inner=count,
        iteration=count,
        evaluations=count,
        status=count,
        rescues=count,
        began=infinite,
        best=z,
        best_value=infinite,
        best_distance=infinite,
        mark=infinite,
        marked=count,
        trace=jnp.full((attacks, room), jnp.nan, dtype),
    )


def play(optimizer: Optimizer, look: Callable[[Array], Seen], lanes: Lanes) -> Lanes:
    """One evaluation in every running lane, and the step that follows from it."""
    seen = look(lanes.z)
    running = lanes.status == RUNNING
    finite = jnp.isfinite(seen.value) & jnp.isfinite(seen.slope).all(axis=1)
    lanes = replace(lanes, evaluations=lanes.evaluations + running)
    lanes = _keep_best(lanes, seen, running & finite)

    # An iteration may end early; the same evaluation then opens the next one.
    over = running & finite & (lanes.inner > 0) & optimizer.ended(lanes, seen)
    lanes = replace(lanes, iteration=lanes.iteration + over, inner=jnp.where(over, 0, lanes.inner))
    opens = running & finite & (lanes.inner == 0)
    lanes = _mark(_write_trace(lanes, seen, opens), opens)
    strayed = opens & optimizer.strays(lanes, seen) & (lanes.rescues < RESCUES)
    lanes = replace(lanes, began=jnp.where(opens & jnp.isinf(lanes.began), seen.value, lanes.began))
    lanes, moving = _end(optimizer, lanes, seen, opens & ~strayed, running & finite & ~strayed)
    z, memory, stuck, closes = optimizer.move(lanes, seen, moving)
    lanes = _stall(replace(lanes, memory=memory), seen, moving & stuck)
    moved = moving & ~stuck
    lanes = replace(
        lanes,
        z=jnp.where(moved[:, None], z, lanes.z),
        made=lanes.made + moved,
        inner=jnp.where(moved, jnp.where(closes, 0, lanes.inner + 1), lanes.inner),
        iteration=lanes.iteration + (moved & closes),
    )
    return _rescue(optimizer, lanes, seen, running, finite, strayed)


def _keep_best(lanes: Lanes, seen: Seen, counts: Array) -> Lanes:
    better = counts & (seen.value < lanes.best_value)
    return replace(
        lanes,
        best=jnp.where(better[:, None], lanes.z, lanes.best),
        best_value=jnp.where(better, seen.value, lanes.best_value),
        best_distance=jnp.where(better, seen.distance, lanes.best_distance),
    )


def _write_trace(lanes: Lanes, seen: Seen, opens: Array) -> Lanes:
    rows, last = jnp.arange(lanes.z.shape[0]), lanes.trace.shape[1] - 1
    at = jnp.minimum(lanes.iteration, last)
    value = jnp.where(opens, seen.distance, lanes.trace[rows, at])
    return replace(lanes, trace=lanes.trace.at[rows, at].set(value))


def _mark(lanes: Lanes, opens: Array) -> Lanes:
    onward = opens & (lanes.best_value < PROGRESS * lanes.mark)
    return replace(
        lanes,
        mark=jnp.where(onward, lanes.best_value, lanes.mark),
        marked=jnp.where(onward, lanes.iteration, lanes.marked),
    )


def _end(optimizer: Optimizer, lanes: Lanes, seen: Seen, opens: Array, running: Array) -> tuple[Lanes, Array]:
    """The stop rules, looked at when an iteration opens. Returns which lanes go on."""
    status = lanes.status

    def end(condition: Array, ending: int) -> None:
        nonlocal status
        status = jnp.where(opens & (status == RUNNING) & condition, ending, status)

    end(seen.distance <= lanes.rules.distance, STOPPED)
    end(optimizer.rests(seen), CONVERGED)
    end(lanes.iteration >= lanes.rules.iterations, SPENT)
    end(lanes.iteration - lanes.marked >= lanes.rules.plateau, PLATEAU)
    return replace(lanes, status=status), running & (status == RUNNING)


def _stall(lanes: Lanes, seen: Seen, stalled: Array) -> Lanes:
    """The end of lanes whose optimiser finds no way down, which closes their iteration."""
    lanes = replace(lanes, iteration=lanes.iteration + (stalled & (lanes.inner > 0)))
    lanes = _write_trace(lanes, seen, stalled)
    ending = jnp.where(seen.distance <= lanes.rules.distance, STOPPED, STALLED)
    return replace(lanes, status=jnp.where(stalled, ending, lanes.status))


def _rescue(optimizer: Optimizer, lanes: Lanes, seen: Seen, running: Array, finite: Array, strayed: Array) -> Lanes:
    """Back to the best point for lanes that diverged."""
    at_rest = (lanes.status == CONVERGED) | (lanes.status == STALLED)
    worse = running & finite & at_rest & (seen.value > lanes.best_value + jnp.abs(lanes.best_value))
    broken = running & ~finite
    possible = jnp.isfinite(lanes.best_value) & (lanes.rescues < RESCUES)
    back = (broken | worse | strayed) & possible
    status = jnp.where(broken & ~possible, FAILED, lanes.status)
    return replace(
        lanes,
        z=jnp.where(back[:, None], lanes.best, lanes.z),
        memory=optimizer.forget(lanes.memory, back),
        made=jnp.where(back, 0, lanes.made),
        inner=jnp.where(back, 0, lanes.inner),
        # A rescue costs an iteration, so that an attack which breaks again and again comes to an end.
        iteration=lanes.iteration + back,
        status=jnp.where(back, RUNNING, status),
        rescues=lanes.rescues + back,
    )
