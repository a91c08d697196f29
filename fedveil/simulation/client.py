"""One client's part of a round, as pure functions. The simulator, the reference loop and a deployed node call these.

A client receives the model (`begin`, stage `broadcast`), makes local steps (`step`, stages `example` and `batch`), and
turns the result into a message (`end`, stages `update` and `upload`). A step follows fed-cdp, Algorithm 2: the gradient of
each example (line 8), clipped (lines 9 to 12), summed, noised and divided by the batch size (line 14), one step of descent
(line 15). Without a defence the lines that clip and add noise are not in the compiled program.

`Task.kernels` may replace the clipped gradient sum and the noise of a step by accelerated code with the same result up to
rounding. None leaves the plain code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax

from fedveil.core import keys
from fedveil.core.setting import Setting
from fedveil.core.stage import AccountPoint, StageContext
from fedveil.defenses.base import Defense, filters
from fedveil.mechanisms.mechanism import WHOLE
from fedveil.models.layers import Array, Context, Params
from fedveil.models.net import Model, Net
from fedveil.simulation.inputs import Batch, ClientInputs, ClientResult, RoundContext, RoundInputs
from fedveil.simulation.microbatches import Microbatches

if TYPE_CHECKING:
    from fedveil.kernels import Hooks

Tree = Any
MEASURED_AT_ONCE = 32  # examples of a client whose gradient norms are computed at once

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
    scale: float = 1.0  # stored values times this are the model's inputs
    dtype: str = "float32"
    ragged_steps: bool = False  # some clients make fewer steps than others
    kernels: Hooks | None = None  # accelerated code; None: plain code
    open_examples: bool = False  # train with the tap `example` open: each example's gradient carries its own noise

    @property
    def transform(self) -> optax.GradientTransformation:
        return OPTIMIZERS[self.optimizer]()

    @property
    def exact(self) -> Task:
        """The same task without bfloat16."""
        return self if self.kernels is None else replace(self, kernels=self.kernels.exact)


def accelerated(bfloat16: bool = False) -> Hooks | None:
    """The hooks of `fedveil.kernels`; None where they are switched off or the folder is not installed."""
    try:
        from fedveil.kernels import hooks
    except ImportError:
        return None
    return hooks(bfloat16)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Local:
    """What a client carries from step to step."""

    params: Params
    optimizer: Tree
    loss: Array  # sum of the batch losses so far
    state: Tree  # what stateful defences keep of this client, by index of the defence


StepKeys = dict[str, Array]  # keys of one local step, by purpose and index of the defence


@dataclass(frozen=True)
class OpenTaps:
    """The taps that are open, and what they have shown; filled while tracing."""

    taps: frozenset[str]
    values: dict[str, Tree] = field(default_factory=dict)

    def record(self, tap: str, value: Tree) -> None:
        if tap in self.taps:
            self.values[tap] = value


CLOSED = OpenTaps(frozenset())


# --- the whole round of a client


def client_context(inputs: RoundInputs, client: Any, occurrence: Any = 0, medians: Tree = None) -> RoundContext:
    """The round as this client sees it."""
    key = keys.client_key(inputs.key, client, occurrence)
    return RoundContext(key, keys.shared_key(inputs.key), inputs.number, inputs.lr, client, medians)


def measures_clients(task: Task) -> bool:
    """Whether a defence asks for the medians of each client's gradient norms."""
    return any(defense.measures_clients for defense in task.defenses)


def medians_of(task: Task, inputs: RoundInputs, rows: Any, present: Any) -> Tree:
    """The median norm of each layer's gradient over the examples that a client holds, at the round's model.

    fed-cdp, Section IV-C: median over i in N_i of ∇w_i(t). Computed in blocks, so that no gradients are kept. None where no
    defence asks for it.
    """
    if not measures_clients(task):
        return None
    from fedveil.mechanisms import clip

    def norms(one: tuple[Array, Array]) -> Tree:
        row, there = one
        batch = _scaled(task, Batch(inputs.x[row][None], inputs.y[row][None], there[None]))
        each, _ = _example_gradients(task, inputs.params, batch, None)
        return {name: norm[0] for name, norm in clip.layer_norms(each).items()}

    held = (jnp.asarray(rows), jnp.asarray(present))
    found = jax.lax.map(norms, held, batch_size=MEASURED_AT_ONCE)
    missing = ~held[1]
    usable = {name: jnp.where(missing | ~jnp.isfinite(n), jnp.nan, n) for name, n in found.items()}
    usable[WHOLE] = jnp.sqrt(sum(jnp.square(n) for n in usable.values()))
    return {name: jnp.nanmedian(n) for name, n in usable.items()}


