"""A cell of a sweep: one training, its account, and an attack from each position that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedveil.attacks.base import ReconstructionAttack
from fedveil.config import AttackConfig, Config, load
from fedveil.core.errors import FedveilError
from fedveil.federation import Federation, prepare
from fedveil.recipes.cell import Job

OF_GRADIENTS, OF_MODELS = "cpl", "loss-threshold"  # attacks where the config names none that fits the tap


def sweep_cell(job: Job) -> dict[str, Any]:
    """Trains, accounts, attacks. Options: `taps`, and the keys of `[attack]` under `attack`.

    The federation is attacked in the round of `attack.round`, by default the first. An attack that cannot be made says why
    and spoils nothing else.
    """
    from fedveil.training import train

    config = load(None, list(job.settings))
    federation = prepare(config)
    done = train(federation)
    asked = dict(job.options.get("attack", {}))
    return {
        "accuracy": done.accuracy,
        "split": done.split,
        "loss": done.loss,
        "chance": done.chance,
        "learned": done.learned,
        "rounds": done.rounds,
        "seconds": done.seconds,
        "stopped": done.stopped or None,
        "ledger": [row.as_dict() for row in done.ledger],
        "attacks": [attacked(federation, config, tap, asked) for tap in job.options.get("taps", ())],
    }


def attacked(federation: Federation, config: Config, tap: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The document of one attack at a tap, or the reason why there is none."""
    try:
        bench = bench_for(tap, asked)
        chosen = bench.make()
        if not isinstance(chosen, ReconstructionAttack):
            from fedveil.attacks.orchestrate import attack

            return attack(config.model_copy(update={"attack": bench})).as_dict()
        from fedveil.attacks.orchestrate import attack_federation
        from fedveil.attacks.study import state_before

        number = bench.round or 0
        return attack_federation(federation, state_before(federation, number), number, bench).as_dict()
    except FedveilError as error:
        return {"tap": tap, "error": str(error)}


def bench_for(tap: str, asked: Mapping[str, Any]) -> AttackConfig:
    """`[attack]` for a tap: as asked if that attack is possible there; else the usual attack at this tap."""
    from fedveil.attacks.registry import attack_kind

    usual = OF_MODELS if tap in ("broadcast", "release") else OF_GRADIENTS
    name = asked.get("name", usual)
    if tap in attack_kind(name).taps:
        return AttackConfig.model_validate({**asked, "name": name, "tap": tap})
    return AttackConfig.model_validate({"name": usual, "tap": tap})
