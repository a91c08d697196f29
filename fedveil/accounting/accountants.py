"""Composition: from what one round does to one unit, to an ε over many rounds, through `dp_accounting`.

A `Round` says how often a round uses a unit and behind how much noise. Everything in it is decided by coins that depend on
no data, so an account may hand those coins to the observer: the privacy loss of a round is then the mixture of the losses
for each outcome, and rounds compose. Where a coin stays hidden (`hidden`), Poisson sampling amplifies.

Two accountants read the same rounds: `pld` (privacy loss distributions, tight) and `rdp` (Rényi divergences). Both bound ε
from above.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from fedveil.core.lazy import Lazy

np: Any = Lazy("numpy")
binom: Any = Lazy("scipy.stats")
dp: Any = Lazy("dp_accounting")
signal: Any = Lazy("scipy.signal")
special: Any = Lazy("scipy.special")
pmfs: Any = Lazy("dp_accounting.pld.pld_pmf")
plds: Any = Lazy("dp_accounting.pld.privacy_loss_distribution")
rdps: Any = Lazy("dp_accounting.rdp.rdp_privacy_accountant")

Mixture = tuple[tuple[float, float], ...]  # (probability, value), probabilities add up to one
Terms = tuple[tuple[float, int], ...]  # (probability, times the unit's bound)
ALWAYS: Mixture = ((1.0, 1.0),)

ORDERS = (1.25, 1.5, 2, 2.5, *range(3, 32), *range(32, 65, 8), 80, 96, 128, 192, 256, 512)
SHORTEST, LONGEST = 32, 2**17  # widths of the grid of losses in ε, at least and at most
COARSEST = 1.0  # grid that is worth composing on
REACH = 10.0  # standard deviations of the noise: what lies beyond has probability below 1e-22
LARGE = 700.0  # an ε from which on no float holds e^−ε with all its bits
TAIL = 1e-13  # probability of an outcome that is not worked out but counted as a failure (added to δ)


@dataclass(frozen=True)
class Round:
    """What one round does to one unit of protection, zero-out or add/remove unless `replace`.

    In a round the unit takes part `counts` times (a mixture: 0 or 1 for one record; more for the copies of an image). Each
    time it passes `steps` mechanisms, and is used by each with probability `rate`, which the observer sees (`hidden` false)
    or not. `noise` is z, the noise over the sensitivity, a mixture where it depends on who else took part. `together`: all
    the times meet in one sum, so that their contributions add up against one noise; else each has a noise of its own.
    """

    noise: Mixture
    steps: int = 1
    rate: float = 1.0
    hidden: bool = False
    counts: Mixture = ALWAYS
    together: bool = False
    law: Literal["gaussian", "laplace"] = "gaussian"
    replace: bool = False
    subset: tuple[int, int] | None = None  # (size, drawn): a fixed-size subset, replace adjacency, `rdp` alone
    fails: float = 0.0  # probability of outcomes that are left out: each costs as much of δ, every round


@lru_cache(maxsize=1024)
def epsilon(rounds: tuple[tuple[Round, int], ...], delta: float, accountant: str) -> float | None:
    """ε at δ of these rounds, each so many times; None where this accountant cannot say."""
    rounds = tuple((one, times) for one, times in rounds if times > 0)
    left = delta - sum(one.fails * times for one, times in rounds)
    if left <= 0:
        return None
    if not rounds:
        return 0.0
    if accountant == "rdp":
        return _rdp(rounds, left)
    if any(one.subset for one, _ in rounds):
        return None
    if any(_faint(one) for one, _ in rounds):
        return _rdp(rounds, left)
    grid = grid_for(*_losses(rounds), left)
    if grid > COARSEST:  # ε in the ten thousands: nobody asks for its digits
        return _rdp(rounds, left)
    found = _pld(rounds, left, grid)
    return _rdp(rounds, left) if found is None else found  # where losses run off the grid


# --- privacy loss distributions


def _faint(one: Round) -> bool:
    """Whether the noise is so small that losses run into the hundreds: no grid is worth that, Rényi's bound stands in."""
    most = max(count for _, count in one.counts) if one.together else 1.0
    return min(z for _, z in one.noise) < 0.05 * most * (2.0 if one.replace else 1.0)


