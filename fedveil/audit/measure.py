"""Measures one declared release on the executed path: its noise, draw by draw, and what one unit contributes.

Both are taken where they enter the same message or model, so that learning rates, weights and divisors cancel in their
ratio. Nothing here knows a defence's clip bound or noise key: only the declared tap, unit, stage and uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from fedveil.audit.canary import Canary, canaries_for
from fedveil.audit.path import EMPTY, CanaryPath, Leaves, NodePath, Path, Scene, subtract
from fedveil.core.events import Release
from fedveil.core.setting import Setting
from fedveil.simulation.sampling import Cohort

STEP_STAGES = ("example", "batch")
CLIENT_STAGES = ("update", "upload")
SERVER_STAGES = ("aggregate", "finish")
NORMS = (1.01, 2.0, 10.0, 100.0)  # of canaries, in units of the clip bound
FAR = 1e4  # the reference: no clip lets this pass
STEPS = 3  # local steps whose noise is looked at apart
OWN_FACTORS = (1.0, 10.0, 100.0)  # of the first model's parameters, for records of the user's own


@dataclass(frozen=True, order=True)
class Draw:
    """Which draw of noise: the seed of the simulator, and where in the run."""

    seed: int
    round: int
    client: int
    step: int


@dataclass(frozen=True)
class Contribution:
    """What one unit adds to what the tap shows."""

    round: int  # of the noise that covers it
    canary: str
    norm: float  # of its gradient in units of the clip bound; NaN where that is not known
    leaves: Leaves

    @property
    def size(self) -> float:
        return float(np.sqrt(sum(np.square(a).sum() for a in self.leaves.values())))

    @property
    def label(self) -> str:
        return self.canary if np.isnan(self.norm) else f"{self.canary}, {self.norm:g} × clip"


@dataclass
class Measured:
    """One release on one path."""

    release: Release
    path: str
    noise: dict[Draw, Leaves] = field(default_factory=dict)
    contributions: list[Contribution] = field(default_factory=list)
    far: dict[str, float] = field(default_factory=dict)  # size of each canary's contribution at `FAR`


AnyPath = Path | NodePath


@dataclass(frozen=True)
class Probe:
    """Runs one release on one path: `noise` and `contribution` of one round."""

    path: AnyPath
    release: Release
    without: dict[object, Leaves] = field(default_factory=dict)  # what is shown without the unit

    def noise(self, number: int, clients: Sequence[int], seeds: Sequence[int]) -> dict[Draw, Leaves]:
        stage = self.release.stage
        if stage in STEP_STAGES:
            return {d: a for c in clients for d, a in self._step_noise(number, c).items()}
        if stage in CLIENT_STAGES:
            return {self._draw(number, c): self.path.message(number, c, EMPTY) for c in clients}
        if stage == "broadcast":
            named = clients if not self.release.on_sum else clients[:1]
            sent = partial(self.path.message, number, scene=Scene(made=0))
            return self._seeded(seeds, lambda: {self._draw(number, c): sent(c) for c in named})
        return self._seeded(seeds, lambda: {self._draw(number, 0): self._change(number, EMPTY)})

    def _step_noise(self, number: int, client: int) -> dict[Draw, Leaves]:
        """The first differences of what the client sends after 0, 1, 2, … steps without records."""
        steps = min(STEPS, self.path.task.setting.local_steps)
        sent = [self.path.message(number, client, Scene(made=made)) for made in range(steps + 1)]
        seed = self.path.simulator.seed
        return {Draw(seed, number, client, s): subtract(sent[s + 1], sent[s]) for s in range(steps)}

    def contribution(
        self, number: int, client: int, rows: tuple[int, ...], step: int = 0, factor: float = 0.0
    ) -> Leaves:
        """How `rows` at one client change what the tap shows: in one step (unit example) or in all steps (unit client)."""
        if self.release.unit == "example":
            there, empty = Scene(((client, rows),), (step,), step + 1), Scene(made=step + 1)
        else:
            # A canary client's batches may be full where the divisor is the same as without records.
            fills = self.path.blank is not None or self.path.simulator.sampling.batching == "poisson"
            there, empty = Scene(((client, rows),), fill=fills), EMPTY
        # A broadcast's noise covers the model that the round before has made.
        made_in = number - 1 if self.release.stage == "broadcast" else number
        key = (made_in, client, empty, factor, self.path.simulator.seed)
        if key not in self.without:
            self.without[key] = self._shown(made_in, client, empty, factor)
        return subtract(self._shown(made_in, client, there, factor), self.without[key])

    def _shown(self, number: int, client: int, scene: Scene, factor: float) -> Leaves:
        if self.release.stage in (*SERVER_STAGES, "broadcast"):
            return self._change(number, scene, factor)
        return self.path.message(number, client, scene, factor)

    # --- the path

    def _change(self, number: int, scene: Scene, factor: float = 0.0) -> Leaves:
        assert isinstance(self.path, Path)
        return self.path.change(number, scene, factor)

    def _draw(self, number: int, client: int) -> Draw:
        return Draw(self.path.simulator.seed, number, client, 0)

    def _seeded(self, seeds: Sequence[int], draw: Callable[[], dict[Draw, Leaves]]) -> dict[Draw, Leaves]:
        assert isinstance(self.path, Path)
        own = self.path.simulator.seed
        found: dict[Draw, Leaves] = {}
        for seed in seeds:
            self.path.reseed(seed)
            found.update(draw())
        self.path.reseed(own)
        return found


# --- where to look


def rounds_to_probe(release: Release, setting: Setting) -> tuple[int, ...]:
    """The rounds to measure: the first two and the last, where schedules end.

    A broadcast carries the update of the previous round, so its first round is left out.
    """
    last = setting.rounds - 1
    first = (1, last) if release.stage == "broadcast" else (0, 1, last)
    return tuple(sorted({t for t in first if 0 <= t <= last and (t > 0 or release.stage != "broadcast")}))


def worst_cohort(path: Path, size: int) -> Cohort:
    """The heaviest client among the lightest: where its weight in the mean is largest."""
    weights = path.simulator.weights
    order = np.argsort(weights, kind="stable")
    heaviest = int(np.argmax(weights))
    others = [int(c) for c in order if c != heaviest][: size - 1]
    chosen = np.sort(np.array([heaviest, *others]))
    return Cohort.only(chosen)


# --- the canary model


def measure_canaries(path: CanaryPath, release: Release, rounds: Sequence[int], clients: Sequence[int]) -> Measured:
    """Noise and contributions on the canary model: every kind of canary at every norm in the first round."""
    probe, found = Probe(path, release), Measured(release, "canary model")
    heaviest = prepare_cohort(path, release)
    seed = path.simulator.seed
    for number in rounds:
        found.noise |= probe.noise(number, clients, [seed + 7919 * (1 + i) for i in range(len(clients))])
    every = Growth(path, probe, canaries_for(path.kinds)[0], heaviest)
    whole = every.bound(rounds[0], 0.0)
    for canary in canaries_for(path.kinds):
        sizes = Growth(path, probe, canary, heaviest)
        bound = sizes.bound(rounds[0], whole)
        if bound > 0.0:
            found.far[canary.name] = sizes.at(rounds[0], FAR * bound).size
            found.contributions += [sizes.at(rounds[0], norm * bound, norm) for norm in NORMS]
    later = [(t, 0) for t in rounds[1:]]
    if release.stage in STEP_STAGES and path.task.setting.local_steps > 1:
        later.append((rounds[0], 1))
    found.contributions += [every.at(t, norm * whole, norm, step) for t, step in later for norm in (2.0, 100.0)]
    return found


def prepare_cohort(path: Path, release: Release) -> int:
    """Forces the canary's client into the cohort where the server's sum is looked at; returns that client."""
    heaviest = int(np.argmax(path.simulator.weights))
    if release.stage in (*SERVER_STAGES, "broadcast"):
        path.forced = worst_cohort(path, path.task.setting.per_round)
    return heaviest


@dataclass
class Growth:
    """Contributions of one kind of canary by the norm of its gradient."""

    path: CanaryPath
    probe: Probe
    canary: Canary
    client: int

    def at(self, number: int, norm: float, ratio: float = np.nan, step: int = 0) -> Contribution:
        rows = self.path.put(self.canary.record(self.path.kinds, self.path.width, norm)[None])
        leaves = self.probe.contribution(number, self.client, rows, step)
        return Contribution(number, self.canary.name, ratio, leaves)

    def bound(self, number: int, guess: float) -> float:
        """The gradient norm at which the clip begins, from what passes far above it and the slope below it; 0: nothing
        passes at all."""
        far = self.at(number, guess * FAR if guess else 1e6).size
        if not far:
            return 0.0
        norm = guess / 2.0 if guess else 1e5
        for _ in range(16):
            found = self.at(number, norm).size
            if found < 0.7 * far:
                return norm * far / found if found else norm
            norm /= 8.0
        return norm


# --- the tap that shows single examples


def measure_examples(path: CanaryPath, release: Release, rounds: Sequence[int], clients: Sequence[int]) -> Measured:
    """Noise and contributions at the tap `example`. Blank records show the noise alone, one draw per slot of the batch."""
    found = Measured(release, "canary model")
    for number in rounds:
        for client in clients:
            shown, filled = path.examples(number, client, np.zeros((0, path.records)))
            for slot in range(min(filled, STEPS)):
                found.noise[Draw(path.simulator.seed, number, client, slot)] = _slot(shown, slot)
        first = next((c for c in clients if Draw(path.simulator.seed, number, c, 0) in found.noise), None)
        if first is not None:
            _examples_of(path, number, first, found)
    return found


def _examples_of(path: CanaryPath, number: int, client: int, found: Measured) -> None:
    """Contributions of canaries in the first slot of a client's batch."""
    without = found.noise[Draw(path.simulator.seed, number, client, 0)]

    def at(canary: Canary, norm: float, ratio: float) -> Contribution:
        record = canary.record(path.kinds, path.width, norm)
        shown, _ = path.examples(number, client, record[None])
        return Contribution(number, canary.name, ratio, subtract(_slot(shown, 0), without))

    for canary in canaries_for(path.kinds):
        far = at(canary, 1e6, np.nan)
        if not far.size:
            continue
        bound = far.size / np.sqrt(len(canary.layers))  # a gradient at this tap has no factor but the clip's
        found.far.setdefault(canary.name, far.size)
        found.contributions += [at(canary, norm * bound, norm) for norm in NORMS]


