"""A node's side of a deployed round: check the request, write the ledger, compute, return the update.

The computation is `simulation.client.local_round`, the function that the simulator runs for every client. Its randomness is
secret here: a fresh cryptographic key for the noise and fresh secret bits for the batches. In test mode, which the owner of
the node must allow, both follow from the run's seed as in simulation, and the ledger records that nothing is protected.
"""

from __future__ import annotations

import hashlib
import math
import time
import tomllib
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.accounting import accounts, transcript
from fedveil.accounting.accountants import Round
from fedveil.accounting.accounts import realised
from fedveil.config import Config, from_dict, resolve, to_toml
from fedveil.core import keys
from fedveil.core.errors import ConfigError, DataError
from fedveil.core.events import Release
from fedveil.core.files import write_atomic
from fedveil.core.system import to_json
from fedveil.core.taps import NODE_UNITS
from fedveil.data.arrays import read_arrays
from fedveil.data.dataset import Dataset, Part, check_arrays, scale_of
from fedveil.data.partition import Partition
from fedveil.defenses.base import Defense
from fedveil.deploy import encoding, refusals
from fedveil.deploy import limits as limiting
from fedveil.deploy.account import ADJACENT, Entry, NodeLedger, Use, now
from fedveil.deploy.files import fingerprint
from fedveil.deploy.limits import Node, Refused
from fedveil.deploy.messages import BadMessage, Introduction, Payload, Reply, Request, digest_of, pack, unpack
from fedveil.federation import build_model, make_setting
from fedveil.random import secure
from fedveil.runs import named_leaves
from fedveil.simulation import client as client_part
from fedveil.simulation import sampling
from fedveil.simulation.client import Task, accelerated
from fedveil.simulation.context import FederationContext
from fedveil.simulation.inputs import ClientInputs, RoundContext, RoundInputs

if TYPE_CHECKING:
    from fedveil.deploy.secagg.terms import Terms

Tree = Any
Sent = TypeVar("Sent")
local_round = jax.jit(client_part.local_round, static_argnums=0)  # the audit runs this program, too
integer_round = jax.jit(client_part.integer_round, static_argnums=0)
MAX_PROGRAMS = 32  # compiled programs that a process keeps: every new config of a server adds one
MAX_PLANS = 8  # configs that a process keeps worked out
MAX_CONFIG = 1 << 16  # characters of a requested config
MAX_WEIGHT = 1e6  # of a client, relative to the mean
MAX_LOG = 1 << 20  # bytes of errors.log before a new one is begun


def introduce(home: Path) -> Introduction:
    """What the server may know about this node."""
    node = limiting.read_node(home)
    data = _data_of(home, node)
    shape = ",".join(str(n) for n in data.x.shape[1:])
    return Introduction(node.client, len(data), shape, node.classes, str(data.x.dtype))


def read_data(home: Path, node: Node) -> Part:
    """The node's examples."""
    path = home / Path(node.data).expanduser()
    found = read_arrays(path, ("x", "y"), f"{home / limiting.FILE}: data")
    data = check_arrays(found["x"], found["y"], str(path))
    if int(data.y.max()) >= node.classes:
        raise DataError(
            f"{path}: contains the label {int(data.y.max())}, but {limiting.FILE} has classes = {node.classes}"
        )
    return data


_loaded: dict[Path, tuple[object, Part]] = {}  # by the node's folder: its examples, with the state of their file


def _data_of(home: Path, node: Node) -> Part:
    """The node's examples, read again only if their file or the number of classes changed."""
    path = home / Path(node.data).expanduser()
    try:
        found = path.stat()
    except OSError:
        return read_data(home, node)  # which says what is wrong
    state = (path, found.st_mtime_ns, found.st_size, found.st_ino, node.classes)
    if home not in _loaded or _loaded[home][0] != state:
        _loaded.pop(home, None)
        _loaded[home] = (state, read_data(home, node))
    return _loaded[home][1]


def handle(home: Path, request: Request, model: Payload) -> tuple[Reply, Payload]:
    """The reply to a request, and the update. A request that the limits or the budget forbid is refused with a reason.

    Refusals are counted for the owner. The text of any other error stays on the node, because it may reveal data.
    """
    update: Payload = {}
    loss, refused = math.nan, ""
    try:
        update, loss = NodeRound(home, request).computed(model, pack)
    except Refused as error:
        refused = refusals.note(home, str(error))
    except Exception:
        refused = log_error(home)
    return Reply(request.run, request.round, request.client, refused, loss), update


