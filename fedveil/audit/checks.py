"""Tests of realised noise and contributions: scale, correlation, clip. Each gives a p-value, or is exact.

- scale: the noise of every parameter group against the noise that z implies for the largest measured contribution.
- correlation: draws that are declared independent (steps, rounds, clients, layers), in pairs; and values that repeat.
- clip: canaries of moderate norm must contribute no more than canaries far above the clip bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedveil.accounting import statistics
from fedveil.audit.measure import CLIENT_STAGES, STEP_STAGES, Contribution, Draw, Measured
from fedveil.audit.path import Leaves
from fedveil.core.events import Release

ROUNDING = 2e-3  # of a contribution that is the difference of two float32 messages
REPEATS = 0.5  # share of values that occur more than once, beyond which noise repeats itself
MOST_PAIRS = 40  # of layers


@dataclass(frozen=True)
class Finding:
    """The result of one test. An exact test has no `p_value`: `alarm` is its result."""

    test: str
    release: Release
    path: str
    score: str  # where it is strongest
    statistic: float
    p_value: float | None
    alarm: bool
    says: str
    scores: dict[str, float] = field(default_factory=dict)


def declared_z(release: Release, number: int) -> float:
    """z of the noise drawn in a round. A broadcast's noise covers the round before, whichever of both is declared lower."""
    if not release.by_round:
        return release.multiplier
    rounds = (number - 1, number) if release.stage == "broadcast" else (number,)
    return min(release.by_round[min(t, len(release.by_round) - 1)] for t in rounds)


# --- scale


def scale(measured: Measured) -> Iterator[Finding]:
    """One test per round in which contributions were measured, and one of groups without any noise."""
    release = measured.release
    for number in sorted({c.round for c in measured.contributions}):
        draws = [leaves for draw, leaves in measured.noise.items() if draw.round == number]
        units = [c for c in measured.contributions if c.round == number and c.size > 0]
        if draws and units:
            yield _scale(measured, number, draws, units, declared_z(release, number))
    yield _silent(measured)


def _scale(measured: Measured, number: int, draws: list[Leaves], units: list[Contribution], z: float) -> Finding:
    release, names = measured.release, list(draws[0])
    distribution = release.distribution
    laplace = distribution == "laplace"  # a norm is `whole` of the sum of `each` entry
    each, whole = (np.abs, np.asarray) if laplace else (np.square, np.sqrt)
    total = np.array([sum(float(each(d[n]).sum()) for d in draws) for n in names])
    count = np.array([float(sum(d[n].size for d in draws)) for n in names])
    sizes = np.array([[float(whole(each(u.leaves[n]).sum())) * (1.0 - ROUNDING) for n in names] for u in units])
    noise = whole(total / count)
    ratios = [statistics.loss_ratio(one, noise, distribution, z) for one in sizes]
    worst = int(np.argmax(ratios))
    largest = float(np.max([u.size for u in units])) if distribution == "gaussian" else float(sizes.sum(axis=1).max())
    by_layer = {n: float(s / (z * largest)) for n, s in zip(names, noise, strict=True)}
    p_value = statistics.scale_p_value(sizes, total, count, distribution, z)
    found = z / ratios[worst] if ratios[worst] else np.inf
    thin = min(by_layer, key=lambda n: by_layer[n])
    says = (
        f"noise over contribution is {found:.4g} where z = {z:.4g} is declared (round {number}, {units[worst].label}); "
        f"least noise in {thin}: {by_layer[thin]:.3g} of the declared"
    )
    score = f"round {number}, {units[worst].label}, {thin}"
    statistic = 1.0 / max(ratios[worst], 1e-300)
    return Finding("scale", release, measured.path, score, statistic, p_value, False, says, by_layer)


def _silent(measured: Measured) -> Finding:
    """Parameter groups that get no noise at all while others do."""
    names = list(next(iter(measured.noise.values())))
    energy = {n: float(sum(np.square(d[n]).mean() for d in measured.noise.values())) for n in names}
    most = max(energy.values())
    bare = [n for n in names if energy[n] <= 1e-8 * most]
    says = f"no noise in {', '.join(bare)}" if bare else f"all {len(names)} parameter groups carry noise"
    where = ", ".join(bare) or "all groups"
    return Finding("scale", measured.release, measured.path, where, float(len(bare)), None, bool(bare), says)


# --- correlation


