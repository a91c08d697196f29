"""A node's part of a deployed round: check what is asked, write the account, compute, hand over the update.

The computation is `rounds.client.received_on`, the same function that the simulator runs for every client. Its randomness
is secret here: a fresh cryptographic key for the noise, fresh secret bits for the batches. In test mode, which the node's
owner has to allow, both follow from the run's seed as in simulation, and the account says that nothing is protected.
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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.accounting import accounts, transcript
from fedveil.accounting.accountants import Round
from fedveil.accounting.accounts import realised
from fedveil.config import Config, from_dict, resolve
from fedveil.core import keys
from fedveil.core.errors import ConfigError, DataError
from fedveil.core.system import to_json
from fedveil.core.taps import NODE_UNITS
from fedveil.data.arrays import read_arrays
from fedveil.data.dataset import Dataset, Part, check_arrays
from fedveil.data.partition import Partition
from fedveil.data.pixels import scale_of
from fedveil.defenses.base import Defense
from fedveil.deploy import limits as limiting
from fedveil.deploy.account import ADJACENT, Entry, NodeLedger, Use, now
from fedveil.deploy.limits import Node, Refused
from fedveil.deploy.messages import Introduction, Parts, Reply, Request
from fedveil.deploy.wire import BadMessage, pack, unpack
from fedveil.federation import build_model, make_setting
from fedveil.random import secure
from fedveil.runs import named_leaves, write_atomic
from fedveil.simulation import client as client_part
from fedveil.simulation import sampling
from fedveil.simulation.client import RoundContext, Task
from fedveil.simulation.context import FederationContext

Tree = Any
_whole = jax.jit(client_part.received_on, static_argnums=0)


def introduce(home: Path) -> Introduction:
    """What the server may know of this node."""
    node = limiting.read_node(home)
    data = read_data(home, node)
    shape = ",".join(str(n) for n in data.x.shape[1:])
    return Introduction(node.client, len(data), shape, node.classes, str(data.x.dtype))


def read_data(home: Path, node: Node) -> Part:
    """The node's own examples."""
    path = home / Path(node.data).expanduser()
    found = read_arrays(path, ("x", "y"), f"{home / limiting.FILE}: data")
    data = check_arrays(found["x"], found["y"], str(path))
    if int(data.y.max()) >= node.classes:
        raise DataError(
            f"{path}: there is a label {int(data.y.max())}, but {limiting.FILE} says classes = {node.classes}"
        )
    return data


def answer(home: Path, request: Request, parts: Parts) -> tuple[Reply, Parts]:
    """The reply to a request. What the node's owner or its account does not allow is refused with one line.

    Words of other errors stay on the node, since they may speak of its data.
    """
    sent: Parts = {}
    loss, refused = math.nan, ""
    try:
        sent, loss = _Round(home, request).take_part(parts)
    except Refused as error:
        refused = str(error)
    except Exception:
        refused = kept_here(home)
    return Reply(request.run, request.round, request.client, refused, loss), sent


def kept_here(home: Path) -> str:
    """Writes the error that is being handled into the node's folder; returns what others may know of it."""
    with (home / "errors.log").open("a", encoding="utf-8") as file:
        file.write(f"{now()}\n{traceback.format_exc()}\n")
    return "failed at the node: its owner finds the reason in errors.log"


def cached_compilations(home: Path) -> None:
    """Keeps compiled programs in the node's folder: a node's process lives for one message."""
    set_option: Callable[..., None] = jax.config.update
    set_option("jax_compilation_cache_dir", str(home / "compiled"))
    set_option("jax_persistent_cache_min_compile_time_secs", 0.0)
    set_option("jax_persistent_cache_min_entry_size_bytes", -1)


@dataclass(frozen=True)
class _Plan:
    """What a request comes to at this node."""

    config: Config
    task: Task
    law: sampling.BatchSampling
    steps: int

    def lr(self, number: int) -> float:
        return float(self.task.setting.lr_at(number))


