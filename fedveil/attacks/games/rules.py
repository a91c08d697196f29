"""The published rules of a federation's local training, as its attackers replay them."""

from __future__ import annotations

from dataclasses import replace

from fedveil.attacks.inference.replay import LocalRules
from fedveil.federation import Federation


def rules_of(federation: Federation) -> LocalRules:
    """What everyone knows of how a client trains: its defences clip and drop, but add no noise."""
    simulator = federation.simulator
    silenced = tuple(quiet for d in simulator.task.defenses if (quiet := d.silenced()) is not None)
    task = replace(simulator.task, defenses=silenced, scale=1.0)
    lrs = tuple(simulator.task.setting.lr_at(number) for number in range(federation.rounds))
    return LocalRules(task, simulator.sampling, lrs)