def log_error(home: Path) -> str:
    """Writes the current exception into the node's folder; returns a text that is safe to send."""
    log = home / "errors.log"
    if log.exists() and log.stat().st_size > MAX_LOG:
        log.replace(home / "errors.log.1")
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{now()}\n{traceback.format_exc()}\n")
    return refusals.note(home, "failed at the node: the reason is in its errors.log")


def cached_compilations(home: Path) -> None:
    """Caches compiled programs in the node's folder, so that a new process need not compile them again."""
    set_option: Callable[..., None] = jax.config.update
    set_option("jax_compilation_cache_dir", str(home / "compiled"))
    set_option("jax_persistent_cache_min_compile_time_secs", 0.0)
    set_option("jax_persistent_cache_min_entry_size_bytes", -1)


def _forget_programs() -> None:
    """Frees the compiled programs of this process when there are too many; those on disk stay."""
    program: Any = local_round
    if program._cache_size() >= MAX_PROGRAMS:
        clear: Callable[[], None] = jax.clear_caches
        clear()


@dataclass(frozen=True)
class _Plan:
    """A checked request: the config and what it means at this node."""

    config: Config
    task: Task
    batching: sampling.BatchSampling
    steps: int
    shapes: Tree  # of the model
    releases: tuple[Release, ...]  # what the account is told

    def lr(self, number: int) -> float:
        return float(self.task.setting.lr_at(number))


_plans: dict[tuple[Any, ...], _Plan] = {}  # by the request, the owner's conditions and the shape of the data


def smallest_multiplier(home: Path, config: Config) -> float | None:
    """The smallest z of a config in its first and its last round at this node; None if nothing is certified."""
    node, text, found = limiting.read_node(home), to_toml(config), list[float]()
    limits, size = node.limits, len(_data_of(home, node))
    for number in (0, (config.train.rounds or 1) - 1):
        request = Request("", number, node.client, fingerprint(home / "key.pub"), text, size, 1.0, 1.0, -1)
        made = NodeRound(home, request)
        use, _ = made._cost(made._checked(limiting.deployable(resolve(config))), limits.unit, limits.adjacency)
        found += [] if use is None else [min(z for _, z in use.noise)]
    return min(found) if len(found) == 2 else None


