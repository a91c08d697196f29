"""`AuditRow`: one line of an audit's result, and the check that fails where something alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from fedveil.audit.certificate import Certificate
from fedveil.audit.checks import Finding
from fedveil.core.errors import RunError


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """One bound or one test: what was attacked or measured, how, and what came of it."""

    method: str  # one-run, f-dp, trials: a lower bound on ε; noise: a test of what was drawn
    tap: str
    unit: str
    adjacency: str = "zero-out"
    epsilon_lower: float | None = None  # the largest over the seeds; None for tests
    confidence: float  # of all bounds and tests of the call together
    delta: float | None = None
    epsilon_certified: float | None = None
    violated: bool = False  # a bound above its certificate
    multiplier: float | None  # z of one release, as declared
    releases: int  # in what was attacked, one after another
    test: str  # bound, scale, correlation, clip
    path: str  # canary model, own model, node, whole batches
    score: str  # the score, canary or pair of draws that shows most
    statistic: float | None
    p_value: float | None  # corrected for all tests of the call; None where a test is exact
    alarm: bool
    caught_by: str  # empty where there is no alarm
    reason: str
    scores: dict[str, float] = field(default_factory=dict)  # every score's bound or statistic
    reach: float | None = None  # the bound to expect of no noise at all (one-run) or of half the noise (trials)
    canaries: int | None = None
    guesses: int | None = None  # of the seed with the largest bound, as are the next three
    correct: int | None = None
    trials: int | None = None
    false_positive: float | None = None
    false_negative: float | None = None
    by_seed: tuple[float, ...] = ()
    seconds: float = 0.0

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "by_seed": list(self.by_seed)}


def test_row(finding: Finding, tests: int, alpha: float, confidence: float, seconds: float) -> AuditRow:
    """A test's row; its p-value times the number of tests is compared with the error allowed (Bonferroni)."""
    release = finding.release
    p_value = None if finding.p_value is None else min(1.0, finding.p_value * tests)
    alarm = finding.alarm or (p_value is not None and p_value <= alpha)
    name = f"{finding.test} of {finding.path}: {finding.score}"
    return AuditRow(
        method="noise",
        tap=release.tap,
        unit=release.unit,
        confidence=confidence,
        multiplier=release.multiplier,
        releases=1,
        test=finding.test,
        path=finding.path,
        score=finding.score,
        statistic=finding.statistic,
        p_value=p_value,
        alarm=alarm,
        caught_by=name if alarm else "",
        reason=finding.says,
        scores=finding.scores,
        seconds=seconds,
    )


@dataclass(frozen=True)
class Bound:
    """What one method found at one tap for one unit."""

    method: str
    tap: str
    unit: str
    score: str  # the score that shows most
    by_seed: Sequence[float]  # lower bounds on ε
    scores: dict[str, float]  # every score's bound
    p_value: float | None = None
    violated: bool | None = None  # None: where the bound is above the certified ε


def bound_row(bound: Bound, known: Certificate, delta: float, confidence: float) -> AuditRow:
    """The row of a lower bound: the largest bound of all seeds, beside the certified ε."""
    epsilon, violated = max(bound.by_seed), bound.violated
    if violated is None:
        violated = known.epsilon is not None and epsilon > known.epsilon
    return AuditRow(
        method=bound.method,
        tap=bound.tap,
        unit=bound.unit,
        epsilon_lower=epsilon,
        confidence=confidence,
        delta=delta,
        epsilon_certified=known.epsilon,
        violated=violated,
        multiplier=known.multiplier,
        releases=known.releases,
        test="bound",
        path="canary model",
        score=bound.score,
        statistic=epsilon,
        p_value=bound.p_value,
        alarm=violated,
        caught_by=f"{bound.method}: score {bound.score}" if violated else "",
        reason=known.reason,
        scores=bound.scores,
        by_seed=tuple(bound.by_seed),
    )


def check_certificates(rows: Sequence[AuditRow]) -> None:
    """Raises where a measured lower bound is above what is certified, or where a test alarms."""
    broken = [row for row in rows if row.violated]
    if broken:
        worst = max(broken, key=lambda row: row.epsilon_lower or 0.0)
        raise RunError(
            f"the certificate does not hold: unit {worst.unit} at tap {worst.tap} leaks ε ≥ {worst.epsilon_lower:.4g} "
            f"({worst.method}, score {worst.score}, confidence {worst.confidence:g}), certified "
            f"{worst.epsilon_certified:.4g}, δ = {worst.delta:g}{_more(rows)}"
        )
    if any(row.alarm for row in rows):
        raise RunError(f"the noise is not what is declared{_more(rows)}")


def _more(rows: Sequence[AuditRow]) -> str:
    """What the tests say, the first of each kind."""
    first: dict[str, AuditRow] = {}
    for row in rows:
        if row.alarm and not row.violated:
            first.setdefault(row.test, row)
    return "".join(f"; {row.test} ({row.path}, tap {row.tap}): {row.reason}" for row in first.values())
