"""The privacy ledger: one row per tap, unit, adjacency and accountant, never an ε without its δ, unit, tap and adjacency.

A row is a function of a transcript (`transcript.py`): of what a run executed, or of what a plan would. Each mechanism in it
gives accounts (`accounts.py`); at every tap the smallest counts, and what follows a noised release is post-processing:
along example, client, server, release, broadcast an account only falls.

Rows of accountant `paper` repeat what a paper claims; they are never certified.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from fedveil.accounting import published
from fedveil.accounting.accountants import Round, accountant_named
from fedveil.accounting.accounts import CERTIFYING, Account, accounts_of, realised, realised_epsilon, why_none
from fedveil.accounting.transcript import Transcript
from fedveil.core.events import Release
from fedveil.core.setting import Setting
from fedveil.core.taps import ACCOUNTED_TAPS, ADJACENCIES, CHAIN, NODE_UNITS, UNITS

OUTSIDE = (
    "noise drawn in floating point is taken for real-valued noise",
    "nothing was tuned on the same data",
    "training metrics (train_loss, update_norm) carry no noise: they stay with the server and are not published",
)
SIZES = "the clients' data sizes, which weigh their messages, are public"
FIXED = "the number of clients in a round is public"
SEEDED = (
    "not certified: train.noise_seed makes cohorts, batches and noise reproducible, so whoever has the config knows the "
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
    made = [
        row
        for accountant in accountants
        if accountant != "paper"
        for row in _composed(transcript, delta, accountant, units)
    ]
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
        found = [
            row
            for accountant in _accountants(transcript)
            for row in _composed(transcript, delta, accountant, (unit,), (wanted,), tap)
            if row.tap == tap
        ]
        numbers = [row for row in found if row.epsilon is not None]
        if numbers:
            best = min(numbers, key=lambda row: (not row.certified, row.epsilon))
            return best if transcript.setting.secret_draws else uncertified([best])[0]
    return found[0]


def uncertified(rows: Iterable[Row], reason: str = SEEDED) -> list[Row]:
    """The rows without their certificates: ε keeps its number, and `reason` says why it is not certified."""
    return [
        replace(row, certified=False, reason=f"{row.reason}; {reason}" if row.reason else reason)
        if row.certified
        else row
        for row in rows
    ]


def as_planned(setting: Setting) -> Setting:
    """The setting of the plan: the same training with secret draws, `train.noise_seed` left out."""
    return replace(setting, secret_draws=True)


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
    found = [
        account
        for account in _every(transcript)
        if (account.unit, account.adjacency) == (row.unit, row.adjacency) and account.tap in before
    ]
    behind = next((account for account in found if account.epsilon(row.delta, "pld") == row.epsilon), None)
    if behind is None:
        return None
    from fedveil.accounting.curves import gdp_mu, trade_off

    mus = [gdp_mu(rounds) for rounds in behind.rounds]
    errors = [trade_off(rounds, alphas) for rounds in behind.rounds]
    worst = [min(column) for column in zip(*errors, strict=True)]
    mu = None if any(one is None for one in mus) else max((one for one in mus if one is not None), default=0.0)
    return Curve(mu, tuple(zip(alphas, worst, strict=True)))


def realised_rows(transcript: Transcript, delta: float | None = None) -> list[Row]:
    """The account of a client that took part in every round of the transcript, at the tap `server` (rule `realised`)."""
    delta = transcript.delta if delta is None else delta
    made = []
    for unit, adjacency in itertools.product(NODE_UNITS, ("zero-out", "replace")):
        rounds: list[Round | None] = []
        why = ""
        for multipliers, times in transcript.groups:
            one, why = realised(_held(transcript), multipliers, transcript.setting, unit, adjacency)
            rounds += [one] * times
        epsilon = realised_epsilon(rounds, delta)
        known = math.isfinite(epsilon)
        reason = why or "counts the rounds that the client took part in"
        made.append(
            Row(
                tap="server",
                unit=unit,
                accountant="pld",
                rule="realised",
                certified=known,
                adjacency=adjacency,
                epsilon=epsilon if known else None,
                delta=delta if known else None,
                reason=reason,
                assumptions=OUTSIDE if known else (),
                rounds=transcript.rounds,
            )
        )
    return made if transcript.setting.secret_draws else uncertified(made)


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
                    yield best if best.tap == tap else _processed(best, tap)
        for tap in chain:
            if tap not in accounted:
                tried = any(a.unit == unit and CHAIN.index(a.tap) <= CHAIN.index(tap) for a in every)
                where = adjacencies[0] if len(adjacencies) == 1 else "zero-out"
                yield _open(
                    tap, unit, accountant, where, transcript.rounds, why_none(tap, unit, _held(transcript), tried)
                )


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
    if release.client_noise_sums and (transcript.lost or transcript.dropped or transcript.unknown):
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
        assumptions=(*account.assumptions, *release.assumes, *_assumed(account, transcript), *OUTSIDE),
        rounds=transcript.rounds,
    )


def _assumed(account: Account, transcript: Transcript) -> tuple[str, ...]:
    """What the account takes from the setting."""
    setting = transcript.setting
    made = [SIZES] if setting.weights == "size" else []
    made += [FIXED] if setting.sampling == "fixed" else []
    made += [APART] if account.unit == "image" else []
    return tuple(made)


def _processed(row: Row, tap: str) -> Row:
    return replace(row, tap=tap, reason=f"post-processing of the {row.tap} tap: {row.reason}")


def _open(tap: str, unit: str, accountant: str, adjacency: str, rounds: int, reason: str) -> Row:
    return Row(tap, unit, accountant, "none", False, adjacency, None, None, reason, (), rounds)