class NodeRound:
    """One round at one node. `secure`: its update is sent under masks, see `sessions`."""

    def __init__(self, home: Path, request: Request, *, secure: bool = False) -> None:
        self.home, self.request, self.secure, self.started = home, request, secure, time.monotonic()
        self.node = limiting.read_node(home)
        limiting.check_complete(self.node)
        self.data = _data_of(home, self.node)

    def computed(self, model: Payload, convert: Callable[[Tree], Sent]) -> tuple[Sent, float]:
        """The update as `convert` makes it, and the loss. The ledger is written before anything is computed."""
        planned = self._plan()
        with jax.enable_x64(planned.task.dtype == "float64"):
            received = self._received(planned, model)
            entry = self._ledger_entry(planned)
            task = replace(planned.task, defenses=self._prepared(planned))
            state = self._read_client_state(task, received)
            spent = NodeLedger(self.home).spend(entry, self.node.limits)
            message, loss, state = self._compute(replace(planned, task=task), received, state)
            if state:
                self._write_client_state(state)
            update = convert(message)
        self._log(spent)
        return update, float(loss) if _reports_loss(task) else math.nan

    def check_terms(self, terms: Terms) -> None:
        """Raises `Refused` unless a session of secure aggregation is for this round, as the owner allows it."""
        request, planned = self.request, self._plan()
        if (terms.run, terms.round, terms.config) != (request.run, request.round, request.common):
            raise Refused("the session of secure aggregation is for another round than the request")
        length, bits = encoding.length(planned.shapes), self._grid(planned).bits
        if (terms.length, terms.bits) != (length, bits):
            told = f"{length} values of {bits} bits"
            raise Refused(f"this node sends {told}, requested: {terms.length} of {terms.bits}")
        if len(terms.cohort) > planned.task.setting.clients:
            told = f"the account is for sums over at most {planned.task.setting.clients} nodes"
            raise Refused(f"{told}, requested: {len(terms.cohort)} (data.clients)")
        if terms.quorum < self.node.limits.survivors:
            least = self.node.limits.survivors
            raise Refused(f"this node accepts sums over at least {least} nodes, requested: {terms.quorum}")
        if terms.quorum < planned.task.setting.quorum:
            told = f"the noise is for sums over {planned.task.setting.quorum} nodes or more, requested: {terms.quorum}"
            raise Refused(f"{told} (train.quorum)")
        self._ledger_entry(planned)  # refused now rather than after the others have prepared their masks

    def check_model(self, model: Payload, terms: Terms) -> None:
        """Raises `Refused` unless the model is the one of the session, and so that of all other nodes.

        A server that sends some nodes a model on which their gradients vanish would read the others' off the sum.
        """
        if digest_of(model, self._plan().task.defenses) != terms.model:
            raise Refused("the model is not the one that the session of secure aggregation is for")

    def _grid(self, planned: _Plan) -> encoding.FixedPoint:
        return encoding.FixedPoint.of(planned.task, self.request.round, planned.lr(self.request.round))

    def integers(self, message: Tree, cohort: int) -> np.ndarray:
        """The update as the integers that are masked."""
        leaves = jax.tree.leaves(jax.device_get(message))
        if np.issubdtype(leaves[0].dtype, np.integer):  # they carry their noise already
            return np.concatenate([np.asarray(leaf, np.int64).ravel() for leaf in leaves])
        return self._grid(self._plan()).encode(message, cohort)

    def _plan(self) -> _Plan:
        """The requested config, checked like one from a file, with this node's sizes."""
        request = self.request
        if request.client != self.node.client:
            raise Refused(f"this node is client {self.node.client}, not {request.client}")
        if request.key != fingerprint(self.home / "key.pub"):
            raise Refused("the server knows this client by another key than the one of this node")
        if not (1 <= request.smallest <= len(self.data) and 0 < request.min_weight <= request.max_weight < MAX_WEIGHT):
            raise Refused("the sizes and weights of the federation's clients that the request states cannot be true")
        if request.test and not self.node.test:
            raise Refused(f"test mode (noise that the server knows) is not allowed by this node's {limiting.FILE}")
        try:
            found = self._requested()
        except ConfigError as error:  # its text is about the request alone
            raise Refused(str(error)) from None
        train = found.config.train
        if train.secure_aggregation != self.secure:
            way = "by secure aggregation alone" if train.secure_aggregation else "without secure aggregation"
            raise Refused(f"this config is for updates that are sent {way}")
        assert train.rounds is not None
        if not 0 <= request.round < train.rounds:
            raise Refused(f"there is no round {request.round} in a run of {train.rounds} rounds")
        return found

    def _requested(self) -> _Plan:
        """What the config means at this node. Each of the last few is worked out once."""
        request = self.request
        sizes = (request.smallest, request.max_weight, request.min_weight)
        owner = (self.node.limits.model_dump_json(), self.node.classes)
        key = (request.config, *sizes, request.test, *owner, self.data.x.shape, str(self.data.x.dtype))
        if key not in _plans:
            config = limiting.deployable(resolve(_config(request.config, self.node.limits)), test=request.test)
            made = self._checked(config)
            while len(_plans) >= MAX_PLANS:
                del _plans[next(iter(_plans))]
            _plans[key] = made
        return _plans[key]

    def _checked(self, config: Config) -> _Plan:
        request, train = self.request, config.train
        assert train.batch is not None
        batching = sampling.BatchSampling(train.batching, train.batch, train.local_steps, train.local_epochs)
        model = build_model(config, self.data.x.shape[1:], self.node.classes)
        shapes = self._check_size(config, model)
        setting = make_setting(config, _as_client(0, len(self.data)), batching, model, len(self.data))
        # The node cannot verify the sizes of other clients. A wrong size changes the noise and the ledger alike.
        setting = replace(
            setting,
            smallest=request.smallest,
            max_weight=request.max_weight,
            min_weight=request.min_weight,
            honest=min(setting.honest, self.node.limits.honest),
        )
        defenses = config.defense
        for defense in defenses:
            defense.check(setting)
        scale, dtype = scale_of(self.data.x), config.speed.precision
        task = Task(model, setting, train.optimizer, defenses, scale, dtype, kernels=accelerated())
        releases = tuple(accounts.declared(defenses, setting))
        return _Plan(config, task, batching, setting.local_steps, shapes, releases)

    def _check_size(self, config: Config, model: Any) -> Tree:
        """Refuses a request that would cost more than this node gives to a round; returns the shapes of the model."""
        train, rows = config.train, len(self.data)
        assert train.batch is not None and train.rounds is not None
        steps = train.local_steps or 0
        if train.local_epochs:
            steps = max(steps, train.local_epochs * math.ceil(rows / train.batch))
        if train.batch > rows:
            raise Refused(f"this node has {rows} examples, requested: batches of {train.batch}")
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        count = sum(math.prod(a.shape) for a in jax.tree.leaves(shapes))
        limiting.check_size(self.node.limits, train.rounds, steps, count)
        return shapes

    def _received(self, planned: _Plan, model: Payload) -> Tree:
        blank = np.zeros((), planned.task.dtype)
        wanted = jax.tree.map(lambda a: np.broadcast_to(blank, a.shape), planned.shapes)
        try:
            return unpack(model, wanted)
        except BadMessage as error:
            raise Refused(f"the received model cannot be used: {error}") from None

    def _ledger_entry(self, planned: _Plan) -> Entry:
        """The ledger entry of this round; raises `Refused` if the limits forbid the round."""
        request, task = self.request, planned.task
        limits = self.node.limits
        use, why = self._cost(planned, limits.unit, limits.adjacency)
        if not (request.test and use is None):
            releases = () if request.test else planned.releases  # in test mode no noise protects anything
            limiting.check(limits, task.defenses, use, why, releases)
        uses = {unit: {a: self._use(planned, unit, a) for a in ADJACENT} for unit in NODE_UNITS}
        return Entry(request.run, request.round, request.digest, uses, now())

    def _cost(self, planned: _Plan, unit: str, adjacency: str) -> tuple[Round | None, str]:
        """The privacy cost of the round for a unit, from the mechanisms that will run; or why there is no bound."""
        task, number = planned.task, self.request.round
        if _reports_loss(task):
            return None, "its loss is sent to the server without noise"
        ran = transcript.executed(task.defenses, task.setting, number, planned.lr(number), 1, 0)
        return realised(planned.releases, ran.multipliers, task.setting, unit, adjacency)

    def _use(self, planned: _Plan, unit: str, adjacency: str) -> Use | None:
        cost, _ = self._cost(planned, unit, adjacency)
        # In test mode the server knows the noise, which then protects nothing.
        return None if cost is None or self.request.test else Use.of(cost)

    # --- client state of defences

    def _prepared(self, planned: _Plan) -> tuple[Defense, ...]:
        """The defences, prepared on this node's data if they measure something on it."""
        task = replace(planned.task, defenses=())
        dataset = Dataset("node", self.data, self.data, "none", self.node.classes)
        context = FederationContext(
            task, dataset, _as_client(self._id, len(self.data)), planned.batching, self._draws()
        )
        return tuple(d.node_part().prepare(context) for d in planned.task.defenses)

    def _draws(self) -> keys.Draws:
        """In test mode the simulator's draws, otherwise new ones at every call."""
        return keys.Draws(self.request.seed) if self.request.test else keys.Draws.fresh()

    @property
    def _id(self) -> int:
        """The client number for keys: in test mode as in the simulator, otherwise 0, since all keys are fresh."""
        return self.node.client if self.request.test else 0

    @property
    def _client_state_file(self) -> Path:
        """One file per run and config: state that one config saved before its noise is never sent under another."""
        name = hashlib.sha256(self.request.run.encode()).hexdigest()[:16]
        return self.home / "memory" / name / f"{self.request.digest}.npz"

    def _read_client_state(self, task: Task, received: Tree) -> Tree:
        """The stored client state of this run; in its first round the initial state for the received model."""
        stateful = {str(position): d for position, d in enumerate(task.defenses) if d.stateful}
        if not stateful:
            return {}
        params = jax.tree.map(jnp.asarray, received)
        blank = {position: d.initial_client_states(params, self._id + 1) for position, d in stateful.items()}
        blank = jax.device_get(jax.tree.map(lambda a: a[self._id], blank))
        if not self._client_state_file.exists():
            return blank
        with np.load(self._client_state_file) as stored:
            arrays = dict(stored)
        leaves = named_leaves(blank)
        if {n: (a.shape, a.dtype) for n, a in arrays.items()} != {n: (a.shape, a.dtype) for n, a in leaves.items()}:
            raise Refused("the client state that this node stored for this run does not match the requested config")
        return jax.tree.unflatten(jax.tree.structure(blank), [arrays[name] for name in leaves])

    def _write_client_state(self, state: Tree) -> None:
        """Stores the client state, and deletes that of other configs of this run."""
        arrays = {name: np.asarray(leaf) for name, leaf in named_leaves(jax.device_get(state)).items()}
        self._client_state_file.parent.mkdir(parents=True, exist_ok=True)
        for other in self._client_state_file.parent.glob("*.npz"):
            if other != self._client_state_file:
                other.unlink()
        savez: Callable[..., None] = np.savez
        write_atomic(self._client_state_file, lambda file: savez(file, **arrays))

    # --- the computation

    def _compute(self, planned: _Plan, received: Tree, state: Tree) -> tuple[Tree, Any, Tree]:
        request, task = self.request, planned.task
        own = _as_client(self._id, len(self.data))
        alone = sampling.Cohort.only([self._id])
        widths = sampling.batch_widths(planned.batching, own, planned.steps)
        drawn = sampling.draw_batches(planned.batching, own, self._draws(), request.round, alone, widths)
        lr = jnp.asarray(planned.lr(request.round), task.dtype)
        key, shared = self._keys()
        context = RoundContext(key, shared, jnp.int32(request.round), lr, self.node.client)
        # Under fedavg the server subtracts its own model, so a node need not know the model before the server's noise.
        sent = jax.tree.map(np.zeros_like, received)
        inputs = RoundInputs(sent, self.data.x, self.data.y, shared, context.round, lr)
        batches = jax.tree.map(lambda a: a[0], drawn)
        _forget_programs()
        program = integer_round if client_part.sums_integers(task) else local_round
        found = program(task, inputs, received, ClientInputs(self._id, 0, batches, state=state), context)
        return found.message, found.loss, found.state

    def _keys(self) -> tuple[Any, Any]:
        if not self.request.test:
            return secure.fresh_key(), secure.fresh_key()
        of_round = keys.round_key(keys.root(self.request.seed), self.request.round)
        return keys.client_key(of_round, self.node.client, 0), keys.shared_key(of_round)

    def _log(self, spent: float | None) -> None:
        """Adds a line to the log on the node's disk."""
        row = {"time": now(), "run": self.request.run, "round": self.request.round, "epsilon": spent}
        seconds = round(time.monotonic() - self.started, 3)
        with (self.home / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(to_json({**row, "seconds": seconds, "cpu_seconds": round(time.process_time(), 2)}) + "\n")


def _reports_loss(task: Task) -> bool:
    """Whether a defence selects clients by the losses that they report to the server."""
    return any(d.reads_losses and d.fills("select") for d in task.defenses)


def _config(text: str, limits: limiting.Limits) -> Config:
    """The requested config. Its size, rounds and steps are checked before anything is derived from it."""
    if len(text) > MAX_CONFIG:
        raise Refused(f"a config of {len(text)} characters is too long: this node accepts {MAX_CONFIG}")
    try:
        config = from_dict(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("config", text[:50], f"is not TOML: {error}") from None
    except RecursionError:
        raise Refused("the config is nested too deeply") from None
    limiting.check_size(limits, config.train.rounds or 0, config.train.local_steps or 0, 0)
    return config


def _as_client(number: int, size: int) -> Partition:
    """A partition in which this node is client `number`, so that draws use its number; earlier clients share its rows."""
    start = np.zeros(number + 1, np.int64)
    return Partition(np.arange(size, dtype=np.int32), start, np.full(number + 1, size, np.int32))