def client_round(task: Task, inputs: RoundInputs, own: ClientInputs) -> ClientResult:
    """All of one client's round, from the server's model to its message."""
    medians = medians_of(task, inputs, own.rows, own.present)
    context = client_context(inputs, own.client, own.occurrence, medians)
    return local_round(task, inputs, begin(task, inputs.params, context), own, context)


def local_round(
    task: Task, inputs: RoundInputs, received: Params, own: ClientInputs, context: RoundContext
) -> ClientResult:
    """One client's round from the model that it has received: what a deployed node computes."""
    train = _train_microbatches if isinstance(own.batches, Microbatches) else _train_batches
    local = train(task, inputs, received, own, context)
    message, state = end(task, inputs.params, received, local, context)
    return ClientResult(message, local.loss / jnp.maximum(own.batches.steps, 1), state)


def _train_batches(
    task: Task, inputs: RoundInputs, received: Params, own: ClientInputs, context: RoundContext
) -> Local:
    """The local steps, one whole batch each: Algorithm 2, lines 5 to 16."""
    batches: Any = own.batches

    def body(local: Local, one: tuple[Array, Array, Array, StepKeys]) -> tuple[Local, None]:
        number, rows, mask, step_keys = one
        batch = Batch(inputs.x[rows], inputs.y[rows], mask)
        new = step(task, local, batch, number, context, draws=step_keys)
        return if_made(task, number, batches.steps, new, local), None

    numbers = jnp.arange(batches.index.shape[0])
    # Derived before the loop: a GPU would launch several small kernels for them in every step.
    draws = jax.vmap(lambda number: keys_of_step(task, context, number))(numbers)
    local, _ = jax.lax.scan(body, start(task, received, own.state), (numbers, batches.index, batches.mask, draws))
    return local


def _train_microbatches(
    task: Task, inputs: RoundInputs, received: Params, own: ClientInputs, context: RoundContext
) -> Local:
    """The local steps, with each batch processed in micro-batches.

    Only for Poisson batches, which are divided by the nominal size, and where `in_microbatches` holds. Noise and descent
    are computed after every micro-batch, and kept only after the last one of a step.
    """
    batches: Any = own.batches
    nominal = jnp.asarray(task.setting.batch, task.dtype)

    def body(carry: tuple[Local, Tree, Array], one: tuple[Array, Array, Array, StepKeys]) -> tuple[Any, None]:
        local, total, loss = carry
        rows, mask, last, draws = one
        batch = _scaled(task, Batch(inputs.x[rows], inputs.y[rows], mask))
        more, more_loss = _gradient_sum(task, local.params, batch, nominal, context, draws)
        total, loss = jax.tree.map(jnp.add, total, more), loss + more_loss
        noised = _add_noise(task, total, loss, nominal, context, draws)
        new = _descend(task, local, noised, loss, nominal, context, draws)
        local = jax.tree.map(lambda a, b: jnp.where(last, a, b), new, local)
        total, loss = jax.tree.map(lambda a: jnp.where(last, jnp.zeros_like(a), a), (total, loss))
        return (local, total, loss), None

    draws = jax.vmap(lambda number: keys_of_step(task, context, number))(batches.step)
    nothing = (jax.tree.map(jnp.zeros_like, received), jnp.zeros((), task.dtype))
    each = (batches.index, batches.mask, batches.last, draws)
    (local, _, _), _ = jax.lax.scan(body, (start(task, received, own.state), *nothing), each)
    return local


def if_made(task: Task, number: Array, steps: Array, new: Local, old: Local) -> Local:
    """The state after a step, or before it where this client makes fewer steps."""
    if not task.ragged_steps:
        return new
    return jax.tree.map(lambda a, b: jnp.where(number < steps, a, b), new, old)


