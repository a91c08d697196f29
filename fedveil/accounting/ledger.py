"""The privacy ledger: one row per tap, unit, adjacency and accountant, never an ε without its δ, unit, tap and adjacency.

Defences declare what they release (`events.Release`); this module works out what holds over the rounds, given how clients
and batches are drawn, and prints the conditions as the row's assumptions. Rules, in short:

- **One record** (unit `example`). Being chosen may be visible, so client sampling does not amplify; but the number of
  rounds in which the client takes part is a coin of its own, and δ is averaged over it (rule `participation`). In a client
  Poisson batches amplify, by B/N_i of the smallest client; shuffled ones do not (one use per epoch).
- **One image** with all its copies: the copies' participations compose, and where they meet in one sum they add up.
- **One client**: no amplification at the client and server taps. Behind noise that the server adds once, Poisson cohorts
  amplify, for observers who do not know the cohort. A client's account with `replace` holds for each of its records too.
- What follows a noised release is post-processing: along example, client, server, release, broadcast an account only falls.
- On a sum over clients that each drew noise of their own the noises add up, as far as clients really answered.

Rows of accountant `paper` repeat what a paper claims; they are never certified.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from fedveil.accounting import accountants, published, seeded
from fedveil.accounting.accountants import Mixture, Round
from fedveil.core.events import Release
from fedveil.core.setting import Setting
from fedveil.core.taps import ACCOUNTED_TAPS, ADJACENCIES, CHAIN, UNITS
from fedveil.defenses.base import Defense

ACCOUNTANTS = ("pld", "rdp")
SIZE_GROUPS = 4  # clients of like size share an account
NOISE_LEVELS = 12  # so many values of z are told apart where it changes from round to round

OUTSIDE = (
    "noise drawn in floating point is taken for real-valued noise",
    "nothing was tuned on the same data",
)


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


@dataclass(frozen=True)
class Account:
    """One way to account for a unit at a tap."""

    release: Release
    tap: str
    unit: str
    adjacency: str
    rule: str
    rounds: tuple[tuple[tuple[Round, int], ...], ...]  # alternatives of which the worst counts (clients of other sizes)
    why: str
    assumptions: tuple[str, ...]
    accountants: tuple[str, ...] = ACCOUNTANTS

    def epsilon(self, delta: float, accountant: str) -> float | None:
        if accountant not in self.accountants:
            return None
        worst = 0.0
        for rounds in self.rounds:
            found = accountants.epsilon(rounds, delta, accountant)
            if found is None:
                return None
            worst = max(worst, found)
        return worst


def rows(
    defenses: Sequence[Defense],
    setting: Setting,
    rounds: int,
    delta: float | None = None,
    *,
    lost_noise: bool = False,
    accountants: Sequence[str] = ("paper", *ACCOUNTANTS),
    units: Sequence[str] = UNITS,
) -> list[Row]:
    """All rows after so many rounds. `lost_noise`: updates were dropped for not being finite, and their noise with them."""
    delta = delta_of(defenses) if delta is None else delta
    made = [
        row
        for accountant in ACCOUNTANTS
        if accountant in accountants
        for row in _composed(defenses, setting, rounds, delta, accountant, lost_noise, units)
    ]
    if "paper" in accountants:
        claims = published.rows(defenses, setting, rounds, delta)
        made += [Row(rounds=rounds, **claim) for claim in claims if claim["unit"] in units]
    made.sort(key=lambda row: (ACCOUNTED_TAPS.index(row.tap), UNITS.index(row.unit), not row.certified))
    return made if setting.secret_draws else seeded.uncertified(made)


def delta_of(defenses: Sequence[Defense]) -> float:
    """The δ of the first defence that has one."""
    return float(next((d.delta for d in defenses if hasattr(d, "delta")), 1e-5))


def certified(
    defenses: Sequence[Defense],
    setting: Setting,
    rounds: int,
    tap: str,
    unit: str,
    delta: float,
    adjacency: str | None = None,
) -> Row:
    """The certificate for one tap and unit: of the adjacencies in which presence matters the one with a number, or why
    there is none."""
    known_by = ["pld"]
    if setting.sampling == "fixed" or setting.batching == "without-replacement":
        known_by.append("rdp")  # which alone knows how fixed-size samples amplify
    found: list[Row] = []
    for wanted in (adjacency,) if adjacency else ADJACENCIES:
        found = [
            row
            for accountant in known_by
            for row in _composed(defenses, setting, rounds, delta, accountant, False, (unit,), (wanted,), tap)
            if row.tap == tap
        ]
        numbers = [row for row in found if row.epsilon is not None]
        if numbers:
            best = min(numbers, key=lambda row: (not row.certified, row.epsilon))
            return best if setting.secret_draws else seeded.uncertified([best])[0]
    return found[0]


def _composed(
    defenses: Sequence[Defense],
    setting: Setting,
    rounds: int,
    delta: float,
    accountant: str,
    lost_noise: bool,
    units: Sequence[str] = UNITS,
    adjacencies: Sequence[str] = ADJACENCIES,
    last: str = CHAIN[-1],
) -> Iterator[Row]:
    """Rows for these units and adjacencies, for the taps of the chain up to `last`."""
    chain = CHAIN[: CHAIN.index(last) + 1]
    declared = _declared(defenses, setting, lost_noise)
    every = [a for release in declared if release.covered for a in _accounts(release, setting, rounds)]
    for unit in units:
        accounted = set()
        for adjacency in adjacencies:
            best: Row | None = None
            for tap in chain:
                for account in every:
                    if (account.tap, account.unit, account.adjacency) == (tap, unit, adjacency):
                        best = _smaller(best, account, delta, accountant, rounds)
                if best is not None:
                    accounted.add(tap)
                    yield best if best.tap == tap else _processed(best, tap)
        for tap in chain:
            if tap not in accounted:
                tried = any(a.unit == unit and CHAIN.index(a.tap) <= CHAIN.index(tap) for a in every)
                where = adjacencies[0] if len(adjacencies) == 1 else "zero-out"
                yield _open(tap, unit, accountant, where, rounds, _why_none(tap, unit, declared, tried))


def one_round(defenses: Sequence[Defense], setting: Setting, number: int, unit: str) -> tuple[Round | None, str]:
    """What round `number` costs one unit at a client that takes part and sends its update: for a node's own account.

    `setting` holds the client's own size and steps. Neighbours are zero-out (for records behind a bound on whole clients:
    replace). None where nothing bounds what is sent, and why.
    """
    declared = [r for r in _declared(defenses, setting) if CHAIN.index(r.tap) <= CHAIN.index("server")]
    found: list[Round] = []
    for release in declared:
        z = release.by_round[number] if number < len(release.by_round) else release.multiplier
        if not release.covered or release.tap == "example":  # which has an account at the client tap too
            continue
        if release.unit == "client":
            found.append(Round(((1.0, z),), law=release.law, replace=unit != "client"))
        elif unit != "client":
            (one, *_), _ = next(_steps(setting, "server", "zero-out", 1))
            found.append(replace(one, noise=((1.0, z),), law=release.law))
    if not found:
        return None, _why_none("server", unit, declared, False)
    return max(found, key=lambda one: one.noise[0][1] / (one.rate * math.sqrt(one.steps) * (1 + one.replace))), ""


def _declared(defenses: Sequence[Defense], setting: Setting, lost_noise: bool = False) -> list[Release]:
    """What all defences declare, as far as it holds in their company."""
    return [r for place in range(len(defenses)) for r in _holding(defenses, place, setting, lost_noise)]


def _smaller(best: Row | None, account: Account, delta: float, accountant: str, rounds: int) -> Row | None:
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
        certified=not release.every_round,
        adjacency=account.adjacency,
        epsilon=epsilon,
        delta=delta,
        reason=account.why,
        assumptions=(*account.assumptions, *release.assumes, *OUTSIDE),
        rounds=rounds,
    )


def _processed(row: Row, tap: str) -> Row:
    return replace(row, tap=tap, reason=f"post-processing of the {row.tap} tap: {row.reason}")


def _open(tap: str, unit: str, accountant: str, adjacency: str, rounds: int, reason: str) -> Row:
    return Row(tap, unit, accountant, "none", False, adjacency, None, None, reason, (), rounds)


def _why_none(tap: str, unit: str, declared: Sequence[Release], tried: bool) -> str:
    if tried:
        return "no number can be computed: the noise is too small for this δ, or this accountant knows no bound"
    behind = [r for r in declared if CHAIN.index(r.tap) <= CHAIN.index(tap)]
    for release in behind:
        if not release.covered and (unit == release.unit or release.unit == "client" or unit == "image"):
            return f"not covered by a certificate: {release.reason}"
    if unit == "client" and any(r.unit == "example" for r in behind):
        return "the guarantee is for single examples: it does not extend to all examples of a client together"
    return "open: no mechanism bounds what this tap shows of this unit"


# --- which releases hold in company


def _holding(defenses: Sequence[Defense], place: int, setting: Setting, lost_noise: bool) -> Iterator[Release]:
    """What a defence declares, as far as it holds among the others.

    What comes after the noise is post-processing. What comes between clip and noise must not enlarge what was clipped. On a
    sum over clients noises add up only if nothing but sums lies between.
    """
    defense, others = defenses[place], [d for p, d in enumerate(defenses) if p != place]
    after = defenses[place + 1 :]
    # Whoever selects clients by their losses does so for every mechanism of the round.
    chosen = any(d.reads_losses and d.fills("select") for d in defenses)
    for release in defense.events(setting):
        release = replace(release, every_round=release.every_round or chosen)
        if release.adds_up:
            between = any(d.fills(stage) for d in others for stage in ("batch", "update", "upload"))
            plain = not between and not setting.late and not lost_noise
            release = replace(release, adds_up=plain)
        reason = _broken(release, defense, others, after, setting)
        yield replace(release, covered=False, reason=reason) if release.covered and reason else release


def _broken(
    release: Release, defense: Defense, others: Sequence[Defense], after: Sequence[Defense], setting: Setting
) -> str:
    """Why a release does not hold in this company; empty where it does."""
    if release.stage == "example" and release.tap != "example":
        later = [d for d in after if d.fills("example")]
        single = getattr(defense, "placement", "") == "example"  # noise on each example, not on their sum
        bad = next((d.name for d in later if single or not d.shrinks()), None)
        if bad:
            return (
                f"{bad} changes single gradients after {defense.name}: the noise on their sum is not what was declared"
            )
    if release.stage == "aggregate":
        bad = next((d.name for d in others if d.fills("upload") and not d.shrinks()), None)
        if bad:
            return f"{bad} enlarges updates after {defense.name} has clipped them: their bound no longer holds"
        if setting.late:
            return "late answers may meet another answer of the same client in one sum"
    return ""


# --- from a release to accounts


def _accounts(release: Release, setting: Setting, rounds: int) -> Iterator[Account]:
    if release.unit == "example":
        yield from _of_records(release, setting, rounds)
    else:
        yield from _of_clients(release, setting, rounds)


def _of_records(release: Release, setting: Setting, rounds: int) -> Iterator[Account]:
    """A release per local step, with one record's bound as its sensitivity."""
    for tap, together in _places(release, setting):
        for unit, copies in (("example", 1), ("image", setting.copies)):
            part = participations(setting, copies, release.every_round, together)
            for adjacency in ADJACENCIES:
                if adjacency == "add-remove" and (tap == "example" or setting.batching != "poisson"):
                    continue  # presence is visible, or one record more changes the batches of the others
                assumptions = (
                    *_assumes_records(setting, release, tap, unit, adjacency),
                    *_assumes_sum(together, setting),
                )
                for steps, known_by in _steps(setting, tap, adjacency, copies):
                    each = [replace(one, counts=part.counts, fails=part.fails, together=together) for one in steps]
                    yield Account(
                        release,
                        tap,
                        unit,
                        adjacency,
                        "participation",
                        tuple(_over_rounds(one, release, setting, rounds, together, part.times) for one in each),
                        _why(release, together),
                        assumptions,
                        known_by,
                    )


