"""The server's part of a deployed run: who takes part, what each receives, which answers count, the step, the checkpoint.

All of it is the simulator's own: the cohort, the stage `broadcast` for each client, `collect` and `advance` are the same
functions, only that the messages of clients come from nodes. Before nodes are asked, the run folder says so (`asked`): the
account of the run counts every round that was asked for, whether it came to an end or not.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.accounting import ledger, transcript
from fedveil.accounting.transcript import Executed
from fedveil.config import Config, resolve, to_toml
from fedveil.core import keys
from fedveil.core.errors import ConfigError, FedveilError, RunError
from fedveil.core.system import to_json
from fedveil.data.dataset import Dataset, Part
from fedveil.data.partition import Partition
from fedveil.deploy.messages import Answer, Exchange, Introduction, Parts, Request
from fedveil.deploy.wire import BadMessage, pack, unpack
from fedveil.federation import Federation, load_data, prepare
from fedveil.random import secure
from fedveil.runs import RunFolder, environment, write_text
from fedveil.simulation import client as client_part
from fedveil.simulation import sampling, server
from fedveil.simulation.client import RoundContext
from fedveil.simulation.server import Answers, ServerState
from fedveil.simulation.simulator import RoundReport

Row = dict[str, Any]
Tree = Any


@dataclass(frozen=True)
class Terms:
    """How a deployed run deals with nodes."""

    quorum: float = 0.5  # share of a round's nodes that must answer
    timeout: float = 300.0  # seconds that a round waits for answers
    wait: float = 120.0  # seconds that the run waits for all nodes to be there at its start
    test: bool = False  # noise by the run's seed, as in simulation: for comparison, never for private data


def check_deployable(config: Config, *, test: bool = False) -> None:
    """Refuses what has no meaning, or no protection, on real machines."""
    train = config.train
    if train.noise_seed is not None and not test:
        takes = "makes draws that everyone with the config knows: leave it out to deploy, or use test mode"
        raise ConfigError("train.noise_seed", train.noise_seed, takes)
    for key in ("dropout", "late"):
        if getattr(train, key):
            takes = "simulates lost or late clients; real ones are lost by themselves: leave it out to deploy"
            raise ConfigError(f"train.{key}", getattr(train, key), takes)
    if config.data.features != "raw":
        takes = "raw in deployment: a node uses its file as it is, so put the features into the nodes' files"
        raise ConfigError("data.features", config.data.features, takes)
    if train.sampling == "with-replacement":
        raise ConfigError("train.sampling", train.sampling, "a node takes part once in a round: use fixed or poisson")
    if train.secure_aggregation:
        takes = (
            "is not there in deployment: Flower's SecAgg+ masks updates from 32-bit seeds, and its nodes give out what "
            "unmasks a single one (docs/deployment.md): use a defence that protects each update by itself"
        )
        raise ConfigError("train.secure_aggregation", True, takes)
    for defense in config.defense:
        refusal = defense.refuses_deployment()
        if refusal is not None:
            raise ConfigError(f"defense.{refusal.key}", refusal.value, refusal.takes)


@dataclass(frozen=True)
class Members:
    """The nodes of a run as they introduced themselves; fixed for the whole run."""

    sizes: tuple[int, ...]  # by client
    shape: tuple[int, ...]
    classes: int
    dtype: str

    @property
    def partition(self) -> Partition:
        """Who holds how much; what they hold is nowhere on the server."""
        length = np.array(self.sizes, np.int32)
        start = np.concatenate([[0], np.cumsum(length)[:-1]]).astype(np.int64)
        return Partition(np.arange(int(length.sum()), dtype=np.int32), start, length)


@dataclass
class Record:
    """`deploy.json` of a run folder: what a run that goes on must know, and what it has asked for."""

    run: str
    members: Members
    asked: int = 0  # rounds asked for, those that came to nothing included
    lost: int = 0  # answers that did not come or were not taken

    def save(self, folder: RunFolder) -> None:
        document = {**self.__dict__, "members": self.members.__dict__}
        write_text(folder.path / "deploy.json", to_json(document, indent=2) + "\n")

    @classmethod
    def read(cls, folder: RunFolder) -> Record | None:
        path = folder.path / "deploy.json"
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            told = found.pop("members")
            members = Members(tuple(told["sizes"]), tuple(told["shape"]), told["classes"], told["dtype"])
            return cls(members=members, **found)
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is damaged ({error}): without it the account of this run is not known") from None


def conduct(
    config: Config, exchange: Exchange, folder: RunFolder, terms: Terms, progress: Callable[[Row], None] | None = None
) -> dict[str, Any]:
    """Runs, or goes on with, a deployed training; returns the document that `deploy run --json` shows."""
    config = resolve(config)
    check_deployable(config, test=terms.test)
    return _Run(config, exchange, folder, terms, progress).go()


class _Run:
    """The state of one deployed training."""

    def __init__(
        self,
        config: Config,
        exchange: Exchange,
        folder: RunFolder,
        terms: Terms,
        progress: Callable[[Row], None] | None,
    ) -> None:
        self.exchange, self.folder, self.terms, self.progress = exchange, folder, terms, progress
        self.started, self.earlier = time.monotonic(), 0.0
        self.nodes: dict[int, int] = {}  # client → the node that was the first to be it
        self.known: set[int] = set()  # nodes that introduced themselves
        record = Record.read(folder)
        self.sizes = dict(enumerate(record.members.sizes)) if record else dict[int, int]()
        self.record = record or Record(secrets.token_hex(8), self._gather(config))
        # Who takes part is drawn by coins that nobody knows before.
        draws = keys.Draws(_test_seed(config)) if terms.test else keys.Draws.fresh()
        self.federation, self.evaluates = _assemble(config, self.record.members, draws)
        self.config, self.simulator = self.federation.config, self.federation.simulator
        self.text = to_toml(self.config)
        task = self.simulator.task
        self._begin = jax.jit(partial(client_part.begin, task))
        self._collect = jax.jit(partial(server.collect, self.simulator.rule))
        self._advance = jax.jit(partial(server.advance, task, self.simulator.rule))
        self.history: list[Row] = []
        header = transcript.start(task.defenses, task.setting)
        self.recorder = transcript.Recorder(header, folder.path / transcript.FILE)
        self.stopped = ""

    # --- who is there

    def _gather(self, config: Config) -> Members:
        """Waits until every client of the config has introduced itself."""
        wanted, told = config.data.clients, dict[int, Introduction]()
        until = time.monotonic() + self.terms.wait
        while True:
            told |= self._meet(wanted)
            missing = sorted(set(range(wanted)) - set(told))
            if not missing:
                break
            if time.monotonic() > until:
                raise RunError(
                    f"{len(told)} of {wanted} nodes are there after {self.terms.wait:g} s; missing: client "
                    f"{', '.join(map(str, missing[:10]))}"
                )
            time.sleep(min(1.0, self.terms.wait / 10))
        kinds = {(one.shape, one.classes, one.dtype) for one in told.values()}
        if len(kinds) > 1:
            raise RunError(f"nodes hold examples of different kinds (shape, classes, type): {sorted(kinds)}")
        shape, classes, dtype = kinds.pop()
        return Members(
            tuple(told[c].size for c in range(wanted)), tuple(int(n) for n in shape.split(",")), classes, dtype
        )

    def _meet(self, clients: int) -> dict[int, Introduction]:
        """Introductions of nodes that were not known yet. A client belongs to the node that was the first to be it."""
        new = [node for node in self.exchange.online() if node not in self.known]
        told: dict[int, Introduction] = {}
        if not new:
            return told
        for node, introduced in self.exchange.introduce(new, min(60.0, self.terms.timeout)).items():
            self.known.add(node)
            client, size = introduced.client, introduced.size
            taken = self.nodes.get(client, node) != node
            # The sizes of a run are fixed: its noise and its account follow from them.
            if taken or not 0 <= client < clients or size < 1 or self.sizes.get(client, size) != size:
                continue
            self.nodes[client], self.sizes[client] = node, size
            told[client] = introduced
        return told

    # --- the rounds

    def go(self) -> dict[str, Any]:
        with jax.enable_x64(self.simulator.task.dtype == "float64"):
            return self._go()

    def _go(self) -> dict[str, Any]:
        state, done = self._start()
        scores = None
        every = self.config.train.eval_every
        assert every is not None
        while done < self.federation.rounds and self._affordable(done):
            state, row = self._round(state, done)
            done += 1
            if self.evaluates and (done % every == 0 or done == self.federation.rounds):
                scores = self.simulator.evaluate(state.params)
                row |= {"accuracy": scores[0], "loss": scores[1]}
            self.history.append(row)
            self.folder.append([row])
            self.folder.save(state, done, self._seconds())
            self.folder.write_info(status="running", rounds_done=done)
            if self.progress:
                self.progress(row)
        if self.evaluates and scores is None:
            scores = self.simulator.evaluate(state.params)
        return self._finish(scores, done)

    def _start(self) -> tuple[ServerState, int]:
        """The first state, or that of the checkpoint."""
        simulator = self.simulator
        params = simulator.task.model.init(keys.device(keys.root(self.config.train.seed), "init"))
        params = jax.tree.map(lambda a: jnp.asarray(a, simulator.task.dtype), params)
        # What stateful defences remember of a node stays at the node; the server has what it selects by.
        losses = any(d.reads_losses and d.fills("select") for d in simulator.task.defenses)
        told = {"loss": jnp.full(self.config.data.clients, jnp.nan, simulator.task.dtype)} if losses else {}
        state, done = server.initial_state(simulator.rule, params, told), 0
        with self.folder.writing():
            if not self.folder.config.exists():
                write_text(self.folder.config, self.text)
            self.record.save(self.folder)
            self.recorder.begin()
            restored = self.folder.restore(state)
            if restored is not None:
                state, done, self.earlier = simulator.adopt(restored.state), restored.round, restored.seconds
            self.folder.clear_leftovers()
            self.folder.rewind(done)
            self.history = self.folder.read_metrics()
            terms = {**self.terms.__dict__, "run": self.record.run}
            self.folder.write_info(status="running", rounds_done=done, deployed=terms, **environment())
        return state, done

    def _executed(self, number: int) -> Executed:
        """The next attempt at a round, as it will be asked for. Every attempt has fresh noise, and counts."""
        task, attempt = self.simulator.task, sum(1 for asked, _ in self.recorder.rounds if asked == number)
        lr, asked = task.setting.lr_at(number), task.setting.per_round
        return transcript.executed(task.defenses, task.setting, number, lr, asked, 0, attempt)

    def _affordable(self, number: int) -> bool:
        """Whether the budget allows one more attempt, after all that were made."""
        budget = self.config.train.budget
        if budget is None:
            return True
        after = self.recorder.transcript().plus(self._executed(number))
        row = ledger.certified(after, budget.tap, budget.unit, budget.delta)
        if row.epsilon is not None and row.epsilon <= budget.epsilon:
            return True
        self.stopped = (
            f"budget: round {number + 1} would exceed ε = {budget.epsilon:g} at δ = {budget.delta:g}, tap {budget.tap}, "
            f"unit {budget.unit}, after {self.record.asked} rounds that were asked for"
        )
        return False

    def _round(self, state: ServerState, number: int) -> tuple[ServerState, Row]:
        simulator, began = self.simulator, time.monotonic()
        cohort = simulator.cohort(state, number)
        lr = jnp.asarray(simulator.task.setting.lr_at(number), simulator.task.dtype)
        round_key = simulator.round_key(number) if self.terms.test else secure.fresh_key()
        asked = self._requests(state, number, cohort, round_key, lr)
        self.record.asked += 1
        entry = replace(self._executed(number), asked=len(cohort.clients))
        with self.folder.writing():
            self.recorder.append(entry)
            self.recorder.sync()
            self.record.save(self.folder)
        answers = self.exchange.ask({self.nodes[c]: ask for c, ask in asked.items()}, self.terms.timeout)
        taken, refused = self._taken(state, number, cohort, answers)
        lost = len(cohort.clients) - len(taken)
        self.record.lost += lost
        if len(taken) < math.ceil(self.terms.quorum * len(cohort.clients)):
            self.recorder.outcome(number, entry.attempt, dropped=0, lost=lost)
            raise self._too_few(number, len(cohort.clients), len(taken), refused)
        state, report = self._step(state, number, cohort, taken, round_key, lr)
        told = report.row()
        self.recorder.outcome(number, entry.attempt, dropped=int(told["not_finite"]), lost=lost)
        row: Row = {**told, "lr": float(lr), "refused": refused, "seconds": time.monotonic() - began}
        row["train_loss"] = row["train_loss"] if "loss" in state.clients else None
        return state, row

    def _requests(
        self, state: ServerState, number: int, cohort: sampling.Cohort, round_key: Any, lr: Any
    ) -> dict[int, tuple[Request, Parts]]:
        """What is sent to each node that is there: the model as this client receives it (stage `broadcast`)."""
        clients = self.config.data.clients
        self._meet(clients)
        there = set(self.exchange.online())
        setting = self.simulator.task.setting
        same = pack(state.params) if not any(d.fills("broadcast") for d in self.simulator.task.defenses) else None
        asked: dict[int, tuple[Request, Parts]] = {}
        for c in map(int, cohort.clients):
            if self.nodes.get(c) not in there:
                continue
            parts = (
                same if same is not None else pack(self._begin(state.params, self._moment(number, c, round_key, lr)))
            )
            seed = _test_seed(self.config) if self.terms.test else -1
            request = Request(
                self.record.run, number, c, self.text, setting.smallest, setting.max_weight, setting.min_weight, seed
            )
            asked[c] = (request, parts)
        return asked

    @staticmethod
    def _moment(number: int, client: int, round_key: Any, lr: Any) -> RoundContext:
        return RoundContext(keys.client_key(round_key, client, 0), keys.shared_key(round_key), number, lr)

    def _taken(
        self, state: ServerState, number: int, cohort: sampling.Cohort, answers: Mapping[int, Answer]
    ) -> tuple[dict[int, tuple[Tree, float]], dict[str, str]]:
        """The messages that count, by client; and why others do not."""
        taken: dict[int, tuple[Tree, float]] = {}
        refused: dict[str, str] = {}
        for c in map(int, cohort.clients):
            answer = answers.get(self.nodes.get(c, -1))
            try:
                taken[c] = accept(answer, self.record.run, number, c, state.params)
            except BadMessage as error:
                refused[str(c)] = str(error)
        return taken, refused

    def _step(
        self,
        state: ServerState,
        number: int,
        cohort: sampling.Cohort,
        taken: Mapping[int, tuple[Tree, float]],
        round_key: Any,
        lr: Any,
    ) -> tuple[ServerState, RoundReport]:
        """The messages of a round into the next model: `collect`, `remember`, `advance`."""
        simulator = self.simulator
        averaging = simulator.task.setting.aggregation == "fedavg"
        summed, clients = server.empty_sum(simulator.rule, state.params), state.clients
        for c, (message, loss) in taken.items():
            if averaging:
                message = jax.tree.map(jnp.subtract, message, state.params)
            one = Answers(
                message=jax.tree.map(lambda a: jnp.asarray(a)[None], message),
                weight=jnp.asarray(simulator.weights[[c]], simulator.task.dtype),
                late=jnp.zeros(1, bool),
                loss=jnp.asarray([loss], simulator.task.dtype),
            )
            clients = server.remember(clients, jnp.asarray([c]), one, {})
            summed = self._collect(summed, one)
        counters = replace(summed, total={}, late={})
        report = RoundReport(number, cohort.chosen, len(cohort.clients) - len(taken), 0, counters)
        return self._advance(replace(state, clients=clients), summed, round_key, lr), report

    def _too_few(self, number: int, chosen: int, came: int, refused: Mapping[str, str]) -> RunError:
        why = "; ".join(f"client {c}: {reason}" for c, reason in list(refused.items())[:4])
        with self.folder.writing():
            self.record.save(self.folder)
        return RunError(
            f"round {number}: {came} of {chosen} nodes sent something usable, the quorum is {self.terms.quorum:g} of "
            f"them ({why}); the run can go on from round {number}: --resume {self.folder.path}"
        )

    # --- the end

    def _seconds(self) -> float:
        return self.earlier + time.monotonic() - self.started

    def _finish(self, scores: tuple[float, float] | None, rounds: int) -> dict[str, Any]:
        self.record.save(self.folder)
        rows = ledger.rows(self.recorder.transcript(), accountants=("paper", "pld"))
        result = {
            "accuracy": scores[0] if scores else None,
            "split": self.federation.dataset.held_out_name if scores else None,
            "loss": scores[1] if scores else None,
            "rounds": rounds,
            "rounds_asked": self.record.asked,
            "seconds": self._seconds(),
            "run": str(self.folder.path),
            "stopped": self.stopped or self.federation.stops or None,
            "clients_lost": self.record.lost,
            "nodes": len(self.record.members.sizes),
            "test": self.terms.test,
            "ledger": [] if self.terms.test else [row.as_dict() for row in rows],
        }
        self.folder.write_info(status="done", rounds_done=rounds, result=result)
        return result


def accept(answer: Answer | None, run: str, number: int, client: int, like: Tree) -> tuple[Tree, float]:
    """The message of an answer that may be used; else `BadMessage` with the reason."""
    if answer is None:
        raise BadMessage("no answer in time")
    if answer.failure or answer.reply is None:
        raise BadMessage(answer.failure or "no answer")
    reply = answer.reply
    if reply.refused:
        raise BadMessage(f"refused: {reply.refused}"[:500])
    if (reply.run, reply.round) != (run, number):
        raise BadMessage(f"stale: an answer to round {reply.round} of run {reply.run}, not to round {number} of {run}")
    if reply.client != client:
        raise BadMessage(f"an answer of client {reply.client}, not of {client}")
    return unpack(answer.parts, like), reply.loss


def _test_seed(config: Config) -> int:
    """The seed of all draws in test mode."""
    train = config.train
    return train.seed if train.noise_seed is None else train.noise_seed


def _assemble(config: Config, members: Members, draws: keys.Draws) -> tuple[Federation, bool]:
    """The federation without its data; and whether there is a part to measure accuracy on."""
    dataset = _own_data(config, members)
    evaluates = dataset is not None
    if dataset is None:
        blank = Part(np.zeros((1, *members.shape), members.dtype), np.zeros(1, np.int32))
        dataset = Dataset(config.data.name, blank, blank, "none", members.classes)
    nothing = Part(np.zeros((0, *members.shape), members.dtype), np.zeros(0, np.int32))
    dataset = replace(dataset, train=nothing)
    federation = prepare(config, dataset=dataset, partition=members.partition, draws=draws)
    return federation, evaluates


def _own_data(config: Config, members: Members) -> Dataset | None:
    """What the server itself holds of the dataset: the held-out part, and a public set where a defence uses one."""
    share = max(defense.public_share(config.data.name) for defense in config.defense)
    try:
        found = load_data(config, share)
    except FedveilError:
        if share:
            raise
        return None
    same = (
        found.shape == members.shape and found.classes == members.classes and str(found.train.x.dtype) == members.dtype
    )
    return found if same else None
