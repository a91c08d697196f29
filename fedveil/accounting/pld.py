"""Privacy loss distributions: of a round, mixed, composed, and read as δ(ε) or ε(δ). Tight, never below the exact ε.

The privacy loss of a pair (P, Q) is L = log(P/Q) at an outcome drawn from P, and δ(ε) = E[(1 − e^(ε − L))₊]. A pair has two
directions, (P, Q) and (Q, P); an account takes the larger δ.

**Why not the library's distributions.** `dp_accounting` composes by FFT, whose rounding error is absolute: about 1e-16 per
entry of the result, 1e-12 in a tail. A δ of 1e-10 or less drowns in it, and ε comes out low. It has no error term, and its
public interface does not show the probabilities.

**The tilt.** We convolve p(l)·e^(λl − K(λ)), with K(λ) = log E[e^(λL)], in place of p. The tilt λ is chosen for the δ in
question (the Chernoff optimum), so the tilted distribution is centred near the ε that belongs to it, and the error of the
FFT is relative to δ. Nothing is convolved before a δ is asked for.

**The error bound.** Every approximation (FFT, trimmed tails, wrap-around, rounding) is bounded in the L1 norm of the tilted
distribution; `Tilted.error` is the sum. An error of L1 norm τ changes δ(ε) by at most τ·e^(K − λε)·max over x ≥ 0 of
(1 − e^(−x))·e^(−λx), which is added to δ(ε). For the FFT: each entry of a transform of length N is a sum over log2(N)
levels of butterflies, so for a vector of L1 norm 1 it errs by at most β = 8·u·log2(N), with u = 2^−53 (Higham 2002,
chapter 24; 8u per level is generous). A product of k such entries errs by at most k·(β + 3u) times the product of the
other k − 1 magnitudes. By Cauchy–Schwarz and Parseval the L1 norm of the result's error is at most the L2 norm of these
over all frequencies.

What is not in the bound: rounding of the probabilities themselves, which is relative (about 1e-12) and far below the margin
of the grid.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

from fedveil.accounting.accountants import Round, Rounds, Terms, binomial

Array = NDArray[np.floating]
Spectrum = NDArray[np.complex128]

UNIT = 2.0**-53  # the rounding error of one operation
BUTTERFLY = 8.0  # rounding errors per level of an FFT
TRIMMED = 1e-19  # tilted mass that is cut off at each end
OUTSIDE = 1e-18  # tilted mass outside the window of a composition, at each end
TILTS = range(-12, 21)  # tilts are powers of two, so that accounts share their compositions
GAIN = 0.003  # of a Chernoff bound on ε: a tilt is close enough to the best one where twice or half of it gains less
REMOVE, ADD = 0, 1  # the two directions of a pair
SHORTEST, LONGEST = 32, 2**17  # the fewest and the most grid widths in ε
COARSEST = 1.0  # the widest grid that is worth composing on
REACH = 10.0  # standard deviations of the noise: the probability beyond is below 1e-22
Tail = Callable[[Array], Array]
FAINT = 0.05  # z below which losses reach hundreds: Rényi's bound is used instead


# --- the ε of rounds


def composed_epsilon(rounds: Rounds, delta: float, finer: float = 1.0) -> float | None:
    """ε at δ, on a grid `finer` times as fine as this δ needs; None if the noise is too small for any grid."""
    made = distribution(rounds, delta, finer)
    if made is None:
        return None
    found = made.get_epsilon_for_delta(delta)
    return found if math.isfinite(found) else None


def distribution(rounds: Rounds, delta: float, finer: float = 1.0) -> Losses | None:
    """The composed losses of all rounds, on a grid that suits this δ; None where the noise is too small for any grid."""
    if any(_faint(one) for one, _ in rounds):
        return None
    grid = grid_for(*spread(rounds), delta) / finer
    if grid > COARSEST:  # ε above 100,000
        return None
    return Composed(tuple((round_losses(replace(one, fails=0.0), grid), times) for one, times in rounds))


def _faint(one: Round) -> bool:
    """Whether the noise is very small: privacy losses reach several hundred."""
    most = max(count for _, count in one.counts) if one.together else 1.0
    return min(z for _, z in one.noise) < FAINT * _sensitivity(one, most)


def _sensitivity(one: Round, count: float) -> float:
    """By how much a sum changes with `count` contributions of a unit, in clip bounds; replacing a unit counts twice."""
    return (2.0 if one.replace or one.subset is not None else 1.0) * count


# --- the grid


def grid_for(deviation: float, steps: float, furthest: float, delta: float) -> float:
    """The width of the grid of losses: fine enough for three digits of ε, and no finer.

    A grid of width h adds a variance of about h²/6 to a step's loss, so ε grows by (h/deviation)²/12 of itself for any
    number of steps: 0.0006 at most. `deviation` is the standard deviation of one step's loss. Where single losses reach far
    beyond it (`furthest`: little noise, used rarely) so fine a grid would be too long, and ε is larger by a few widths.
    """
    whole = deviation * math.sqrt(steps)
    rough = whole**2 / 2 + whole * math.sqrt(2.0 * math.log(1.0 / delta))  # of many steps, by the central limit
    width = max(min(deviation / 12, rough / SHORTEST, 2e-2), rough / LONGEST, furthest / LONGEST)
    # Widths are powers of √2, so that similar settings share their distributions.
    return float(2.0 ** (math.floor(2.0 * math.log2(width)) / 2.0))


def one_step(sigma: float, rate: float) -> tuple[float, float]:
    """The approximate standard deviation of a sampled Gaussian step's loss (exact where it is small), and its reach."""
    drawn = 1.0 / sigma + 0.5 / sigma**2  # about the loss of a step that is known to use the unit
    hidden = rate * math.sqrt(math.expm1(min(1.0 / sigma**2, 30.0)))
    return min(hidden, math.sqrt(rate) * drawn), REACH / sigma + 0.5 / sigma**2