# --- a round whose message is integers


def sums_integers(task: Task) -> bool:
    """Whether nodes send integers with their noise, which secure aggregation adds up; else updates in fixed point."""
    setting = task.setting
    alone = len(task.defenses) == 1 and task.defenses[0].sums_integers(setting)
    return alone and setting.sums


def integer_round(
    task: Task, inputs: RoundInputs, received: Params, own: ClientInputs, context: RoundContext
) -> ClientResult:
    """One client's round of one step, with the noised gradient sum in whole numbers as its message."""
    batches: Any = own.batches
    batch = _scaled(task, Batch(inputs.x[batches.index[0]], inputs.y[batches.index[0]], batches.mask[0]))
    draws = keys_of_step(task, context, 0)
    each, losses = _example_gradients(task, received, batch, draws.get("dropout"))
    at = stage_context(task, context, draws["example/0"], batch_divisor(task, batch.mask))
    return ClientResult(task.defenses[0].integer_sum(each, batch.mask, at), losses.sum() / at.divisor, own.state)


def integer_unit(task: Task, number: int, lr: float) -> float:
    """The update that one integer stands for: the step of descent from the noised sum."""
    at = AccountPoint(task.setting, number, lr)
    return -lr * task.defenses[0].integer_unit(at) / task.setting.batch


# --- its parts


def begin(task: Task, params: Params, context: RoundContext, observation: OpenTaps = CLOSED) -> Params:
    """The model as this client receives it (Algorithm 2, line 4): every stage `broadcast` with the client's key."""
    for index, stage in enumerate(filters(task.defenses, "broadcast")):
        params = stage(params, stage_context(task, context, keys.device(context.key, "broadcast", index)))
    observation.record("broadcast", params)
    return params


def start(task: Task, received: Params, state: Tree | None = None) -> Local:
    """The local state before the first step. The local optimiser is initialised in every round."""
    return Local(received, task.transform.init(received), jnp.zeros((), task.dtype), state or {})


def keys_of_step(task: Task, context: RoundContext, number: Array | int) -> StepKeys:
    """The keys of all that one local step draws."""
    wanted: list[tuple[str, int]] = []
    wanted += [("example", index) for index, _ in enumerate(filters(task.defenses, "example"))]
    wanted += [("batch-noise", index) for index, defense in enumerate(task.defenses) if defense.fills("batch")]
    found = {f"{purpose}/{index}": keys.device(context.key, purpose, index, number) for purpose, index in wanted}
    return found | ({"dropout": keys.device(context.key, "dropout", number)} if _has_dropout(task.model) else {})


def step(
    task: Task,
    local: Local,
    batch: Batch,
    number: Array | int,
    context: RoundContext,
    observation: OpenTaps = CLOSED,
    draws: StepKeys | None = None,
) -> Local:
    """One local step on one batch. `draws`: the step's keys, if the caller has derived those of all steps at once."""
    draws = keys_of_step(task, context, number) if draws is None else draws
    total, loss = batch_gradient(task, local.params, _scaled(task, batch), context, draws, observation)
    return _descend(task, local, total, loss, batch_divisor(task, batch.mask), context, draws, observation)


def _scaled(task: Task, batch: Batch) -> Batch:
    """A batch with stored values converted to the model's inputs."""
    return replace(batch, x=batch.x.astype(task.dtype) * jnp.asarray(task.scale, task.dtype))


def batch_divisor(task: Task, mask: Array) -> Array:
    """What a batch sum is divided by: the nominal B under Poisson sampling, else the number of examples.

    Under Poisson sampling the realised size would reveal who was drawn.
    """
    if task.setting.batching == "poisson":
        return jnp.asarray(task.setting.batch, task.dtype)
    return jnp.maximum(mask.sum(), 1).astype(task.dtype)


def batch_gradient(
    task: Task, params: Params, batch: Batch, context: RoundContext, draws: StepKeys, observation: OpenTaps
) -> tuple[Tree, Array]:
    """The sum of the example gradients after every stage `example` (Algorithm 2, lines 6 to 14), and of the losses."""
    divisor = batch_divisor(task, batch.mask)
    if not _opened(task, observation) and one_pass(task):
        total, loss = _gradient_sum(task, params, batch, divisor, context, draws)
        return _add_noise(task, total, loss, divisor, context, draws), loss
    return _by_example(task, params, batch, context, draws, observation)


