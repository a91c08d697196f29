"""One client's part of a round, as pure functions: the vectorised simulator, the reference loop and a deployed node all
call these.

`begin`, `step` and `end` are the whole of it. A client receives the model (stage `broadcast`), makes local steps (stages
`example` and `batch`), and turns the result into a message (stages `update` and `upload`). What observers see at the taps
`broadcast`, `example`, `batch`, `client` and `server` is returned only where a tap is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedveil import compiler
from fedveil.core import keys
from fedveil.core.setting import Setting
from fedveil.core.stage import StageContext
from fedveil.defenses.base import Defense, filters
from fedveil.models.clipped import clipping_affine, clipping_first, clipping_linear, clipping_pair
from fedveil.models.layers import Array, Context, Params
from fedveil.models.net import Model, Net
from fedveil.models.pooling import both, first, in_order
from fedveil.models.products import half_patches, quick_linear

Tree = Any

OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": optax.identity,
    "momentum": lambda: optax.trace(decay=0.9),
    "adam": optax.scale_by_adam,
    "adagrad": lambda: optax.scale_by_rss(initial_accumulator_value=0.1, eps=1e-7),
}


@dataclass(frozen=True)
class Task:
    """What every client computes: static under jit."""

    model: Model
    setting: Setting
    optimizer: str = "sgd"
    defenses: tuple[Defense, ...] = ()
    scale: float = 1.0  # stored values times this are what the model sees
    dtype: str = "float32"
    ragged_steps: bool = False  # some clients make fewer steps than others
    half: bool = False  # products of patches in bfloat16
    open_examples: bool = False  # train with the tap `example` open: single gradients, each with what protects it

    @property
    def transform(self) -> optax.GradientTransformation:
        return OPTIMIZERS[self.optimizer]()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RoundContext:
    """The round's traced numbers; the key of the client (folded with its id) and the one that all of them share."""

    key: Array
    shared: Array
    round: Array | int
    lr: Array | float


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Local:
    """What a client carries from step to step."""

    params: Params
    optimizer: Tree
    loss: Array  # sum of the batch losses so far
    memory: Tree  # what stateful defences remember of this client, by place of the defence


Draws = dict[str, Array]  # keys of one local iteration, by purpose and place of the defence


@dataclass(frozen=True)
class Seen:
    """What taps recorded at one stage call; filled while tracing."""

    taps: frozenset[str]
    values: dict[str, Tree] = field(default_factory=dict)

    def record(self, tap: str, value: Tree) -> None:
        if tap in self.taps:
            self.values[tap] = value


NOTHING = Seen(frozenset())


def begin(task: Task, params: Params, now: RoundContext, seen: Seen = NOTHING) -> Params:
    """The model as this client receives it: every stage `broadcast` applied with the client's own key."""
    for place, stage in enumerate(filters(task.defenses, "broadcast")):
        params = stage(params, _at(task, now, keys.device(now.key, "broadcast", place)))
    seen.record("broadcast", params)
    return params


def start(task: Task, received: Params, memory: Tree | None = None) -> Local:
    """Local state before the first step; the local optimiser starts afresh in every round."""
    return Local(received, task.transform.init(received), jnp.zeros((), task.dtype), memory or {})


def _pass(task: Task, stage: str, value: Tree, memory: Tree, at: Callable[[int], StageContext]) -> tuple[Tree, Tree]:
    """A value through all defences that fill in a stage, with the memory of those that have one."""
    for place, defense in enumerate(task.defenses):
        if not defense.fills(stage):
            continue
        if defense.stateful:
            value, kept = defense.recall(stage, value, memory[str(place)], at(place))
            memory = {**memory, str(place): kept}
        else:
            value = getattr(defense, stage)(value, at(place))
    return value, memory


def step_keys(task: Task, now: RoundContext, number: Array | int) -> Draws:
    """The keys of all that one local iteration draws."""
    wanted: list[tuple[str, int]] = []
    wanted += [("example", place) for place, _ in enumerate(filters(task.defenses, "example"))]
    wanted += [("batch-noise", place) for place, defense in enumerate(task.defenses) if defense.fills("batch")]
    found = {f"{purpose}/{place}": keys.device(now.key, purpose, place, number) for purpose, place in wanted}
    return found | ({"dropout": keys.device(now.key, "dropout", number)} if _draws(task.model) else {})