def grid_for(deviation: float, steps: float, furthest: float, delta: float) -> float:
    """The width of the grid of losses: fine enough for three digits of ε, and no finer.

    What a grid of width h adds to a step's loss has a variance of about h²/6, so ε grows by (h/deviation)²/12 of itself,
    whatever the number of steps: some 0.0006 at most. `deviation` is that of one step's loss. Where single losses reach far
    beyond it (`furthest`: little noise, used rarely) a grid as fine would be too long: ε comes out larger by a few widths.
    """
    whole = deviation * math.sqrt(steps)
    rough = whole**2 / 2 + whole * math.sqrt(2.0 * math.log(1.0 / delta))  # of many steps, by the central limit
    width = max(min(deviation / 12, rough / SHORTEST, 2e-2), rough / LONGEST, furthest / LONGEST)
    # One of few widths, so that nearby settings share their distributions.
    return float(2.0 ** (math.floor(2.0 * math.log2(width)) / 2.0))


def one_step(sigma: float, rate: float) -> tuple[float, float]:
    """About the deviation of a sampled Gaussian step's loss (exact where it is small), and how far that loss reaches."""
    drawn = 1.0 / sigma + 0.5 / sigma**2  # about the loss of a step that is known to use the unit
    hidden = rate * math.sqrt(math.expm1(min(1.0 / sigma**2, 30.0)))
    return min(hidden, math.sqrt(rate) * drawn), REACH / sigma + 0.5 / sigma**2


def _losses(rounds: Sequence[tuple[Round, int]]) -> tuple[float, float, float]:
    """The root of the mean square of the steps' deviations, over steps in which there is a loss at all; their number; how
    far a loss reaches."""
    steps = squares = furthest = 0.0
    for one, times in rounds:
        for (chance, count), (share, z) in itertools.product(one.counts, one.noise):
            if count == 0:
                continue
            size, made = (count, 1.0) if one.together else (1.0, count)
            used, size = (1.0 if one.hidden else one.rate), size * (2.0 if one.replace else 1.0)
            loss, far = one_step(z / size, one.rate) if one.hidden else (size / z, one_step(z / size, 1.0)[1])
            weight = times * one.steps * chance * share * made * used
            steps, squares, furthest = steps + weight, squares + weight * loss**2, max(furthest, far)
    return (math.sqrt(squares / steps), steps, furthest) if squares > 0 else (1.0, 1.0, 1.0)


def _pld(rounds: Sequence[tuple[Round, int]], delta: float, grid: float) -> float | None:
    total: Any = None
    for one, times in rounds:
        composed = _round_pld(replace(one, fails=0.0), grid).self_compose(times)
        total = composed if total is None else total.compose(composed)
    found = float(total.get_epsilon_for_delta(delta))
    found = found if found < LARGE else _of_large_losses(total, delta)
    return max(found, 0.0) if math.isfinite(found) else None


def _of_large_losses(pld: Any, delta: float) -> float:
    """ε rounded up to the grid, where the library finds none or too much: it adds up e^−loss, which has too few bits at
    losses of 709 to 745 and is zero beyond. Here each sum is relative to the loss at hand,
    δ(ε) = P(loss > ε) − E(e^(ε − loss); loss > ε)."""
    found = -math.inf
    for one in (pld._pmf_remove, pld._pmf_add):
        pmf = one.to_dense_pmf()
        if pmf._infinity_mass > delta:
            return math.inf
        above = np.append(0.0, np.cumsum(pmf._probs[:0:-1])) + pmf._infinity_mass  # from the largest loss down
        shrink = math.exp(-pmf._discretization)
        relative = signal.lfilter([0.0, shrink], [1.0, -shrink], pmf._probs[::-1])
        enough = int(np.count_nonzero(np.minimum.accumulate(above - relative <= delta)))  # losses that will do as ε
        found = max(found, (pmf._lower_loss + len(pmf._probs) - enough) * pmf._discretization)
    return found


