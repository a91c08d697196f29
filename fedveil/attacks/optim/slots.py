"""Attacks side by side in slots: the progress of each, and the rules by which it ends.

Every attack has a slot with its own iteration count, ending and rescues. One call of `advance` makes one evaluation in each
slot that still runs; slots whose attack has ended do not change.

An attack diverges when its objective is not finite, when its optimiser says so (L-BFGS: an iteration opens above the value
at the start), or when it converges clearly above its best point. It then returns to the best point with an empty memory and
bounded steps, at most `RESCUES` times. Without a finite value to return to, or with no rescue left, an attack that is not
finite ends as `failed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.attacks.reconstruction.matching import GradientMatching
from fedveil.models.layers import Array

Tree = Any
RUNNING, STOPPED, CONVERGED, STALLED, PLATEAU, SPENT, FAILED, LATE, HOPELESS = range(9)
ENDINGS = {
    RUNNING: "running",
    STOPPED: "stop",  # reached the gradient distance in `stop`
    CONVERGED: "converged",  # the gradient of the objective vanished
    STALLED: "stalled",  # the optimiser finds no descent direction
    PLATEAU: "plateau",
    SPENT: "spent",  # made all iterations
    FAILED: "failed",
    LATE: "time limit",  # ended from outside, as it stood
    HOPELESS: "hopeless",  # given up from outside: see `attacks.watch`
}
RESCUES = 4
NEVER = 2**30
PROGRESS = 0.99  # a plateau ends when the best objective falls below this share of its former value


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StopRules:
    """When attacks end. These are arguments of the compiled program, so studies with other rules share it."""

    iterations: Array | np.ndarray  # [attacks] the most iterations
    distance: Array | np.ndarray  # [attacks] a squared gradient distance that ends the attack; negative: never
    plateau: Array | np.ndarray  # [attacks] iterations without progress that end the attack
    limits: Array | np.ndarray | None = None  # [attacks, limits] iterations after which the best point is kept as well


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Kept:
    """Where each attack stood when its iterations reached each limit: what a run with this limit would return."""

    reached: Array  # [attacks, limits] bool
    z: Array  # [attacks, limits, size]
    value: Array  # [attacks, limits]
    distance: Array  # [attacks, limits]
    iteration: Array  # [attacks, limits]
    evaluations: Array  # [attacks, limits]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Slots:
    """The state of each attack."""

    z: Array  # [attacks, size] the point to evaluate next
    memory: Tree  # the optimiser's state
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
    kept: Kept | None = None  # only where the rules have limits


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of all slots: objective, squared gradient distance, gradient of the objective."""

    value: Array
    distance: Array
    slope: Array


class Optimizer(Protocol):
    """One optimiser for many attacks side by side, called after every evaluation.

    `ended`: which attacks have finished an iteration. `rests`: which have converged. `move`: the next step of each.
    """

    def empty(self, attacks: int, size: int, dtype: Any) -> Tree: ...
    def forget(self, memory: Tree, which: Array) -> Tree: ...
    def ended(self, slots: Slots, seen: Evaluation) -> Array: ...
    def diverged(self, slots: Slots, seen: Evaluation) -> Array: ...
    def rests(self, seen: Evaluation) -> Array: ...
    def move(self, slots: Slots, seen: Evaluation, moving: Array) -> tuple[Array, Tree, Array, Array]: ...


def stop_rules(settings: GradientMatching, attacks: int, dtype: Any, limits: tuple[int, ...] = ()) -> StopRules:
    """The same rules for each of `attacks` attacks."""
    return StopRules(
        iterations=np.full(attacks, settings.iterations, np.int32),
        distance=np.full(attacks, -1.0 if settings.stop is None else settings.stop, dtype),
        plateau=np.full(attacks, NEVER if settings.plateau is None else settings.plateau, np.int32),
        limits=np.tile(np.array(limits, np.int32), (attacks, 1)) if limits else None,
    )


def begin(optimizer: Optimizer, z: Array, rules: StopRules, room: int) -> Slots:
    """Slots at their starts z [attacks, size]; the trace has room for `room` values."""
    attacks, dtype = z.shape[0], z.dtype
    count, infinite = jnp.zeros(attacks, jnp.int32), jnp.full(attacks, jnp.inf, dtype)
    return Slots(
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
        kept=_nothing_kept(z, rules),
    )


def _nothing_kept(z: Array, rules: StopRules) -> Kept | None:
    if rules.limits is None:
        return None
    shape, none = rules.limits.shape, jnp.zeros(rules.limits.shape, jnp.int32)
    infinite = jnp.full(shape, jnp.inf, z.dtype)
    points = jnp.broadcast_to(z[:, None], (*shape, z.shape[1])) + jnp.zeros((), z.dtype)
    return Kept(jnp.zeros(shape, bool), points, infinite, infinite, none, none)


