"""`run`: the audit of a config. Tests of the noise on the executed path, and lower bounds on ε by canaries.

With probability `confidence` no bound is too large and no test alarms wrongly, in the whole call: half of the error is
divided among the tests, half among the bounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import jax

from fedveil.accounting import statistics
from fedveil.accounting.transcript import delta_of
from fedveil.assemble import Federation, prepare
from fedveil.audit import checks, measure
from fedveil.audit import trials as trial_runs
from fedveil.audit.canary import canaries_for
from fedveil.audit.certificate import (
    Attacked,
    Certificate,
    certificate,
    cohort,
    declared,
    gaussian_epsilon,
    shows_sums,
    taps_to_audit,
)
from fedveil.audit.checks import Finding
from fedveil.audit.path import CanaryPath, NodePath, Path, canary_path, own_path
from fedveil.audit.rows import AuditRow, bound_row, test_row
from fedveil.audit.scores import Run, Score
from fedveil.config import Config
from fedveil.core.errors import ConfigError, unknown_name
from fedveil.core.events import Release
from fedveil.core.taps import CHAIN, NODE_UNITS
from fedveil.defenses.base import Defense
from fedveil.rounds.client import Task
from fedveil.rounds.simulate import Simulator

METHODS = ("noise", "one-run", "f-dp", "trials")
EXCESS = 100.0  # canaries of a bound, in units of the clip bound
OWN_CLIENTS = 2  # whose noise is looked at on the user's own model
CANARY_CLIENTS = 8
MOST_WIDTH = 64  # directions of canaries that meet in one message
SEED = 0x41554449  # the audit's draws are not the training's

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Sizes:
    """How large an audit is."""

    trials: int
    canaries: int
    seeds: int
    rounds: int
    steps: int


def run(
    config: Config | Federation,
    *,
    tap: str | None = None,
    unit: str | None = None,
    methods: Sequence[str] = METHODS,
    trials: int = 200_000,
    canaries: int = 600,
    seeds: int = 1,
    confidence: float = 0.999,
    delta: float | None = None,
    rounds: int = 2,
    steps: int = 2,
    progress: Progress | None = None,
) -> list[AuditRow]:
    """Audits the defences of a config.

    `tap`, `unit`: where the adversary stands and whom it looks for; unset: both units, at the taps where noise protects
    them (a tap that is only post-processing of one before it is left out). `rounds` of `steps` local steps are attacked.
    """
    tell = progress or (lambda text: None)
    tell("preparing the federation")
    federation = config if isinstance(config, Federation) else prepare(config)
    simulator = federation.simulator
    sizes = Sizes(trials, canaries, seeds, rounds, steps)
    _check(simulator.task, tap, unit, methods, sizes, confidence, delta)
    audit = _Audit(simulator, sizes, confidence, delta, tell)
    with jax.enable_x64(simulator.task.dtype == "float64"):
        rows = audit.tests(tap, unit) if "noise" in methods else []
        bounds = [method for method in METHODS[1:] if method in methods]
        return rows + (audit.bounds(_places(simulator.task, tap, unit), bounds, "noise" in methods) if bounds else [])


def _places(task: Task, tap: str | None, unit: str | None) -> list[tuple[str, str]]:
    """The taps and units to attack: those behind some noise, unless named."""
    units = [unit] if unit else NODE_UNITS
    made = {r.unit for d in task.defenses for r in d.events(task.setting)}
    found = []
    for u in units:
        behind = u in made or "client" in made
        if unit or behind or not made:
            found += [(t, u) for t in ([tap] if tap else taps_to_audit(task.defenses, task.setting, u))]
    return found


@dataclass
class _Audit:
    """One call of `run`."""

    simulator: Simulator
    sizes: Sizes
    confidence: float
    delta: float | None
    tell: Progress

    def __post_init__(self) -> None:
        self.task, self.seed = self.simulator.task, self.simulator.seed + SEED
        self._canary_paths: dict[tuple[Defense, ...], CanaryPath] = {}

    def canaries(self, defenses: tuple[Defense, ...]) -> CanaryPath:
        """The canary model under some defences; compiled once."""
        if defenses not in self._canary_paths:
            setting = self.task.setting
            width = min(MOST_WIDTH, max(8, setting.batch, setting.per_round))
            self._canary_paths[defenses] = canary_path(self.simulator, defenses, width, self.seed)
        found = self._canary_paths[defenses]
        found.reseed(self.seed)
        found.simulator.forced = None
        return found

    # --- tests of the noise

    def tests(self, tap: str | None, unit: str | None) -> list[AuditRow]:
        """Scale, correlation and clip of every declared release; p-values are corrected for all of them together."""
        found: list[tuple[Finding, float]] = []
        for defense in self.task.defenses:
            own: Path | None = None
            for release in defense.events(self.task.setting):
                if not _testable(release) or (tap and release.tap != tap) or (unit and release.unit != unit):
                    continue
                if release.tap != "example" and own is None:
                    self.tell("own model: compiling its round")
                    own = own_path(self.simulator, (defense,), self.seed)
                began = time.monotonic()
                for finding in self._of_release(defense, release, own):
                    found.append((finding, time.monotonic() - began))
                    began = time.monotonic()
        alpha = (1.0 - self.confidence) / 2.0
        counted = sum(finding.p_value is not None for finding, _ in found)
        return [test_row(finding, counted, alpha, self.confidence, seconds) for finding, seconds in found]

    def _of_release(self, defense: Defense, release: Release, own: Path | None) -> Iterator[Finding]:
        where = f"{release.unit} at {release.tap}"
        path = self.canaries((defense,))
        setting = own_setting = path.task.setting
        rounds = measure.rounds_to_probe(release, setting)
        if not rounds:
            return
        clients = list(range(min(CANARY_CLIENTS, setting.clients)))
        self.tell(f"noise, {where}: canary model")
        if release.tap == "example":
            yield from _findings(measure.measure_examples(path, release, rounds, clients))
            return
        # What is declared may depend on the number of steps, which is cut short on the canary model.
        yield from _findings(measure.measure_canaries(path, _same(defense, release, setting), rounds, clients))
        if path.simulator.cut is not None and release.stage in measure.STEP_STAGES:
            self.tell(f"noise, {where}: canary model, batches not cut into micro-batches")
            path.simulator.in_parts = False
            whole = measure.measure_canaries(path, _same(defense, release, setting), rounds[:1], clients)
            path.simulator.in_parts = True
            yield from _findings(replace(whole, path="whole batches"))
        assert own is not None
        own_setting = own.task.setting
        clients = clients[:OWN_CLIENTS]
        self.tell(f"noise, {where}: own model")
        own.simulator.forced = None
        yield from _findings(measure.measure_own(own, _same(defense, release, own_setting), rounds, clients))
        if release.stage in (*measure.STEP_STAGES, *measure.CLIENT_STAGES):
            self.tell(f"noise, {where}: a node's program and keys")
            node = NodePath(own)
            yield from _findings(measure.measure_own(node, _same(defense, release, own_setting), rounds[:1], clients))

    # --- bounds

    def bounds(self, places: list[tuple[str, str]], methods: list[str], shared: bool) -> list[AuditRow]:
        """Lower bounds on ε at every place by every method."""
        alpha = (1.0 - self.confidence) / (2.0 if shared else 1.0) / (len(places) * len(methods) * self.sizes.seeds)
        rows = []
        for tap, unit in places:
            norm = self._norm(tap, unit)
            if {"one-run", "f-dp"} & set(methods) and self._one_run_fits(tap, unit):
                rows += self._one_run(tap, unit, norm, [m for m in methods if m != "trials"], alpha)
            if "trials" in methods:
                rows.append(self._trials(tap, unit, norm, alpha))
        return rows

    def _one_run_fits(self, tap: str, unit: str) -> bool:
        """Records that share one client's clip hide each other, so one run shows nothing of them; trials do. Sums without
        noise of the server's need all clients' noise, so there are trials alone as well."""
        found = declared(self.task.defenses, self.task.setting, tap, unit)
        own = found is None or found[0].unit == unit
        return own and (not shows_sums(tap, self.task.setting) or (found is not None and found[0].on_sum))

    def _norm(self, tap: str, unit: str) -> float:
        """The gradient norm of canaries: far above the clip, as far as there is one."""
        found = declared(self.task.defenses, self.task.setting, tap, unit)
        if found is None or found[0].tap == "example":
            release = Release("client", "example", "gaussian", 1.0, "step", "example")
        else:
            release = found[0]
        if release.tap == "broadcast" and self.task.setting.rounds < 2:
            return EXCESS
        path = self.canaries(self.task.defenses)
        client = measure.prepare_cohort(path, release)
        number = 1 if release.stage == "broadcast" else 0
        sizes = measure.Growth(path, measure.Probe(path, release), canaries_for(path.kinds)[0], client)
        return EXCESS * (sizes.bound(number, 0.0) or 1.0)

    def _attacked(self, tap: str, unit: str, rounds: int, steps: int) -> Attacked:
        clients = cohort(self.task.defenses, self.task.setting, tap, unit)
        weights = tuple([self.task.setting.max_weight] + [1.0] * (clients - 1))
        return Attacked(tap, unit, rounds, steps, weights if shows_sums(tap, self.task.setting) else ())

    def _delta(self, alpha: float, one_run: bool) -> float:
        """δ of a bound. One-run bounds pay for δ with their error: unless it is given, they take one that costs little."""
        own = self.delta or delta_of(self.task.defenses)
        return own if self.delta or not one_run else min(own, alpha / 1000.0)

    def _one_run(self, tap: str, unit: str, norm: float, methods: list[str], alpha: float) -> list[AuditRow]:
        began = time.monotonic()
        found = declared(self.task.defenses, self.task.setting, tap, unit)
        by_step = found is not None and found[0].uses == "step" and tap != "example"
        path = self.canaries(self.task.defenses)
        steps = min(self.sizes.steps, path.task.setting.local_steps) if by_step else 1
        rounds = min(self.sizes.rounds, self.task.setting.rounds - (tap == "broadcast"))
        run = Run(path, tap, unit, by_step, norm, max(1, rounds), steps)
        seeds = []
        for number in range(self.sizes.seeds):
            self.tell(
                f"one run, {unit} at {tap}: {self.sizes.canaries} canaries, seed {number + 1} of {self.sizes.seeds}"
            )
            seeds.append(run.scores(self.sizes.canaries, self.seed + 104729 * (number + 1)))
        made = []
        for method in methods:
            judge = self._steinke if method == "one-run" else self._gaussian_curve
            row = judge(tap, unit, seeds, alpha / len(seeds[0]))
            made.append(replace(row, seconds=(time.monotonic() - began) / len(methods)))
        return made

    def _known(self, tap: str, unit: str, score: Score, delta: float) -> Certificate:
        attacked = self._attacked(tap, unit, score.rounds, score.steps)
        return certificate(self.task.defenses, self.task.setting, attacked, delta)

    def _steinke(self, tap: str, unit: str, seeds: list[list[Score]], alpha: float) -> AuditRow:
        delta = self._delta(alpha, True)
        judged = []
        for place, score in enumerate(seeds[0]):
            known = self._known(tap, unit, score, delta)
            each = [statistics.one_run(s[place].values, s[place].coins, delta, alpha) for s in seeds]
            judged.append((score.name, known, max(each, key=lambda one: one.epsilon), [one.epsilon for one in each]))
        name, known, best, by_seed = max(judged, key=lambda one: one[2].epsilon - (one[1].epsilon or 0.0))
        scores = {n: b.epsilon for n, _, b, _ in judged}
        row = bound_row("one-run", (tap, unit), name, by_seed, known, delta, self.confidence, scores)
        count = len(seeds[0][0].values)
        reach = statistics.one_run_reach(count, delta, alpha)
        return replace(row, canaries=count, guesses=best.guesses, correct=best.correct, reach=reach)

    def _gaussian_curve(self, tap: str, unit: str, seeds: list[list[Score]], alpha: float) -> AuditRow:
        delta = self._delta(alpha, False)
        judged = []
        for place, score in enumerate(seeds[0]):
            known = self._known(tap, unit, score, delta)
            claim = 1.0 / known.together if known.together else None
            each = [statistics.f_dp(s[place].values, s[place].coins, claim, alpha) for s in seeds]
            judged.append((score.name, known, max(each, key=lambda one: one.mu), each))
        name, known, best, each = max(judged, key=lambda one: one[2].mu * (one[1].together or 1.0))
        epsilons = [gaussian_epsilon(1.0 / one.mu, delta) if one.mu > 0 else 0.0 for one in each]
        violated = known.together is not None and best.mu > 1.0 / known.together
        scores = {n: b.mu for n, _, b, _ in judged}
        p_value = min(1.0, best.p_value * len(judged)) if best.p_value is not None else None
        row = bound_row("f-dp", (tap, unit), name, epsilons, known, delta, self.confidence, scores, p_value, violated)
        return replace(row, canaries=len(seeds[0][0].values), guesses=best.guesses, correct=best.correct)

    def _trials(self, tap: str, unit: str, norm: float, alpha: float) -> AuditRow:
        began = time.monotonic()
        steps = min(self.sizes.steps, self.task.setting.local_steps) if tap != "example" else 1
        attacked = self._attacked(tap, unit, self.sizes.rounds, steps)
        clients = cohort(self.task.defenses, self.task.setting, tap, unit)
        played = trial_runs.trial(self.task, attacked, clients, norm)
        delta = self._delta(alpha, False)
        known = certificate(played.task.defenses, played.task.setting, attacked, delta)
        found = []
        for number in range(self.sizes.seeds):
            self.tell(
                f"trials, {unit} at {tap}: {self.sizes.trials} with and without, seed {number + 1} of {self.sizes.seeds}"
            )
            without, with_it = trial_runs.sample(played, self.sizes.trials, self.seed + number)
            found.append(statistics.independent_trials(without, with_it, delta, alpha))
        best = max(found, key=lambda one: one.epsilon)
        by_seed = [one.epsilon for one in found]
        row = bound_row(
            "trials", (tap, unit), "pooled", by_seed, known, delta, self.confidence, {"pooled": max(by_seed)}
        )
        reach = (
            statistics.trials_reach(known.together / 2.0, self.sizes.trials, delta, alpha) if known.together else None
        )
        errors = best.false_positive, best.false_negative
        seconds = time.monotonic() - began
        return replace(
            row,
            trials=self.sizes.trials,
            reach=reach,
            false_positive=errors[0],
            false_negative=errors[1],
            seconds=seconds,
        )


def _findings(measured: measure.Measured) -> Iterator[Finding]:
    """All tests of what was measured."""
    yield from checks.scale(measured)
    yield from checks.correlations(measured)
    found = checks.clip(measured)
    if found is not None:
        yield found


def _testable(release: Release) -> bool:
    return release.covered and release.multiplier > 0.0 and math.isfinite(release.multiplier)


def _same(defense: Defense, release: Release, setting: object) -> Release:
    """The same release as declared for another setting."""
    made = defense.events(setting)  # type: ignore[arg-type]
    key = (release.tap, release.unit, release.stage)
    return next((r for r in made if (r.tap, r.unit, r.stage) == key), release)


# --- what can be audited


def _check(
    task: Task, tap: str | None, unit: str | None, methods: Sequence[str], sizes: Sizes, confidence: float,
    delta: float | None,
) -> None:  # fmt: skip
    if tap is not None and tap not in CHAIN:
        raise unknown_name("tap", tap, CHAIN)
    if unit is not None and unit not in NODE_UNITS:
        raise unknown_name("unit", unit, NODE_UNITS)
    for method in methods:
        if method not in METHODS:
            raise unknown_name("methods", method, METHODS)
    limits = {
        "trials": (sizes.trials, 1000, 10_000_000),
        "canaries": (sizes.canaries, 10, 5000),
        "seeds": (sizes.seeds, 1, 1000),
        "rounds": (sizes.rounds, 1, 10_000),
        "steps": (sizes.steps, 1, 10_000),
    }
    for key, (value, least, most) in limits.items():
        if not least <= value <= most:
            raise ConfigError(key, value, f"takes {least} to {most}")
    for key, share in (("confidence", confidence), ("delta", delta)):
        if share is not None and not 0.0 < share < 1.0:
            raise ConfigError(key, share, "takes a number between 0 and 1")
    measured = [d.name for d in task.defenses if d.held is not None]
    if measured:
        takes = "fits itself to the model and the data before training, which canaries have not: it cannot be audited"
        raise ConfigError("defense.name", measured[0], takes)