def step(
    task: Task,
    local: Local,
    x: Array,
    y: Array,
    mask: Array,
    number: Array | int,
    now: RoundContext,
    seen: Seen = NOTHING,
    draws: Draws | None = None,
) -> Local:
    """One local iteration on one batch: `x` [width, ...] as stored, `mask` [width] tells examples from padding.

    `draws`: `step_keys`, where they were made ahead for all steps at once.
    """
    x = x.astype(task.dtype) * jnp.asarray(task.scale, task.dtype)
    draws = step_keys(task, now, number) if draws is None else draws
    total, loss = batch_gradient(task, local.params, x, y, mask, now, draws, seen)
    return _moved(task, local, total, loss, batch_divisor(task, mask), now, draws, seen)


def _moved(
    task: Task,
    local: Local,
    total: Tree,
    loss: Array,
    divisor: Array,
    now: RoundContext,
    draws: Draws,
    seen: Seen = NOTHING,
) -> Local:
    """The state after a step whose example gradients, filtered, add up to `total`, and its losses to `loss`."""
    at = lambda place: _at(task, now, draws[f"batch-noise/{place}"], divisor)  # noqa: E731
    total, memory = _pass(task, "batch", total, local.memory, at)
    mean = jax.tree.map(lambda g: g / divisor, total)
    seen.record("batch", mean)
    direction, optimizer = task.transform.update(mean, local.optimizer, local.params)
    params = jax.tree.map(lambda p, d: p - now.lr * d, local.params, direction)
    return Local(params, optimizer, local.loss + loss / divisor, memory)


def batch_divisor(task: Task, mask: Array) -> Array:
    """What a batch sum is divided by: the nominal B under Poisson sampling (the realised count would tell who was
    drawn), else the number of examples."""
    if task.setting.batching == "poisson":
        return jnp.asarray(task.setting.batch, task.dtype)
    return jnp.maximum(mask.sum(), 1).astype(task.dtype)


def batch_gradient(
    task: Task, params: Params, x: Array, y: Array, mask: Array, now: RoundContext, draws: Draws, seen: Seen
) -> tuple[Tree, Array]:
    """The sum of the batch's example gradients after the stages `example`, and the sum of its losses.

    One backward pass where nobody filters examples, or where the only filter is a layerwise clip and nobody taps them;
    else example by example.
    """
    divisor = batch_divisor(task, mask)
    if not _opened(task, seen) and one_pass(task):
        total, loss = _clipped_sum(task, params, x, y, mask, divisor, now, draws)
        return _noised(task, total, loss, divisor, now, draws), loss
    stages = [d for d in task.defenses if d.fills("example")]
    opened = _opened(task, seen)
    points = [replace(_at(task, now, draws[f"example/{n}"], divisor), open=opened) for n in range(len(stages))]
    return _one_by_one(task, params, x, y, mask, draws.get("dropout"), stages, points, seen)


def _opened(task: Task, seen: Seen) -> bool:
    """Whether somebody sees the gradients of single examples."""
    return task.open_examples or "example" in seen.taps


def one_pass(task: Task) -> bool:
    """Whether one backward pass does a batch: nobody filters examples, or the only filter is a layerwise clip."""
    stages = [d for d in task.defenses if d.fills("example")]
    if not stages:
        return True
    anywhere = StageContext(
        task.setting, keys.root(0), keys.root(0), 0, task.setting.lr
    )  # a bound is there always or never
    return len(stages) == 1 and can_fuse(task.model) and stages[0].example_bound(anywhere) is not None


def in_microbatches(task: Task) -> bool:
    """Whether batches may be cut into parts: one pass does each, and nothing is drawn for the whole batch at once."""
    return one_pass(task) and not _draws(task.model) and not task.open_examples


def _clipped_sum(
    task: Task, params: Params, x: Array, y: Array, mask: Array, divisor: Array, now: RoundContext, draws: Draws
) -> tuple[Tree, Array]:
    """The sum of the example gradients, clipped where somebody clips, and the sum of their losses, in one pass."""
    stage = next((d for d in task.defenses if d.fills("example")), None)
    context = in_training(task, draws.get("dropout"))
    if stage is not None:
        bound = jnp.asarray(stage.example_bound(_at(task, now, draws["example/0"], divisor)), task.dtype)
        context = replace(
            context,
            linear=clipping_linear(bound),
            affine=clipping_affine(bound),
            first=clipping_first(bound),
            pair=context.pair and clipping_pair(bound),
        )
    loss, total = jax.value_and_grad(_loss)(params, task.model, x, y, mask, context)
    if stage is not None and task.half and isinstance(task.model, Net):
        total = in_order(task.model.layers, x, total)
    return total, loss


def _noised(task: Task, total: Tree, loss: Array, divisor: Array, now: RoundContext, draws: Draws) -> Tree:
    """A step's clipped sum, of examples with this loss, with the noise of the stage `example`."""
    stage = next((d for d in task.defenses if d.fills("example")), None)
    if stage is None:
        return total
    key = compiler.after(
        draws["example/0"], loss
    )  # nothing is done with keys while the first layer waits for its images
    return stage.example_on_sum(total, _at(task, now, key, divisor))