def advance(optimizer: Optimizer, evaluate: Callable[[Array], Evaluation], slots: Slots) -> Slots:
    """Evaluates the objective once in every running slot, and takes the step that follows."""
    seen = evaluate(slots.z)
    running = slots.status == RUNNING
    finite = jnp.isfinite(seen.value) & jnp.isfinite(seen.slope).all(axis=1)
    slots = replace(slots, evaluations=slots.evaluations + running)
    slots = _keep_best(slots, seen, running & finite)

    # An iteration may end early; the same evaluation then opens the next one.
    over = running & finite & (slots.inner > 0) & optimizer.ended(slots, seen)
    slots = replace(slots, iteration=slots.iteration + over, inner=jnp.where(over, 0, slots.inner))
    opens = running & finite & (slots.inner == 0)
    slots = _keep_limits(_mark(_write_trace(slots, seen, opens), opens), opens)
    diverged = opens & optimizer.diverged(slots, seen) & (slots.rescues < RESCUES)
    slots = replace(slots, began=jnp.where(opens & jnp.isinf(slots.began), seen.value, slots.began))
    slots, moving = _end(optimizer, slots, seen, opens & ~diverged, running & finite & ~diverged)
    z, memory, stuck, closes = optimizer.move(slots, seen, moving)
    slots = _stall(replace(slots, memory=memory), seen, moving & stuck)
    moved = moving & ~stuck
    slots = replace(
        slots,
        z=jnp.where(moved[:, None], z, slots.z),
        made=slots.made + moved,
        inner=jnp.where(moved, jnp.where(closes, 0, slots.inner + 1), slots.inner),
        iteration=slots.iteration + (moved & closes),
    )
    return _rescue(optimizer, slots, seen, running, finite, diverged)


def _keep_best(slots: Slots, seen: Evaluation, counts: Array) -> Slots:
    better = counts & (seen.value < slots.best_value)
    return replace(
        slots,
        best=jnp.where(better[:, None], slots.z, slots.best),
        best_value=jnp.where(better, seen.value, slots.best_value),
        best_distance=jnp.where(better, seen.distance, slots.best_distance),
    )


def _write_trace(slots: Slots, seen: Evaluation, opens: Array) -> Slots:
    rows, last = jnp.arange(slots.z.shape[0]), slots.trace.shape[1] - 1
    at = jnp.minimum(slots.iteration, last)
    value = jnp.where(opens, seen.distance, slots.trace[rows, at])
    return replace(slots, trace=slots.trace.at[rows, at].set(value))


def _keep_limits(slots: Slots, opens: Array) -> Slots:
    """Keeps the best point of attacks whose iterations have reached a limit: where `_end` would stop them."""
    if slots.kept is None or slots.rules.limits is None:
        return slots
    kept, new = slots.kept, opens[:, None] & (slots.iteration[:, None] >= slots.rules.limits) & ~slots.kept.reached

    def now(values: Array, before: Array) -> Array:
        return jnp.where(new, values[:, None], before)

    made = Kept(
        kept.reached | new,
        jnp.where(new[:, :, None], slots.best[:, None], kept.z),
        now(slots.best_value, kept.value),
        now(slots.best_distance, kept.distance),
        now(slots.iteration, kept.iteration),
        now(slots.evaluations, kept.evaluations),
    )
    return replace(slots, kept=made)


def _mark(slots: Slots, opens: Array) -> Slots:
    onward = opens & (slots.best_value < PROGRESS * slots.mark)
    mark, marked = jnp.where(onward, slots.best_value, slots.mark), jnp.where(onward, slots.iteration, slots.marked)
    return replace(slots, mark=mark, marked=marked)


def _end(optimizer: Optimizer, slots: Slots, seen: Evaluation, opens: Array, running: Array) -> tuple[Slots, Array]:
    """Applies the stop rules when an iteration opens. Returns the slots that continue."""
    status = slots.status

    def end(condition: Array, ending: int) -> None:
        nonlocal status
        status = jnp.where(opens & (status == RUNNING) & condition, ending, status)

    end(seen.distance <= slots.rules.distance, STOPPED)
    end(optimizer.rests(seen), CONVERGED)
    end(slots.iteration >= slots.rules.iterations, SPENT)
    end(slots.iteration - slots.marked >= slots.rules.plateau, PLATEAU)
    return replace(slots, status=status), running & (status == RUNNING)


def _stall(slots: Slots, seen: Evaluation, stalled: Array) -> Slots:
    """Ends attacks whose optimiser finds no descent direction, which closes their iteration."""
    slots = replace(slots, iteration=slots.iteration + (stalled & (slots.inner > 0)))
    slots = _write_trace(slots, seen, stalled)
    ending = jnp.where(seen.distance <= slots.rules.distance, STOPPED, STALLED)
    return replace(slots, status=jnp.where(stalled, ending, slots.status))


def _rescue(
    optimizer: Optimizer, slots: Slots, seen: Evaluation, running: Array, finite: Array, diverged: Array
) -> Slots:
    """Returns attacks that diverged to their best point."""
    at_rest = (slots.status == CONVERGED) | (slots.status == STALLED)
    worse = running & finite & at_rest & (seen.value > slots.best_value + jnp.abs(slots.best_value))
    broken = running & ~finite
    possible = jnp.isfinite(slots.best_value) & (slots.rescues < RESCUES)
    back = (broken | worse | diverged) & possible
    status = jnp.where(broken & ~possible, FAILED, slots.status)
    return replace(
        slots,
        z=jnp.where(back[:, None], slots.best, slots.z),
        memory=optimizer.forget(slots.memory, back),
        made=jnp.where(back, 0, slots.made),
        inner=jnp.where(back, 0, slots.inner),
        # A rescue costs an iteration, so that an attack which diverges again and again ends.
        iteration=slots.iteration + back,
        status=jnp.where(back, RUNNING, status),
        rescues=slots.rescues + back,
    )
