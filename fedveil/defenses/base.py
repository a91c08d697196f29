"""What a defence is: a frozen dataclass that fills in only the stages of the round it changes.

The stages, in the order in which a round passes them:

| stage | where | what passes through |
|---|---|---|
| `select` | server, host | which clients take part |
| `broadcast` | per client | the model as this client receives it |
| `example` | client, each step | gradients of single examples, a leading axis over the batch |
| `batch` | client, each step | the sum of the example gradients |
| `update` | client | local model minus received model |
| `upload` | client | the message: the update (fedsgd) or the local model (fedavg) |
| `aggregate` | server | the weighted sum of the messages, as updates |
| `finish` | server | the new global model |

A stage that no defence fills in does not exist in the compiled round. A defence clips and adds noise by mechanisms
(`mechanisms/`) and says where in the round they are (`mechanisms`): the ledger reads only that. Of every
other filter it says what it may do to a guarantee (`effect`); a filter that says nothing counts as one that reads private
data, which ends every certificate from its stage on.

A defence's dataclass fields are its keys in `[defense]`, checked by type and range. Defence files import JAX on first use
only, so that listing and accounting stay quick.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

from fedveil.core.events import Claim, Release
from fedveil.core.setting import Setting
from fedveil.core.stage import Effect, Point, StageContext
from fedveil.mechanisms.mechanism import Placed, Schedule, Shape

if TYPE_CHECKING:
    import jax
    import numpy as np

    from fedveil.data.dataset import Dataset
    from fedveil.data.partition import Partition

Tree = Any


@dataclass(frozen=True)
class Dial:
    """The key that sets how much noise a defence adds, for calibration."""

    key: str
    value: float
    rises: bool = False  # a claimed ε: the larger, the less noise


@dataclass(frozen=True)
class Refusal:
    """Why a defence cannot be deployed: the key, its value, and what to do."""

    key: str
    value: object
    takes: str


class DefenseContext(Protocol):
    """The federation before its first round, for defences that measure or set aside something once (`prepare`)."""

    @property
    def model(self) -> Any: ...

    @property
    def dataset(self) -> Dataset: ...

    @property
    def partition(self) -> Partition: ...

    def measure_clients(self, params: Tree, measure: Callable[..., Tree], validation: float = 0.0) -> Tree:
        """[clients, ...]: each client trains from `params` for one round and measures the result on its own data.

        `measure` takes model, parameters, examples, labels and a mask that tells examples from padding. `validation`:
        the share of each client's examples that this training leaves out and `measure` gets; 0: it gets them all.
        """

    def public_epoch(self, params: Tree, at: StageContext) -> Tree:
        """The parameters after one epoch over the server's public set, by the local optimiser."""