def _by_example(
    task: Task, params: Params, batch: Batch, context: RoundContext, draws: StepKeys, observation: OpenTaps
) -> tuple[Tree, Array]:
    """The algorithm as it is printed: the gradient of every example, every stage in order, then the sum."""
    each, losses = _example_gradients(task, params, batch, draws.get("dropout"))  # line 8
    divisor, opened = batch_divisor(task, batch.mask), _opened(task, observation)
    stages = [d for d in task.defenses if d.fills("example")]
    not_shown: list[Tree] = []
    total: Tree = None
    for index, stage in enumerate(stages):  # lines 9 to 14: clip, and the noise of the sum
        at = replace(stage_context(task, context, draws[f"example/{index}"], divisor), open=opened)
        if index == len(stages) - 1 and not opened:
            total = stage.example_sum(each, batch.mask, at)
            break
        each, rest = stage.example(each, batch.mask, at)
        not_shown += [] if rest is None else [rest]
    if total is None:
        total = jax.tree.map(lambda g: g.sum(axis=0), each)
    observation.record("example", each)
    for rest in not_shown:
        total = jax.tree.map(jnp.add, total, rest)
    return total, losses.sum()


def _example_gradients(task: Task, params: Params, batch: Batch, rng: Array | None) -> tuple[Tree, Array]:
    """Gradient [width, ...] and loss [width] of every example."""

    def one(x: Array, y: Array, present: Array, rng: Array | None) -> tuple[Tree, Array]:
        return _sum_of_gradients(task, params, Batch(x[None], y[None], present[None]), rng)

    rngs = None if rng is None else jax.random.split(rng, batch.x.shape[0])
    return jax.vmap(one, in_axes=(0, 0, 0, None if rng is None else 0))(batch.x, batch.y, batch.mask, rngs)


def _descend(
    task: Task,
    local: Local,
    total: Tree,
    loss: Array,
    divisor: Array,
    context: RoundContext,
    draws: StepKeys,
    observation: OpenTaps = CLOSED,
) -> Local:
    """The local state after a step whose filtered example gradients add up to `total`, and its losses to `loss`."""
    at = lambda index: stage_context(task, context, draws[f"batch-noise/{index}"], divisor)  # noqa: E731
    total, state = _through(task, "batch", total, local.state, at)
    mean = jax.tree.map(lambda g: g / divisor, total)  # line 14, 1/B
    observation.record("batch", mean)
    direction, optimizer = task.transform.update(mean, local.optimizer, local.params)
    params = jax.tree.map(lambda p, d: p - context.lr * d, local.params, direction)  # line 15
    return Local(params, optimizer, local.loss + loss / divisor, state)


def end(
    task: Task, sent: Params, received: Params, local: Local, context: RoundContext, observation: OpenTaps = CLOSED
) -> tuple[Tree, Tree]:
    """The client's message as a difference to `sent`, the server's model; and its new state.

    FedSGD sends the update (Algorithm 2, line 17), FedAvg the local model. Both enter the server's sum as a difference to
    its model, so that an absent client counts as "no change".
    """
    update = jax.tree.map(jnp.subtract, local.params, received)
    for index, stage in enumerate(filters(task.defenses, "update")):
        update = stage(update, stage_context(task, context, keys.device(context.key, "update", index)))
    observation.record("client", update)
    averaging = task.setting.aggregation == "fedavg"
    message = jax.tree.map(jnp.add, received, update) if averaging else update
    at = lambda index: stage_context(task, context, keys.device(context.key, "upload", index))  # noqa: E731
    message, state = _through(task, "upload", message, local.state, at)
    observation.record("server", message)
    return (jax.tree.map(jnp.subtract, message, sent) if averaging else message), state


def _through(task: Task, stage: str, value: Tree, state: Tree, at: Callable[[int], StageContext]) -> tuple[Tree, Tree]:
    """Passes a value through all defences that act at a stage; returns it with the new client state."""
    for index, defense in enumerate(task.defenses):
        if not defense.fills(stage):
            continue
        if defense.stateful:
            value, kept = defense.apply_with_state(stage, value, state[str(index)], at(index))
            state = {**state, str(index): kept}
        else:
            value = getattr(defense, stage)(value, at(index))
    return value, state


