"""Games: the bench trains federations, hands an inference attack its observations, and scores its answers.

A game holds the truth (coins, rows, classes); the attack never sees it. `play` finds the game of an attack.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fedveil.attacks.base import Progress, silent

if TYPE_CHECKING:
    from fedveil.attacks.games.federations import Target
    from fedveil.attacks.games.outcome import Outcome
    from fedveil.attacks.inference.base import InferenceAttack


def play(target: Target, attack: InferenceAttack, progress: Progress = silent) -> Outcome:
    """Trains what the target describes, runs the attack on what its adversary sees, and scores."""
    outcome: Outcome = import_module(f"{__name__}.{attack.game}").play(target, attack, progress)
    return outcome