class Defense:
    """Base of all defences. Subclasses define the stages they change and leave the others alone."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    private: ClassVar[bool] = False  # has a privacy account: `auto` sampling then takes what can be certified tightly

    averages_models: ClassVar[bool] = False  # filters whole models: `auto` aggregation is then fedavg
    stateful: ClassVar[bool] = False  # keeps a state of each client from round to round, see `initial_client_state`
    reads_losses: ClassVar[bool] = False  # `select` looks at the losses that clients reported last
    measures_clients: bool = False  # reads `StageContext.medians`, measured on a client's data in every round

    held: ClassVar[Any] = None  # what `prepare` found; no key of the config

    def public_share(self, dataset: str) -> float:
        """The share of the test part that the server takes for itself as a public set."""
        return 0.0

    def prepare(self, context: DefenseContext) -> Defense:
        """Called once before training. Raises `ConfigError` where the model or the data do not fit."""
        return self

    def holding(self, held: Any) -> Defense:
        """A copy of this defence that carries its prepared state. Such copies are compared by identity (`eq=False`)."""
        made = copy.copy(self)
        object.__setattr__(made, "held", held)
        return made

    def initial_client_states(self, params: Tree, clients: int) -> Tree:
        """[clients, ...] `initial_client_state` of every client: the same for all, unless it is measured at each."""
        import jax
        import jax.numpy as jnp

        one = self.initial_client_state(params)
        return jax.tree.map(lambda a: jnp.broadcast_to(a, (clients, *a.shape)) + jnp.zeros((), a.dtype), one)

    def initial_client_state(self, params: Tree) -> Tree:
        """The first state of a client, for a defence that keeps one. Later states have the same shape."""
        raise NotImplementedError

    def apply_with_state(self, stage: str, value: Tree, state: Tree, at: StageContext) -> tuple[Tree, Tree]:
        """A stateful defence's stage (`batch` or `upload`): the filtered value and the client's new state."""
        raise NotImplementedError

    # --- the account

    delta: float | None = None  # the δ of its account; None where it names none
    arithmetic: str | None = None  # of its noise: "float", "integer", or None (float; integer on real machines)

    def mechanisms(self, setting: Setting) -> list[Placed]:
        """The defence's mechanisms and their positions in the round. A tap without a mechanism before it is open."""
        return []

    def events(self, setting: Setting) -> list[Release]:
        """What the mechanisms release, with z read off each."""
        return [placed.release(setting) for placed in self.mechanisms(setting)]

    def effect(self, stage: str) -> Effect:
        """What this defence's filter at a stage may do to a guarantee given before it."""
        return Effect.READS_DATA

    def claims(self, setting: Setting) -> list[Claim]:
        """The claims of the defence's paper, for the rows of accountant `paper`."""
        return []

    def noised_stages(self) -> tuple[str, ...]:
        """The stages at which the defence adds calibrated noise. Two defences must not add noise at the same stage."""
        return ()

    def last_round(self, setting: Setting) -> int | None:
        """The number of rounds after which its own budget is spent and the run ends; None: it sets no end."""
        return None

    def dial(self, unit: str) -> Dial | None:
        """The key that calibration turns for this unit; None where the defence has no account."""
        return None

    def turned(self, dial: Dial, value: float) -> Defense:
        """A copy with the dial at another value; a schedule of the noise keeps its shape."""
        return dataclasses.replace(self, **{dial.key: value})  # type: ignore[type-var]

    def silenced(self) -> Defense | None:
        """A copy that clips or drops as before and adds no noise; None where it cannot be run without."""
        return None if self.stateful or self.private else self

    # --- what a node or a server asks before a deployed round

    @property
    def counts_values(self) -> bool:
        """Whether its sensitivity depends on the number of values in an update, `Setting.values`."""
        return self.integer

    @property
    def integer(self) -> bool:
        """Whether its noise is drawn in whole numbers."""
        return self.arithmetic == "integer"

    @property
    def floats_by_choice(self) -> bool:
        """Whether its config asks for noise in floating point where real machines would take integers."""
        return self.arithmetic == "float" and dataclasses.replace(self, arithmetic=None).deployed().integer  # type: ignore[type-var]

    def deployed(self) -> Defense:
        """This defence as it runs on real machines: keys that are unset take the values that are safe there."""
        return self

    def clip_bounds(self) -> tuple[float, ...]:
        """Every clip bound that it uses."""
        return ()

    def noise_levels(self) -> tuple[float, ...]:
        """Every noise multiplier that the defence uses, by config key."""
        return ()

    def refuses_deployment(self, summed: bool = False) -> Refusal | None:
        """Why it must not run on real machines; None where it may. `summed`: only sums over a quorum are seen."""
        return None

    def sums_integers(self, setting: Setting) -> bool:
        """Whether a client's whole message is a sum of integers with its noise, `integer_sum`, times public numbers."""
        return False

    def integer_sum(self, each: Tree, mask: jax.Array, at: StageContext) -> Tree:
        raise NotImplementedError

    def integer_unit(self, at: Point) -> float:
        """The value of one of these integers, before it is divided by the batch size."""
        (placed,) = self.mechanisms(at.setting)
        assert placed.mechanism.grid is not None
        return float(placed.mechanism.width(at)) * placed.mechanism.grid.step

    def integer_bits(self, setting: Setting) -> int:
        """The bits of one of these integers in a sum over clients."""
        (placed,) = self.mechanisms(setting)
        assert placed.mechanism.grid is not None
        return placed.mechanism.grid.bits

    def node_part(self) -> Defense:
        """What of it a node runs: without what belongs to the server."""
        return self

    @property
    def fixed_local_steps(self) -> int | None:
        """The number of local steps that the defence requires; None if any number is possible."""
        return None

    def check(self, setting: Setting) -> None:
        """Raises `ConfigError` where the defence makes no sense in this setting."""

    # --- the stages

    def select(
        self, rng: np.random.Generator, at_round: int, setting: Setting, losses: np.ndarray | None
    ) -> np.ndarray:
        """Client ids for this round; `losses` [clients] holds what each reported last, NaN before its first time."""
        raise NotImplementedError

    def broadcast(self, params: Tree, at: StageContext) -> Tree:
        raise NotImplementedError

    def example(self, each: Tree, mask: jax.Array, at: StageContext) -> tuple[Tree, Tree | None]:
        """Example gradients as they may be seen, and what else enters their sum (None: nothing)."""
        raise NotImplementedError

    def example_sum(self, each: Tree, mask: jax.Array, at: StageContext) -> Tree:
        """The sum of the filtered gradients, where no tap shows single ones: may draw once, from the same distribution."""
        import jax

        shown, rest = self.example(each, mask, at)
        total = jax.tree.map(lambda g: g.sum(axis=0), shown)
        return total if rest is None else jax.tree.map(lambda t, r: t + r, total, rest)

    def example_bound(self, at: StageContext) -> jax.Array | None:
        """The bound, where stage `example` is a layerwise clip (and noise on the sum): then it can be fused."""
        return None

    def example_on_sum(self, total: Tree, at: StageContext) -> Tree:
        """The fused stage `example` after the clip: the same distribution on the sum as `example`."""
        return total

    def batch(self, total: Tree, at: StageContext) -> Tree:
        raise NotImplementedError

    def update(self, update: Tree, at: StageContext) -> Tree:
        raise NotImplementedError

    def upload(self, message: Tree, at: StageContext) -> Tree:
        raise NotImplementedError

    def aggregate(self, total: Tree, at: StageContext) -> Tree:
        raise NotImplementedError

    def finish(self, params: Tree, at: StageContext) -> Tree:
        raise NotImplementedError

    def fills(self, stage: str) -> bool:
        """Whether this defence changes the stage: one that it defines; with a key `stage`, that one alone."""
        chosen = getattr(self, "stage", stage) == stage
        return chosen and getattr(type(self), stage) is not getattr(Defense, stage)


