"""The privacy ledger: one row per tap and unit, never an ε without its δ, unit, tap and adjacency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from fedveil.defenses.base import Defense, Setting
from fedveil.privacy.events import Release

TAPS = ("example", "client", "server", "broadcast", "release")
UNITS = ("example", "image", "client")


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


def rows(defenses: Sequence[Defense], setting: Setting, rounds: int) -> list[Row]:
    """A row per tap and unit: what stands between the unit and the tap.

    ε is null throughout: where nothing protects a tap no number would be true, and where a mechanism does, this version
    states the mechanism and its noise multiplier but does not compose it over rounds.
    """
    declared = [release for defense in defenses for release in defense.events(setting)]
    others = [d.name for d in defenses if not d.events(setting)]
    if declared and others:
        # What a defence declares holds for it alone: pruned noise no longer adds up, and what is added after a clip is
        # not bounded by it. Until each combination has been worked out, none is claimed.
        why = f"what is declared holds without {', '.join(others)}: no account covers the combination"
        declared = [replace(release, covered=False, reason=why) for release in declared]
    return [_row(tap, unit, declared, rounds) for tap in TAPS for unit in UNITS]


def _row(tap: str, unit: str, declared: list[Release], rounds: int) -> Row:
    found = [r for r in declared if r.tap == tap and r.unit == ("example" if unit == "image" else unit)]
    if not found:
        reason = "open: no mechanism bounds what this tap shows of this unit"
        return Row(tap, unit, "pld", "none", False, "zero-out", None, None, reason, (), rounds)
    release = max(found, key=lambda r: (r.covered, r.multiplier))
    reason = f"{release.law} noise, z = {release.multiplier:.4g} per {release.uses}; not composed in this version"
    if not release.covered:
        reason = f"not covered by a certificate: {release.reason}"
    return Row(tap, unit, "pld", "none", False, "zero-out", None, None, reason, release.assumes, rounds)
