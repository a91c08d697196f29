"""The server's part of a round: it adds up the clients' messages and steps the global model (fed-cdp, Algorithm 2, lines 18
to 20).

Messages enter as weighted differences to the server's model. A message that is not finite is left out and counted. Under
Poisson sampling the divisor is the nominal `per_round`, else the weight that arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedveil.core import keys
from fedveil.core.stage import StageContext
from fedveil.defenses.base import filters
from fedveil.models.layers import Array, Params
from fedveil.simulation.client import Task

Tree = Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ServerState:
    """What the server keeps from round to round, and in the checkpoint."""

    params: Params
    velocity: Tree  # server momentum; empty without
    late: Tree  # sum of messages that arrived late, and its weight; empty where no client is late
    round: Array  # rounds done
    clients: Tree  # [clients, ...] the state of each client by index of the defence; empty where no defence keeps one


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sum:
    """The running sum over the clients of a round, and the numbers that are reported."""

    total: Tree
    weight: Array
    late: Tree
    answered: Array
    not_finite: Array
    loss: Array
    norm: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Answers:
    """The messages of some clients, with a leading axis over the clients."""

    message: Tree
    weight: Array  # [clients], 0 for padding
    late: Array  # [clients] bool
    loss: Array  # [clients]


@dataclass(frozen=True)
class ServerRule:
    """How the server steps: static under jit."""

    server_lr: float
    server_momentum: float
    keeps_late: bool


def initial_state(rule: ServerRule, params: Params, clients: Tree | None = None) -> ServerState:
    """The state before the first round. Every leaf has its own buffer, so that all may be donated."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return ServerState(
        params=jax.tree.map(jnp.copy, params),
        velocity=zeros if rule.server_momentum else {},
        late={"total": jax.tree.map(jnp.copy, zeros), "weight": _zero(params)} if rule.keeps_late else {},
        round=jnp.zeros((), jnp.int32),
        clients=clients or {},
    )


def initial_client_states(task: Task, params: Params, clients: int) -> Tree:
    """[clients, ...] the state that stateful defences keep of each client, and the losses where a selection reads them."""
    stateful = {str(index): d for index, d in enumerate(task.defenses) if d.stateful}
    states = {index: d.initial_client_states(params, clients) for index, d in stateful.items()}
    if any(d.reads_losses for d in task.defenses):
        states["loss"] = jnp.full(clients, jnp.nan, task.dtype)
    return states


def defense_states(clients: Tree) -> Tree:
    """The client states that belong to defences; the losses are the server's."""
    return {index: state for index, state in clients.items() if index != "loss"}


def _zero(params: Params) -> Array:
    return jnp.zeros((), jax.tree.leaves(params)[0].dtype)


def empty_sum(rule: ServerRule, params: Params) -> Sum:
    """A sum over no clients."""
    zeros, zero = jax.tree.map(jnp.zeros_like, params), _zero(params)
    late = {"total": zeros, "weight": zero} if rule.keeps_late else {}
    count = jnp.zeros((), jnp.int32)
    return Sum(zeros, zero, late, count, count, zero, zero)


def all_finite(message: Tree) -> Array:
    """[clients]: whether a client's message is finite in every value."""
    leaves = jax.tree.leaves(message)
    return jnp.stack([jnp.isfinite(a).reshape(a.shape[0], -1).all(axis=1) for a in leaves]).all(axis=0)


def update_client_states(clients: Tree, ids: Array, answers: Answers, states: Tree) -> Tree:
    """Stores the new states of the clients that answered. Padding and messages that are not finite change nothing."""
    if not clients:
        return clients
    count = jax.tree.leaves(clients)[0].shape[0]
    where = jnp.where((answers.weight > 0) & all_finite(answers.message), ids, count)  # out of range is dropped
    kept = {**states, **({"loss": answers.loss} if "loss" in clients else {})}
    return jax.tree.map(lambda old, new: old.at[where].set(new, mode="drop"), clients, kept)


def collect(rule: ServerRule, so_far: Sum, answers: Answers) -> Sum:
    """Adds the answers of a chunk of clients to the sum."""
    finite = all_finite(answers.message)
    present = answers.weight > 0
    shown = lambda a: jnp.where(finite.reshape(-1, *[1] * (a.ndim - 1)), a, 0.0)  # noqa: E731
    message = jax.tree.map(shown, answers.message)
    norm = jnp.sqrt(sum(jnp.square(a).reshape(a.shape[0], -1).sum(axis=1) for a in jax.tree.leaves(message)))
    kept = jnp.where(finite, answers.weight, 0.0)
    on_time = jnp.where(answers.late, 0.0, kept) if rule.keeps_late else kept
    late, behind = so_far.late, kept - on_time
    if rule.keeps_late:
        total = _add_weighted(late["total"], behind, message)
        late = {"total": total, "weight": late["weight"] + behind.sum()}
    counted = finite & present
    return Sum(
        total=_add_weighted(so_far.total, on_time, message),
        weight=so_far.weight + on_time.sum(),
        late=late,
        answered=so_far.answered + present.sum(dtype=so_far.answered.dtype),
        not_finite=so_far.not_finite + (present & ~finite).sum(dtype=so_far.not_finite.dtype),
        loss=so_far.loss + jnp.where(counted & jnp.isfinite(answers.loss), answers.loss, 0.0).sum(),
        norm=so_far.norm + jnp.where(counted, norm, 0.0).sum(),
    )


def joined(one: Sum, other: Sum) -> Sum:
    """The sum over the clients of both."""
    return jax.tree.map(jnp.add, one, other)


def _add_weighted(total: Tree, weight: Array, message: Tree) -> Tree:
    return jax.tree.map(lambda t, m: t + jnp.tensordot(weight, m, axes=1), total, message)


def advance(task: Task, rule: ServerRule, state: ServerState, summed: Sum, round_key: Array, lr: Array) -> ServerState:
    """The server's step (line 20): mean of the messages, momentum, new model. Without messages only momentum moves it."""
    total, weight = summed.total, summed.weight
    if rule.keeps_late:
        total = jax.tree.map(jnp.add, total, state.late["total"])
        weight = weight + state.late["weight"]
    if task.setting.quorum:  # fewer answers are never added up: their noise would not be enough
        enough = summed.answered - summed.not_finite >= task.setting.quorum
        total = jax.tree.map(lambda t: jnp.where(enough, t, 0.0), total)
    nominal = task.setting.sampling == "poisson"
    divisor = jnp.asarray(task.setting.per_round, weight.dtype) if nominal else weight

    def through(stage: str, value: Tree) -> Tree:
        for index, change in enumerate(filters(task.defenses, stage)):
            key = keys.device(round_key, stage, index)
            value = change(value, StageContext(task.setting, key, key, state.round, lr, divisor))
        return value

    total = through("aggregate", total)
    change = jax.tree.map(lambda t: t / jnp.where(divisor > 0, divisor, 1.0), total)
    velocity = state.velocity
    if rule.server_momentum:
        change = velocity = jax.tree.map(lambda v, c: rule.server_momentum * v + c, velocity, change)
    params = jax.tree.map(lambda p, c: p + rule.server_lr * c, state.params, change)
    params = through("finish", params)
    return ServerState(params, velocity, summed.late, state.round + 1, state.clients)