def spread(rounds: Sequence[tuple[Round, int]]) -> tuple[float, float, float]:
    """Three values over all steps that have a loss: root mean square of the standard deviations, count, largest loss."""
    steps = squares = furthest = 0.0
    for one, times in rounds:
        rate = one.subset[1] / one.subset[0] if one.subset else one.rate
        hidden = one.hidden or one.subset is not None
        for (chance, count), (share, z) in itertools.product(one.counts, one.noise):
            if count == 0:
                continue
            size, made = (count, 1.0) if one.together else (1.0, count)
            used, size = (1.0 if hidden else rate), _sensitivity(one, size)
            loss, far = one_step(z / size, rate) if hidden else (size / z, one_step(z / size, 1.0)[1])
            weight = times * one.steps * chance * share * made * used
            steps, squares, furthest = steps + weight, squares + weight * loss**2, max(furthest, far)
    return (math.sqrt(squares / steps), steps, furthest) if squares > 0 else (1.0, 1.0, 1.0)


# --- from a round to losses


@lru_cache(maxsize=256)
def round_losses(one: Round, grid: float) -> Losses:
    """The losses of a round: a mixture over participations and noise."""
    parts: list[tuple[float, Losses]] = []
    for (chance, count), (share, z) in itertools.product(one.counts, one.noise):
        if count == 0:
            parts.append((chance * share, identity(grid)))
        elif one.together:
            parts.append((chance * share, step_losses(one, z, int(count), grid).self_compose(one.steps)))
        else:
            parts.append((chance * share, step_losses(one, z, 1, grid).self_compose(one.steps * int(count))))
    return mixed(parts)


@lru_cache(maxsize=256)
def step_losses(one: Round, z: float, count: int, grid: float) -> Losses:
    """The losses of one mechanism, used by `count` parts of the unit that enter one sum."""
    if one.subset:
        return subset_losses(_sensitivity(one, count) / z, one.subset[1] / one.subset[0], one.distribution, grid)
    inside = tuple((chance, int(used)) for chance, used in binomial(count, one.rate))
    if one.distribution == "gaussian" and not one.replace and (one.hidden or len(inside) == 1):
        return gaussian_sum(z, inside, grid)
    if one.hidden and count == 1 and one.distribution == "gaussian":
        return swapped(z, one.rate, grid)
    return mixed((chance, identity(grid) if used == 0 else _noisy(one, z, used, grid)) for chance, used in inside)