def _one_by_one(
    task: Task,
    params: Params,
    x: Array,
    y: Array,
    mask: Array,
    rng: Array | None,
    stages: list[Defense],
    points: list[StageContext],
    seen: Seen,
) -> tuple[Tree, Array]:
    """The obvious way: every example's gradient, every stage in order, then the sum."""
    one = jax.value_and_grad(
        lambda p, xi, yi, mi, ri: _loss(p, task.model, xi[None], yi[None], mi[None], in_training(task, ri))
    )
    rngs = None if rng is None else jax.random.split(rng, x.shape[0])
    losses, each = jax.vmap(one, in_axes=(None, 0, 0, 0, None if rng is None else 0))(params, x, y, mask, rngs)
    unseen: list[Tree] = []
    tapped = _opened(task, seen)
    for place, (stage, at) in enumerate(zip(stages, points, strict=True)):
        if place == len(stages) - 1 and not tapped:
            total = stage.example_sum(each, mask, at)
            break
        each, rest = stage.example(each, mask, at)
        unseen += [] if rest is None else [rest]
    else:
        total = jax.tree.map(lambda g: g.sum(axis=0), each)
    seen.record("example", each)
    for rest in unseen:
        total = jax.tree.map(jnp.add, total, rest)
    return total, losses.sum()


def can_fuse(model: Model) -> bool:
    """Whether every parameter of the model is used once and where clipping can enter."""
    return isinstance(model, Net) and model.clips_in_one_pass


def end(
    task: Task, sent: Params, received: Params, local: Local, now: RoundContext, seen: Seen = NOTHING
) -> tuple[Tree, Tree]:
    """The client's message, as a difference to `sent`, the model at the server; and its new memory.

    FedSGD sends the update (local minus received model), FedAvg the local model. Either enters the sum as a difference
    to the server's model, so that absent clients count as "no change".
    """
    update = jax.tree.map(jnp.subtract, local.params, received)
    for place, stage in enumerate(filters(task.defenses, "update")):
        update = stage(update, _at(task, now, keys.device(now.key, "update", place)))
    seen.record("client", update)
    averaging = task.setting.aggregation == "fedavg"
    message = jax.tree.map(jnp.add, received, update) if averaging else update
    at = lambda place: _at(task, now, keys.device(now.key, "upload", place))  # noqa: E731
    message, memory = _pass(task, "upload", message, local.memory, at)
    seen.record("server", message)
    return (jax.tree.map(jnp.subtract, message, sent) if averaging else message), memory


def whole(
    task: Task,
    sent: Params,
    x: Array,
    y: Array,
    index: Array,
    mask: Array,
    steps: Array,
    memory: Tree,
    now: RoundContext,
) -> tuple[Tree, Array, Tree]:
    """All of one client's round: gathers each batch from the dataset and scans over the steps.

    `index`, `mask` [steps, width]. Returns the message, the mean of the batch losses, the new memory.
    """
    return received_on(task, sent, begin(task, sent, now), x, y, index, mask, steps, memory, now)


def received_on(
    task: Task,
    sent: Params,
    received: Params,
    x: Array,
    y: Array,
    index: Array,
    mask: Array,
    steps: Array,
    memory: Tree,
    now: RoundContext,
) -> tuple[Tree, Array, Tree]:
    """One client's round from the model it has received on: what a deployed node computes."""

    def body(local: Local, inputs: tuple[Array, Array, Array, Draws]) -> tuple[Local, None]:
        number, rows, present, draws = inputs
        new = step(task, local, x[rows], y[rows], present, number, now, draws=draws)
        return _if_made(task, number, steps, new, local), None

    numbers = jnp.arange(index.shape[0])
    # Made ahead: a graphics card would spend several small kernels on them in every step.
    draws = jax.vmap(lambda number: step_keys(task, now, number))(numbers)
    local, _ = jax.lax.scan(body, start(task, received, memory), (numbers, index, mask, draws))
    message, memory = end(task, sent, received, local, now)
    return message, local.loss / jnp.maximum(steps, 1), memory


