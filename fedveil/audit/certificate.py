"""What the defences certify of exactly the mechanism that is attacked: read from their declarations, accounted by PLD.

An attacked unit takes part in every release (q = 1), so no sampling amplifies: the certificate is that of some Gaussian
mechanisms, one after another. What a whole training costs, with its sampling, is in the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from fedveil.accounting import accountants, ledger, transcript
from fedveil.accounting.accountants import Round
from fedveil.accounting.ledger import as_planned
from fedveil.core.events import Release
from fedveil.core.setting import Setting
from fedveil.core.taps import CHAIN
from fedveil.defenses.base import Defense


@dataclass(frozen=True)
class Certificate:
    """What the defences declare of one unit at one tap, for exactly the releases that are attacked."""

    epsilon: float | None
    multiplier: float | None  # z of one release
    together: float | None  # z of all of them: as one Gaussian
    releases: int
    reason: str


def declared(defenses: Sequence[Defense], setting: Setting, tap: str, unit: str) -> tuple[Release, float] | None:
    """The strongest release that stands between a unit and a tap, there or before it, and the bound of one unit in units
    of the declared sensitivity: a record can turn its client's contribution into any other, which is twice the bound."""
    index = CHAIN.index(tap)
    made = [r for d in defenses for r in d.events(setting)]
    behind = [r for r in made if CHAIN.index(r.tap) <= index]
    found = [(r, 1.0) for r in behind if r.unit == unit]
    if unit == "example":
        found += [(r, 2.0) for r in behind if r.unit == "client"]
    return max(found, key=lambda one: (one[0].certifiable, one[0].multiplier / one[1])) if found else None


@dataclass(frozen=True)
class Attacked:
    """What an audit attacks: the releases of `rounds` rounds and `steps` steps at one tap, and the clients' weights."""

    tap: str
    unit: str
    rounds: int = 1
    steps: int = 1
    weights: tuple[float, ...] = ()  # of the clients in the sum that the tap shows; empty if it shows each client
    within: int = 1  # they were among this many first rounds: the worst z of those counts


def certificate(defenses: Sequence[Defense], setting: Setting, attacked: Attacked, delta: float) -> Certificate:
    """ε of the attacked releases, or the reason why there is none."""
    rounds = attacked.rounds
    found = declared(defenses, setting, attacked.tap, attacked.unit)
    if found is None:
        return Certificate(None, None, None, rounds, "nothing is certified for this unit at this tap")
    release, size = found
    each = attacked.steps if release.uses == "step" else 1
    nothing = Certificate(None, None, None, rounds * each, "")
    why_not = _why_not(defenses, setting, attacked, release, delta)
    if why_not:
        return replace(nothing, reason=why_not)
    if release.client_noise_sums and attacked.weights:  # every client's noise is in the sum
        weights = np.asarray(attacked.weights)
        size /= math.sqrt(np.square(weights).sum()) / weights.max()
    # A broadcast's noise is drawn one round later.
    drawn = max(attacked.within, rounds) + (release.stage == "broadcast")
    declared_z = sorted((*release.by_round, *[release.multiplier] * drawn)[:drawn])[:rounds]
    by_round = [z / size for z in declared_z]
    together = 1.0 / math.sqrt(sum(each / z**2 for z in by_round))
    reason = f"{rounds * each} × Gaussian, z = {min(by_round):.4g}, the unit in each"
    if release.unit != attacked.unit:
        reason += "; from the client's account, whose contribution one record may turn into any other"
    return Certificate(gaussian_epsilon(together, delta), min(by_round), together, rounds * each, reason)


def _why_not(defenses: Sequence[Defense], setting: Setting, attacked: Attacked, release: Release, delta: float) -> str:
    """Why there is no certificate to compare with; empty if there is one."""
    if not release.certifiable:
        return f"not certified: {release.reason}"
    if len(defenses) > 1:
        planned = transcript.planned(defenses, as_planned(setting), setting.rounds)
        row = ledger.certified(planned, attacked.tap, attacked.unit, delta)
        if row.epsilon is None or not row.certified:
            return f"the ledger certifies nothing for these defences together: {row.reason}"
    if release.distribution != "gaussian" or release.multiplier <= 0.0:
        return f"not compared: {release.distribution} noise, z = {release.multiplier:.4g}"
    return ""


@lru_cache(maxsize=256)
def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """ε of a Gaussian mechanism, by the ledger's own accountant."""
    found = accountants.epsilon(((Round(((1.0, multiplier),)), 1),), delta, "pld")
    return math.inf if found is None else found


def taps_to_audit(defenses: Sequence[Defense], setting: Setting, unit: str) -> list[str]:
    """The taps to audit a unit at: those first behind some noise; the client's, where there is none."""
    made = [r for d in defenses for r in d.events(setting)]
    own = {r.tap for r in made if r.unit == unit} or {r.tap for r in made if r.unit == "client"}
    if not own:
        own = {"client"}
    return [tap for tap in CHAIN if tap in own]


def shows_sums(tap: str, setting: Setting) -> bool:
    """Whether a tap shows clients only in sum."""
    return tap in ("broadcast", "release") or (tap == "server" and setting.secure_aggregation)


def cohort(defenses: Sequence[Defense], setting: Setting, tap: str, unit: str) -> int:
    """The number of clients in an audited round: one if the tap shows single clients or the server adds the noise."""
    found = declared(defenses, setting, tap, unit)
    alone = not shows_sums(tap, setting) or (found is not None and found[0].stage == "aggregate")
    return 1 if alone else setting.per_round
