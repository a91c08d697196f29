"""The server's side of a deployed run: cohort, requests, replies, model update, checkpoint.

The server calls the functions of the simulator: the cohort, the stage `broadcast` for each client, `collect` and `advance`
are the same, and only the updates come from nodes. The run folder records a round before its requests are sent (`asked`),
so the ledger of the run counts every requested round, whether it was completed or not.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.accounting import ledger, transcript
from fedveil.accounting.transcript import Executed
from fedveil.config import Config, resolve, to_toml
from fedveil.core import keys
from fedveil.core.errors import FedveilError, RunError
from fedveil.core.files import append_lines, write_text
from fedveil.core.system import to_json
from fedveil.data.dataset import Dataset, Part
from fedveil.data.partition import Partition
from fedveil.deploy import encoding
from fedveil.deploy.files import Member
from fedveil.deploy.limits import SUMMED, deployable
from fedveil.deploy.messages import (
    BadMessage,
    Introduction,
    Payload,
    ReceivedReply,
    Request,
    Transport,
    digest_of,
    pack,
    unpack,
)
from fedveil.federation import Federation, load_data, prepare
from fedveil.random import secure
from fedveil.runs import RunFolder, environment
from fedveil.simulation import client as client_part
from fedveil.simulation import sampling, server
from fedveil.simulation.inputs import RoundContext
from fedveil.simulation.learning import chance_of, learned
from fedveil.simulation.server import Answers, ServerState
from fedveil.simulation.simulator import RoundReport

if TYPE_CHECKING:
    from fedveil.deploy.secagg.roster import Roster


Row = dict[str, Any]
Tree = Any
Accepted = dict[int, tuple[Tree, float, int]]  # by client: update, loss, and for how many clients it stands
ALL = "all"  # instead of a client: the reason holds for the whole round
SESSIONS = "secagg.jsonl"  # in a run folder: the public transcript of each session of secure aggregation
RETRY, INF = 30.0, math.inf  # seconds after which a node is asked again to introduce itself
MAX_VALUES = 1 << 24  # numbers in one example that a node may state
MAX_CLASSES = 100_000
DTYPES = ("uint8", "float16", "float32", "float64", "int32", "int64")


@dataclass(frozen=True)
class Terms:
    """How long a deployed run waits for nodes, and how many must reply."""

    quorum: float = 0.5  # share of a round's nodes that must reply
    timeout: float = 300.0  # seconds for which a round waits for replies
    wait: float = 120.0  # seconds for which the start waits for all nodes
    test: bool = False  # noise from the run's seed, as in simulation: for comparison, never for private data
    records: int = 1_000_000  # the largest size that a node may state


class SizesOnly(Partition):
    """A partition of which only the sizes are known. Nodes share no example."""

    def copies(self) -> int:
        return 1


@dataclass(frozen=True)
class Members:
    """The public sizes of a run's nodes, from their introductions; fixed for the whole run."""

    sizes: tuple[int, ...]  # by client
    shape: tuple[int, ...]
    classes: int
    dtype: str

    @property
    def partition(self) -> Partition:
        """The partition by sizes alone: the server has no examples, so it stores no row of them."""
        length = np.array(self.sizes, np.int32)
        start = np.concatenate([[0], np.cumsum(length, dtype=np.int64)[:-1]]).astype(np.int64)
        return SizesOnly(np.broadcast_to(np.int32(0), (int(length.sum(dtype=np.int64)),)), start, length)


@dataclass
class RunRecord:
    """`deploy.json` of a run folder: what a resumed run must know."""

    run: str
    members: Members
    asked: int = 0  # requested rounds, including failed ones
    lost: int = 0  # replies that did not arrive or were rejected

    def save(self, folder: RunFolder) -> None:
        document = {**self.__dict__, "members": self.members.__dict__}
        write_text(folder.path / "deploy.json", to_json(document, indent=2) + "\n")

    @classmethod
    def read(cls, folder: RunFolder) -> RunRecord | None:
        path = folder.path / "deploy.json"
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            given = found.pop("members")
            members = Members(tuple(given["sizes"]), tuple(given["shape"]), given["classes"], given["dtype"])
            return cls(members=members, **found)
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is damaged ({error}): restore it, the ledger of this run depends on it") from None


def conduct(
    config: Config, transport: Transport, folder: RunFolder, terms: Terms, progress: Callable[[Row], None] | None = None
) -> dict[str, Any]:
    """Starts or resumes a deployed training; returns the document that `deploy run --json` prints."""
    with folder.locked(), _failure_in(folder):
        config = deployable(resolve(config), test=terms.test)
        return _DeployedRun(config, transport, folder, terms, progress).run()