def _noisy(one: Round, z: float, count: int, grid: float) -> Losses:
    """Noise of multiplier z on a sum to which the unit contributes `count` times its bound."""
    size = _sensitivity(one, count)
    return pure_losses(size / z, grid) if one.distribution == "laplace" else gaussian_sum(z / size, ((1.0, 1),), grid)


def pure_losses(epsilon: float, grid: float) -> Losses:
    """The losses of any (ε, 0)-private mechanism: randomised response, with a loss of ε or −ε."""
    reach = math.ceil(epsilon / grid)
    at = np.arange(-reach, reach + 1) * grid
    masses = connect_the_dots(grid, -reach, _pure_delta(epsilon, at))
    return OnGrid(grid, masses, masses)


def _pure_delta(epsilon: float, at: Array) -> Array:
    """δ of randomised response at each ε of `at`."""
    inside = special.expit(epsilon) - np.exp(np.minimum(at, epsilon)) * special.expit(-epsilon)
    outside = np.where(at >= epsilon, 0.0, -np.expm1(np.minimum(at, 0.0)))
    return np.where(np.abs(at) >= epsilon, outside, inside)


def gaussian_delta(mu: float, at: Array) -> Array:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) between two Gaussians μ standard deviations apart, at each ε of `at`."""
    upper, lower = special.log_ndtr(mu / 2 - at / mu), at + special.log_ndtr(-mu / 2 - at / mu)
    return np.exp(upper) * -np.expm1(np.minimum(lower - upper, 0.0))


def sampled_gaussian(z: float, rate: float, grid: float) -> Losses:
    """The losses of one Poisson-sampled Gaussian, add/remove."""
    return gaussian_sum(z, ((1.0 - rate, 0), (rate, 1)), grid)


def gaussian_sum(z: float, inside: Terms, grid: float) -> Losses:
    """A sum with Gaussian noise to which the unit adds j times its bound with probability p_j; the coin is secret."""
    return two_mixtures(z, inside, ((1.0, 0),), grid)


def swapped(z: float, rate: float, grid: float) -> Losses:
    """Poisson sampling under `replace`: neighbouring datasets differ in the value of one record."""
    return two_mixtures(z, ((1.0 - rate, 0), (rate, 1)), ((1.0 - rate, 0), (rate, -1)), grid)


@lru_cache(maxsize=64)
def subset_losses(size: float, rate: float, distribution: str, grid: float) -> Losses:
    """A secret subset of fixed size, drawn without replacement, under `replace` (Zhu, Dong and Wang 2022).

    `size` is the exchange's distance over the noise, and `rate` = γ the share of the records that is drawn. Let D(α) be the
    hockey-stick divergence of the mechanism without sampling, at α = e^ε. The outputs on two neighbours are
    (1 − γ)·μ₀ + γ·μ₁ and (1 − γ)·μ₀ + γ·μ₁', with μ₀ the output if the exchanged record is not drawn. A subset without that
    record becomes one with it by exchanging one record, so any two of μ₀, μ₁, μ₁' have a divergence of at most D(α). By
    advanced joint convexity (Balle, Barthe and Gaboardi 2018) the divergence after sampling is, for α ≥ 1, at most

        h(1 + γ(α − 1)) = γ·D(α).

    For α < 1 it follows by exchanging the neighbours: h(α) = 1 − α + α·h(1/α). This h is convex, also at α = 1 (its slopes
    there are −Q(P > Q) on the right and −1 + γ·TV(P, Q) + Q(P > Q) on the left, and Q(P > Q) ≤ (1 − TV)/2), so it is the
    divergence of one pair. That pair dominates at all α, and hence composes. The pair for α ≥ 1 alone does not (Lebeda et
    al. 2024): its divergence at α < 1 is too small.
    """
    reach = REACH * size + size**2 / 2.0 if distribution == "gaussian" else size
    last = math.ceil(float(np.logaddexp(np.log1p(-rate) if rate < 1.0 else -np.inf, reach + math.log(rate))) / grid)
    at = np.arange(last + 1) * grid
    inner = _unsampled_log(at, rate)
    above = rate * (gaussian_delta(size, inner) if distribution == "gaussian" else _pure_delta(size, inner))
    below = -np.expm1(-at[:0:-1]) + np.exp(-at[:0:-1]) * above[:0:-1]
    masses = connect_the_dots(grid, -last, np.concatenate([below, above]))
    return OnGrid(grid, masses, masses)


def _unsampled_log(at: Array, rate: float) -> Array:
    """log of the α with log(1 + γ(α − 1)) = ε, at each ε ≥ 0 of `at`."""
    small = np.log1p(np.expm1(np.minimum(at, 30.0)) / rate)
    return np.where(at > 30.0, at - math.log(rate) + np.log1p((rate - 1.0) * np.exp(-at)), small)


@lru_cache(maxsize=256)
def two_mixtures(z: float, upper: Terms, lower: Terms, grid: float) -> Losses:
    """The loss between two mixtures of Gaussians of standard deviation z, with means j ≥ 0 above and j ≤ 0 below.

    The loss at x, the logarithm of the ratio of densities, grows with x; so δ(ε) is a difference of two tails, computed
    here for all ε of the grid at once. These are the mechanisms of `from_gaussian_mechanism` with sampling and
    `from_mixture_gaussian_mechanism` in `dp_accounting`, 5 to 40 times faster (one term, 21 terms).
    """
    above, below = _Gaussians(z, upper), _Gaussians(z, lower)
    edge = (float(below.means.min()) - REACH, float(above.means.max()) + REACH)
    table = np.linspace(*edge, 4001)
    losses = above.log(table)[0] - below.log(table)[0]

    def where(epsilons: Array) -> Array:
        """x at which the loss is ε: read off the table, then two steps of Newton."""
        x: Array = np.interp(epsilons, losses, table)
        for _ in range(2):
            (up, up_slope), (down, down_slope) = above.log(x), below.log(x)
            slope = up_slope - down_slope
            step = np.divide(up - down - epsilons, slope, out=np.zeros_like(x), where=slope > 1e-12)
            x = np.clip(x - np.clip(step, -0.01, 0.01), *edge)
        return x

    low, high = float(losses[0]), float(losses[-1])
    steps = np.arange(math.floor(low / grid), math.ceil(high / grid) + 1)
    removed = _tails(steps * grid, where(steps * grid), above.beyond, below.beyond)
    back = np.arange(math.floor(-high / grid), math.ceil(-low / grid) + 1)
    added = _tails(back * grid, where(-back * grid), below.before, above.before)
    sides = ((int(at[0]), deltas) for at, deltas in ((steps, removed), (back, added)))
    return OnGrid(grid, *(connect_the_dots(grid, first, deltas) for first, deltas in sides))


class _Gaussians:
    """A mixture of Gaussians of standard deviation 1 with means j/z."""

    def __init__(self, z: float, terms: Terms) -> None:
        self.log_chances = np.log(np.array([p for p, _ in terms if p > 0]))[:, None]
        self.means = np.array([j / z for p, j in terms if p > 0])[:, None]

    def log(self, x: Array) -> tuple[Array, Array]:
        """The logarithm of the density over the standard Gaussian's, and its slope."""
        parts = self.log_chances + self.means * x[None, :] - self.means**2 / 2.0
        total = np.logaddexp.reduce(parts, axis=0)
        return total, np.sum(np.exp(parts - total) * self.means, axis=0)

    def beyond(self, x: Array) -> Array:
        """The logarithm of the probability of more than x."""
        return np.logaddexp.reduce(self.log_chances + special.log_ndtr(self.means - x), axis=0)

    def before(self, x: Array) -> Array:
        """log P(outcome < x)."""
        return np.logaddexp.reduce(self.log_chances + special.log_ndtr(x - self.means), axis=0)