Arithmetic = Literal["float", "integer"] | None


def integer_noise(defense: Any) -> Any:
    """A copy of a defence with integer noise, unless its config says which arithmetic it takes."""
    return dataclasses.replace(defense, arithmetic="integer") if defense.arithmetic is None else defense


def filters(defenses: Sequence[Defense], stage: str) -> list[Callable[..., Any]]:
    """The functions that fill in a stage, in the order of the defences; empty where nobody does."""
    return [getattr(d, stage) for d in defenses if d.fills(stage)]


class Scheduled(Defense):
    """A defence whose clip bound and noise multiplier may follow a schedule over the rounds.

    Its keys are `clip`, `clip_end`, `noise`, `noise_end` and `schedule`.
    """

    clip: float
    clip_end: float | None
    noise: float
    noise_end: float | None
    schedule: Shape

    def bound(self, setting: Setting) -> Schedule:
        """C by round."""
        return Schedule(self.clip, self.clip_end, self.schedule, setting.rounds)

    def multiplier(self, setting: Setting) -> Schedule:
        """σ by round."""
        return Schedule(self.noise, self.noise_end, self.schedule, setting.rounds)

    def dial(self, unit: str) -> Dial:
        return Dial("noise", self.noise)

    def turned(self, dial: Dial, value: float) -> Self:
        end = None if self.noise_end is None else self.noise_end * value / (self.noise or 1.0)
        return dataclasses.replace(self, noise=value, noise_end=end)  # type: ignore[type-var]

    def silenced(self) -> Self:
        return dataclasses.replace(self, noise=0.0, noise_end=None)  # type: ignore[type-var]

    def clip_bounds(self) -> tuple[float, ...]:
        return (self.clip,) if self.clip_end is None else (self.clip, self.clip_end)

    def noise_levels(self) -> tuple[float, ...]:
        return (self.noise,) if self.noise_end is None else (self.noise, self.noise_end)