class _Round:
    """One round at one node."""

    def __init__(self, home: Path, request: Request) -> None:
        self.home, self.request, self.started = home, request, time.monotonic()
        self.node = limiting.read_node(home)
        self.data = read_data(home, self.node)

    def take_part(self, parts: Parts) -> tuple[Parts, float]:
        """What is sent, and the loss. The account is written before anything is computed."""
        planned = self._plan()
        with jax.enable_x64(planned.task.dtype == "float64"):
            received = self._received(planned, parts)
            entry = self._allowed(planned)
            task = replace(planned.task, defenses=self._prepared(planned))
            memory = self._memory(task, received)
            spent = NodeLedger(self.home).spend(entry, self.node.limits)
            message, loss, memory = self._compute(replace(planned, task=task), received, memory)
            if memory:
                self._remember(memory)
            sent = pack(message)
        self._log(spent)
        return sent, float(loss) if _tells_loss(task) else math.nan

    def _plan(self) -> _Plan:
        """The config that was sent, checked as one from a file would be, with this node's own sizes."""
        request = self.request
        if request.client != self.node.client:
            raise Refused(f"this node is client {self.node.client}, not {request.client}")
        if request.test and not self.node.test:
            raise Refused(f"test mode (noise that the server knows) is not allowed in this node's {limiting.FILE}")
        try:
            config = resolve(_config(request.config))
            return self._checked(config)
        except ConfigError as error:  # it speaks of what was sent
            raise Refused(str(error)) from None

    def _checked(self, config: Config) -> _Plan:
        request, train = self.request, config.train
        assert train.batch is not None and train.rounds is not None
        if not 0 <= request.round < train.rounds:
            raise Refused(f"there is no round {request.round} in a run of {train.rounds}")
        law = sampling.BatchSampling(train.batching, train.batch, train.local_steps, train.local_epochs)
        model = build_model(config, self.data.x.shape[1:], self.node.classes)
        setting = make_setting(config, _as_client(0, len(self.data)), law, model, len(self.data))
        # Sizes of the others are the server's word. A wrong one changes the noise, and the account of it alike.
        setting = replace(
            setting,
            smallest=max(1, request.smallest),
            max_weight=request.max_weight,
            min_weight=request.min_weight,
        )
        defenses = config.defense
        for defense in defenses:
            defense.check(setting)
        task = Task(model, setting, train.optimizer, defenses, scale_of(self.data.x), config.speed.precision)
        return _Plan(config, task, law, setting.local_steps)

    def _received(self, planned: _Plan, parts: Parts) -> Tree:
        shapes = jax.eval_shape(planned.task.model.init, jax.random.key(0))
        wanted = jax.tree.map(lambda a: np.broadcast_to(np.zeros((), planned.task.dtype), a.shape), shapes)
        try:
            return unpack(parts, wanted)
        except BadMessage as error:
            raise Refused(f"the model that was sent cannot be used: {error}") from None

    def _allowed(self, planned: _Plan) -> Entry:
        """The line that goes into the account; or `Refused`."""
        request, task = self.request, planned.task
        limits = self.node.limits
        use, why = self._cost(planned, limits.unit, limits.adjacency)
        if not (request.test and use is None):
            limiting.check(limits, planned.config, task.defenses, planned.steps, use, why)
        uses = {unit: {a: self._use(planned, unit, a) for a in ADJACENT} for unit in NODE_UNITS}
        return Entry(request.run, request.round, request.digest, uses, now())

    def _cost(self, planned: _Plan, unit: str, adjacency: str) -> tuple[Round | None, str]:
        """What the round costs a unit by the mechanisms that will run, or why nothing bounds it."""
        task, number = planned.task, self.request.round
        if _tells_loss(task):
            return None, "its loss is told to the server without noise"
        releases = accounts.declared(task.defenses, task.setting)
        ran = transcript.executed(task.defenses, task.setting, number, planned.lr(number), 1, 0)
        return realised(releases, ran.multipliers, task.setting, unit, adjacency)

    def _use(self, planned: _Plan, unit: str, adjacency: str) -> Use | None:
        cost, _ = self._cost(planned, unit, adjacency)
        # Noise that the server knows protects nothing.
        return None if cost is None or self.request.test else Use.of(cost)

    # --- what stateful defences remember

    def _prepared(self, planned: _Plan) -> tuple[Defense, ...]:
        """The defences, with this node's data in the hands of those that measure something on it."""
        task = replace(planned.task, defenses=())
        dataset = Dataset("node", self.data, self.data, "none", self.node.classes)
        context = FederationContext(task, dataset, _as_client(self._id, len(self.data)), planned.law, self._draws())
        return tuple(d.node_part().prepare(context) for d in planned.task.defenses)

    def _draws(self) -> keys.Draws:
        """In test mode the simulator's draws, else new ones at every call."""
        return keys.Draws(self.request.seed) if self.request.test else keys.Draws.fresh()

    @property
    def _id(self) -> int:
        """The client number in keys: in test mode the simulator's, else none is needed."""
        return self.node.client if self.request.test else 0

    @property
    def _memory_file(self) -> Path:
        """Bound to the run and to the config: what one config left before its noise never leaves under another."""
        name = hashlib.sha256(self.request.run.encode()).hexdigest()[:16]
        return self.home / "memory" / name / f"{self.request.digest}.npz"

    def _memory(self, task: Task, received: Tree) -> Tree:
        """What this node remembers of this run; measured from the first model that it receives."""
        stateful = {str(place): d for place, d in enumerate(task.defenses) if d.stateful}
        if not stateful:
            return {}
        params = jax.tree.map(jnp.asarray, received)
        blank = {place: d.initial_client_states(params, self._id + 1) for place, d in stateful.items()}
        blank = jax.device_get(jax.tree.map(lambda a: a[self._id], blank))
        if not self._memory_file.exists():
            return blank
        with np.load(self._memory_file) as stored:
            arrays = dict(stored)
        leaves = named_leaves(blank)
        if {n: (a.shape, a.dtype) for n, a in arrays.items()} != {n: (a.shape, a.dtype) for n, a in leaves.items()}:
            raise Refused("what this node remembers of this run does not fit the config that is asked for")
        return jax.tree.unflatten(jax.tree.structure(blank), [arrays[name] for name in leaves])

    def _remember(self, memory: Tree) -> None:
        arrays = {name: np.asarray(leaf) for name, leaf in named_leaves(jax.device_get(memory)).items()}
        self._memory_file.parent.mkdir(parents=True, exist_ok=True)
        for other in self._memory_file.parent.glob("*.npz"):
            if other != self._memory_file:
                other.unlink()
        savez: Callable[..., None] = np.savez
        write_atomic(self._memory_file, lambda file: savez(file, **arrays))

    # --- the computation

    def _compute(self, planned: _Plan, received: Tree, memory: Tree) -> tuple[Tree, Any, Tree]:
        request, task, law = self.request, planned.task, planned.law
        own = _as_client(self._id, len(self.data))
        alone = sampling.Cohort(np.array([self._id]), np.zeros(1, np.int64), np.zeros(1, bool), 1, 0)
        widths = sampling.batch_widths(law, own, planned.steps)
        batches = sampling.draw_batches(law, own, self._draws(), request.round, alone, widths)
        lr = jnp.asarray(planned.lr(request.round), task.dtype)
        key, shared = self._keys()
        moment = RoundContext(key, shared, jnp.int32(request.round), lr)
        # The server takes the difference of models (fedavg) itself: a node need not know the model before its noise.
        sent = jax.tree.map(np.zeros_like, received)
        own_batches = (batches.index[0], batches.mask[0], batches.steps[0])
        return _whole(task, sent, received, self.data.x, self.data.y, *own_batches, memory, moment)

    def _keys(self) -> tuple[Any, Any]:
        if not self.request.test:
            return secure.fresh_key(), secure.fresh_key()
        of_round = keys.round_key(keys.root(self.request.seed), self.request.round)
        return keys.client_key(of_round, self.node.client, 0), keys.shared_key(of_round)

    def _log(self, spent: float | None) -> None:
        """One line for the node's owner; it stays on the node."""
        row = {"time": now(), "run": self.request.run, "round": self.request.round, "epsilon": spent}
        seconds = round(time.monotonic() - self.started, 3)
        with (self.home / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(to_json({**row, "seconds": seconds, "cpu_seconds": round(time.process_time(), 2)}) + "\n")


def _tells_loss(task: Task) -> bool:
    """Whether the server selects clients by the losses that they report."""
    return any(d.reads_losses and d.fills("select") for d in task.defenses)


def _config(text: str) -> Config:
    try:
        return from_dict(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("config", text, f"is not TOML: {error}") from None


def _as_client(number: int, size: int) -> Partition:
    """A partition in which this node is client `number`, so that draws have its name; those before it share its rows."""
    start = np.zeros(number + 1, np.int64)
    return Partition(np.arange(size, dtype=np.int32), start, np.full(number + 1, size, np.int32))
