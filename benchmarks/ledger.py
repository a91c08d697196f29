"""The cost of computing ε: our accountant against the library `dp_accounting`.

Their side is the library's accountant for privacy loss distributions where it has an event for the mechanism, and else
the library's distributions, mixed and composed by hand. Every turn starts with empty caches. The two sides are compared
only where their ε agree to 1 %: a fast answer to a different question is no speed-up.

| row | ours | theirs |
|---|---|---|
| `ledger/table-6/SETTING` | a distinct account of fed-cdp's Table VI, by a tight accountant | `PLDAccountant` |
| `ledger/steps/10000` | 10,000 sampled steps, the client in every round | `PLDAccountant` |
| `ledger/participation/10000` | 100 rounds of 100 steps, random public participation | distributions, mixed and composed |
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.rows import row
from fedveil.accounting import accountants, published
from fedveil.accounting.accountants import Round

SIGMA, DELTA = 6.0, 1e-5
SAME = 0.01  # the relative difference of ε up to which both sides did the same work
ROUNDS, STEPS, PRESENT = 100, 100, 0.1  # T, L and Kt/K of fed-cdp's MNIST federation
RATE = 0.01  # q of one local step: B = 5 of N_i = 500
TABLE = {
    **{f"fed-cdp-{steps}": (RATE, steps) for steps in (3, 10, 60, 100, 300, 1000, 6000, 10_000)},
    **{f"fed-sdp-{steps}": (PRESENT, steps) for steps in (3, 10, 60, 100)},
}
"""(q, steps) of every distinct account in the table. Steps are rounds times 1 or 100 local steps, or rounds alone."""

Side = Callable[[], float | None]  # computes ε from scratch


@dataclass(frozen=True)
class Case:
    """Two ways to compute the same ε."""

    ours: Side
    theirs: Side


def run(
    repeats: int = 7,
    progress: Callable[[str], None] = lambda line: None,
    chosen: dict[str, Case] | None = None,
) -> Iterator[dict[str, object]]:
    """A row for each account on which both sides agree."""
    for name, case in (cases() if chosen is None else chosen).items():
        progress(f"bench ledger: {name}")
        ours, theirs = _timed(case.ours)[0], _timed(case.theirs)[0]  # also warms up
        if not agree(ours, theirs):
            progress(
                f"bench ledger: {name}: our ε is {ours} and theirs {theirs}; not compared, because the work differs"
            )
            continue
        turns = [(_timed(case.ours)[1], _timed(case.theirs)[1]) for _ in range(repeats)]
        made = row(f"ledger/{name}", [a for a, _ in turns], [b for _, b in turns], device=processor())
        yield made | {"epsilon_ours": ours, "epsilon_theirs": theirs}


def cases() -> dict[str, Case]:
    """The accounts of the module's table."""
    made = {f"table-6/{name}": _sampled(rate, steps) for name, (rate, steps) in TABLE.items()}
    step = Round(noise=((1.0, SIGMA),), rate=RATE, hidden=True)
    always = ((step, ROUNDS * STEPS),)
    made["steps/10000"] = Case(
        lambda: accountants.epsilon(always, DELTA, "pld"), lambda: their_accountant(RATE, ROUNDS * STEPS)
    )
    seen = Round(
        noise=((1.0, SIGMA),), rate=RATE, hidden=True, steps=STEPS, counts=((1 - PRESENT, 0.0), (PRESENT, 1.0))
    )
    made["participation/10000"] = Case(
        lambda: accountants.epsilon(((seen, ROUNDS),), DELTA, "pld"), lambda: their_distributions(seen, ROUNDS)
    )
    return made


def _sampled(rate: float, steps: int) -> Case:
    return Case(lambda: published.moments_pld(SIGMA, rate, steps, DELTA), lambda: their_accountant(rate, steps))


def agree(ours: float | None, theirs: float | None) -> bool:
    """Whether both sides found an ε and these agree to `SAME`."""
    return ours is not None and theirs is not None and abs(ours - theirs) <= SAME * max(ours, theirs)


def their_accountant(rate: float, steps: int) -> float:
    """ε of sampled Gaussian steps by the library's accountant, called as its documentation shows."""
    import dp_accounting as dp

    event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(SIGMA))
    accountant = dp.pld.PLDAccountant()
    accountant.compose(dp.SelfComposedDpEvent(event, steps))
    return float(accountant.get_epsilon(DELTA))


def their_distributions(one: Round, rounds: int) -> float:
    """ε of rounds in which the unit takes part at random. The library has no such event, so its distributions are mixed."""
    from dp_accounting.pld import privacy_loss_distribution as plds

    ((_, z),) = one.noise
    ((absent, _), _) = one.counts
    inside = plds.from_gaussian_mechanism(z, sampling_prob=one.rate).self_compose(one.steps)
    mixed = plds.identity().compute_mixture(inside, absent)
    return float(mixed.self_compose(rounds).get_epsilon_for_delta(DELTA))


def _timed(side: Side) -> tuple[float | None, float]:
    """The ε of a side and the seconds it took, with empty caches."""
    forget()
    started = time.perf_counter()
    return side(), time.perf_counter() - started


def forget() -> None:
    """Empties every cache of our accountants."""
    from fedveil.accounting import pld, rdp

    for module in (accountants, pld, rdp, published):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def processor() -> str:
    """The kind of processor. Accounts are computed on it, whatever device JAX uses."""
    return platform.processor() or platform.machine()