def _tails(epsilons: Array, x: Array, first: Tail, second: Tail) -> Array:
    """δ at each ε, from the two tails at the outcome x with that loss."""
    upper = first(x)
    return np.exp(upper) * -np.expm1(np.minimum(epsilons + second(x) - upper, 0.0))


# --- distributions on a grid


@dataclass(frozen=True, eq=False)
class Tilted:
    """One direction's tilted losses: mass p(l) = (probs ± error)·exp(log_mass − tilt·l) at losses l = (first + i)·grid."""

    grid: float
    first: int
    probs: Array  # [losses], sums to one
    tilt: float
    log_mass: float
    error: float  # bound on the L1 distance from the exact tilted distribution
    infinity: float  # probability of an infinite loss, not tilted

    @property
    def losses(self) -> Array:
        return (self.first + np.arange(len(self.probs))) * self.grid

    def trimmed(self, mass: float) -> Tilted:
        """The same distribution without tails of at most `mass` each. The mass that is cut off counts as error."""
        left = int(np.searchsorted(np.cumsum(self.probs), mass, side="right"))
        right = len(self.probs) - int(np.searchsorted(np.cumsum(self.probs[::-1]), mass, side="right"))
        if (left == 0 and right == len(self.probs)) or right <= left:
            return self
        gone = float(self.probs[:left].sum() + self.probs[right:].sum())
        kept = self.probs[left:right]
        return Tilted(self.grid, self.first + left, kept, self.tilt, self.log_mass, self.error + gone, self.infinity)

    def log_moment(self, shift: float) -> float:
        """log E[e^(shift·loss)] under the tilted distribution."""
        return _log_sum(self.probs, shift * self.losses)

    def delta(self, epsilon: float) -> float:
        """An upper bound on δ(ε)."""
        return min(1.0, self.infinity + _exp(self._log_delta(epsilon)))

    def _log_delta(self, epsilon: float) -> float:
        """log of δ(ε) without the infinite losses."""
        start = max(0, math.floor(epsilon / self.grid) - self.first)
        over = self.losses[start:] - epsilon
        over, probs = (over[1:], self.probs[start + 1 :]) if len(over) and over[0] <= 0 else (over, self.probs[start:])
        inside = _sum(-np.expm1(-over) * np.exp(-self.tilt * over), probs)
        return self.log_mass - self.tilt * epsilon + _log(inside + self.error * peak(self.tilt))

    def epsilon(self, delta: float) -> float:
        """The least ε ≥ 0 with δ(ε) ≤ delta, rounded up by less than 1e-9 of the grid; infinite where none exists."""
        if self.infinity >= delta:
            return math.inf
        goal = math.log(delta - self.infinity)
        if self._log_delta(0.0) <= goal:
            return 0.0
        low, high = max(0, self.first) - 1, self.first + len(self.probs)  # indices: δ(low) > goal ≥ δ(high)
        while self._log_delta(high * self.grid) > goal:  # only the error term is left beyond the last loss
            if self.tilt <= 0 or high * self.grid > 1e12:
                return math.inf
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._log_delta(middle * self.grid) > goal else (low, middle)
        return _bisected(self._within(high), max(0.0, low * self.grid), high * self.grid, goal)

    def _within(self, index: int) -> Callable[[float], float]:
        """log δ for ε in the cell below loss `index`, from two sums."""
        start = max(0, index - self.first)
        top = index * self.grid
        over, probs = self.losses[start:] - top, self.probs[start:]
        upper = _sum(np.exp(-self.tilt * over), probs)
        lower = _sum(np.exp(-(self.tilt + 1.0) * over), probs)
        floor = self.error * peak(self.tilt)

        def log_delta(epsilon: float) -> float:
            tail = max(0.0, upper - math.exp(epsilon - top) * lower) * _exp(self.tilt * (epsilon - top))
            return self.log_mass - self.tilt * epsilon + _log(tail + floor)

        return log_delta


