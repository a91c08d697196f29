"""From a mechanism in the round to accounts of it: who it protects, at which tap, under which neighbouring relation.

Rules, in short:

- **One record** (unit `example`). Being chosen may be visible, so client sampling does not amplify; but the number of
  rounds in which the client takes part is random, and δ is averaged over it (rule `participation`). In a client
  Poisson batches amplify, by B/N_i of the smallest client; shuffled ones do not (one use per epoch).
- **One image** with all its copies: the copies' participations compose, and where they meet in one sum they add up.
- **One client**: no amplification at the client and server taps. Behind noise that the server adds once, secret cohorts
  amplify (rule `amplified`), unless the scale of the released noise tells who took part. A client's account with `replace`
  holds for each of its records too.
- On a sum over clients that each drew their own noise, the noises of those who answered add up.
- A node counts the rounds that it really took part in (rule `realised`).

Several defences may share a round (`declared`). A value passes the stages in one order (`core.stage.STAGES`), and at a
stage the defences in their order. A mechanism clips at one stage and adds its noise there or later. Three rules decide
which guarantees hold, by what each other filter may do (`core.stage.Effect`), never by its name:

- after the noise everything is post-processing, unless it reads private data: that ends the guarantee;
- between clip and noise nothing may enlarge what was clipped;
- noise on single examples is the noise on their sum only if nothing changes the examples in between.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fedveil.accounting import accountants
from fedveil.accounting.accountants import Mixture, Round
from fedveil.core.events import Release
from fedveil.core.setting import Setting
from fedveil.core.stage import STAGES, Effect
from fedveil.core.taps import ADJACENCIES, CHAIN
from fedveil.defenses.base import Defense

CERTIFYING = ("pld", "rdp")
SIZE_GROUPS = 4  # clients of like size share an account
NOISE_LEVELS = 12  # values of z that are told apart where it changes from round to round

Position = tuple[int, int]  # (stage, defence): where a value meets a filter
Levels = Sequence[tuple[float, int]]  # (z, rounds)


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

    def epsilon(self, delta: float, accountant: str) -> float | None:
        found = [accountants.epsilon(rounds, delta, accountant) for rounds in self.rounds]
        known = [epsilon for epsilon in found if epsilon is not None]
        return max(known, default=0.0) if len(known) == len(found) else None


def accounts_of(release: Release, setting: Setting, levels: Levels) -> Iterator[Account]:
    """Every account that a mechanism gives, over rounds with these multipliers."""
    if release.unit == "example":
        yield from _of_records(release, setting, levels)
    else:
        yield from _of_clients(release, setting, levels)


def _of_records(release: Release, setting: Setting, levels: Levels) -> Iterator[Account]:
    """A release per local step, with one record's bound as its sensitivity."""
    for tap, together in _taps_of(release, setting):
        for unit, copies in (("example", 1), ("image", setting.copies)):
            part = participations(setting, copies, release.every_round, together)
            for adjacency in ADJACENCIES:
                if adjacency == "add-remove" and (tap == "example" or setting.batching != "poisson"):
                    continue  # presence is visible, or one record more changes the batches of the others
                records = _assumes_records(setting, release, tap, unit, adjacency)
                assumptions, why = (*records, *_assumes_sum(together, setting)), _why(release, together)
                for steps in _steps(setting, tap, adjacency, copies):
                    each = [replace(one, counts=part.counts, fails=part.fails, together=together) for one in steps]
                    over = tuple(_over_rounds(one, release, setting, levels, together, part.times) for one in each)
                    yield Account(release, tap, unit, adjacency, "participation", over, why, assumptions)


def _taps_of(release: Release, setting: Setting) -> list[tuple[str, bool]]:
    """The taps at which a release has its own account, and whether it is on a sum over clients there."""
    taps = [(release.tap, release.on_sum)]
    if release.client_noise_sums:
        taps.append(("release", True))
        if setting.secure_aggregation:
            taps.append(("server", True))
    return taps


def _steps(setting: Setting, tap: str, adjacency: str, copies: int) -> Iterator[list[Round]]:
    """How a record is used in a round in which its client takes part: a round for each group of client sizes."""
    base = Round(noise=accountants.ALWAYS, replace=adjacency == "replace")
    groups = size_groups(setting, 1 if copies > 1 else SIZE_GROUPS)
    if setting.batching == "shuffle":
        uses = [math.ceil(steps / math.ceil(size / setting.batch)) for size, steps in groups]
        yield [replace(base, steps=count) for count in uses]
        return
    hidden = tap != "example" and setting.batching == "poisson"
    rates = [(min(1.0, setting.batch / size), steps) for size, steps in groups]
    yield [replace(base, steps=steps, rate=rate, hidden=hidden) for rate, steps in rates]
    if base.replace and setting.batching == "without-replacement" and tap != "example":
        yield [replace(base, steps=s, subset=(n, min(n, setting.batch))) for n, s in groups]


