"""Non-private training: the defence that fills in nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedveil.defenses.base import Defense


@dataclass(frozen=True)
class NoDefense(Defense):
    """No clip, no noise: every tap is open."""

    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "non-private training: fills in no stage"