# --- one backward pass for a batch


def one_pass(task: Task) -> bool:
    """Whether one backward pass gives a batch's gradient: no defence filters examples, or the kernels can clip them."""
    stages = [d for d in task.defenses if d.fills("example")]
    if not stages:
        return True
    if len(stages) > 1 or task.kernels is None or not task.kernels.clips(task.model):
        return False
    # A defence has a bound that can be fused at every point of the run or at none.
    anywhere = StageContext(task.setting, keys.root(0), keys.root(0), 0, task.setting.lr)
    return stages[0].example_bound(anywhere) is not None


def in_microbatches(task: Task) -> bool:
    """Whether batches may be cut into micro-batches: one pass does each, and nothing is drawn for the whole batch."""
    return one_pass(task) and not _has_dropout(task.model) and not task.open_examples


def _opened(task: Task, observation: OpenTaps) -> bool:
    """Whether an observer sees the gradients of single examples."""
    return task.open_examples or "example" in observation.taps


def _gradient_sum(
    task: Task, params: Params, batch: Batch, divisor: Array, context: RoundContext, draws: StepKeys
) -> tuple[Tree, Array]:
    """The sum of the example gradients, clipped where a defence clips them, and of the losses, in one backward pass."""
    stage, bound = _example_stage(task), None
    if stage is not None:
        at = stage_context(task, context, draws["example/0"], divisor)
        bound = jnp.asarray(stage.example_bound(at), task.dtype)
    return _sum_of_gradients(task, params, batch, draws.get("dropout"), bound)


def _sum_of_gradients(
    task: Task, params: Params, batch: Batch, rng: Array | None, bound: Array | None = None
) -> tuple[Tree, Array]:
    """The gradient and the value of the batch's summed loss. `bound` clips each example, which needs the kernels."""
    model = task.model
    if task.kernels is None or not isinstance(model, Net):
        loss, total = jax.value_and_grad(lambda p: _loss(model, p, batch, Context(rng)))(params)
        return total, loss
    loss_of = lambda p, inside: _loss(model, p, batch, inside)  # noqa: E731
    return task.kernels.gradient_sum(model, loss_of, params, batch.x, bound, rng)


def _add_noise(task: Task, total: Tree, loss: Array, divisor: Array, context: RoundContext, draws: StepKeys) -> Tree:
    """A clipped gradient sum with the noise of stage `example`; `loss` is the sum of the same examples' losses."""
    stage = _example_stage(task)
    if stage is None or task.kernels is None:  # without kernels one pass does batches that no defence filters
        return total
    noisy = lambda key: stage.example_on_sum(total, stage_context(task, context, key, divisor))  # noqa: E731
    return task.kernels.noised(noisy, draws["example/0"], loss)


def _example_stage(task: Task) -> Defense | None:
    return next((d for d in task.defenses if d.fills("example")), None)


# --- the loss


def cross_entropy(logits: Array, y: Array) -> Array:
    """Per-example cross-entropy [batch]."""
    own = y[:, None] == jnp.arange(logits.shape[1])  # not a gather: the gradient of a gather is a slow scatter
    return -jnp.where(own, jax.nn.log_softmax(logits), 0.0).sum(axis=1)


def _loss(model: Model, params: Params, batch: Batch, context: Context) -> Array:
    """The sum of the losses of a batch, padding left out."""
    logits = model.apply(params, batch.x, context) if isinstance(model, Net) else model.apply(params, batch.x)
    return jnp.where(batch.mask, cross_entropy(logits, batch.y), 0.0).sum()


def _has_dropout(model: Model) -> bool:
    return isinstance(model, Net) and model.random


def stage_context(task: Task, context: RoundContext, key: Array, divisor: Array | float = 1.0) -> StageContext:
    """The point of the run at which a stage of this client is called."""
    point = (task.setting, key, context.shared, context.round, context.lr, divisor)
    return StageContext(*point, client=context.client, medians=context.medians)