def _places(release: Release, setting: Setting) -> list[tuple[str, bool]]:
    """The taps at which a release has an account of its own, and whether it is on a sum over clients there."""
    places = [(release.tap, release.on_sum)]
    if release.adds_up:
        places.append(("release", True))
        if setting.secure_aggregation:
            places.append(("server", True))
    return places


def _steps(setting: Setting, tap: str, adjacency: str, copies: int) -> Iterator[tuple[list[Round], tuple[str, ...]]]:
    """How a record is used in a round in which its client takes part: a round for each group of client sizes."""
    base = Round(noise=accountants.ALWAYS, replace=adjacency == "replace")
    groups = size_groups(setting, 1 if copies > 1 else SIZE_GROUPS)
    if setting.batching == "shuffle":
        uses = [math.ceil(steps / math.ceil(size / setting.batch)) for size, steps in groups]
        yield [replace(base, steps=count) for count in uses], ACCOUNTANTS
        return
    hidden = tap != "example" and setting.batching == "poisson"
    rates = [(min(1.0, setting.batch / size), steps) for size, steps in groups]
    yield [replace(base, steps=steps, rate=rate, hidden=hidden) for rate, steps in rates], ACCOUNTANTS
    if base.replace and setting.batching == "without-replacement" and tap != "example":
        yield [replace(base, steps=s, subset=(n, min(n, setting.batch))) for n, s in groups], ("rdp",)