def _of_clients(release: Release, setting: Setting, levels: Levels) -> Iterator[Account]:
    """A release per round, with one client's bound as its sensitivity."""
    for tap, together in _taps_of(release, setting):
        shares = together and not release.on_sum  # the noise of the others counts
        for unit, copies in (("client", 1), ("example", 1), ("image", setting.copies)):
            part = participations(setting, copies, release.every_round, together)
            for adjacency in ADJACENCIES:
                # One record may turn its client's contribution into any other: for records only `replace` can be used.
                swap = adjacency == "replace" or unit != "client"
                seen = Round(accountants.ALWAYS, counts=part.counts, fails=part.fails, together=together)
                seen = replace(seen, distribution=release.distribution, replace=swap)
                assumptions = (*_assumes_clients(setting, release, unit), *_assumes_sum(shares, setting))
                why = _why(release, together)
                account = Account(release, tap, unit, adjacency, "participation", (), why, assumptions)
                if adjacency != "add-remove" or unit != "client":  # a known cohort shows whether a client is there
                    over = _over_rounds(seen, release, setting, levels, shares, part.times)
                    yield replace(account, rounds=(over,))
                if copies == 1 and release.tap == "release" and not release.every_round:
                    yield from _amplified(account, seen, setting, levels)


def _amplified(account: Account, seen: Round, setting: Setting, levels: Levels) -> Iterator[Account]:
    """Accounts for observers who do not know the cohort, behind noise that the server draws once on the sum.

    A mean is the sum over the weight that arrived. Where that differs from cohort to cohort, the scale of the released
    noise tells who took part, and nothing amplifies.
    """
    if setting.sampling != "poisson" and setting.max_weight != setting.min_weight:
        return
    once = replace(seen, counts=accountants.ALWAYS, fails=0.0, together=False)
    if setting.sampling == "poisson":
        how = "by Poisson coins"
        once = replace(once, rate=setting.per_round / setting.clients, hidden=True)
    elif setting.sampling == "fixed" and seen.replace and account.adjacency != "add-remove":
        how = "without replacement"
        once = replace(once, subset=(setting.clients, setting.per_round))
    else:
        return
    unknown = (
        f"who takes part is secret, and drawn honestly {how}, independently of data and results",
        *((_FROM_CLIENT,) if account.unit != "client" else ()),
    )
    over = (_over_rounds(once, account.release, setting, levels, False),)
    yield replace(account, rule="amplified", assumptions=unknown, rounds=over)


def _over_rounds(
    one: Round, release: Release, setting: Setting, levels: Levels, shares: bool, repeat: int = 1
) -> tuple[tuple[Round, int], ...]:
    """The round at each noise level, with its number of repetitions. `shares`: other clients' noise is added to it."""
    made = []
    for z, times in few_levels(levels):
        noise: Mixture = ((1.0, z),)
        if shares:
            others = answering(setting, 12 if len(one.counts) <= 2 else 5)
            ratio = (setting.min_weight / setting.max_weight) ** 2
            if release.uses == "step" and setting.batching != "poisson":
                # Clients with less than a batch divide by less, so that theirs weighs more.
                ratio *= (min(setting.batch, setting.smallest) / setting.batch) ** 2
            noise = tuple((p, z * math.sqrt(1.0 + n * ratio)) for p, n in others)
        slip = release.sum_slip if shares else release.slip
        made.append((replace(one, noise=noise, slip=slip * _uses(one)), times * repeat))
    return tuple(made)


def _uses(one: Round) -> float:
    """The most noisy values that a unit is in, in a round."""
    return one.steps * (1.0 if one.together else max(count for _, count in one.counts))


def few_levels(levels: Levels, most: int = NOISE_LEVELS) -> list[tuple[float, int]]:
    """(z, rounds) with at most `most` values of z, each rounded down to the smallest of its group."""
    ordered = sorted((z, times) for z, times in levels if times > 0)
    if len(ordered) <= most:
        return ordered
    width = math.ceil(sum(times for _, times in ordered) / most)
    made: list[tuple[float, int]] = []
    for z, times in ordered:
        if made and made[-1][1] + times <= width:
            made[-1] = (made[-1][0], made[-1][1] + times)
        else:
            made.append((z, times))
    return made


