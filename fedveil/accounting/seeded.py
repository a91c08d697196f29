"""Accounts of reproducible runs. A certificate assumes secret draws; draws that follow a seed in the config are none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from fedveil.core.setting import Setting

if TYPE_CHECKING:
    from fedveil.accounting.ledger import Row

REASON = (
    "not certified: train.noise_seed makes cohorts, batches and noise reproducible, so whoever has the config knows the "
    "draws"
)


def uncertified(rows: Iterable[Row], reason: str = REASON) -> list[Row]:
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