def correlations(measured: Measured) -> Iterator[Finding]:
    """One test for each way in which draws are declared independent."""
    release, noise = measured.release, _standardised(measured.noise)
    kinds: list[tuple[str, str, Callable[[Draw], object]]] = [("rounds", "round", lambda d: (d.seed, d.client, d.step))]
    if release.uses == "step":
        one_step = "examples" if release.tap == "example" else "steps"
        kinds.append((one_step, "step", lambda d: (d.seed, d.round, d.client)))
    if release.stage in (*STEP_STAGES, *CLIENT_STAGES) or not release.on_sum:
        kinds.append(("clients", "client", lambda d: (d.seed, d.round, d.step)))
    found = {kind: list(_pairs(noise, kind, attribute, same)) for kind, attribute, same in kinds}
    for kind, pairs in (found | {"layers": list(_layer_pairs(noise))}).items():
        if pairs:
            yield _correlated(measured, kind, pairs)
    yield _repeated(measured)


def _standardised(noise: dict[Draw, Leaves]) -> dict[Draw, Leaves]:
    """Noise with every parameter group rescaled to a root mean square of 1, so that none hides the others.

    Groups without noise are left out.
    """
    rounds = {draw.round for draw in noise}
    of_round = {t: [leaves for draw, leaves in noise.items() if draw.round == t] for t in rounds}
    scales = {
        (t, name): float(np.sqrt(np.mean([np.square(d[name]).mean() for d in draws])))
        for t, draws in of_round.items()
        for name in draws[0]
    }
    least = 1e-4 * max(scales.values())
    kept = [n for n in next(iter(noise.values())) if all(scales[t, n] > least for t in rounds)]
    return {draw: {n: leaves[n] / scales[draw.round, n] for n in kept} for draw, leaves in noise.items()}


Pair = tuple[str, np.ndarray, np.ndarray]


def _pairs(noise: dict[Draw, Leaves], kind: str, attribute: str, same: Callable[[Draw], object]) -> Iterator[Pair]:
    """Draws that differ in one thing, each with the next: all parameters of one against all of the other."""
    groups: dict[object, list[Draw]] = {}
    for draw in sorted(noise):
        groups.setdefault(same(draw), []).append(draw)
    singular = kind.removesuffix("s")
    for draws in groups.values():
        for one, other in itertools.pairwise(draws):
            label = f"{singular} {getattr(one, attribute)} and {getattr(other, attribute)}"
            if noise[one]:
                yield label, _flat(noise[one]), _flat(noise[other])


def _layer_pairs(noise: dict[Draw, Leaves]) -> Iterator[Pair]:
    """Parameter groups, each with the next: as many values as the smaller has, over all draws."""
    names = list(next(iter(noise.values())))
    for one, other in list(itertools.pairwise(names))[:MOST_PAIRS]:
        draws = list(noise.values())
        size = min(draws[0][one].size, draws[0][other].size)
        first, second = (np.concatenate([d[name].ravel()[:size] for d in draws]) for name in (one, other))
        yield f"{one} and {other}", first, second


def _correlated(measured: Measured, kind: str, pairs: Sequence[Pair]) -> Finding:
    distribution = measured.release.distribution
    found = []
    for label, a, b in pairs:
        found.append((statistics.correlation_p_value(a, b, distribution), statistics.correlation(a, b), label))
    p_value, r, label = min(found)
    says = f"largest correlation of {kind}: {r:+.3g} ({label}; {len(pairs)} pairs)"
    scores: dict[str, float] = {}
    for _, one, name in found:
        scores[name] = max(one, scores.get(name, one), key=abs)
    p_value = min(1.0, p_value * len(pairs))
    return Finding("correlation", measured.release, measured.path, label, r, p_value, False, says, scores)


def _repeated(measured: Measured) -> Finding:
    values = np.concatenate([_flat(d) for d in measured.noise.values()])
    values = values[values != 0.0]
    share = 1.0 - len(np.unique(values.astype(np.float32))) / len(values) if len(values) else 0.0
    says, where = f"{share:.1%} of {len(values)} values occur more than once", "repeated values"
    return Finding("correlation", measured.release, measured.path, where, share, None, share > REPEATS, says)


def _flat(leaves: Leaves) -> np.ndarray:
    return np.concatenate([a.ravel() for a in leaves.values()])


# --- clip


def clip(measured: Measured) -> Finding | None:
    """What canaries of each norm contribute, relative to what the same canary does at an enormous norm."""
    known = [c for c in measured.contributions if measured.far.get(c.canary, 0.0) > 0 and not np.isnan(c.norm)]
    first = min((c.round for c in known), default=0)
    scores = {c.label: c.size / measured.far[c.canary] for c in known if c.round == first}
    if not scores:
        return None
    worst = max(scores, key=lambda label: scores[label])
    says = f"the most that passes is {scores[worst]:.4g} of what a canary far above the clip leaves ({worst})"
    alarm = scores[worst] > 1.0 + ROUNDING
    return Finding("clip", measured.release, measured.path, worst, scores[worst], None, alarm, says, scores)
