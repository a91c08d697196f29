"""The table of defences: names, summaries, keys. Cheap to import; each defence has a file of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DefenseInfo:
    """One defence: what it is and which keys of `[defense]` it reads."""

    name: str
    summary: str
    keys: tuple[str, ...] = ()


DEFENSES: dict[str, DefenseInfo] = {
    info.name: info for info in (DefenseInfo("none", "non-private training: fills in no stage"),)
}

# Defences with a privacy account: `auto` sampling then takes what can be certified tightly.
PRIVATE: frozenset[str] = frozenset()