@dataclass(frozen=True)
class Participations:
    """How often clients with a copy of the unit take part in a round.

    The count is a mixture `counts`, drawn `times` times. `fails` is the probability of the cases that the mixture omits.
    """

    counts: Mixture
    times: int = 1
    fails: float = 0.0


def participations(setting: Setting, copies: int, every_round: bool, together: bool) -> Participations:
    """The distribution of participations; `together`: they meet in one sum, where only their number matters."""
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
    if setting.quorum:
        return ((1.0, setting.trusted - 1.0),)
    others, stay = setting.clients - 1, 1.0 - setting.dropout
    if setting.sampling == "poisson":
        mixture = accountants.binomial(others, setting.per_round / setting.clients * stay)
    elif setting.sampling == "fixed":
        mixture = accountants.binomial(setting.per_round - 1, stay)
    else:
        return ((1.0, 0.0),)  # drawn with replacement: those drawn again share one client's data
    return accountants.in_bins(mixture, bins)


def size_groups(setting: Setting, most: int = SIZE_GROUPS) -> list[tuple[int, int]]:
    """Clients in groups of similar size, each as (N, L): its smallest size and most steps, the worst case for a record."""
    sizes = sorted(setting.sizes or ((setting.smallest, setting.local_steps),))
    count = min(most, len(sizes))
    groups = [sizes[len(sizes) * g // count : len(sizes) * (g + 1) // count] for g in range(count)]
    return sorted({(group[0][0], max(steps for _, steps in group)) for group in groups})


# --- several defences in one round


def declared(defenses: Sequence[Defense], setting: Setting) -> tuple[Release, ...]:
    """What all defences release, and which of the guarantees hold beside the other defences."""
    # A defence that selects clients by their losses does so for every mechanism of the round.
    chosen = any(d.reads_losses and d.fills("select") for d in defenses)
    made = []
    for number, defense in enumerate(defenses):
        for release in defense.events(setting):
            reason = release.reason or _left_out(release, defense) or _broken(release, number, defenses, setting)
            sums = release.client_noise_sums and not setting.late and _only_sums(number, defenses)
            holds, always = release.certifiable and not reason, release.every_round or chosen
            made.append(replace(release, every_round=always, client_noise_sums=sums, certifiable=holds, reason=reason))
    return tuple(made)


def _left_out(release: Release, defense: Defense) -> str:
    """Why the clip or the noise of a release never runs: its defence does not fill the stage; empty where it does."""
    for stage in (release.clip_stage or release.stage, release.stage):
        if not defense.fills(stage):
            return f"{defense.name} does nothing at stage '{stage}', where it declares clip or noise"
    return ""


def _only_sums(number: int, defenses: Sequence[Defense]) -> bool:
    """Whether only sums and constant factors are between a client's noise and the round's sum."""
    others = [d for index, d in enumerate(defenses) if index != number]
    return not any(d.fills(stage) for d in others for stage in ("batch", "update", "upload"))


def _filters(number: int, defenses: Sequence[Defense]) -> Iterator[tuple[Position, Defense, str, Effect]]:
    """The filters of all other defences, each with its position."""
    for index, defense in enumerate(defenses):
        for level, stage in enumerate(STAGES):
            if index != number and defense.fills(stage):
                yield (level, index), defense, stage, defense.effect(stage)


def _broken(release: Release, number: int, defenses: Sequence[Defense], setting: Setting) -> str:
    """Why the guarantee of a release fails beside the other defences; empty if it holds."""
    name = defenses[number].name
    after = [d.name for d in defenses[number + 1 :] if d.fills("example")]
    if release.arithmetic == "integer" and release.stage == "example" and after:
        return f"{after[0]} acts on example gradients after {name}, whose integers must be added up at once"
    clip, noise = _positions(release, number, len(defenses))
    for position, other, stage, effect in _filters(number, defenses):
        if effect is Effect.READS_DATA and position > noise:
            return f"{other.name} reads private data without noise at stage '{stage}', after the noise of {name}"
        if clip < position < noise and effect is not Effect.CONTRACTION:
            return f"{other.name} enlarges at stage '{stage}' what {name} has clipped: the bound no longer holds"
        if release.on_each and release.tap != "example" and stage == "example" and position > clip:
            return (
                f"{other.name} changes single gradients after {name}: the noise on their sum is not what was declared"
            )
    if release.stage == "aggregate" and setting.late:
        return "late answers may meet another answer of the same client in one sum"
    return ""


def _positions(release: Release, number: int, defenses: int) -> tuple[Position, Position]:
    """Where contributions are clipped and where the noise is added; noise on a sum of examples follows all of their
    filters."""
    clip = (STAGES.index(release.clip_stage or release.stage), number)
    on_examples_sum = release.stage == "example" and not release.on_each
    return clip, (STAGES.index(release.stage), defenses if on_examples_sum else number)


# --- what one client knows of its own rounds


def realised(
    releases: Sequence[Release], multipliers: Sequence[float], setting: Setting, unit: str, adjacency: str
) -> tuple[Round | None, str]:
    """What one round costs a unit at a client that takes part and sends its update (rule `realised`).

    `setting` holds the client's own size and steps. None where nothing bounds what is sent, and why.
    """
    sent = [(r, z) for r, z in zip(releases, multipliers, strict=True) if CHAIN.index(r.tap) <= CHAIN.index("server")]
    found: list[Round] = []
    for release, z in sent:
        if not release.certifiable or release.tap == "example":  # which has an account at the client tap too
            continue
        if release.unit == "client":
            swap = adjacency == "replace" or unit != "client"  # one record may change its client's update in any way
            found.append(Round(((1.0, z),), distribution=release.distribution, replace=swap, slip=release.slip))
        elif unit != "client":
            z, slip = _in_sums(release, z, setting)
            one, *_ = next(_steps(setting, "server", adjacency, 1))
            slip *= one.steps
            found.append(replace(one, noise=((1.0, z),), distribution=release.distribution, slip=slip))
    if not found:
        return None, why_none("server", unit, [r for r, _ in sent], False)
    return max(found, key=lambda one: one.noise[0][1] / (one.rate * math.sqrt(one.steps) * (1 + one.replace))), ""


def _in_sums(release: Release, multiplier: float, setting: Setting) -> tuple[float, float]:
    """z and slip of a client's release where the server sees it only in sums over a quorum."""
    if not (release.client_noise_sums and setting.secure_aggregation and setting.quorum):
        return multiplier, release.slip
    return multiplier * math.sqrt(setting.trusted), release.sum_slip


def realised_epsilon(rounds: Sequence[Round | None], delta: float) -> float:
    """ε of rounds that one client took part in, composed; infinite where one of them has no certificate."""
    if any(one is None for one in rounds):
        return math.inf
    groups: dict[Round, Counter[float]] = {}
    for one in rounds:
        if one is not None:
            groups.setdefault(replace(one, noise=accountants.ALWAYS), Counter())[one.noise[0][1]] += 1
    kinds = sorted(groups, key=repr)
    levels = [(kind, z, times) for kind in kinds for z, times in few_levels(list(groups[kind].items()))]
    made = tuple((replace(kind, noise=((1.0, z),)), times) for kind, z, times in levels)
    found = accountants.epsilon(made, delta, "pld")
    return math.inf if found is None else found


# --- what a row says


def why_none(tap: str, unit: str, declared: Sequence[Release], tried: bool) -> str:
    """Why there is no number for a unit at a tap."""
    if tried:
        return "no number can be computed: the noise is too small for this δ, or this accountant knows no bound"
    behind = [r for r in declared if CHAIN.index(r.tap) <= CHAIN.index(tap)]
    for release in behind:
        if not release.certifiable and (unit == release.unit or release.unit == "client" or unit == "image"):
            return f"not covered by a certificate: {release.reason}"
    if unit == "client" and any(r.unit == "example" for r in behind):
        return "the guarantee is for single examples: it does not extend to all examples of a client together"
    return "open: no mechanism bounds what this tap shows of this unit"


_FROM_CLIENT = "from the client's account: one record may change its client's contribution in any way"


def _why(release: Release, together: bool) -> str:
    noise = f"{release.distribution} noise, z = {release.multiplier:.4g}"
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
    made = ["only sums over a round's clients are seen (secure aggregation, or the model alone)"]
    if setting.quorum:
        told = (
            f"at least {setting.trusted} of the {setting.quorum} clients of a quorum add their noise and keep it secret"
        )
        return (*made, f"a sum has {setting.quorum} clients or more", f"{told} (train.honest = {setting.honest:g})")
    made.append("no client colludes")
    if setting.sampling == "poisson" or setting.dropout:
        made.append("the noise of those who answer counts, by the distribution of their number")
    return tuple(made)