@lru_cache(maxsize=256)
def _round_pld(one: Round, grid: float) -> Any:
    nothing = plds.identity(value_discretization_interval=grid)
    parts = []
    for chance, count in one.counts:
        for share, z in one.noise:
            if count == 0:
                parts.append((chance * share, nothing))
            elif one.together:
                parts.append((chance * share, _times(_step(one, z, int(count), grid), one.steps)))
            else:
                parts.append((chance * share, _times(_step(one, z, 1, grid), one.steps * int(count))))
    return _mixed(parts)


def _times(pld: Any, count: int) -> Any:
    return pld if count == 1 else pld.self_compose(count)


def _mixed(parts: Iterable[tuple[float, Any]]) -> Any:
    """The mixture of distributions with these weights."""
    total, mixed = 0.0, None
    for weight, pld in parts:
        if weight <= 0:
            continue
        total += weight
        mixed = pld if mixed is None else pld.compute_mixture(mixed, min(1.0, weight / total))
    return mixed


@lru_cache(maxsize=256)
def _step(one: Round, z: float, count: int, grid: float) -> Any:
    """One mechanism, used by `count` parts of the unit that meet in it."""
    inside = tuple((chance, int(used)) for chance, used in binomial(count, one.rate))
    if one.law == "gaussian" and not one.replace and (one.hidden or len(inside) == 1):
        return _gaussian_sum(z, inside, grid)
    if one.hidden and count == 1 and one.law == "gaussian":
        return _swapped(z, one.rate, grid)
    nothing = plds.identity(value_discretization_interval=grid)
    return _mixed((chance, nothing if used == 0 else _noisy(one, z, used, grid)) for chance, used in inside)


def _noisy(one: Round, z: float, count: int, grid: float) -> Any:
    """Noise of multiplier z on a sum to which the unit contributes `count` times its bound."""
    size = (2.0 if one.replace else 1.0) * count
    if one.law == "laplace":
        return _pure_loss(size / z, grid)
    return _gaussian_sum(z / size, ((1.0, 1),), grid)


def _pure_loss(epsilon: float, grid: float) -> Any:
    """What is known of a mechanism that is (ε, 0)-private: a loss of ε or −ε, with the probabilities that this leaves.

    As `from_privacy_parameters` has it, which rounds both up to the grid: that adds up over the steps, a chord between
    neighbours of the grid does so by its square alone.
    """
    reach = math.ceil(epsilon / grid)
    steps = np.arange(-reach, reach + 1)
    at = steps * grid
    inside = special.expit(epsilon) - np.exp(np.minimum(at, epsilon)) * special.expit(-epsilon)
    deltas = np.where(at >= epsilon, 0.0, np.where(at <= -epsilon, -np.expm1(at), inside))
    return plds.PrivacyLossDistribution(_dots(grid, steps, deltas))


def _gaussian_sum(z: float, inside: Terms, grid: float) -> Any:
    """A sum with Gaussian noise to which the unit adds j times its bound with probability p_j, which nobody sees."""
    return _two_mixtures(z, inside, ((1.0, 0),), grid)


def sampled_gaussian(z: float, rate: float, grid: float) -> Any:
    """The privacy loss of one Poisson-sampled Gaussian, add/remove."""
    return _gaussian_sum(z, ((1.0 - rate, 0), (rate, 1)), grid)


def _swapped(z: float, rate: float, grid: float) -> Any:
    """Poisson sampling under `replace`: the record that is drawn is one or the other."""
    return _two_mixtures(z, ((1.0 - rate, 0), (rate, 1)), ((1.0 - rate, 0), (rate, -1)), grid)