@dataclass(eq=False)
class Losses(ABC):
    """A privacy loss distribution in both directions: on a grid, a mixture, or a composition."""

    grid: float = field(init=False)
    symmetric: bool = field(init=False)  # whether both directions are the same
    _kept: dict[tuple[int, float], Tilted] = field(init=False, default_factory=dict, repr=False)
    _moments: dict[tuple[int, float], float] = field(init=False, default_factory=dict, repr=False)

    @abstractmethod
    def _log_moment(self, side: int, tilt: float) -> float: ...

    @abstractmethod
    def _tilted(self, side: int, tilt: float) -> Tilted: ...

    def log_moment(self, side: int, tilt: float) -> float:
        """K(λ) = log E[e^(λL)] over the finite losses."""
        if (side, tilt) not in self._moments:
            self._moments[side, tilt] = self._log_moment(side, tilt)
        return self._moments[side, tilt]

    def tilted(self, side: int, tilt: float) -> Tilted:
        """The loss distribution of one direction, exponentially tilted by `tilt`."""
        if (side, tilt) not in self._kept:
            self._kept[side, tilt] = self._tilted(side, tilt)
        return self._kept[side, tilt]

    @property
    def sides(self) -> tuple[int, ...]:
        return (REMOVE,) if self.symmetric else (REMOVE, ADD)

    def get_epsilon_for_delta(self, delta: float) -> float:
        """The least ε that holds with δ, from above; infinite where there is none."""
        if delta >= 1.0:
            return 0.0
        return max(self.tilted(side, self._tilt_for_delta(side, delta)).epsilon(delta) for side in self.sides)

    def get_delta_for_epsilon(self, epsilon: float) -> float:
        """δ(ε) from above."""
        return max(self.tilted(side, self.tilt_for_epsilon(side, epsilon)).delta(epsilon) for side in self.sides)

    def _tilt_for_delta(self, side: int, delta: float) -> float:
        """The tilt of the best Chernoff bound on ε, (K(λ) + log 1/δ)/λ."""
        rare = -math.log(delta)
        return _descend(lambda tilt: (self.log_moment(side, tilt) + rare) / tilt, 3, GAIN)

    def tilt_for_epsilon(self, side: int, epsilon: float) -> float:
        """The tilt of the best Chernoff bound on log δ, K(λ) − λε."""
        return _descend(lambda tilt: self.log_moment(side, tilt) - tilt * epsilon, 3)

    def self_compose(self, count: int) -> Losses:
        """The loss of `count` independent uses."""
        return self if count == 1 else Composed(((self, count),))

    def compose(self, other: Losses) -> Losses:
        """The loss of both."""
        return Composed(((self, 1), (other, 1)))


