"""The round as it is, played with canaries: what a tap shows of them.

Everything between a record and a tap is the project's own: `begin`, `step` and `end` of the client, `collect` and `advance`
of the server, with the defences of the config and keys drawn as in training. Only three things are set: every canary takes
part in every step (q = 1), the local optimiser is plain SGD and the server's step plain averaging (both are
post-processing), and clients without canaries hold records of zero gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.audit.canary import LABEL, canary_input, canary_model, projections
from fedveil.core import keys
from fedveil.core.setting import Setting
from fedveil.models.layers import Array, Params
from fedveil.rounds import client as client_part
from fedveil.rounds import server
from fedveil.rounds.client import Now, Seen, Task
from fedveil.rounds.server import Answers, ServerRule, ServerState

Tree = Any

_RULE = ServerRule(server_lr=1.0, server_momentum=0.0, keeps_late=False)


@dataclass(frozen=True)
class Layout:
    """Where canaries sit: `canaries` of them in a federation of `clients`, with `records` in each batch.

    Unit `example`: canary i is record i of client 0; if there is room for one more record, it pulls the other way, half as
    far, so that a canary turns what its client sends around. Unit `client`: canary i is client i, all its records canaries.
    Canaries that meet in one sum have directions of their own (`width` = how many), others share one (`width` = 1).
    """

    unit: str
    canaries: int
    clients: int
    records: int
    width: int


@dataclass(frozen=True)
class Stage:
    """One audited mechanism: the config's task on canaries, watched at one tap for some rounds of some steps."""

    task: Task  # on the canary model
    layout: Layout
    tap: str
    rounds: int
    norm: float  # of a canary's gradient, and of the update it makes alone
    at_once: int = 1  # clients computed at once

    @property
    def summed(self) -> bool:
        """Whether the tap shows a sum over clients."""
        return shows_sums(self.tap, self.task.setting)

    def scores(self, coins: Array, root: Array) -> Array:
        """[canaries] how much of each canary the tap shows; `coins` [canaries] says which are put in."""
        return self._read(self._watch(coins, root))

    # --- playing

    def _watch(self, coins: Array, root: Array) -> Tree:
        """What the tap shows, along every canary's direction, added up over the rounds."""
        task = self.task
        params = jax.tree.map(lambda a: a.astype(task.dtype), task.model.init(root))
        stateful = {str(place): d for place, d in enumerate(task.defenses) if d.stateful}
        memory = {place: d.initial_memories(params, self.layout.clients) for place, d in stateful.items()}
        state = server.initial_state(_RULE, params, memory)

        def body(state: ServerState, number: Array) -> tuple[ServerState, Array]:
            return self._round(state, number, coins, root)

        _, shown = jax.lax.scan(body, state, jnp.arange(self.rounds))
        return shown.sum(axis=0)

    def _round(self, state: ServerState, number: Array, coins: Array, root: Array) -> tuple[ServerState, Array]:
        task, clients = self.task, self.layout.clients
        round_key, lr = keys.round_key(root, number), jnp.asarray(task.setting.lr, task.dtype)

        def one(inputs: tuple[Array, Tree]) -> tuple[Array, Tree, Tree]:
            c, memory = inputs
            now = Now(keys.client_key(round_key, c, 0), keys.shared_key(round_key), number, lr)
            return self._client(state.params, self._records(coins, c), memory, now)

        ids = jnp.arange(clients)
        shown, message, memory = jax.lax.map(one, (ids, state.clients), batch_size=min(self.at_once, clients))
        weights = jnp.asarray(self.weights(), task.dtype)
        answers = Answers(message, weights, jnp.zeros(clients, bool), jnp.zeros(clients, task.dtype))
        summed = server.collect(_RULE, server.empty_sum(_RULE, state.params), answers)
        new = server.advance(task, _RULE, replace(state, clients=memory), summed, round_key, lr)
        if not self.summed:
            return new, shown
        if self.tap == "server":  # under secure aggregation
            return new, -projections(summed.total)
        seen = new.params
        if self.tap == "broadcast":
            following = keys.round_key(root, number + 1)
            now = Now(keys.client_key(following, 0, 0), keys.shared_key(following), number + 1, lr)
            seen = client_part.begin(task, seen, now)
        return new, projections(state.params) - projections(seen)

    def _client(self, sent: Params, x: Array, memory: Tree, now: Now) -> tuple[Array, Tree, Tree]:
        """One client's round on its records `x` [records, width]: what its taps show, its message, its memory."""
        task = self.task
        received = client_part.begin(task, sent, now)
        y, mask = jnp.full(x.shape[0], LABEL), jnp.ones(x.shape[0], bool)
        inside = frozenset({"example"}) & {self.tap}

        def body(local: client_part.Local, number: Array) -> tuple[client_part.Local, Array]:
            seen = Seen(inside)
            local = client_part.step(task, local, x, y, mask, number, now, seen)
            return local, projections(seen.values["example"]) if inside else jnp.zeros(())

        start = client_part.start(task, received, memory)
        local, examples = jax.lax.scan(body, start, jnp.arange(task.setting.local_steps))
        seen = Seen(frozenset({"client"}))
        message, memory = client_part.end(task, sent, received, local, now, seen)
        if inside:
            return examples.sum(axis=0), message, memory
        # An update goes against the gradient.
        return -projections(seen.values["client"] if self.tap == "client" else message), message, memory

    # --- where canaries sit

    def _records(self, coins: Array, c: Array) -> Array:
        """[records, width] the data of client `c`."""
        layout = self.layout
        ones, place = jnp.arange(layout.canaries), jnp.arange(layout.canaries) % layout.width
        x = jnp.zeros((layout.records, layout.width), self.task.dtype)
        if layout.unit == "example":
            x = x.at[ones, place].set(coins.astype(x.dtype))
            if layout.records > layout.canaries:
                x = x.at[layout.canaries].set(-0.5)
            x = jnp.where(c == 0, x, 0.0)
        else:
            canary = c < layout.canaries
            coin = jnp.where(canary, coins[jnp.minimum(c, layout.canaries - 1)], 0)
            x = x.at[:, c % layout.width].set(coin.astype(x.dtype))
        return x * canary_input(self.norm)

    def weights(self) -> np.ndarray:
        """[clients] of the messages: a canary's is the largest that any client can have."""
        layout = self.layout
        heavy = np.arange(layout.clients) < (layout.canaries if layout.unit == "client" else 1)
        return np.where(heavy, self.task.setting.max_weight, 1.0)

    def _read(self, shown: Array) -> Array:
        """[canaries] the score of each: along its own direction, from its own record or client where they show apart."""
        ones = jnp.arange(self.layout.canaries)
        place = ones % self.layout.width
        if self.summed:  # [width]
            return shown[place]
        by_client = self.layout.unit == "client"
        if self.tap == "example":  # [clients, records, width]
            return shown[ones, :, place].sum(axis=1) if by_client else shown[0, ones, place]
        return shown[ones if by_client else 0, place]  # [clients, width]