def _of_clients(release: Release, setting: Setting, rounds: int) -> Iterator[Account]:
    """A release per round, with one client's bound as its sensitivity."""
    for tap, together in _places(release, setting):
        shares = together and not release.on_sum  # the noise of the others counts
        for unit, copies in (("client", 1), ("example", 1), ("image", setting.copies)):
            part = participations(setting, copies, release.every_round, together)
            for adjacency in ADJACENCIES:
                # One record may turn its client's contribution into any other: for records only `replace` can be used.
                swap = adjacency == "replace" or unit != "client"
                seen = Round(
                    accountants.ALWAYS,
                    counts=part.counts,
                    fails=part.fails,
                    together=together,
                    law=release.law,
                    replace=swap,
                )
                assumptions = (*_assumes_clients(setting, release, unit), *_assumes_sum(shares, setting))
                account = Account(
                    release, tap, unit, adjacency, "participation", (), _why(release, together), assumptions
                )
                if adjacency != "add-remove" or unit != "client":  # a known cohort shows whether a client is there
                    over = _over_rounds(seen, release, setting, rounds, shares, part.times)
                    yield replace(account, rounds=(over,))
                if copies == 1 and release.tap == "release" and not release.every_round:
                    yield from _amplified(account, seen, release, setting, rounds)