@dataclass(frozen=True, eq=False)
class Masses:
    """Probabilities of the losses (first + i)·grid, and of an infinite loss."""

    first: int
    probs: Array
    infinity: float


@dataclass(eq=False)
class OnGrid(Losses):
    """A distribution given by its probabilities."""

    grid: float
    remove: Masses
    add: Masses

    def __post_init__(self) -> None:
        self.symmetric = self.add is self.remove

    def _log_moment(self, side: int, tilt: float) -> float:
        masses = (self.remove, self.add)[side]
        return _log_sum(masses.probs, tilt * self.grid * (masses.first + np.arange(len(masses.probs))))

    def _tilted(self, side: int, tilt: float) -> Tilted:
        masses = (self.remove, self.add)[side]
        mass = self.log_moment(side, tilt)
        exponents = tilt * self.grid * (masses.first + np.arange(len(masses.probs))) - mass
        positive = masses.probs > 0
        probs = np.zeros_like(masses.probs)
        probs[positive] = np.exp(np.log(masses.probs[positive]) + exponents[positive])
        made = Tilted(self.grid, masses.first, probs, tilt, mass, 0.0, masses.infinity).trimmed(TRIMMED)
        # The exponential of a rounded number y is off by u·|y| of itself.
        size = float(np.abs(tilt * made.losses).max()) + abs(mass) + 50.0
        return Tilted(self.grid, made.first, made.probs, tilt, mass, made.error + 4.0 * UNIT * size, masses.infinity)