def shows_sums(tap: str, setting: Setting) -> bool:
    """Whether a tap shows clients only in sum."""
    return tap in ("broadcast", "release") or (tap == "server" and setting.secure_aggregation)


def stage(task: Task, layout: Layout, tap: str, rounds: int, steps: int, excess: float) -> Stage:
    """The config's task on canaries `excess` times as long as the clip bound, in gradients and in updates."""
    setting = replace(task.setting, local_steps=steps)
    model = canary_model(task.model, setting.layers, layout.width)
    bound = max((bound for d in task.defenses for bound in d.clip_bounds()), default=1.0)
    norm = excess * bound * max(1.0, setting.batch / setting.lr)
    at_once = 1 if layout.width > 1 else 64
    played = replace(task, model=model, setting=setting, optimizer="sgd", scale=1.0, ragged_steps=False)
    return Stage(played, layout, tap, rounds, norm, at_once)


def one_run_layout(setting: Setting, tap: str, unit: str, canaries: int, cohort: int) -> tuple[int, Layout]:
    """How many times a federation is laid out so that about so many canaries fit, and the layout.

    What a tap shows apart is laid out as in training: batches of the usual size, one client beside the other. Canary
    clients that meet in a sum are as many as take part in a round. Canary records that meet in a sum all stand in one
    batch, of one client in a `cohort`.
    """
    if unit == "client":
        if not shows_sums(tap, setting):
            return 1, Layout(unit, canaries, canaries, setting.batch, 1)
        full = setting.per_round
        return -(-canaries // full), Layout(unit, full, full, setting.batch, full)
    if tap == "example":
        return -(-canaries // setting.batch), Layout(unit, setting.batch, 1, setting.batch, 1)
    return 1, Layout(unit, canaries, cohort, canaries, canaries)


def trial_layout(setting: Setting, tap: str, unit: str, cohort: int) -> Layout:
    """One canary, in a cohort; a canary record has one other record beside it."""
    return Layout(unit, 1, cohort, setting.batch if unit == "client" else 2, 1)