def _amplified(account: Account, seen: Round, release: Release, setting: Setting, rounds: int) -> Iterator[Account]:
    """Accounts for observers who do not know the cohort, behind noise that the server draws once on the sum."""
    once = replace(seen, counts=accountants.ALWAYS, fails=0.0, together=False)
    known_by: tuple[str, ...] = ACCOUNTANTS
    if setting.sampling == "poisson":
        how = "by Poisson coins"
        once = replace(once, rate=setting.per_round / setting.clients, hidden=True)
    elif setting.sampling == "fixed" and seen.replace and account.adjacency != "add-remove":
        how, known_by = "without replacement", ("rdp",)
        once = replace(once, subset=(setting.clients, setting.per_round))
    else:
        return
    unknown = (
        f"who takes part is secret, and drawn honestly {how}, independently of data and results",
        *((_FROM_CLIENT,) if account.unit != "client" else ()),
    )
    over = (_over_rounds(once, release, setting, rounds, False),)
    yield replace(account, rule="amplified", assumptions=unknown, rounds=over, accountants=known_by)


def _over_rounds(
    one: Round, release: Release, setting: Setting, rounds: int, shares: bool, repeat: int = 1
) -> tuple[tuple[Round, int], ...]:
    """The same round at each level of noise, and how often; `shares`: the noise of the others counts."""
    made = []
    for z, times in noise_levels(release, rounds):
        noise: Mixture = ((1.0, z),)
        if shares:
            others = answering(setting, 12 if len(one.counts) <= 2 else 5)
            ratio = (setting.min_weight / setting.max_weight) ** 2
            if release.uses == "step" and setting.batching != "poisson":
                # Clients with less than a batch divide by less, so that theirs weighs more.
                ratio *= (min(setting.batch, setting.smallest) / setting.batch) ** 2
            noise = tuple((p, z * math.sqrt(1.0 + n * ratio)) for p, n in others)
        made.append((replace(one, noise=noise), times * repeat))
    return tuple(made)


def noise_levels(release: Release, rounds: int) -> list[tuple[float, int]]:
    """(z, rounds): few levels, each value rounded down to its level."""
    if not release.by_round:
        return [(release.multiplier, rounds)]
    values = sorted(release.by_round[:rounds] + (release.multiplier,) * max(0, rounds - len(release.by_round)))
    width = max(1, math.ceil(len(values) / NOISE_LEVELS))
    levels: dict[float, int] = {}
    for start in range(0, len(values), width):
        group = values[start : start + width]
        levels[group[0]] = levels.get(group[0], 0) + len(group)
    return list(levels.items())