@contextlib.contextmanager
def _failure_in(folder: RunFolder) -> Iterator[None]:
    """Writes into `run.json` why the run failed. Only for the process that has the run's lock: it is nobody else's run."""
    try:
        yield
    except Exception as error:
        resume = f"; resume from the last complete round with --resume {folder.path}"
        told = str(error) if isinstance(error, FedveilError) else f"{type(error).__name__}: {error}{resume}"
        folder.write_info(status="failed", error=told)
        raise


class _DeployedRun:
    """The state of one deployed training."""

    def __init__(
        self,
        config: Config,
        transport: Transport,
        folder: RunFolder,
        terms: Terms,
        progress: Callable[[Row], None] | None,
    ) -> None:
        self.transport, self.folder, self.terms, self.progress = transport, folder, terms, progress
        self.started, self.earlier = time.monotonic(), 0.0
        self.nodes: dict[
            int, tuple[int, Member]
        ] = {}  # client → its node, by the roster, once it has introduced itself
        self.tried: dict[int, float] = {}  # node → when it was last asked to introduce itself
        record = RunRecord.read(folder)
        self.sizes = dict(enumerate(record.members.sizes)) if record else dict[int, int]()
        self.record = record or RunRecord(secrets.token_hex(8), self._wait_for_nodes(config))
        # Cohorts are secret draws: amplification by sampling needs them unpredictable.
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
        self.roster = transport.keys

    # --- nodes

    def _wait_for_nodes(self, config: Config) -> Members:
        """Waits until every client of the config has introduced itself."""
        wanted, introduced = config.data.clients, dict[int, Introduction]()
        until = time.monotonic() + self.terms.wait
        while True:
            introduced |= self._introductions(wanted)
            missing = sorted(set(range(wanted)) - set(introduced))
            if not missing:
                break
            if time.monotonic() > until:
                raise RunError(
                    f"{len(introduced)} of {wanted} nodes are connected after {self.terms.wait:g} s; missing: client "
                    f"{', '.join(map(str, missing[:10]))}"
                )
            time.sleep(min(1.0, self.terms.wait / 10))
        kinds = {(one.shape, one.classes, one.dtype) for one in introduced.values()}
        if len(kinds) > 1:
            raise RunError(f"the nodes' examples differ in shape, classes or type: {sorted(kinds)}")
        shape, classes, dtype = kinds.pop()
        sizes = tuple(introduced[c].size for c in range(wanted))
        return Members(sizes, tuple(int(n) for n in shape.split(",")), classes, dtype)

    def _introductions(self, clients: int) -> dict[int, Introduction]:
        """Introductions of new nodes, by client. The roster says which client a node is; its own word does not count."""
        present = self.transport.online()
        known = {node for node, _ in self.nodes.values()}
        new = {node: member for node, member in present.items() if node not in known and member.client < clients}
        # A node that never answers must not delay every round.
        new = {node: member for node, member in new.items() if time.monotonic() - self.tried.get(node, -INF) > RETRY}
        self.tried |= dict.fromkeys(new, time.monotonic())
        accepted: dict[int, Introduction] = {}
        if not new:
            return accepted
        for node, introduction in self.transport.introduce(list(new), min(60.0, self.terms.timeout)).items():
            client, size = new[node].client, introduction.size
            # The sizes of a run are fixed: noise and ledger follow from them. A resumed run knows them already.
            if introduction.client != client or not self._plausible(introduction):
                continue
            if self.sizes.setdefault(client, size) == size:
                self.nodes[client] = (node, new[node])
                accepted[client] = introduction
        return accepted

    def _plausible(self, told: Introduction) -> bool:
        """Whether the stated sizes are within the bounds of the roster. Nothing is allocated for sizes beyond them."""
        with contextlib.suppress(ValueError):
            shape = [int(n) for n in told.shape.split(",")] if len(told.shape) < 100 else []
            values = math.prod(shape)
            return (
                1 <= told.size <= self.terms.records
                and 1 <= len(shape) <= 4
                and all(n >= 1 for n in shape)
                and values <= MAX_VALUES
                and 2 <= told.classes <= MAX_CLASSES
                and told.dtype in DTYPES
            )
        return False

    # --- the rounds

    def run(self) -> dict[str, Any]:
        with jax.enable_x64(self.simulator.task.dtype == "float64"):
            return self._run_rounds()

    def _run_rounds(self) -> dict[str, Any]:
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
        """The initial state, or that of the checkpoint; and the number of completed rounds."""
        simulator = self.simulator
        params = simulator.task.model.init(keys.device(keys.root(self.config.train.seed), "init"))
        params = jax.tree.map(lambda a: jnp.asarray(a, simulator.task.dtype), params)
        # The client state of defences stays at the nodes; the server keeps the losses by which it selects clients.
        losses = any(d.reads_losses and d.fills("select") for d in simulator.task.defenses)
        losses_by_client = {"loss": jnp.full(self.config.data.clients, jnp.nan, simulator.task.dtype)} if losses else {}
        state, done = server.initial_state(simulator.rule, params, losses_by_client), 0
        with self.folder.writing():
            if not self.folder.config.exists():
                write_text(self.folder.config, self.text)
            self.record.save(self.folder)
            restored = self.folder.restore(state)
            if restored is not None:
                state, done, self.earlier = simulator.adopt(restored.state), restored.round, restored.seconds
            self.recorder.begin(at_least=done)
            if len(self.recorder.rounds) < self.record.asked:  # failed rounds count too, and no checkpoint shows them
                told = (
                    f"lacks some of the {self.record.asked} rounds that nodes were asked for: its account is not known"
                )
                raise RunError(f"{self.recorder.path} {told}")
            self.folder.clear_leftovers()
            self.folder.rewind(done)
            self.history = self.folder.read_metrics()
            terms = {**self.terms.__dict__, "run": self.record.run}
            self.folder.write_info(status="running", rounds_done=done, deployed=terms, **environment())
        return state, done

    def _executed(self, number: int) -> Executed:
        """The transcript entry of the next attempt at a round. Every attempt has fresh noise, and counts."""
        task, attempt = self.simulator.task, sum(1 for asked, _ in self.recorder.rounds if asked == number)
        lr, asked = task.setting.lr_at(number), task.setting.per_round
        return transcript.executed(task.defenses, task.setting, number, lr, asked, 0, attempt)

    def _affordable(self, number: int) -> bool:
        """Whether the budget allows another attempt after all earlier ones."""
        budget = self.config.train.budget
        if budget is None:
            return True
        after = self.recorder.transcript().plus(self._executed(number))
        row = ledger.certified(after, budget.tap, budget.unit, budget.delta)
        if row.epsilon is not None and row.epsilon <= budget.epsilon:
            return True
        self.stopped = (
            f"budget: round {number + 1} would exceed ε = {budget.epsilon:g} at δ = {budget.delta:g}, tap {budget.tap}, "
            f"unit {budget.unit}, after {self.record.asked} requested rounds"
        )
        return False

    def _round(self, state: ServerState, number: int) -> tuple[ServerState, Row]:
        simulator, began = self.simulator, time.monotonic()
        cohort = simulator.cohort(state, number)
        lr = jnp.asarray(simulator.task.setting.lr_at(number), simulator.task.dtype)
        round_key = simulator.round_key(number) if self.terms.test else secure.fresh_key()
        requests = self._requests(state, number, cohort, round_key, lr)
        self.record.asked += 1
        entry = replace(self._executed(number), asked=len(cohort.clients))
        with self.folder.writing():
            self.recorder.append(entry)
            self.recorder.sync()
            self.record.save(self.folder)
        accepted, refused, said = self._collected(state, number, cohort, requests)
        usable = sum(count for _, _, count in accepted.values())
        lost = len(cohort.clients) - usable
        self.record.lost += lost
        if usable < math.ceil(self.terms.quorum * len(cohort.clients)):
            self.recorder.outcome(number, entry.attempt, dropped=0, lost=lost)
            raise self._below_quorum(number, len(cohort.clients), usable, refused)
        state, report = self._step(state, number, cohort, accepted, round_key, lr)
        metrics = report.row()
        self.recorder.outcome(number, entry.attempt, dropped=int(metrics["not_finite"]), lost=lost)
        row: Row = {**metrics, **said, "lr": float(lr), "refused": refused, "seconds": time.monotonic() - began}
        row["train_loss"] = row["train_loss"] if "loss" in state.clients else None
        return state, row

    def _requests(
        self, state: ServerState, number: int, cohort: sampling.Cohort, round_key: Any, lr: Any
    ) -> dict[int, tuple[Request, Payload]]:
        """Requests to the cohort's connected nodes; the payload is the model as this client receives it (`broadcast`)."""
        self._introductions(self.config.data.clients)
        online = self.transport.online()
        setting = self.simulator.task.setting
        seed = _test_seed(self.config) if self.terms.test else -1
        shared = pack(state.params) if not any(d.fills("broadcast") for d in self.simulator.task.defenses) else None
        requests: dict[int, tuple[Request, Payload]] = {}
        for c in map(int, cohort.clients):
            node, member = self.nodes.get(c, (-1, None))
            if member is None or online.get(node) != member:
                continue
            model = shared or pack(self._begin(state.params, self._context(number, c, round_key, lr)))
            request = Request(
                self.record.run, number, c, member.key, self.text, setting.smallest, setting.max_weight,
                setting.min_weight, seed,
            )  # fmt: skip
            requests[c] = (request, model)
        return requests

    @staticmethod
    def _context(number: int, client: int, round_key: Any, lr: Any) -> RoundContext:
        return RoundContext(keys.client_key(round_key, client, 0), keys.shared_key(round_key), number, lr)

    def _collected(
        self,
        state: ServerState,
        number: int,
        cohort: sampling.Cohort,
        requests: Mapping[int, tuple[Request, Payload]],
    ) -> tuple[Accepted, dict[str, str], Row]:
        """What the nodes sent, why others sent nothing usable, and what the metrics say besides."""
        if self.config.train.secure_aggregation:
            return self._summed(state, number, len(cohort.clients), requests)
        asked = {self.nodes[c][0]: message for c, message in requests.items()}
        replies = self.transport.send(asked, self.terms.timeout)
        return *self._accepted(state, number, cohort, replies), {}

    def _summed(
        self, state: ServerState, number: int, chosen: int, requests: Mapping[int, tuple[Request, Payload]]
    ) -> tuple[Accepted, dict[str, str], Row]:
        """The mean of the updates of the survivors, as one answer that counts for all of them."""
        from fedveil.deploy import secure  # `cryptography` comes with the extra [flower]

        task = self.simulator.task
        quorum = secure.quorum_of(chosen, max(self.terms.quorum, task.setting.quorum / task.setting.per_round))
        if chosen < SUMMED:
            return {}, {}, {}  # a sampled cohort that is too small to be summed: a round without updates
        asked = {c: secure.Asked(self.nodes[c][0], *message) for c, message in requests.items()}
        like = state.params
        grid = encoding.FixedPoint.of(task, number, float(task.setting.lr_at(number)))
        try:
            if len(asked) < quorum:
                raise secure.Abort(f"{len(asked)} of {chosen} nodes are connected, {quorum} are needed")
            model = digest_of(next(iter(asked.values())).model, task.defenses)
            terms = secure.terms_of(asked, encoding.length(like), grid.bits, quorum, model)
            summed = secure.aggregate(self.transport, asked, terms, self._roster(), self.terms.timeout)
        except secure.Abort as error:
            return {}, {ALL: f"secure aggregation: {error}"}, {}
        append_lines(self.folder.path / SESSIONS, to_json({"round": number, **summed.report}) + "\n")
        count = len(summed.survivors)
        mean = jax.tree.map(lambda a: a / count, grid.decode(summed.total, like))
        return {summed.survivors[0]: (mean, math.nan, count)}, dict(summed.refused), {"secagg": secure.summary(summed)}

    def _roster(self) -> Roster:
        """The keys of all nodes. Nodes have their own copy: a wrong one here only makes sessions fail."""
        if self.roster is None:
            raise RunError("train.secure_aggregation needs the roster of the nodes' keys: server/roster.txt is missing")
        return self.roster

    def _accepted(
        self, state: ServerState, number: int, cohort: sampling.Cohort, replies: Mapping[int, ReceivedReply]
    ) -> tuple[Accepted, dict[str, str]]:
        """Usable updates and losses, by client; and the reasons why other replies are rejected."""
        accepted: Accepted = {}
        refused: dict[str, str] = {}
        for c in map(int, cohort.clients):
            reply = replies.get(self.nodes[c][0]) if c in self.nodes else None
            try:
                accepted[c] = (*accept(reply, self.record.run, number, c, state.params), 1)
            except BadMessage as error:
                refused[str(c)] = str(error)
        return accepted, refused

    def _step(
        self,
        state: ServerState,
        number: int,
        cohort: sampling.Cohort,
        accepted: Accepted,
        round_key: Any,
        lr: Any,
    ) -> tuple[ServerState, RoundReport]:
        """The next state from the accepted updates: `collect`, `update_client_states`, `advance`."""
        simulator = self.simulator
        averaging = simulator.task.setting.aggregation == "fedavg"
        summed, clients, counted = server.empty_sum(simulator.rule, state.params), state.clients, 0
        for c, (message, loss, count) in accepted.items():
            if averaging:
                message = jax.tree.map(jnp.subtract, message, state.params)
            one = Answers(
                message=jax.tree.map(lambda a: jnp.asarray(a)[None], message),
                weight=jnp.asarray(count * simulator.weights[[c]], simulator.task.dtype),
                late=jnp.zeros(1, bool),
                loss=jnp.asarray([loss], simulator.task.dtype),
            )
            clients = server.update_client_states(clients, jnp.asarray([c]), one, {})
            summed = self._collect(summed, one)
            counted += count
        if counted > len(accepted):  # a sum: its norm is that of the mean update
            summed = replace(summed, answered=jnp.int32(counted), norm=summed.norm * counted)
        counters = replace(summed, total={}, late={})
        report = RoundReport(number, cohort.chosen, len(cohort.clients) - counted, 0, counters)
        return self._advance(replace(state, clients=clients), summed, round_key, lr), report

    def _below_quorum(self, number: int, chosen: int, usable: int, refused: Mapping[str, str]) -> RunError:
        why = "; ".join(reason if c == ALL else f"client {c}: {reason}" for c, reason in list(refused.items())[:4])
        with self.folder.writing():
            self.record.save(self.folder)
        return RunError(
            f"round {number}: {usable} of {chosen} nodes sent a usable update, the quorum is {self.terms.quorum:g} of "
            f"them ({why}); resume from round {number} with --resume {self.folder.path}"
        )

    # --- the end

    def _seconds(self) -> float:
        return self.earlier + time.monotonic() - self.started

    def _finish(self, scores: tuple[float, float] | None, rounds: int) -> dict[str, Any]:
        self.record.save(self.folder)
        rows = ledger.rows(self.recorder.transcript(), accountants=("paper", "pld"))
        held_out = self.federation.dataset.held_out
        chance = chance_of(held_out.y)
        result = {
            "accuracy": scores[0] if scores else None,
            "chance": chance if scores else None,
            "learned": learned(scores[0], chance, len(held_out)) if scores else None,
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
        about = {"chance": chance, "held_out": len(held_out)} if scores else {}
        self.folder.write_info(status="done", rounds_done=rounds, **about, result=result)
        return result


def accept(received: ReceivedReply | None, run: str, number: int, client: int, like: Tree) -> tuple[Tree, float]:
    """The update and loss of a usable reply; raises `BadMessage` with the reason for any other."""
    if received is None:
        raise BadMessage("no reply in time")
    if received.failure or received.reply is None:
        raise BadMessage(_plain(received.failure or "no reply"))
    reply = received.reply
    if reply.refused:
        raise BadMessage(f"refused: {_plain(reply.refused)}")
    if (reply.run, reply.round) != (run, number):
        told = _plain(f"{reply.round} of run {reply.run}")
        raise BadMessage(f"stale: a reply to round {told}, not to round {number} of {run}")
    if reply.client != client:
        raise BadMessage(f"a reply from client {_plain(str(reply.client))}, expected client {client}")
    return unpack(received.payload, like), reply.loss


def _plain(text: str) -> str:
    """A node's text as one short line of printable characters: it is shown on a terminal and written into the run."""
    return "".join(c if c.isprintable() else " " for c in text[:300])


def _test_seed(config: Config) -> int:
    """The seed of all draws in test mode."""
    train = config.train
    return train.seed if train.noise_seed is None else train.noise_seed


def _assemble(config: Config, members: Members, draws: keys.Draws) -> tuple[Federation, bool]:
    """The federation without training data; and whether the server has held-out data to evaluate on."""
    dataset = _server_data(config, members)
    evaluates = dataset is not None
    if dataset is None:
        blank = Part(np.zeros((1, *members.shape), members.dtype), np.zeros(1, np.int32))
        dataset = Dataset(config.data.name, blank, blank, "none", members.classes)
    nothing = Part(np.zeros((0, *members.shape), members.dtype), np.zeros(0, np.int32))
    dataset = replace(dataset, train=nothing)
    federation = prepare(config, dataset=dataset, partition=members.partition, draws=draws)
    return federation, evaluates


def _server_data(config: Config, members: Members) -> Dataset | None:
    """The server's own data: the held-out part, and a public set if a defence uses one. None if it does not match."""
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