@lru_cache(maxsize=256)
def _two_mixtures(z: float, upper: Terms, lower: Terms, grid: float) -> Any:
    """The loss between two mixtures of Gaussians of deviation z, with means j ≥ 0 above and j ≤ 0 below.

    The loss at x, the logarithm of the ratio of densities, grows with x; so δ(ε) is a difference of two tails, here taken
    for all ε of the grid at once. The same mechanisms as `from_gaussian_mechanism` with sampling and
    `from_mixture_gaussian_mechanism`, 5 to 40 times faster (one term, 21 terms); the discretisation is that library's.
    """
    above, below = _Mixture(z, upper), _Mixture(z, lower)
    edge = (float(below.means.min()) - REACH, float(above.means.max()) + REACH)
    table = np.linspace(*edge, 4001)
    losses = above.log(table)[0] - below.log(table)[0]

    def where(epsilons: Any) -> Any:
        """x at which the loss is ε: read off the table, then two steps of Newton."""
        x = np.interp(epsilons, losses, table)
        for _ in range(2):
            (up, up_slope), (down, down_slope) = above.log(x), below.log(x)
            slope = up_slope - down_slope
            step = np.divide(up - down - epsilons, slope, out=np.zeros_like(x), where=slope > 1e-12)
            x = np.clip(x - np.clip(step, -0.01, 0.01), *edge)
        return x

    low, high = float(losses[0]), float(losses[-1])
    steps = np.arange(math.floor(low / grid), math.ceil(high / grid) + 1)
    x = where(steps * grid)
    removed = np.exp(above.beyond(x)) - np.exp(steps * grid + below.beyond(x))
    back = np.arange(math.floor(-high / grid), math.ceil(-low / grid) + 1)
    x = where(-back * grid)
    added = np.exp(below.before(x)) - np.exp(back * grid + above.before(x))
    return plds.PrivacyLossDistribution(_dots(grid, steps, removed), _dots(grid, back, added))


class _Mixture:
    """A mixture of Gaussians of deviation 1 with means j/z."""

    def __init__(self, z: float, terms: Terms) -> None:
        self.chances = np.array([p for p, _ in terms if p > 0])
        self.means = np.array([j / z for p, j in terms if p > 0])

    def log(self, x: Any) -> tuple[Any, Any]:
        """The logarithm of its density over that of the standard Gaussian, and the slope of that."""
        parts = np.log(self.chances)[:, None] + self.means[:, None] * x[None, :] - self.means[:, None] ** 2 / 2.0
        total = np.logaddexp.reduce(parts, axis=0)
        return total, np.sum(np.exp(parts - total) * self.means[:, None], axis=0)

    def beyond(self, x: Any) -> Any:
        """The logarithm of the probability of more than x."""
        return np.logaddexp.reduce(np.log(self.chances)[:, None] + special.log_ndtr(self.means[:, None] - x), axis=0)

    def before(self, x: Any) -> Any:
        """The logarithm of the probability of less than x."""
        return np.logaddexp.reduce(np.log(self.chances)[:, None] + special.log_ndtr(x - self.means[:, None]), axis=0)


def _dots(grid: float, steps: Any, deltas: Any) -> Any:
    deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    return pmfs.create_pmf_pessimistic_connect_dots_fixed_gap(grid, int(steps[0]), int(steps[-1]), deltas)


# --- Rényi divergences


def _rdp(rounds: Sequence[tuple[Round, int]], delta: float) -> float | None:
    total = sum(times * _round_rdp(replace(one, fails=0.0)) for one, times in rounds)
    if not np.isfinite(total).any():
        return None
    found = float(rdps.compute_epsilon(np.asarray(ORDERS), total, delta)[0])
    return max(found, 0.0) if math.isfinite(found) else None


@lru_cache(maxsize=256)
def _round_rdp(one: Round) -> Any:
    """[orders] the Rényi divergence of a round: of a mixture with visible outcomes, log E exp((α−1)·D) / (α−1)."""
    orders = np.asarray(ORDERS)
    logs = []
    for chance, count in one.counts:
        for share, z in one.noise:
            if chance * share <= 0:
                continue
            if count == 0:
                cost = np.zeros(len(orders))
            elif one.together:
                cost = one.steps * _step_rdp(one, z, int(count))
            else:
                cost = one.steps * int(count) * _step_rdp(one, z, 1)
            logs.append(math.log(chance * share) + (orders - 1) * cost)
    # Rounding may leave the logarithm of a sum that is one just below zero.
    return np.maximum(np.logaddexp.reduce(logs, axis=0), 0.0) / (orders - 1)


