"""The privacy ledger: one row per tap, unit, adjacency and accountant, never an ε without its δ, unit, tap and adjacency.

A row is a function of a transcript (`transcript.py`): of what a run executed, or of what a plan would. Each mechanism in it
gives accounts (`accounts.py`); at every tap the smallest counts, and what follows a noised release is post-processing:
along example, client, server, release, broadcast an account only falls.

Rows of accountant `paper` repeat what a paper claims; they are never certified.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from fedveil.accounting import published
from fedveil.accounting.accountants import accountant_named
from fedveil.accounting.accounts import CERTIFYING, Account, accounts_of, why_none
from fedveil.accounting.transcript import Transcript
from fedveil.core.events import Release
from fedveil.core.setting import Setting
from fedveil.core.taps import ACCOUNTED_TAPS, ADJACENCIES, CHAIN, UNITS

FLOATING = "noise drawn in floating point is taken for real-valued noise"
WHOLE = (
    "noise is drawn in whole numbers; the rounding of a contribution does not depend on the other examples of its batch"
)
OUTSIDE = (
    "nothing was tuned on the same data",
    "training metrics (train_loss, update_norm) carry no noise: they stay with the server and are not published",
)
SIZES = "the clients' data sizes, which weigh their messages, are public"
FIXED = "the number of clients in a round is public"
SEEDED = (
    "not certified: train.noise_seed makes cohorts, batches and noise reproducible, so anyone with the config knows the "
    "draws"
)
ALPHAS = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)  # type I errors of a trade-off curve
APART = "no two clients hold copies of an image beyond those counted"


@dataclass(frozen=True)
class Row:
    """The account of one observer for one unit of protection."""

    tap: str
    unit: str
    accountant: str
    rule: str
    certified: bool
    adjacency: str
    epsilon: float | None
    delta: float | None
    reason: str
    assumptions: tuple[str, ...]
    rounds: int

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "assumptions": list(self.assumptions)}


def rows(
    transcript: Transcript,
    delta: float | None = None,
    *,
    accountants: Sequence[str] = ("paper", *CERTIFYING),
    units: Sequence[str] = UNITS,
) -> list[Row]:
    """All rows of a transcript."""
    transcript = transcript.charged
    delta = transcript.delta if delta is None else delta
    computed = [accountant for accountant in accountants if accountant != "paper"]
    made = [row for accountant in computed for row in _composed(transcript, delta, accountant, units)]
    if "paper" in accountants:
        claims = published.rows(transcript.claims, transcript.rounds, delta)
        made += [Row(rounds=transcript.rounds, **claim) for claim in claims if claim["unit"] in units]
    made.sort(key=lambda row: (ACCOUNTED_TAPS.index(row.tap), UNITS.index(row.unit), not row.certified))
    return made if transcript.setting.secret_draws else uncertified(made)


def certified(transcript: Transcript, tap: str, unit: str, delta: float, adjacency: str | None = None) -> Row:
    """The certificate for one tap and unit, or the reason why none exists.

    Of the neighbouring relations the first with a number is taken, and of the accountants the one that finds the smallest.
    """
    transcript = transcript.charged
    found: list[Row] = []
    for wanted in (adjacency,) if adjacency else ADJACENCIES:
        every = (_composed(transcript, delta, one, (unit,), (wanted,), tap) for one in _accountants(transcript))
        found = [row for rows_of_one in every for row in rows_of_one if row.tap == tap]
        numbers = [row for row in found if row.epsilon is not None]
        if numbers:
            best = min(numbers, key=lambda row: (not row.certified, row.epsilon))
            return best if transcript.setting.secret_draws else uncertified([best])[0]
    return found[0]


def uncertified(rows: Sequence[Row], reason: str = SEEDED) -> list[Row]:
    """The rows without their certificates: ε keeps its number, and `reason` says why it is not certified."""
    told = [f"{row.reason}; {reason}" if row.reason else reason for row in rows]
    pairs = zip(rows, told, strict=True)
    return [replace(row, certified=False, reason=why) if row.certified else row for row, why in pairs]


def as_planned(setting: Setting) -> Setting:
    """The setting of the plan: the same training with secret draws and all of its rounds.

    `train.noise_seed` and `train.stop` are left out.
    """
    return replace(setting, secret_draws=True, may_stop=False)


@dataclass(frozen=True)
class Curve:
    """How well the best test for a unit can do: μ of Gaussian differential privacy, and the trade-off of its two errors."""

    mu: float | None  # the rounds are μ-GDP at every δ of 1e-10 or more; None where no μ is found
    trade_off: tuple[tuple[float, float], ...]  # (type I error, the least type II error)

    def as_dict(self) -> dict[str, object]:
        return {"mu": self.mu, "trade_off": [list(point) for point in self.trade_off]}


def curve(transcript: Transcript, row: Row, alphas: Sequence[float] = ALPHAS) -> Curve | None:
    """The curve behind a row of accountant `pld`; None where the row has no number."""
    if row.epsilon is None or row.delta is None or row.accountant != "pld":
        return None
    transcript, before = transcript.charged, CHAIN[: CHAIN.index(row.tap) + 1]
    alike = [one for one in _every(transcript) if (one.unit, one.adjacency) == (row.unit, row.adjacency)]
    found = (one for one in alike if one.tap in before and one.epsilon(row.delta, "pld") == row.epsilon)
    behind = next(found, None)
    if behind is None:
        return None
    from fedveil.accounting.curves import gdp_mu, trade_off

    mus = [gdp_mu(rounds) for rounds in behind.rounds]
    errors = [trade_off(rounds, alphas) for rounds in behind.rounds]
    worst = [min(column) for column in zip(*errors, strict=True)]
    mu = None if any(one is None for one in mus) else max((one for one in mus if one is not None), default=0.0)
    return Curve(mu, tuple(zip(alphas, worst, strict=True)))


def _accountants(transcript: Transcript) -> tuple[str, ...]:
    """The accountants that can matter: Rényi's finds less only where samples have a fixed size."""
    setting = transcript.setting
    fixed = setting.sampling == "fixed" or setting.batching == "without-replacement"
    return CERTIFYING if fixed else ("pld",)


