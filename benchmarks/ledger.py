"""What an account costs: ours against `dp_accounting`, the library that both sides compose with.

Theirs is that library's own accountant for privacy loss distributions where it knows the mechanism, and else its own
distributions put together by hand. Every turn starts with empty caches. Sides are compared only where they give the same
ε, to one part in a hundred: a quick answer to another question is no speed.

| row | ours | theirs |
|---|---|---|
| `ledger/table-6/SETTING` | a distinct account of fed-cdp's Table VI, the paper's rule computed tightly | `PLDAccountant` |
| `ledger/steps/10000` | 10,000 sampled steps, the client in every round | `PLDAccountant` |
| `ledger/participation/10000` | 100 rounds of 100 steps, in each by a visible coin | distributions, mixed and composed |
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
SAME = 0.01  # the part of ε by which two sides may differ and still have done the same work
ROUNDS, STEPS, PRESENT = 100, 100, 0.1  # T, L and Kt/K of fed-cdp's MNIST federation
RATE = 0.01  # q of one local step: B = 5 of N_i = 500
TABLE = {
    **{f"fed-cdp-{steps}": (RATE, steps) for steps in (3, 10, 60, 100, 300, 1000, 6000, 10_000)},
    **{f"fed-sdp-{steps}": (PRESENT, steps) for steps in (3, 10, 60, 100)},
}
"""q and the number of steps of every distinct account in the table: rounds times 1 or 100 local steps, or rounds alone."""

Side = Callable[[], float | None]  # an ε, worked out anew


@dataclass(frozen=True)
class Case:
    """Two ways to the same ε."""

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
        ours, theirs = _timed(case.ours)[0], _timed(case.theirs)[0]  # warms up, and shows whether they agree
        if not agree(ours, theirs):
            progress(f"bench ledger: {name}: ε is {ours} here and {theirs} there, not the same work: not compared")
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
    """Whether both found an ε, and the same one."""
    return ours is not None and theirs is not None and abs(ours - theirs) <= SAME * max(ours, theirs)


def their_accountant(rate: float, steps: int) -> float:
    """ε of sampled Gaussian steps by the library's own accountant, as its users call it."""
    import dp_accounting as dp

    event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(SIGMA))
    accountant = dp.pld.PLDAccountant()
    accountant.compose(dp.SelfComposedDpEvent(event, steps))
    return float(accountant.get_epsilon(DELTA))


def their_distributions(one: Round, rounds: int) -> float:
    """ε of rounds in which the unit takes part or not: its accountant knows no such event, its distributions do."""
    from dp_accounting.pld import privacy_loss_distribution as plds

    ((_, z),) = one.noise
    ((absent, _), _) = one.counts
    inside = plds.from_gaussian_mechanism(z, sampling_prob=one.rate).self_compose(one.steps)
    mixed = plds.identity().compute_mixture(inside, absent)
    return float(mixed.self_compose(rounds).get_epsilon_for_delta(DELTA))


def _timed(side: Side) -> tuple[float | None, float]:
    """What a side finds and the seconds it takes, nothing being remembered from before."""
    forget()
    started = time.perf_counter()
    return side(), time.perf_counter() - started


def forget() -> None:
    """Empties every cache of ours."""
    from fedveil.accounting import pld, rdp

    for module in (accountants, pld, rdp, published):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def processor() -> str:
    """The processor's kind: accounts are computed there, whatever JAX runs on."""
    return platform.processor() or platform.machine()
