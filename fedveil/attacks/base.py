"""What an attack is: a frozen dataclass with its settings, a statement of what it needs, and `run`.

The dataclass fields of an attack are its keys in `[attack]`, checked by type and range. `run` gets an `Observation`: what
the attacker sees, and the capabilities granted to it besides. The truth stays with the bench, which scores what `run`
returns. Attack files import JAX on first use only, so that `fedveil list attacks` and the check of a config stay quick.

There are two families. A reconstruction (`ReconstructionAttack`) rebuilds examples from gradients seen at a tap. An
inference attack (`inference.base`) answers a question about a whole training: each question has its own base class there,
and a game in `attacks.games` that trains federations, hands out observations and scores the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from fedveil.attacks.observation import GradientObservation

AUXILIARY_DATA, LABELS = "auxiliary data", "labels"  # capabilities that the bench grants on request

Progress = Callable[[int, int], None]  # steps done, steps in total


def silent(done: int, total: int) -> None:
    """A progress callback that does nothing."""


class LiveProgress:
    """A progress callback that also hears how the attacks fare before they end, and how much time is left."""

    def __call__(self, done: int, total: int) -> None:
        """Steps done, of a total."""

    def limit(self, deadline: float | None) -> None:
        """The attack starts now, and ends at this time of `time.monotonic()` at the latest."""

    def match(self, best: float, guess: float | None, what: str) -> None:
        """The best match so far, the one that a guess reaches, and what is measured (`SSIM`)."""


@dataclass(frozen=True)
class Execution:
    """How to run an attack. `width` and `workers` change the speed and nothing else."""

    seeds: tuple[int, ...] = (0,)  # seeds of the attacker's own draws
    precision: str = "float32"
    progress: Progress = field(default=silent, repr=False)
    width: int | None = None  # slots in a block; None: chosen by the size of the problem
    workers: int | None = None  # blocks at a time; None: one for each core
    monitor: Callable[..., Any] | None = field(default=None, repr=False)  # see `reconstruction.engine`
    deadline: float | None = None  # the time of `time.monotonic()` at which attacks end as they stand; None: never
    limits: tuple[int, ...] = ()  # iterations after which gradient matching also says where it stood


ONCE = Execution()  # one seed, single precision


class Attack:
    """Base of all attacks. Subclasses are frozen dataclasses."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    needs: ClassVar[str] = ""  # what it must see, in words for error messages
    taps: ClassVar[tuple[str, ...]] = ()  # the taps that show it
    bench: ClassVar[tuple[str, ...]] = ()  # keys of `[attack]` that the bench reads for this attack
    choices: ClassVar[Mapping[str, Mapping[str, str]]] = {}  # keys that take a name from a table

    def check(self) -> None:
        """Raises `ConfigError` where keys do not fit together."""

    def run(self, observation: Any, execution: Execution = ONCE) -> Any:
        """Runs the attack on an observation."""
        raise NotImplementedError


@dataclass(frozen=True)
class Reconstruction:
    """The rebuilt examples: all attacks of the observation for the first seed, then for the next."""

    attack: np.ndarray  # [attacks] index in the observation
    seed: np.ndarray  # [attacks]
    inputs: np.ndarray  # [attacks, examples, ...shape], in the known range of values
    labels: np.ndarray  # [attacks, examples]
    objective: np.ndarray  # [attacks] the least value that was reached
    distance: np.ndarray  # [attacks] squared L2 gradient distance there
    iterations: np.ndarray  # [attacks] iterations of the start that was kept
    evaluations: np.ndarray  # [attacks] evaluations of the objective, all starts together
    ending: np.ndarray  # [attacks] why the attack ended: a value of `optim.slots.ENDINGS`
    trace: np.ndarray  # [attacks, iterations + 1] squared gradient distance as each iteration opened; NaN after the end
    seconds: float  # all attacks together, without compilation
    compile_seconds: float
    not_started: int = 0  # attacks that the deadline left no time for; they are in none of the arrays
    earlier: tuple[Reconstruction, ...] = ()  # the same attacks with fewer iterations, for each of `Execution.limits`

    def __len__(self) -> int:
        return len(self.attack)

    @property
    def of_first_seed(self) -> np.ndarray:
        """The attacks [attacks] with the first seed, as far as they were started: one for each observed gradient."""
        return self.seed == self.seed[0]


@dataclass(frozen=True)
class ReconstructionAttack(Attack):
    """An attack that rebuilds the examples behind gradients."""

    needs: ClassVar[str] = "the gradient or update of single clients"
    taps: ClassVar[tuple[str, ...]] = ("example", "batch", "client", "server")
    bench: ClassVar[tuple[str, ...]] = ("tap", "images", "seeds", "round", "rule", "seconds")

    @property
    def tries(self) -> int:
        """Starts of each attack, of which the best is kept."""
        return 1 + int(getattr(self, "restarts", 0))

    def capabilities(self) -> frozenset[str]:
        """What it needs beside the gradients: `AUXILIARY_DATA`, `LABELS`."""
        return frozenset()

    def shortened(self, iterations: int) -> ReconstructionAttack | None:
        """The same attack, ended after `iterations`; None where it would not pass through the same points."""
        return None

    def run(self, observation: GradientObservation, execution: Execution = ONCE) -> Reconstruction:
        """Rebuilds the examples behind every gradient of the observation, once per seed."""
        raise NotImplementedError


def check_tap(attack: ReconstructionAttack, tap: str) -> None:
    """Refuses a tap that does not show what a reconstruction needs, and says what is missing."""
    if tap not in attack.taps:
        takes = f"{attack.name} needs {attack.needs}, which is seen at {', '.join(attack.taps)}"
        raise ConfigError("attack.tap", tap, f"{takes}; the models that go out show only their sum")