@lru_cache(maxsize=256)
def _step_rdp(one: Round, z: float, count: int) -> Any:
    orders = np.asarray(ORDERS)
    if one.subset:
        size, drawn = one.subset
        event = dp.SampledWithoutReplacementDpEvent(size, drawn, dp.GaussianDpEvent(z / (2.0 * count)))
        return _of_event(event, dp.NeighboringRelation.REPLACE_ONE)
    if one.hidden and one.rate < 1.0 and count == 1 and not one.replace and one.law == "gaussian":
        event = dp.PoissonSampledDpEvent(one.rate, dp.GaussianDpEvent(z))
        return _of_event(event, dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    # Where Rényi divergences know no amplification, the observer is handed the coins.
    logs = [
        math.log(chance) + (orders - 1) * (_noisy_rdp(one, z, int(used)) if used else 0.0)
        for chance, used in (binomial(count, one.rate) if one.rate < 1.0 else ((1.0, float(count)),))
        if chance > 0
    ]
    return np.maximum(np.logaddexp.reduce(logs, axis=0), 0.0) / (orders - 1)


def _noisy_rdp(one: Round, z: float, count: int) -> Any:
    orders = np.asarray(ORDERS)
    size = (2.0 if one.replace else 1.0) * count / z
    if one.law == "laplace":  # any mechanism of pure ε: at most ε, and at most α·ε²/2
        return np.minimum(size, orders * size**2 / 2.0)
    return orders * size**2 / 2.0


def _of_event(event: Any, relation: Any) -> Any:
    accountant = rdps.RdpAccountant(orders=ORDERS, neighboring_relation=relation)
    with quietly():
        accountant.compose(event)
    found = np.asarray(accountant._rdp)
    return np.where(np.isnan(found), np.inf, found)


@contextmanager
def quietly() -> Iterator[None]:
    """Without warnings of orders that are left out, which costs nothing but that order."""
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


# --- mixtures


def binomial(count: int, rate: float) -> Mixture:
    """How many of `count` independent coins fall; all outcomes."""
    if rate >= 1.0:
        return ((1.0, float(count)),)
    values = np.arange(count + 1)
    return tuple((float(p), float(v)) for p, v in zip(binom.binom.pmf(values, count, rate), values, strict=True))


def hypergeometric(total: int, marked: int, drawn: int) -> Mixture:
    """How many of the marked ones are among those drawn, a fixed number without replacement."""
    values = np.arange(max(0, drawn - (total - marked)), min(marked, drawn) + 1)
    chances = binom.hypergeom.pmf(values, total, marked, drawn)
    return tuple((float(p), float(v)) for p, v in zip(chances, values, strict=True))


def without_tail(mixture: Mixture) -> tuple[Mixture, float]:
    """The mixture without its unlikely large values, and the probability of those."""
    kept, gone = list(mixture), 0.0
    while len(kept) > 1 and gone + kept[-1][0] <= TAIL:
        gone += kept.pop()[0]
    left = 1.0 - gone
    return tuple((p / left, v) for p, v in kept), gone


def in_bins(mixture: Mixture, bins: int = 12) -> Mixture:
    """The mixture with few values: each is rounded down to the smallest of its bin, which can only lower noise."""
    if len(mixture) <= bins:
        return mixture
    # The lowest bins hold what is very unlikely, so that the others start near the bulk.
    made: list[tuple[float, float]] = []
    shares = [1e-9, 1e-6, 1e-3]
    chance, first = 0.0, mixture[0][1]
    for p, value in mixture:
        if chance > 0 and chance + p > (shares[0] if shares else 1.0 / (bins - 4)):
            made.append((chance, first))
            chance, first, shares = 0.0, value, shares[1:]
        chance += p
    made.append((chance, first))
    return tuple(made)
