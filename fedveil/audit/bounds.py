"""Lower bounds on ε from canaries: one run, tested against (ε, δ) and a trade-off curve; and independent trials."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from fedveil.accounting import statistics
from fedveil.accounting.transcript import delta_of
from fedveil.audit import certificate as certificates
from fedveil.audit import measure
from fedveil.audit import trials as trial_runs
from fedveil.audit.canary import canaries_for
from fedveil.audit.certificate import Attacked, Certificate, certificate, gaussian_epsilon, shows_sums
from fedveil.audit.rows import AuditRow, Bound, bound_row
from fedveil.audit.scores import Run, Score
from fedveil.audit.shared import Audit
from fedveil.core.events import Release

EXCESS = 100.0  # canaries of a bound, in units of the clip bound


@dataclass(frozen=True)
class Bounds:
    """The bounds of one audit."""

    audit: Audit

    def rows(self, observers: list[tuple[str, str]], methods: list[str], shared: bool) -> list[AuditRow]:
        """Lower bounds on ε at every tap and unit, by every method."""
        error = (1.0 - self.audit.confidence) / (2.0 if shared else 1.0)
        alpha = error / (len(observers) * len(methods) * self.audit.sizes.seeds)
        rows = []
        for tap, unit in observers:
            norm = self._norm(tap, unit)
            if {"one-run", "f-dp"} & set(methods) and self._one_run_fits(tap, unit):
                rows += self._one_run(tap, unit, norm, [m for m in methods if m != "trials"], alpha)
            if "trials" in methods:
                rows.append(self._trials(tap, unit, norm, alpha))
        return rows

    def _one_run_fits(self, tap: str, unit: str) -> bool:
        """Records that share one client's clip hide each other, so one run shows nothing of them; trials do. Sums without
        noise of the server's need all clients' noise, so there are trials alone as well."""
        found = self._declared(tap, unit)
        own = found is None or found[0].unit == unit
        return own and (not shows_sums(tap, self.audit.task.setting) or (found is not None and found[0].on_sum))

    def _declared(self, tap: str, unit: str) -> tuple[Release, float] | None:
        return certificates.declared(self.audit.task.defenses, self.audit.task.setting, tap, unit)

    def _norm(self, tap: str, unit: str) -> float:
        """The gradient norm of canaries: far above the clip bound, where there is one."""
        found = self._declared(tap, unit)
        release = Release("client", "example", "gaussian", 1.0, "step", "example")
        if found is not None and found[0].tap != "example":
            release = found[0]
        if release.tap == "broadcast" and self.audit.task.setting.rounds < 2:
            return EXCESS
        path = self.audit.canaries(self.audit.task.defenses)
        client = measure.prepare_cohort(path, release)
        number = 1 if release.stage == "broadcast" else 0
        sizes = measure.Growth(path, measure.Probe(path, release), canaries_for(path.kinds)[0], client)
        return EXCESS * (sizes.bound(number, 0.0) or 1.0)

    def _attacked(self, tap: str, unit: str, rounds: int, steps: int) -> Attacked:
        clients = certificates.cohort(self.audit.task.defenses, self.audit.task.setting, tap, unit)
        weights = tuple([self.audit.task.setting.max_weight] + [1.0] * (clients - 1))
        shown = weights if shows_sums(tap, self.audit.task.setting) else ()
        return Attacked(tap, unit, rounds, steps, shown, self.audit.sizes.rounds)

    def _delta(self, alpha: float, one_run: bool) -> float:
        """δ of a bound. One-run bounds pay for δ with their error: unless it is given, they take one that costs little."""
        own = self.audit.delta or delta_of(self.audit.task.defenses)
        return own if self.audit.delta or not one_run else min(own, alpha / 1000.0)

    def _one_run(self, tap: str, unit: str, norm: float, methods: list[str], alpha: float) -> list[AuditRow]:
        began = time.monotonic()
        found = self._declared(tap, unit)
        by_step = found is not None and found[0].uses == "step" and tap != "example"
        path = self.audit.canaries(self.audit.task.defenses)
        steps = min(self.audit.sizes.steps, path.task.setting.local_steps) if by_step else 1
        rounds = min(self.audit.sizes.rounds, self.audit.task.setting.rounds - (tap == "broadcast"))
        run = Run(path, tap, unit, by_step, norm, max(1, rounds), steps)
        seeds = []
        for number in range(self.audit.sizes.seeds):
            self._tell(f"one run, {unit} at {tap}: {self.audit.sizes.canaries} canaries", number)
            seeds.append(run.scores(self.audit.sizes.canaries, self.audit.seed + 104729 * (number + 1)))
        made = []
        for method in methods:
            judge = self._steinke if method == "one-run" else self._gaussian_curve
            row = judge(tap, unit, seeds, alpha / len(seeds[0]))
            made.append(replace(row, seconds=(time.monotonic() - began) / len(methods)))
        return made

    def _tell(self, what: str, number: int) -> None:
        seeds = self.audit.sizes.seeds
        self.audit.tell(what if seeds == 1 else f"{what}, seed {number + 1} of {seeds}")

    def _known(self, tap: str, unit: str, score: Score, delta: float) -> Certificate:
        attacked = self._attacked(tap, unit, score.rounds, score.steps)
        return certificate(self.audit.task.defenses, self.audit.task.setting, attacked, delta)

    def _steinke(self, tap: str, unit: str, seeds: list[list[Score]], alpha: float) -> AuditRow:
        delta = self._delta(alpha, True)
        judged = []
        for index, score in enumerate(seeds[0]):
            known = self._known(tap, unit, score, delta)
            each = [statistics.one_run(s[index].values, s[index].coins, delta, alpha) for s in seeds]
            judged.append((score.name, known, max(each, key=lambda one: one.epsilon), [one.epsilon for one in each]))
        name, known, best, by_seed = max(judged, key=lambda one: one[2].epsilon - (one[1].epsilon or 0.0))
        scores = {n: b.epsilon for n, _, b, _ in judged}
        row = bound_row(Bound("one-run", tap, unit, name, by_seed, scores), known, delta, self.audit.confidence)
        count = len(seeds[0][0].values)
        reach = statistics.one_run_reach(count, delta, alpha)
        return replace(row, canaries=count, guesses=best.guesses, correct=best.correct, reach=reach)

    def _gaussian_curve(self, tap: str, unit: str, seeds: list[list[Score]], alpha: float) -> AuditRow:
        delta = self._delta(alpha, False)
        judged = []
        for index, score in enumerate(seeds[0]):
            known = self._known(tap, unit, score, delta)
            claim = 1.0 / known.together if known.together else None
            each = [statistics.f_dp(s[index].values, s[index].coins, claim, alpha) for s in seeds]
            judged.append((score.name, known, max(each, key=lambda one: one.mu), each))
        name, known, best, each = max(judged, key=lambda one: one[2].mu * (one[1].together or 1.0))
        epsilons = [gaussian_epsilon(1.0 / one.mu, delta) if one.mu > 0 else 0.0 for one in each]
        violated = known.together is not None and best.mu > 1.0 / known.together
        scores = {n: b.mu for n, _, b, _ in judged}
        p_value = min(1.0, best.p_value * len(judged)) if best.p_value is not None else None
        bound = Bound("f-dp", tap, unit, name, epsilons, scores, p_value, violated)
        row = bound_row(bound, known, delta, self.audit.confidence)
        return replace(row, canaries=len(seeds[0][0].values), guesses=best.guesses, correct=best.correct)

    def _trials(self, tap: str, unit: str, norm: float, alpha: float) -> AuditRow:
        began = time.monotonic()
        steps = self.audit.sizes.steps if tap != "example" else 1
        attacked = self._attacked(tap, unit, self.audit.sizes.rounds, steps)
        clients = certificates.cohort(self.audit.task.defenses, self.audit.task.setting, tap, unit)
        played = trial_runs.trial(self.audit.task, attacked, clients, norm)
        delta = self._delta(alpha, False)
        known = certificate(played.task.defenses, played.task.setting, attacked, delta)
        found = []
        for number in range(self.audit.sizes.seeds):
            self._tell(f"trials, {unit} at {tap}: {self.audit.sizes.trials} with and without the canary", number)
            without, with_it = trial_runs.sample(played, self.audit.sizes.trials, self.audit.seed + number)
            found.append(statistics.independent_trials(without, with_it, delta, alpha))
        best = max(found, key=lambda one: one.epsilon)
        by_seed = [one.epsilon for one in found]
        bound = Bound("trials", tap, unit, "pooled", by_seed, {"pooled": max(by_seed)})
        row = bound_row(bound, known, delta, self.audit.confidence)
        trials, half = self.audit.sizes.trials, (known.together or 0.0) / 2.0
        reach = statistics.trials_reach(half, trials, delta, alpha) if half else None
        row = replace(row, false_positive=best.false_positive, false_negative=best.false_negative)
        return replace(row, trials=trials, reach=reach, seconds=time.monotonic() - began)
