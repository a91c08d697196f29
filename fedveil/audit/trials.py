"""Independent trials with and without one canary: the simulator's own `chunk_sum` and `advance`, many runs at once.

A trial is an independent run from its own key. It calls the functions that the simulator compiles, on a model of a few
parameters, mapped over thousands of keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.audit.canary import FEW_BIAS, LABEL, Canary, Kind, canary_model
from fedveil.audit.certificate import Attacked, shows_sums
from fedveil.core import keys
from fedveil.models.layers import Array, Params
from fedveil.simulation import client as client_part
from fedveil.simulation import server, simulator
from fedveil.simulation.client import Task
from fedveil.simulation.inputs import ClientInputs, RoundInputs
from fedveil.simulation.observation import observed
from fedveil.simulation.sampling import Batches
from fedveil.simulation.server import ServerRule, ServerState

_RULE = ServerRule(server_lr=1.0, server_momentum=0.0, keeps_late=False)
BLANK, CANARY, OPPOSITE = 0, 1, 2  # rows of a trial's dataset


@dataclass(frozen=True)
class Trial:
    """One attacked mechanism: the canary is a record of client 0, or all of its records."""

    task: Task  # on the canary model
    attacked: Attacked
    clients: int
    kinds: tuple[Kind, ...]
    norm: float
    lr: float

    def scores(self, roots: Array, present: bool) -> Array:
        """[trials] of runs from their own keys."""
        return jax.vmap(partial(self._one, present=present))(roots)

    def _one(self, root: Array, present: bool) -> Array:
        task, attacked = self.task, self.attacked
        params = jax.tree.map(lambda a: a.astype(task.dtype), task.model.init(root))
        state = server.initial_state(_RULE, params, server.initial_client_states(task, params, self.clients))

        def body(state: ServerState, number: Array) -> tuple[ServerState, Array]:
            return self._round(state, root, number, present)

        _, shown = jax.lax.scan(body, state, jnp.arange(attacked.rounds))
        return shown.sum()

    def _round(self, state: ServerState, root: Array, number: Array, present: bool) -> tuple[ServerState, Array]:
        task, tap = self.task, self.attacked.tap
        round_key, lr = keys.round_key(root, number), jnp.asarray(self.lr, task.dtype)
        x, chunk = self._clients(present)
        inputs = RoundInputs(state.params, x, jnp.full(3, LABEL), round_key, number, lr)
        nothing = (server.empty_sum(_RULE, state.params), state.clients)
        summed, clients = simulator.chunk_sum(task, _RULE, nothing, inputs, chunk)
        new = server.advance(task, _RULE, replace(state, clients=clients), summed, round_key, lr)
        if tap == "example":
            return new, self._example(inputs, replace(chunk, state=state.clients))
        if not shows_sums(tap, task.setting) or tap == "server":
            return new, -self._along(summed.total) / self.weights[0]
        seen = new.params
        if tap == "broadcast":
            following = replace(inputs, key=keys.round_key(root, number + 1), number=number + 1)
            seen = client_part.begin(task, seen, client_part.client_context(following, 0))
        return new, self._along(state.params) - self._along(seen)

    def _example(self, inputs: RoundInputs, chunk: ClientInputs) -> Array:
        """What the tap `example` shows of the canary's slot."""
        look = partial(observed, self.task, frozenset({"example"}), (0,), inputs)
        shown = jax.vmap(look)(chunk)["example"][0]
        return self._along(jax.tree.map(lambda a: a[0, 0], shown))

    # --- what clients hold

    @property
    def weights(self) -> np.ndarray:
        """[clients] of the messages: the canary's is the largest that any client can have."""
        return np.where(np.arange(self.clients) == 0, self.task.setting.max_weight, 1.0)

    def _clients(self, present: bool) -> tuple[Array, ClientInputs]:
        """The rows of the dataset, and the clients as `chunk_sum` takes them."""
        task, steps = self.task, self.attacked.steps
        every = tuple(range(len(self.kinds)))
        record = Canary("", every, FEW_BIAS).record(self.kinds, 1, self.norm)
        opposite = np.where(np.arange(len(record)) < len(every), -0.5 * record, record)
        x = jnp.asarray(np.stack([np.zeros_like(record), record, opposite]), task.dtype)
        width = 2 if self.attacked.unit == "example" else task.setting.batch
        own = np.full(width, CANARY if present else BLANK)
        if self.attacked.unit == "example":
            own[1] = OPPOSITE  # so that a canary turns its client's contribution around
        index = np.full((self.clients, steps, width), BLANK, np.int32)
        index[0] = own
        mask = np.ones(index.shape, bool)
        batches = Batches(jnp.asarray(index), jnp.asarray(mask), jnp.full(self.clients, steps, jnp.int32))  # type: ignore[arg-type]
        ids = jnp.arange(self.clients)
        weight = jnp.asarray(self.weights, task.dtype)
        return x, ClientInputs(ids, jnp.zeros_like(ids), batches, weight, jnp.zeros(self.clients, bool))

    def _along(self, tree: Params) -> Array:
        """The part along the canary's direction, in all layers."""
        total = jnp.zeros((), self.task.dtype)
        for index, kind in enumerate(self.kinds):
            layer = tree[f"layer{index}"]
            norm = kind.name == "norm"
            total += layer["scale"][0] if norm else (layer["w"][0, 1] - layer["w"][0, 0]) / math.sqrt(2.0)
        return total


def trial(task: Task, attacked: Attacked, clients: int, norm: float) -> Trial:
    setting = replace(task.setting, local_steps=attacked.steps)
    model, kinds = canary_model(task.model, setting.layers, 1)
    played = replace(task, model=model, setting=setting, optimizer="sgd", scale=1.0, ragged_steps=False).exact
    return Trial(played, attacked, clients, kinds, norm, setting.lr)


def sample(played: Trial, trials: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """[trials] scores without and with the canary, no key used twice."""
    # Trials computed in one call: what keeps their arrays within some 100 MB.
    values = 4 * played.task.setting.layers * played.clients * max(2, played.task.setting.batch)
    width = max(1, min(trials, 20_000, 5_000_000 // values))
    program = jax.jit(played.scores, static_argnums=1)
    found = []
    for present in (False, True):
        made: list[np.ndarray] = []
        for start in range(0, trials, width):
            numbers = jnp.arange(start, start + width, dtype=jnp.uint32) * 2 + present
            roots = jax.vmap(partial(jax.random.fold_in, keys.root(seed)))(numbers)
            made.append(np.asarray(program(roots, present), np.float64))
        found.append(np.concatenate(made)[:trials])
    return found[0], found[1]