@dataclass(eq=False)
class Mixed(Losses):
    """A mixture whose coin the observer sees: (probability, distribution)."""

    parts: tuple[tuple[float, Losses], ...]

    def __post_init__(self) -> None:
        self.grid = self.parts[0][1].grid
        self.symmetric = all(part.symmetric for _, part in self.parts)

    def _log_moment(self, side: int, tilt: float) -> float:
        logs = [math.log(weight) + part.log_moment(side, tilt) for weight, part in self.parts]
        return float(np.logaddexp.reduce(logs))

    def _tilted(self, side: int, tilt: float) -> Tilted:
        parts = [(weight, part.tilted(side, tilt)) for weight, part in self.parts]
        logs = [math.log(weight) + part.log_mass for weight, part in parts]
        mass = float(np.logaddexp.reduce(logs))
        first = min(part.first for _, part in parts)
        probs = np.zeros(max(part.first + len(part.probs) for _, part in parts) - first)
        error = 4.0 * UNIT * (50.0 + max(map(abs, logs)))
        for log, (_, part) in zip(logs, parts, strict=True):
            share, start = math.exp(log - mass), part.first - first
            probs[start : start + len(part.probs)] += share * part.probs
            error += share * part.error
        infinity = math.fsum(weight * part.infinity for weight, part in parts)
        return Tilted(self.grid, first, probs, tilt, mass, error, infinity).trimmed(TRIMMED)


@dataclass(eq=False)
class Composed(Losses):
    """Independent losses that add up: (distribution, times)."""

    parts: tuple[tuple[Losses, int], ...]

    def __post_init__(self) -> None:
        self.grid = self.parts[0][0].grid
        self.symmetric = all(part.symmetric for part, _ in self.parts)

    def _log_moment(self, side: int, tilt: float) -> float:
        return math.fsum(times * part.log_moment(side, tilt) for part, times in self.parts)

    def _tilted(self, side: int, tilt: float) -> Tilted:
        parts = [(part.tilted(side, tilt).trimmed(TRIMMED / times), times) for part, times in self.parts]
        if len(parts) == 1 and parts[0][1] == 1:
            return parts[0][0]
        first, probs, error = _convolved(parts)
        mass = math.fsum(times * part.log_mass for part, times in parts)
        error += math.expm1(math.fsum(times * math.log1p(part.error) for part, times in parts))
        infinity = -math.expm1(math.fsum(times * math.log1p(-part.infinity) for part, times in parts))
        return Tilted(self.grid, first, probs, tilt, mass, error, infinity).trimmed(TRIMMED)


def _convolved(parts: Sequence[tuple[Tilted, int]]) -> tuple[int, Array, float]:
    """The distribution of the sum of all losses: its first index, its probabilities, and a bound on the error made here."""
    low, high = _window(parts)
    size = int(fft.next_fast_len(max(high - low + 1, *(len(part.probs) for part, _ in parts)), real=True))
    slip = BUTTERFLY * UNIT * math.log2(max(size, 2))
    product: Spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    log_size, relative = np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
    for part, times in parts:
        spectrum: Spectrum = fft.rfft(part.probs, size)
        product *= _power(spectrum, times)
        magnitude = np.abs(spectrum) + slip
        log_size += times * np.log(magnitude)
        relative += times * (slip / magnitude + 3.0 * UNIT)
    error = _norm(np.exp(log_size) * relative) + slip * _norm(np.exp(log_size))
    offset = sum(part.first * times for part, times in parts)
    probs = np.roll(fft.irfft(product, size), offset - low)[: high - low + 1]
    return low, np.maximum(probs, 0.0), error + 4.0 * OUTSIDE


def _power(values: Spectrum, count: int) -> Spectrum:
    """values**count by squaring: its relative error is at most 3u·count."""
    result: Spectrum | None = None
    while count:
        if count & 1:
            result = values.copy() if result is None else result * values
        count >>= 1
        values = values * values if count else values
    assert result is not None
    return result


def _norm(half: Array) -> float:
    """The L2 norm of a whole spectrum, from the half that a real transform keeps."""
    return math.sqrt(2.0 * _sum(half, half))