def _slot(shown: Leaves, slot: int) -> Leaves:
    return {name: a[slot] for name, a in shown.items()}


# --- the user's own model


def measure_own(path: AnyPath, release: Release, rounds: Sequence[int], clients: Sequence[int]) -> Measured:
    """Noise on the user's own model, and contributions of the user's records under models that an adversary may send."""
    probe, found = Probe(path, release), Measured(release, "own model" if isinstance(path, Path) else "node")
    heaviest = prepare_cohort(path, release) if isinstance(path, Path) else clients[0]
    seed = path.simulator.seed
    for number in rounds:
        found.noise |= probe.noise(number, clients, [seed + 7919 * (1 + i) for i in range(len(clients))])
    if release.stage == "upload" and path.task.setting.aggregation == "fedavg":
        return found  # a clipped model: what stands in for a missing one is no model of ours
    rows = _under_two_labels(path, heaviest)
    for number in rounds:
        for factor in OWN_FACTORS if number == rounds[0] else OWN_FACTORS[1:2]:
            for row in rows:
                leaves = probe.contribution(number, heaviest, (row,), 0, factor)
                found.contributions.append(Contribution(number, f"record {row}, model × {factor:g}", np.nan, leaves))
    return found


def _under_two_labels(path: AnyPath, client: int) -> list[int]:
    """Gives two of a client's rows the same record under two labels. No model fits both, so one has a gradient."""
    sim = path.simulator
    rows = [int(row) for row in sim.partition.client(client)[:2]]
    if len(rows) == 2:
        x = sim.x.at[rows[1]].set(sim.x[rows[0]])
        y = sim.y.at[rows[1]].set((sim.y[rows[0]] + 1) % sim.dataset.classes)
        (path.path if isinstance(path, NodePath) else path).simulator = sim.variant(x=x, y=y)
    return rows
