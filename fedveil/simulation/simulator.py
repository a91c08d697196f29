"""The simulator: rounds over many clients on one machine.

Two engines run the same pure functions of `client.py` and `server.py`: `vectorised` (clients in chunks under vmap, local
steps under scan, one compiled program) and `reference` (one client and one step at a time, in plain Python). Their results
agree up to rounding, and so do different chunk sizes. The cost of a round grows with the clients that take part, not with
all clients.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial, wraps
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.compilation import Compiler
from fedveil.core import keys
from fedveil.core.system import cores
from fedveil.data.dataset import Dataset, Part
from fedveil.data.partition import Partition
from fedveil.models import net
from fedveil.models.layers import Array, Params
from fedveil.models.net import Model, Net
from fedveil.simulation import client as client_part
from fedveil.simulation import microbatches, sampling, server
from fedveil.simulation.client import Task
from fedveil.simulation.context import measured_rows
from fedveil.simulation.inputs import Batch, ClientInputs, ClientResult, RoundInputs
from fedveil.simulation.microbatches import Microbatches, Workload
from fedveil.simulation.observation import Observer, padded_batches
from fedveil.simulation.sampling import Batches, BatchSampling, Cohort
from fedveil.simulation.server import Answers, ServerRule, ServerState, Sum

Tree = Any
Edit = Callable[[Cohort, Batches | Microbatches], Batches | Microbatches]


@dataclass(frozen=True, eq=False)
class FederatedData:
    """The dataset, which examples each client holds, and how it forms batches of them."""

    dataset: Dataset
    partition: Partition
    sampling: BatchSampling


@dataclass(frozen=True, eq=False)
class SimulationSettings:
    """How a federation is simulated. The initial model follows `seed`; all draws of rounds come from `draws`."""

    seed: int
    draws: keys.Draws
    faults: bool = True  # whether chosen clients are lost or late as the setting says
    engine: str = "vectorised"
    chunk: int | None = None  # clients at once; None: what the machine's cache or memory holds
    workers: int | None = None  # chunks computed side by side; None: one per CPU core
    present: np.ndarray | None = None  # [clients] bool: the others never answer; None: all clients are present
    microbatches: microbatches.Shape | Literal["auto"] | None = "auto"  # of Poisson batches; None: whole batches


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


# --- the driver of rounds


def chunk_sum(
    task: Task, rule: ServerRule, so_far: tuple[Sum, Tree], inputs: RoundInputs, chunk: ClientInputs
) -> tuple[Sum, Tree]:
    """The rounds of a chunk of clients, added to the sum; and the new states of all clients."""
    summed, clients = so_far
    states = jax.tree.map(lambda a: a[chunk.client], server.defense_states(clients))
    found = jax.vmap(partial(client_part.client_round, task, inputs))(replace(chunk, state=states))
    answers = Answers(found.message, chunk.weight, chunk.late, found.loss)
    new = server.update_client_states(clients, chunk.client, answers, found.state)
    return server.collect(rule, summed, answers), new


# The axes of several federations that train side by side: the data, the round's number and its rate are the same for all.
FEDERATIONS = RoundInputs(params=0, x=None, y=None, key=0, number=None, lr=None)  # type: ignore[arg-type]


class Rounds:
    """Runs rounds: the sum over the cohort in chunks, then the server's step.

    With `federations`, every array but those that `FEDERATIONS` names has a leading axis over several federations.
    """

    def __init__(self, task: Task, rule: ServerRule, compiler: Compiler, federations: bool = False):
        self.dtype = task.dtype
        empty, chunk = partial(server.empty_sum, rule), partial(chunk_sum, task, rule)
        advance: Callable[..., ServerState] = partial(server.advance, task, rule)
        if federations:
            empty, chunk = jax.vmap(empty), jax.vmap(chunk, in_axes=(0, FEDERATIONS, 0))
            advance = jax.vmap(advance, in_axes=(0, 0, 0, None))
        self.empty = compiler.program(empty)
        self.chunk = compiler.program(chunk, donate=True)
        self.advance = compiler.program(advance, donate=True)
        self.join = compiler.program(server.joined, donate=True)

    def run(
        self, state: ServerState, inputs: RoundInputs, chunks: Iterable[ClientInputs], workers: int = 1
    ) -> tuple[ServerState, Sum]:
        """One round. Returns the new state, and the counters of the sum; the old state is donated."""
        return self.step(state, inputs, self.collect(state, inputs, chunks, workers))

    def step(self, state: ServerState, inputs: RoundInputs, collected: tuple[Sum, Tree]) -> tuple[ServerState, Sum]:
        """The server's step with the sum and the client states that were collected."""
        summed, clients = collected
        # The sum is used up by the step, so the report keeps only the counters.
        counters = replace(summed, total={}, late={})
        return self.advance(replace(state, clients=clients), summed, inputs.key, inputs.lr), counters

    def collect(
        self, state: ServerState, inputs: RoundInputs, chunks: Iterable[ClientInputs], workers: int = 1
    ) -> tuple[Sum, Tree]:
        """The sum over all chunks, and the new states of the clients."""
        summed, clients, chunks = self.empty(state.params), state.clients, iter(chunks)
        if workers > 1 and not clients:
            first = list(itertools.islice(chunks, 2))
            chunks = itertools.chain(first, chunks)
            if len(first) > 1:
                return self._side_by_side(summed, inputs, chunks, workers), clients
        for chunk in chunks:
            summed, clients = self.chunk((summed, clients), inputs, chunk)
        return summed, clients

    def _side_by_side(self, summed: Sum, inputs: RoundInputs, chunks: Iterator[ClientInputs], workers: int) -> Sum:
        """The sum over chunks that are computed side by side on a CPU's cores.

        Most operations of a small network use one core, so several programs at once use all cores. Each chunk has its
        own sum, and sums are added in the order of the chunks: the result does not depend on which chunk is done first.
        """
        waiting: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(workers) as pool:
            for chunk in chunks:
                args: tuple[Any, ...] = ((self.empty(inputs.params), {}), inputs, chunk)
                waiting.append(pool.submit(self._in_thread, self.chunk.ready(*args), args))
                if len(waiting) > workers:
                    summed = self.join(summed, waiting.popleft().result())
            while waiting:
                summed = self.join(summed, waiting.popleft().result())
        return summed

    def _in_thread(self, program: Any, args: tuple[Any, ...]) -> Sum:
        """One chunk's sum, computed."""
        with jax.enable_x64(self.dtype == "float64"):  # a setting of each thread
            found, _ = jax.block_until_ready(program(*args))  # type: ignore[no-untyped-call]
        return found


