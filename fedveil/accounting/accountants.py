"""Accountants: from what one round does to one unit, to an ε over many rounds.

    epsilon(((Round(noise=((1.0, 6.0),)), 100),), delta=1e-5, accountant="pld")

A `Round` says how often a round uses a unit and behind how much noise. All its coins are independent of the data, so an
account may reveal them to the observer: the privacy loss of a round is then a mixture over the outcomes, and rounds
compose. Where a coin stays secret (`hidden`, `subset`), sampling amplifies.

Three accountants are registered here: `pld` (privacy loss distributions, tight), `rdp` (Rényi divergences) and `paper` (the
papers' own rule, never certified). `pld` and `rdp` bound ε from above. To add one, write a class with the three members of
`Accountant` and register an instance by `fedveil.register_accountant`, or name it in an entry point of the group
`fedveil.accountants`; CONTRIBUTING.md has an example. Modules that need numpy, scipy or `dp_accounting` are imported on
first use: `fedveil --help` does not wait for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Protocol, runtime_checkable

from fedveil.core.errors import ConfigError
from fedveil.core.plugins import Registry

Mixture = tuple[tuple[float, float], ...]  # (probability, value); the probabilities sum to one
Terms = tuple[tuple[float, int], ...]  # (probability, multiple of the unit's bound)
ALWAYS: Mixture = ((1.0, 1.0),)

RESERVES = (1e-3, 0.5)  # shares of δ for noise that is not quite the ideal: the second where ε is large
TAIL = 1e-13  # probability of outcomes that are left out of a mixture and added to δ


@dataclass(frozen=True)
class Round:
    """What one round does to one unit of protection, under zero-out or add/remove unless `replace`.

    In a round the unit takes part `counts` times (a mixture: 0 or 1 for one record, more for the copies of an image). Each
    time it passes `steps` mechanisms, and each uses it with probability `rate`. The observer sees that coin unless it is
    `hidden`.
    `noise` is z, the noise standard deviation over the sensitivity; it is a mixture where it depends on who else took part.
    With `together`, all participations enter one sum and their contributions add up against one noise; otherwise each has
    its own noise.
    """

    noise: Mixture
    steps: int = 1
    rate: float = 1.0
    hidden: bool = False
    counts: Mixture = ALWAYS
    together: bool = False
    distribution: Literal["gaussian", "laplace"] = "gaussian"
    replace: bool = False
    subset: tuple[int, int] | None = None  # (size, drawn): a secret subset of fixed size; replace adjacency
    fails: float = 0.0  # probability per round of outcomes that are left out; it is taken off δ
    slip: float = 0.0  # total variation per round between the noise and the ideal; (1 + e^ε) of it is taken off δ


Rounds = tuple[tuple[Round, int], ...]  # (round, how often)


def binomial(count: int, rate: float) -> Mixture:
    """The number of successes of `count` independent coins; all outcomes."""
    if rate >= 1.0:
        return ((1.0, float(count)),)
    if count == 1:  # the usual case, without the slow import
        return ((1.0 - rate, 0.0), (rate, 1.0))
    from scipy import stats

    values = range(count + 1)
    return tuple((float(p), float(v)) for p, v in zip(stats.binom.pmf(values, count, rate), values, strict=True))


def hypergeometric(total: int, marked: int, drawn: int) -> Mixture:
    """The number of marked elements in a subset of fixed size, drawn without replacement."""
    from scipy import stats

    values = range(max(0, drawn - (total - marked)), min(marked, drawn) + 1)
    chances = stats.hypergeom.pmf(values, total, marked, drawn)
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
    # The lowest bins hold very unlikely values, so that the other bins start near the bulk.
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


# --- the registry


@runtime_checkable
class Accountant(Protocol):
    """Turns rounds into an ε at δ.

    `certifies` says whether ε is a proven upper bound on what the rounds cost; where it is false, no row of this accountant
    is certified. `epsilon` gets each distinct round once, with how often it happens (at least once), and returns None
    where it has no bound. `Round.fails` is already taken off δ.
    """

    @property
    def name(self) -> str: ...

    @property
    def certifies(self) -> bool: ...

    def epsilon(self, rounds: Rounds, delta: float) -> float | None: ...


def register_accountant(accountant: Accountant, *, replace: bool = False) -> None:
    """Makes an accountant known under its name. A name that is taken is refused unless `replace` is true."""
    made = accountant() if isinstance(accountant, type) else accountant
    if not isinstance(made, Accountant):
        raise TypeError(f"{accountant!r} is no accountant: it needs name, certifies and epsilon(rounds, delta)")
    if not replace and made.name in ACCOUNTANTS:
        raise ConfigError("accountant", made.name, "is registered already: choose another name")
    ACCOUNTANTS[made.name] = made
    epsilon.cache_clear()


def accountant_named(name: str) -> Accountant:
    """The accountant of this name, or an error that names the known ones."""
    if name not in ACCOUNTANTS:
        raise ConfigError("accountant", name, f"is not registered: choose one of {', '.join(ACCOUNTANTS)}")
    return ACCOUNTANTS[name]


@lru_cache(maxsize=1024)
def epsilon(rounds: Rounds, delta: float, accountant: str) -> float | None:
    """ε at δ of these rounds by the accountant of this name; None where it has no bound."""
    rounds = tuple((one, times) for one, times in rounds if times > 0)
    left = delta - sum(one.fails * times for one, times in rounds)
    if left <= 0:
        return None
    if not rounds:
        return 0.0
    slip = sum(one.slip * times for one, times in rounds)
    ideal = tuple((replace(one, slip=0.0), times) for one, times in rounds) if slip else rounds
    for share in RESERVES if slip else (0.0,):
        found = accountant_named(accountant).epsilon(ideal, left * (1.0 - share))
        if found is None or not slip or (1.0 + math.exp(min(found, 700.0))) * slip <= left * share:
            return found
    return None


class PLD:
    """Privacy loss distributions; Rényi divergences where no grid is fine enough or δ is out of reach."""

    name = "pld"
    certifies = True

    def epsilon(self, rounds: Rounds, delta: float) -> float | None:
        from fedveil.accounting import pld, rdp

        found = pld.composed_epsilon(rounds, delta)
        return rdp.epsilon(rounds, delta) if found is None else found


class RDP:
    """Rényi divergences: looser than `pld`, and defined wherever there is noise."""

    name = "rdp"
    certifies = True

    def epsilon(self, rounds: Rounds, delta: float) -> float | None:
        from fedveil.accounting import rdp

        return rdp.epsilon(rounds, delta)


class Paper:
    """The moments accountant as the papers use it, for the rounds that they account for. Never certified."""

    name = "paper"
    certifies = False

    def epsilon(self, rounds: Rounds, delta: float) -> float | None:
        """None for several kinds of rounds, and for anything but Gaussian steps on Poisson samples."""
        from fedveil.accounting import published

        if len(rounds) != 1 or not _is_sampled_gaussian(rounds[0][0]):
            return None
        ((one, times),) = rounds
        return published.moments(one.noise[0][1], one.rate, one.steps * times, delta)


def _is_sampled_gaussian(one: Round) -> bool:
    plain = one.counts == ALWAYS and len(one.noise) == 1 and not one.replace and one.subset is None
    return plain and one.distribution == "gaussian" and (one.hidden or one.rate >= 1.0)


ACCOUNTANTS: Registry[Accountant] = Registry(
    "fedveil.accountants", register_accountant, {"pld": PLD(), "rdp": RDP(), "paper": Paper()}
)