def _composed(
    transcript: Transcript,
    delta: float,
    accountant: str,
    units: Sequence[str] = UNITS,
    adjacencies: Sequence[str] = ADJACENCIES,
    last: str = CHAIN[-1],
) -> Iterator[Row]:
    """Rows for these units and adjacencies, for the taps of the chain up to `last`."""
    chain = CHAIN[: CHAIN.index(last) + 1]
    every = _every(transcript)
    for unit in units:
        accounted = set()
        for adjacency in adjacencies:
            best: Row | None = None
            for tap in chain:
                for account in every:
                    if (account.tap, account.unit, account.adjacency) == (tap, unit, adjacency):
                        best = _smaller(best, account, transcript, delta, accountant)
                if best is not None:
                    accounted.add(tap)
                    reason = f"post-processing of the {best.tap} tap: {best.reason}"
                    yield best if best.tap == tap else replace(best, tap=tap, reason=reason)
        for tap in chain:
            if tap not in accounted:
                tried = any(a.unit == unit and CHAIN.index(a.tap) <= CHAIN.index(tap) for a in every)
                where = adjacencies[0] if len(adjacencies) == 1 else "zero-out"
                why = why_none(tap, unit, _held(transcript), tried)
                yield Row(tap, unit, accountant, "none", False, where, None, None, why, (), transcript.rounds)


def _every(transcript: Transcript) -> list[Account]:
    """The accounts of all releases whose guarantee holds."""
    return [
        account
        for number, release in enumerate(_held(transcript))
        if release.certifiable
        for account in accounts_of(release, transcript.setting, transcript.multipliers(number))
    ]


def _held(transcript: Transcript) -> list[Release]:
    """The releases, each with what the executed rounds leave of its guarantee."""
    return [_after(release, transcript) for release in transcript.releases]


def _after(release: Release, transcript: Transcript) -> Release:
    """A client that is lost or whose message is dropped takes its noise with it, and the others weigh more."""
    gone = transcript.lost or transcript.unknown if not transcript.setting.quorum else 0  # a quorum's noise is enough
    if release.client_noise_sums and (gone or transcript.dropped):
        release = replace(release, client_noise_sums=False)
    if not release.certifiable or not release.on_sum:
        return release
    reason = ""
    if transcript.lost and release.stage == "broadcast":
        reason = "answers were lost, so that those who answered weighed more in the model than the noise covers"
    elif transcript.dropped and transcript.setting.sampling != "poisson":
        reason = "messages were left out for not being finite, so that what the sum is divided by depends on data"
    return replace(release, certifiable=False, reason=reason) if reason else release


def _smaller(best: Row | None, account: Account, transcript: Transcript, delta: float, accountant: str) -> Row | None:
    """The row of the smaller ε of the two."""
    epsilon = account.epsilon(delta, accountant)
    if epsilon is None or (best is not None and best.epsilon is not None and best.epsilon <= epsilon):
        return best
    release = account.release
    return Row(
        tap=account.tap,
        unit=account.unit,
        accountant=accountant,
        rule=account.rule,
        certified=accountant_named(accountant).certifies and not release.every_round,
        adjacency=account.adjacency,
        epsilon=epsilon,
        delta=delta,
        reason=account.why,
        assumptions=(
            *account.assumptions,
            *release.assumes,
            *_assumed(account, transcript),
            *OUTSIDE,
        ),
        rounds=transcript.rounds,
    )


def _assumed(account: Account, transcript: Transcript) -> tuple[str, ...]:
    """The assumptions that follow from the setting."""
    setting = transcript.setting
    made = [SIZES] if setting.weights == "size" else []
    made += [FIXED] if setting.sampling == "fixed" else []
    made += [APART] if account.unit == "image" else []
    made += [WHOLE if account.release.arithmetic == "integer" else FLOATING]
    return tuple(made)


def tuned(
    transcripts: Sequence[Transcript], unit: str, adjacency: str, delta: float, mean: float
) -> tuple[float | None, tuple[str, ...]]:
    """ε of the model that is the best of K trainings, each of one of these plans at random; and what it assumes.

    K is geometric with this mean. All plans must have the same accounts: else no ε is given. The adversary sees the
    released model alone.
    """
    from fedveil.accounting.tuning import tuned_epsilon

    plans = [[a for a in _every(t.charged) if (a.unit, a.adjacency) == (unit, adjacency)] for t in transcripts]
    if any([a.rounds for a in plan] != [a.rounds for a in plans[0]] for plan in plans):
        return None, ()
    best: tuple[float | None, tuple[str, ...]] = None, ()
    for account in plans[0]:
        if account.tap not in CHAIN[: CHAIN.index("release") + 1] or account.release.every_round:
            continue
        found = [tuned_epsilon(rounds, delta, mean, 1.0) for rounds in account.rounds]
        known = [epsilon for epsilon in found if epsilon is not None]
        if len(known) == len(found) and (best[0] is None or max(known, default=0.0) < best[0]):
            assumed = (*account.assumptions, *account.release.assumes, *_assumed(account, transcripts[0]), OUTSIDE[0])
            best = max(known, default=0.0), assumed
    return best