@dataclass(frozen=True)
class Participations:
    """How often clients with a copy take part in a round: a mixture `counts`, so many independent `times`; and `fails`, the
    probability of what is left out of it."""

    counts: Mixture
    times: int = 1
    fails: float = 0.0


def participations(setting: Setting, copies: int, every_round: bool, together: bool) -> Participations:
    """The law of participations; `together`: they meet in one sum, so that only their number in a round matters."""
    if every_round:
        return Participations(((1.0, float(copies)),))
    coins, rate = copies, setting.per_round / setting.clients
    if setting.sampling == "with-replacement":
        coins, rate = setting.per_round, copies / setting.clients
    if setting.sampling == "fixed":
        mixture = accountants.hypergeometric(setting.clients, copies, setting.per_round)
    elif together:
        mixture = accountants.binomial(coins, rate)
    else:
        return Participations(accountants.binomial(1, rate), coins)
    counts, fails = accountants.without_tail(mixture)
    return Participations(counts, fails=fails)


def answering(setting: Setting, bins: int) -> Mixture:
    """How many others answer in a round in which one client does, rounded down: theirs is the other noise on the sum."""
    others, stay = setting.clients - 1, 1.0 - setting.dropout
    if setting.sampling == "poisson":
        mixture = accountants.binomial(others, setting.per_round / setting.clients * stay)
    elif setting.sampling == "fixed":
        mixture = accountants.binomial(setting.per_round - 1, stay)
    else:
        return ((1.0, 0.0),)  # drawn with replacement: those drawn again share one client's data
    return accountants.in_bins(mixture, bins)


def size_groups(setting: Setting, most: int = SIZE_GROUPS) -> list[tuple[int, int]]:
    """(N, L) of a few groups of clients: the smallest size and the most steps of each, the worst for a record there."""
    sizes = sorted(setting.sizes or ((setting.smallest, setting.local_steps),))
    count = min(most, len(sizes))
    groups = [sizes[len(sizes) * g // count : len(sizes) * (g + 1) // count] for g in range(count)]
    return sorted({(group[0][0], max(steps for _, steps in group)) for group in groups})


# --- what a row says

_FROM_CLIENT = "from the client's account: one record may change its client's contribution in any way"


def _why(release: Release, together: bool) -> str:
    noise = f"{release.law} noise, z = {release.multiplier:.4g}"
    if release.on_sum:
        return f"{noise} on the round's sum"
    if together:
        return f"{noise} per client, of all who answer together on the round's sum"
    return f"{noise} per {'local step' if release.uses == 'step' else 'round'}"


def _who(release: Release) -> str:
    if release.every_round:
        return "who takes part depends on private data: a participation in every round is counted"
    return "who takes part in a round may be known; it is drawn honestly, independently of data and results"


def _assumes_records(setting: Setting, release: Release, tap: str, unit: str, adjacency: str) -> tuple[str, ...]:
    made = [_who(release)]
    if tap == "example":
        made.append("which record a gradient belongs to may be known")
    elif setting.batching == "poisson":
        made.append("batches are drawn by secret Poisson coins; client sizes and divisors are public constants")
    elif setting.batching == "shuffle":
        made.append("each epoch uses a record once; no amplification by shuffling is claimed")
    else:
        made.append("batches are drawn without replacement; which records are in them may be known")
    if unit == "image" and setting.copies > 1:
        made.append(f"an image has at most {setting.copies} copies, each at another client")
    if adjacency == "zero-out":
        made.append("neighbours: the record's contribution is replaced by nothing, its presence stays visible")
    return tuple(made)


def _assumes_clients(setting: Setting, release: Release, unit: str) -> tuple[str, ...]:
    made = [_who(release)]
    if unit != "client":
        made.append(_FROM_CLIENT)
    if unit == "image" and setting.copies > 1:
        made.append(f"an image has at most {setting.copies} copies, each at another client")
    return tuple(made)


def _assumes_sum(shares: bool, setting: Setting) -> tuple[str, ...]:
    if not shares:
        return ()
    made = ["only sums over a round's clients are seen (secure aggregation, or the model alone)", "no client colludes"]
    if setting.sampling == "poisson" or setting.dropout:
        made.append("the noise of those who answer counts, by the law of their number")
    return tuple(made)
