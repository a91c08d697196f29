"""`run`: the audits of a config, one row per method, tap and unit.

Each row compares a measured lower bound on ε with the ε that the defence's own declaration certifies for exactly the
mechanism that was attacked: so many releases of its Gaussian noise, the unit taking part in each (no sampling, q = 1),
zero-out adjacency. With probability `confidence` all bounds of one call hold together, over its rows and its seeds: each
alone is wrong with probability (1 − confidence) / (rows · seeds) at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.accounting import statistics
from fedveil.assemble import Federation, prepare
from fedveil.audit.certificate import Certificate, certificate, cohort, taps_to_audit
from fedveil.audit.stage import Stage, one_run_layout, stage, trial_layout
from fedveil.config import Config
from fedveil.core import keys
from fedveil.core.errors import ConfigError, RunError, unknown_name
from fedveil.core.taps import CHAIN, NODE_UNITS
from fedveil.models.layers import Array
from fedveil.rounds.client import Task

METHODS = ("one-run", "trials")
EXCESS = 100.0  # canaries are so many times as long as the clip bound
DELTA = 1e-5  # for defences that name none
_COINS = 0x617564  # keeps the coins apart from everything else that is drawn from a seed


@dataclass(frozen=True)
class AuditRow:
    """One audit: what was attacked, how, and what came of it."""

    method: str
    tap: str
    unit: str
    adjacency: str
    epsilon_lower: float  # the largest over the seeds
    confidence: float  # of all bounds of the call together
    delta: float
    epsilon_certified: float | None
    violated: bool
    multiplier: float | None  # z of one release, as declared
    releases: int  # in what was attacked, one after another
    reach: float | None  # the bound to expect of no noise at all (one-run) or of half the noise (trials)
    canaries: int | None
    guesses: int | None  # of the seed with the largest bound, as are the next three
    correct: int | None
    trials: int | None
    false_positive: float | None
    false_negative: float | None
    by_seed: tuple[float, ...]
    seconds: float
    reason: str

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "by_seed": list(self.by_seed)}


def run(
    config: Config | Federation,
    *,
    tap: str | None = None,
    unit: str | None = None,
    methods: Sequence[str] = METHODS,
    trials: int = 200_000,
    canaries: int = 1000,
    seeds: int = 20,
    confidence: float = 0.95,
    delta: float | None = None,
    rounds: int = 1,
    steps: int = 1,
    progress: Callable[[str], None] | None = None,
) -> list[AuditRow]:
    """Audits the defences of a config.

    `tap`, `unit`: where to stand and whom to look for; unset: both units, at the taps where noise protects them (a tap that
    is only post-processing of one before it is left out). `rounds` of `steps` local steps are attacked together.
    """
    federation = config if isinstance(config, Federation) else prepare(config)
    task = federation.simulator.task
    _check(task, tap, unit, methods, trials, canaries, seeds, confidence, delta, rounds, steps)
    delta = delta or next((d.delta for d in task.defenses if d.delta is not None), DELTA)
    setting = replace(task.setting, local_steps=steps)
    places = [
        (t, u)
        for u in ([unit] if unit else NODE_UNITS)
        for t in ([tap] if tap else taps_to_audit(task.defenses, setting, u))
    ]
    alpha = (1.0 - confidence) / (len(places) * len(methods) * seeds)
    numbers = [federation.simulator.seed + s for s in range(seeds)]
    rows = []
    with jax.enable_x64(task.dtype == "float64"):
        for at_tap, of_unit in places:
            for method in methods:
                if progress is not None:
                    progress(f"{method}: unit {of_unit} at tap {at_tap}, {seeds} seeds")
                audit = _one_run if method == "one-run" else _trials
                size = canaries if method == "one-run" else trials
                row = audit(task, at_tap, of_unit, size, rounds, steps, numbers, delta, alpha)
                rows.append(replace(row, confidence=confidence))
    return rows


# --- one run


def _one_run(
    task: Task, tap: str, unit: str, canaries: int, rounds: int, steps: int, seeds: list[int], delta: float, alpha: float
) -> AuditRow:  # fmt: skip
    began = time.monotonic()
    groups, layout = one_run_layout(task.setting, tap, unit, canaries, cohort(task, tap, unit))
    played = stage(task, layout, tap, rounds, steps, EXCESS)
    known = certificate(task.defenses, played, delta)
    count = groups * layout.canaries

    @jax.jit
    def scores(coins: Array, root: Array) -> Array:
        """[groups, canaries]; groups are different clients (or batches) of one run."""
        roots = jax.vmap(lambda g: jax.random.fold_in(root, g))(jnp.arange(groups))
        return jax.lax.map(lambda one: played.scores(*one), (coins, roots))

    found = []
    for seed in seeds:
        coins = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, _COINS]))).random(count) < 0.5
        seen = scores(jnp.asarray(coins.reshape(groups, -1)), keys.root(seed))
        found.append(statistics.one_run(np.asarray(seen, np.float64).ravel(), coins, delta, alpha))
    best = max(found, key=lambda one: one.epsilon)
    row = _row("one-run", tap, unit, best.epsilon, [one.epsilon for one in found], known, delta, began)
    reach = statistics.one_run_reach(count, delta, alpha)
    return replace(row, canaries=count, guesses=best.guesses, correct=best.correct, reach=reach)


# --- independent trials


def _trials(
    task: Task, tap: str, unit: str, trials: int, rounds: int, steps: int, seeds: list[int], delta: float, alpha: float
) -> AuditRow:  # fmt: skip
    began = time.monotonic()
    layout = trial_layout(task.setting, tap, unit, cohort(task, tap, unit))
    played = stage(task, layout, tap, rounds, steps, EXCESS)
    known = certificate(task.defenses, played, delta)
    width = _at_once(played, trials)

    @jax.jit
    def scores(root: Array, first: Array, present: Array) -> Array:
        """[width] of trials that are runs of their own, each from a key of its own."""

        def one(number: Array) -> Array:
            return played.scores(present[None], jax.random.fold_in(root, number))[0]

        return jax.vmap(one)(first + 2 * jnp.arange(width))

    def sample(seed: int, present: bool) -> np.ndarray:
        """[trials]: with the canary the even numbers, without it the odd ones, so that no key is used twice."""
        root, odd = keys.root(seed), 0 if present else 1
        starts = range(odd, 2 * trials, 2 * width)
        parts = [np.asarray(scores(root, np.uint32(s), jnp.asarray(float(present), task.dtype))) for s in starts]
        return np.concatenate(parts)[:trials].astype(np.float64)

    found = [statistics.independent_trials(sample(s, False), sample(s, True), delta, alpha) for s in seeds]
    best = max(found, key=lambda one: one.epsilon)
    row = _row("trials", tap, unit, best.epsilon, [one.epsilon for one in found], known, delta, began)
    reach = statistics.trials_reach(known.together / 2.0, trials, delta, alpha) if known.together else None
    errors = best.false_positive, best.false_negative
    return replace(row, trials=trials, reach=reach, false_positive=errors[0], false_negative=errors[1])


def _at_once(played: Stage, trials: int) -> int:
    """Trials computed in one call: what keeps their arrays within some 100 MB."""
    layout, setting = played.layout, played.task.setting
    values = 2 * setting.layers * layout.clients * max(layout.records, setting.batch if played.tap == "example" else 1)
    return max(1, min(trials, 20_000, 5_000_000 // values))


def _row(
    method: str, tap: str, unit: str, epsilon: float, by_seed: list[float], known: Certificate, delta: float, began: float
) -> AuditRow:  # fmt: skip
    return AuditRow(
        method=method,
        tap=tap,
        unit=unit,
        adjacency="zero-out",
        epsilon_lower=epsilon,
        confidence=0.0,
        delta=delta,
        epsilon_certified=known.epsilon,
        violated=known.epsilon is not None and epsilon > known.epsilon,
        multiplier=known.multiplier,
        releases=known.releases,
        reach=None,
        canaries=None,
        guesses=None,
        correct=None,
        trials=None,
        false_positive=None,
        false_negative=None,
        by_seed=tuple(by_seed),
        seconds=time.monotonic() - began,
        reason=known.reason,
    )


# --- what can be audited


def _check(
    task: Task, tap: str | None, unit: str | None, methods: Sequence[str], trials: int, canaries: int, seeds: int,
    confidence: float, delta: float | None, rounds: int, steps: int,
) -> None:  # fmt: skip
    if tap is not None and tap not in CHAIN:
        raise unknown_name("tap", tap, CHAIN)
    if unit is not None and unit not in NODE_UNITS:
        raise unknown_name("unit", unit, NODE_UNITS)
    for method in methods:
        if method not in METHODS:
            raise unknown_name("methods", method, METHODS)
    limits = {
        "trials": (trials, 1000, 10_000_000),
        "canaries": (canaries, 10, 5000),
        "seeds": (seeds, 1, 1000),
        "rounds": (rounds, 1, 10_000),
        "steps": (steps, 1, 10_000),
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


def check_certificates(rows: Sequence[AuditRow]) -> None:
    """Raises where a measured lower bound is above what is certified."""
    broken = [row for row in rows if row.violated]
    if broken:
        worst = max(broken, key=lambda row: row.epsilon_lower)
        raise RunError(
            f"the certificate does not hold: unit {worst.unit} at tap {worst.tap} leaks ε ≥ {worst.epsilon_lower:.4g} "
            f"({worst.method}, confidence {worst.confidence:g}), certified {worst.epsilon_certified:.4g}, "
            f"δ = {worst.delta:g}"
        )