# --- the simulator


def _in_precision(method: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a method with 64-bit numbers on or off as the task says, for any setting of the process."""

    @wraps(method)
    def inside(self: Simulator, *args: Any, **kwargs: Any) -> Any:
        with jax.enable_x64(self.task.dtype == "float64"):
            return method(self, *args, **kwargs)

    return inside


class Simulator:
    """A federation in memory. `start` makes the first state, `round` maps a state to the next.

    A simulator does not change after construction; `variant` makes another one that shares its compiled programs.
    """

    def __init__(self, task: Task, rule: ServerRule, data: FederatedData, settings: SimulationSettings):
        self.task, self.rule, self.data, self.settings = task, rule, data, settings
        self.compiler = Compiler()
        self.chunk = min(settings.chunk or auto_chunk(task, data.dataset), max(1, task.setting.per_round))
        self.weights = sampling.client_weights(task.setting.weights, data.partition)
        self.widths = sampling.batch_widths(data.sampling, data.partition, self.chunk * task.setting.local_steps)
        # Data are on the device as stored (images as bytes); each batch is scaled after it is gathered.
        self._examples = (jnp.asarray(data.dataset.train.x), jnp.asarray(data.dataset.train.y))
        self._held_out = _blocks(data.dataset.held_out)
        self._rounds = Rounds(task, rule, self.compiler)
        self._scores = self.compiler.program(partial(_scores, task))
        self._observer = Observer(task.exact, self.compiler)
        # The three parts of a client in the reference loop, where its whole round is never one program.
        self._begin = self.compiler.program(partial(client_part.begin, task))
        self._step = self.compiler.program(partial(client_part.step, task))
        self._end = self.compiler.program(partial(client_part.end, task))
        self._derive()

    def _derive(self) -> None:
        """What follows from the settings."""
        settings = self.settings
        self._root = settings.draws.root()
        self.workers = settings.workers or (cores() if jax.default_backend() == "cpu" else 1)
        self.microbatches = self._best_shape() if settings.microbatches == "auto" else settings.microbatches

    def _best_shape(self) -> microbatches.Shape | None:
        """The shape of micro-batches; None where whole batches cost no more, or a defence needs them."""
        poisson = self.sampling.batching == "poisson"
        if not poisson or self.settings.engine != "vectorised" or not client_part.in_microbatches(self.task):
            return None
        work = Workload(self.task.setting.local_steps, self.chunk, self.widths[0], extra_cost(self.task))
        return microbatches.best_shape(self.sampling, self.partition, work)

    def variant(
        self, *, task: Task | None = None, x: Array | None = None, y: Array | None = None, **changes: Any
    ) -> Simulator:
        """A simulator with other `SimulationSettings`, or with other examples on the device, [examples, ...] as before.

        It shares the compiled programs of this one. With another task, programs are compiled anew.
        """
        settings = replace(self.settings, **changes)
        made = copy.copy(self) if task is None else Simulator(task, self.rule, self.data, settings)
        made.settings = settings
        made._examples = (self.x if x is None else x, self.y if y is None else y)
        made._derive()
        return made

    # What it was made from, read-only.

    @property
    def dataset(self) -> Dataset:
        return self.data.dataset

    @property
    def partition(self) -> Partition:
        return self.data.partition

    @property
    def sampling(self) -> BatchSampling:
        return self.data.sampling

    @property
    def draws(self) -> keys.Draws:
        return self.settings.draws

    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def present(self) -> np.ndarray | None:
        return self.settings.present

    @property
    def x(self) -> Array:
        """[examples, ...] on the device, as stored."""
        return self._examples[0]

    @property
    def y(self) -> Array:
        """[examples] labels on the device."""
        return self._examples[1]

    @property
    def compile_seconds(self) -> float:
        return self.compiler.seconds

    # --- training

    @_in_precision
    def start(self, params: Params | None = None) -> ServerState:
        """The state before the first round, from fresh or given parameters."""
        if params is None:
            params = self.task.model.init(keys.device(keys.root(self.seed), "init"))
        params = jax.tree.map(lambda a: jnp.asarray(a, self.task.dtype), params)
        states = server.initial_client_states(self.task, params, self.task.setting.clients)
        return server.initial_state(self.rule, params, states)

    @_in_precision
    def adopt(self, state: ServerState) -> ServerState:
        """A state from a checkpoint, put on the device."""
        return jax.tree.map(jnp.asarray, state)

    @_in_precision
    def round(self, state: ServerState, number: int) -> tuple[ServerState, RoundReport]:
        """One round. `number` is `state.round` as a plain number, so that nothing waits for the device."""
        cohort = self.cohort(state, number)
        inputs = self.inputs(state, number)
        if self.settings.engine == "vectorised":
            state, counters = self._rounds.run(state, inputs, self.chunks(cohort, number), self.workers)
        else:
            state, counters = self._rounds.step(state, inputs, self._collect_reference(state, inputs, cohort))
        return state, RoundReport(number, cohort.chosen, cohort.lost, int(cohort.late.sum()), counters)

    def cohort(self, state: ServerState, number: int) -> Cohort:
        """Who takes part: by a defence's `select` if there is one, else by the sampling of the setting."""
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
        setting = self.task.setting
        return (setting.dropout, setting.late) if self.settings.faults else (0.0, 0.0)

    def round_key(self, number: int) -> Array:
        return keys.round_key(self._root, number)

    def inputs(self, state: ServerState, number: int) -> RoundInputs:
        """What all clients of a round share."""
        lr = jnp.asarray(self.task.setting.lr_at(number), self.task.dtype)
        return RoundInputs(state.params, self.x, self.y, self.round_key(number), np.int32(number), lr)

    def chunks(self, cohort: Cohort, number: int, edit: Edit | None = None) -> Iterator[ClientInputs]:
        """The clients of a cohort in chunks, each padded to the same width. `edit` may change the drawn batches."""
        for first in range(0, len(cohort.clients), self.chunk):
            part = cohort.part(slice(first, first + self.chunk))
            batches = self.batches(part, number)
            chunk = self.client_inputs(part, batches if edit is None else edit(part, batches))
            yield jax.tree.map(partial(_padded, missing=self.chunk - len(part.clients)), chunk)

    def client_inputs(self, cohort: Cohort, batches: Batches | Microbatches) -> ClientInputs:
        """The clients of a cohort with their batches, a leading axis over them."""
        weight = self.weights[cohort.clients].astype(self.task.dtype)
        made = ClientInputs(cohort.clients, cohort.occurrence, batches, weight, cohort.late)
        if not client_part.measures_clients(self.task):
            return made
        rows, present = measured_rows(self.partition, cohort.clients)
        return replace(made, rows=rows, present=present)

    def batches(self, cohort: Cohort, number: int) -> Batches | Microbatches:
        """The clients' batches: in micro-batches where that costs less and they fit, else whole."""
        if self.microbatches is not None:
            source = (self.sampling, self.partition, self.draws)
            drawn = microbatches.draw_microbatches(*source, number, cohort, self.microbatches)
            if drawn is not None:
                return drawn
        return self.whole_batches(cohort, number)

    def whole_batches(self, cohort: Cohort, number: int) -> Batches:
        """The clients' batches, each padded to one of few widths."""
        return sampling.draw_batches(self.sampling, self.partition, self.draws, number, cohort, self.widths)

    @_in_precision
    def collect(self, state: ServerState, number: int, chunks: Iterable[ClientInputs]) -> Sum:
        """The sum over these clients, by the programs of training, without the server's step."""
        return self._rounds.collect(state, self.inputs(state, number), chunks, self.workers)[0]

    @_in_precision
    def run(self, state: ServerState, number: int, chunks: Iterable[ClientInputs]) -> ServerState:
        """The state after a round of these clients."""
        return self._rounds.run(state, self.inputs(state, number), chunks, self.workers)[0]

    # --- the reference engine

    def _collect_reference(self, state: ServerState, inputs: RoundInputs, cohort: Cohort) -> tuple[Sum, Tree]:
        """`Rounds.collect`, one client and one step at a time."""
        summed, clients = self._rounds.empty(state.params), state.clients
        inputs = replace(inputs, number=int(inputs.number))  # a Python number: schedules follow the task's precision
        for index, c in enumerate(cohort.clients):
            one = cohort.part(slice(index, index + 1))
            known = jax.tree.map(lambda a, c=int(c): a[c], server.defense_states(clients))
            found = self._reference_client(inputs, int(c), int(one.occurrence[0]), known)
            answers = Answers(
                message=jax.tree.map(lambda a: a[None], found.message),
                weight=jnp.asarray(self.weights[one.clients], self.task.dtype),
                late=jnp.asarray(one.late),
                loss=jnp.asarray([found.loss], self.task.dtype),
            )
            states = jax.tree.map(lambda a: a[None], found.state)
            clients = server.update_client_states(clients, jnp.asarray(one.clients), answers, states)
            summed = server.collect(self.rule, summed, answers)
        return summed, clients

    def _reference_client(self, inputs: RoundInputs, c: int, occurrence: int, state: Tree) -> ClientResult:
        """One client's round, one step after another, each batch exactly as large as it is."""
        context = client_part.client_context(inputs, c, occurrence, self._medians(inputs, c))
        rows, number = self.partition.client(c), inputs.number
        received = self._begin(inputs.params, context)
        local = client_part.start(self.task, received, state)
        drawn = sampling.client_batches(self.sampling, self.draws, number, c, occurrence, len(rows))
        for index, positions in enumerate(drawn):
            # An empty Poisson batch is a step too: one padded row, masked out.
            taken = rows[positions] if len(positions) else rows[:1]
            mask = np.full(len(taken), len(positions) > 0)
            local = self._step(local, Batch(self.x[taken], self.y[taken], mask), index, context)
        message, state = self._end(inputs.params, received, local, context)
        return ClientResult(message, float(local.loss) / max(1, len(drawn)), state)  # type: ignore[arg-type]

    def _medians(self, inputs: RoundInputs, c: int) -> Tree:
        if not client_part.measures_clients(self.task):
            return None
        rows, present = measured_rows(self.partition, np.array([c]))
        return client_part.medians_of(self.task, inputs, rows[0], present[0])

    # --- observing

    def observe(
        self, state: ServerState, number: int, c: int, taps: frozenset[str], steps: tuple[int, ...] = (0,)
    ) -> dict[str, Tree]:
        """What the named taps show of client `c` in round `number`, started from `state`.

        Per tap: `example` and `batch` a dict by step, `client`, `server` and `broadcast` one tree, `release` the model,
        all as numpy arrays.
        """
        found = self.observe_many(state, number, [c], taps, steps)
        released = {"release": found.pop("release")} if "release" in taps else {}
        return {**jax.tree.map(lambda a: a[0], found), **released}

    @_in_precision
    def observe_many(
        self,
        state: ServerState,
        number: int,
        clients: Sequence[int],
        taps: frozenset[str],
        steps: tuple[int, ...] = (0,),
    ) -> dict[str, Tree]:
        """`observe` of several clients at once, a leading axis over them; `release` is the one model.

        At `example` the axis over examples is as long as the largest of these clients' batches at that step. Unused slots
        of a smaller batch hold a gradient of zero, or of noise alone.
        """
        self._observer.check(taps, clients, self.partition.clients)
        found: dict[str, Tree] = {}
        inner = taps - {"release"}
        if inner:
            batches = self.observed_batches(number, clients, None if inner & {"client", "server"} else max(steps) + 1)
            ids = np.resize(np.asarray(clients, np.int32), len(batches.steps))
            known = jax.tree.map(lambda a: a[ids], server.defense_states(state.clients))
            chunk = replace(self.client_inputs(Cohort.only(ids), batches), state=known)
            # GPUs round the inputs of float32 products to ten bits, which would look like noise on a gradient.
            with jax.default_matmul_precision("highest"):
                found = self._observer.observe(self.inputs(state, number), chunk, inner, steps)
            found = jax.tree.map(lambda a: a[: len(clients)], found)
        return found | ({"release": jax.device_get(state.params)} if "release" in taps else {})

    def observed_batches(self, number: int, clients: Sequence[int], first: int | None) -> Batches:
        """The `first` batches of some clients (None: all of them), padded to few shapes: fewer programs to compile."""
        drawn = sampling.draw_batches(self.sampling, self.partition, self.draws, number, Cohort.only(clients), ())
        usual = self.widths[0] if self.sampling.batching == "poisson" else None
        return padded_batches(drawn, first, usual, 32 if parameter_count(self.task) < 100_000 else 8)

    # --- evaluation

    @_in_precision
    def evaluate(self, params: Params) -> tuple[float, float]:
        """Accuracy and mean loss on the held-out part."""
        return self._evaluate(params, self._held_out, len(self.dataset.held_out))

    @_in_precision
    def evaluate_on(self, params: Params, part: Part) -> tuple[float, float]:
        """Accuracy and mean loss on other examples."""
        return self._evaluate(params, _blocks(part), len(part))

    def _evaluate(self, params: Params, blocks: list[Batch], count: int) -> tuple[float, float]:
        scores = [self._scores(params, block) for block in blocks]
        return sum(float(hits) for hits, _ in scores) / count, sum(float(loss) for _, loss in scores) / count

    def block(self, state: ServerState) -> None:
        """Waits until a state is computed."""
        for leaf in jax.tree.leaves(state.params):
            leaf.block_until_ready()


# --- how much is computed at once

FITS = ((300_000, 10), (2_000_000, 5), (math.inf, 1))  # values of a client, and clients at once on a CPU


def auto_chunk(task: Task, dataset: Dataset) -> int:
    """The number of clients in a chunk: as many as fit into a CPU core's cache, or a share of a GPU's memory (at most 250).

    Measured, in µs per client and local step:

    - H200, CNN, chunks of 64, 100, 200, 334, 500, 1000: 2.65, 2.38, 2.23, 2.21, 2.27, 2.41.
    - Two CPU cores, chunks of 5, 8, 10: CNN 862, 958, 945; LeNet 687, 867, 775; MLP 35, 29, 31.

    Two CPU cores with batches of 32, per example, chunks of 1, 2, 5: CNN 118, 131, 170 µs; ResNet-20 5.2, 6.6, 7.0 ms.
    LeNet is a tenth slower with 2 than with 5. With one local step on one example of `digits`, chunks of 64
    take a third of the time of chunks of 10.
    """
    # Per client: parameters, gradients, optimiser and the batch's activations (some 150 values per input value).
    values = 8 * parameter_count(task) + 150 * task.setting.batch * math.prod(dataset.shape)
    if jax.default_backend() == "cpu":
        fits = next(clients for most, clients in FITS if values <= most)
        # A very short chunk costs more to start than to compute.
        return max(fits, min(64, 2_000_000 // (values * task.setting.local_steps)))
    return int(max(1, min(250, 8e9 // (4 * values))))


def parameter_count(task: Task) -> int:
    """The number of parameters of the model."""
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

    On two CPU cores a Poisson round takes 1.4 times as long as one of fixed batches on the CNN with 0.5 (micro-batches of
    two), 1.8 with 2, 3.4 in whole batches; LeNet 1.8, 1.8, 3.6; the MLP 1.4 with 8 and more, 2 with 1. An H200's times at
    two widths give 2.5, 1.5 and 12.
    """
    least = 0.5 if jax.default_backend() == "cpu" else 2.0
    if not isinstance(task.model, Net):
        return 2.0
    products = net.products(task.model)
    used = sum(p.weights * p.positions for p in products)
    return least + 10.0 * sum(p.weights for p in products) / max(1, used)


# --- arrays


def _padded(a: np.ndarray, missing: int) -> np.ndarray:
    return np.pad(a, [(0, missing)] + [(0, 0)] * (a.ndim - 1))


def block_size(shape: tuple[int, ...]) -> int:
    """The number of examples evaluated at once: on a CPU, as many as keep their activations in its cache.

    10,000 images of 28×28 take the CNN 0.6 s of processor time in blocks of 50, 2.2 s in blocks of 2,000 (two cores).
    """
    if jax.default_backend() != "cpu":
        return 2000
    return min(2000, max(50, 50_000 // math.prod(shape)))


def _blocks(part: Part) -> list[Batch]:
    """Examples in equal blocks, the last one padded."""
    size = min(block_size(part.x.shape[1:]), len(part.y))
    missing = -len(part.y) % size
    mask = np.pad(np.ones(len(part.y), bool), (0, missing))
    x, y = _padded(part.x, missing), _padded(part.y, missing)
    cuts = [slice(i, i + size) for i in range(0, len(y), size)]
    # `jax.device_put` may share memory with its argument: these are copies that nobody else holds. `jnp.asarray` would
    # compile a program for every shape.
    return [Batch(*jax.device_put((x[cut], y[cut], mask[cut]))) for cut in cuts]


def _scores(task: Task, params: Params, block: Batch) -> tuple[Array, Array]:
    """Correct predictions and summed loss over one block."""
    logits = task.model.apply(params, block.x.astype(task.dtype) * jnp.asarray(task.scale, task.dtype))
    right = jnp.where(block.mask, logits.argmax(axis=1) == block.y, False).sum()
    return right, jnp.where(block.mask, client_part.cross_entropy(logits, block.y), 0.0).sum()