def _window(parts: Sequence[tuple[Tilted, int]]) -> tuple[int, int]:
    """Indices between which the sum of all losses falls, but for a mass of `OUTSIDE` at each end (Chernoff)."""
    grid = parts[0][0].grid
    low = sum(times * part.first for part, times in parts)
    high = sum(times * (part.first + len(part.probs) - 1) for part, times in parts)
    means = [_sum(part.losses, part.probs) for part, _ in parts]
    each = zip(parts, means, strict=True)
    spread = math.sqrt(sum(times * _sum((part.losses - mean) ** 2, part.probs) for (part, times), mean in each))
    if spread == 0.0:
        return low, high
    start = math.sqrt(-2.0 * math.log(OUTSIDE)) / spread  # the best shift for a Gaussian
    high = min(high, math.ceil(_reach(parts, start) / grid))
    low = max(low, math.floor(-_reach(parts, -start) / grid))
    return low, max(low, high)


def _reach(parts: Sequence[tuple[Tilted, int]], start: float) -> float:
    """How far the sum of all losses reaches, up (`start` > 0) or down: the best Chernoff bound near the shift `start`."""

    def bound(factor: float) -> float:
        shift = start * factor
        total = sum(times * part.log_moment(shift) for part, times in parts)
        return (total - math.log(OUTSIDE)) / abs(shift)

    return bound(_descend(bound, 0))


def _descend(bound: Callable[[float], float], at: int, gain: float = 0.0) -> float:
    """The power of two that minimises a unimodal function, found by steps from 2^at that each gain more than `gain`.

    The least gain ends the search: where losses are bounded, Chernoff bounds on ε fall for ever as the tilt grows.
    """
    value = bound(2.0**at)
    for way in (1, -1):
        while at + way in TILTS and (further := bound(2.0 ** (at + way))) < value - gain * abs(value):
            at, value = at + way, further
    return 2.0**at


def _bisected(log_delta: Callable[[float], float], low: float, high: float, goal: float) -> float:
    """The upper end of a short interval around the ε at which log δ reaches the goal."""
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if log_delta(middle) > goal else (low, middle)
    return high


def peak(tilt: float) -> float:
    """The largest (1 − e^(−x))·e^(−λx) over x ≥ 0: λ^λ/(1 + λ)^(1 + λ)."""
    return math.exp(-tilt * math.log1p(1.0 / tilt)) / (1.0 + tilt) if tilt > 0 else 1.0


def _log_sum(probs: Array, exponents: Array) -> float:
    """log Σ p·e^x without overflow."""
    positive = probs > 0
    if not positive.any():
        return -math.inf
    logs = np.log(probs[positive]) + exponents[positive]
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum()))


def _sum(values: Array, weights: Array) -> float:
    """Σ values·weights. `np.dot` starts threads for it, which cost milliseconds on a busy machine."""
    return float((values * weights).sum())


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def mixed(parts: Iterable[tuple[float, Losses]]) -> Losses:
    """The mixture with these weights; parts of weight zero are left out."""
    kept = tuple((weight, part) for weight, part in parts if weight > 0)
    return kept[0][1] if len(kept) == 1 else Mixed(kept)


def identity(grid: float) -> Losses:
    """The privacy loss of releasing nothing: always zero."""
    nothing = Masses(0, np.ones(1), 0.0)
    return OnGrid(grid, nothing, nothing)


def connect_the_dots(grid: float, first: int, deltas: Array) -> Masses:
    """The distribution on the grid whose δ(ε) meets `deltas` at ε = (first + i)·grid and is linear in e^ε between.

    A true δ(ε) is convex in e^ε, so this one is never below it: the result dominates (Doroshenko et al. 2022). With
    C_i = Σ_{j ≥ i} e^((i − j)h)·p_j, δ_i − δ_{i+1} = (1 − e^(−h))·C_{i+1}, which is solved for p. Losses below the
    first move up to it.
    """
    deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    sums = np.append(-np.diff(deltas) / -math.expm1(-grid), 0.0)  # C at indices 1 to n
    probs = np.empty_like(deltas)
    probs[1:] = np.maximum(sums[:-1] - math.exp(-grid) * sums[1:], 0.0)
    probs[0] = max(0.0, 1.0 - float(deltas[0]) - math.exp(-grid) * float(sums[0]))
    return Masses(first, probs, float(deltas[-1]))
