"""Measurements of 2dp-fl: accuracy during a training, with noise calibrated by the ledger if an ε is given."""

from __future__ import annotations

from typing import Any

from fedveil.config import load
from fedveil.recipes.cell import Job

Result = dict[str, Any]


def curve(job: Job) -> Result:
    """A training as `train` measures it, with the accuracy after a fifth and after half of the rounds.

    `epsilon`, `delta`: the noise is the least that the ledger certifies for one record at the client tap, the same
    multiplier at client and server. Without them the noise is that of the config. Certificates of the plan after all
    rounds: `epsilon` of one record for the server, `client_epsilon` of one client for those who receive the model.
    """
    from fedveil.accounting import calibrate, ledger, transcript
    from fedveil.accounting.ledger import as_planned
    from fedveil.federation import plan
    from fedveil.recipes.kinds import train

    settings = job.settings
    if "epsilon" in job.options:
        made = plan(load(None, list(settings)))
        goal = calibrate.Goal(job.options["epsilon"], job.options["delta"], "client", "example")
        noise = calibrate.noise_for(made.defenses, made.setting, goal).value
        settings = (*settings, f"defense.noise={noise!r}", f"defense.server_noise={noise!r}")
    made = plan(load(None, list(settings)))
    delta = transcript.delta_of(made.defenses)
    planned = transcript.planned(made.defenses, as_planned(made.setting), made.setting.rounds)
    seats = {"epsilon": ("server", "example"), "client_epsilon": ("broadcast", "client")}
    proven = {key: ledger.certified(planned, tap, unit, delta) for key, (tap, unit) in seats.items()}
    result = train(Job("train", settings, {"history": True}))
    scored, rounds = result["history"], result["rounds"]
    return {
        **result,
        "fifth": after(scored, rounds / 5),
        "half": after(scored, rounds / 2),
        "noise": made.defenses[0].noise_levels()[0] if made.defenses[0].noise_levels() else None,
        **{key: row.epsilon if row.certified else None for key, row in proven.items()},
    }


def after(scored: list[tuple[int, float]], rounds: float) -> float | None:
    """The accuracy at the last evaluation up to a round; None where there was none."""
    before = [accuracy for number, accuracy in scored if number <= rounds]
    return before[-1] if before else None