def whole_in_microbatches(
    task: Task,
    sent: Params,
    x: Array,
    y: Array,
    index: Array,
    mask: Array,
    number: Array,
    last: Array,
    steps: Array,
    memory: Tree,
    now: RoundContext,
) -> tuple[Tree, Array, Tree]:
    """`whole` with batches in parts (`rounds.parts`): `index`, `mask` [parts, width], `number`, `last` [parts].

    For Poisson batches, which are divided by their nominal size, and where `one_pass` holds. Noise and update are computed
    in every part and kept in the last of a step.
    """
    received = begin(task, sent, now)
    nominal = jnp.asarray(task.setting.batch, task.dtype)

    def body(state: tuple[Local, Tree, Array], inputs: tuple[Array, Array, Array, Draws]) -> tuple[Any, None]:
        local, total, loss = state
        rows, present, done, draws = inputs
        values = x[rows].astype(task.dtype) * jnp.asarray(task.scale, task.dtype)
        more, more_loss = _clipped_sum(task, local.params, values, y[rows], present, nominal, now, draws)
        total, loss = jax.tree.map(jnp.add, total, more), loss + more_loss
        new = _moved(task, local, _noised(task, total, loss, nominal, now, draws), loss, nominal, now, draws)
        local = jax.tree.map(lambda a, b: jnp.where(done, a, b), new, local)
        total, loss = jax.tree.map(lambda a: jnp.where(done, jnp.zeros_like(a), a), (total, loss))
        return (local, total, loss), None

    draws = jax.vmap(lambda step: step_keys(task, now, step))(number)
    nothing = (jax.tree.map(jnp.zeros_like, received), jnp.zeros((), task.dtype))
    (local, _, _), _ = jax.lax.scan(body, (start(task, received, memory), *nothing), (index, mask, last, draws))
    message, memory = end(task, sent, received, local, now)
    return message, local.loss / jnp.maximum(steps, 1), memory


def _if_made(task: Task, number: Array, steps: Array, new: Local, old: Local) -> Local:
    """The state after a step, or before it where this client makes fewer."""
    if not task.ragged_steps:
        return new
    return jax.tree.map(lambda a, b: jnp.where(number < steps, a, b), new, old)


def watched(
    task: Task,
    taps: frozenset[str],
    steps: tuple[int, ...],
    sent: Params,
    x: Array,
    y: Array,
    index: Array,
    mask: Array,
    count: Array,
    memory: Tree,
    now: RoundContext,
) -> dict[str, Tree]:
    """One client's round of `count` steps with taps open; `example` and `batch` at the named steps alone.

    Steps that are not watched are scanned over, and left out altogether where nothing after them is asked for.
    """
    found: dict[str, Tree] = {tap: {} for tap in taps & {"example", "batch"}}
    outside = Seen(taps & {"broadcast", "client", "server"})
    received = begin(task, sent, now, outside)
    local = start(task, received, memory)
    to_the_end = bool(taps & {"client", "server"})
    inner = steps if found else ()
    last = index.shape[0] if to_the_end else max((step + 1 for step in inner), default=0)

    def unseen(local: Local, inputs: tuple[Array, Array, Array]) -> tuple[Local, None]:
        number, rows, present = inputs
        new = step(task, local, x[rows], y[rows], present, number, now)
        return _if_made(task, number, count, new, local), None

    done = 0
    for number in sorted(inner):
        between = slice(done, number)
        local, _ = jax.lax.scan(unseen, local, (jnp.arange(done, number), index[between], mask[between]))
        inside = Seen(taps & {"example", "batch"})
        new = step(task, local, x[index[number]], y[index[number]], mask[number], number, now, inside)
        local = _if_made(task, jnp.asarray(number), count, new, local)
        for tap, value in inside.values.items():
            found[tap][number] = value
        done = number + 1
    local, _ = jax.lax.scan(unseen, local, (jnp.arange(done, last), index[done:last], mask[done:last]))
    if to_the_end:
        end(task, sent, received, local, now, outside)
    return {**found, **outside.values}


def cross_entropy(logits: Array, y: Array) -> Array:
    """Per-example cross-entropy [batch]."""
    own = y[:, None] == jnp.arange(logits.shape[1])  # compared, not looked up: what is looked up is scattered backwards
    return -jnp.where(own, jax.nn.log_softmax(logits), 0.0).sum(axis=1)


def in_training(task: Task, rng: Array | None) -> Context:
    """How a network is computed in training."""
    context = Context(rng, quick_linear, fused=True, first=first)
    return replace(context, patches=half_patches, pair=both) if task.half else context


def _loss(params: Params, model: Model, x: Array, y: Array, mask: Array, context: Context) -> Array:
    logits = model.apply(params, x, context) if isinstance(model, Net) else model.apply(params, x)
    return jnp.where(mask, cross_entropy(logits, y), 0.0).sum()


def _draws(model: Model) -> bool:
    return isinstance(model, Net) and model.random


def _at(task: Task, now: RoundContext, key: Array, divisor: Array | float = 1.0) -> StageContext:
    return StageContext(task.setting, key, now.shared, now.round, now.lr, divisor)
