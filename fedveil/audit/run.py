"""`audit`: tests of the noise on the executed path of a config, and lower bounds on ε by canaries.

With probability `confidence` no bound is too large and no test alarms wrongly, in the whole call: half of the error is
divided among the tests, half among the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jax

from fedveil.audit.bounds import Bounds
from fedveil.audit.certificate import taps_to_audit
from fedveil.audit.noise_tests import NoiseTests
from fedveil.audit.rows import AuditRow
from fedveil.audit.shared import Audit, Progress, Sizes
from fedveil.config import Config, Defenses, Settings, from_dict, of_run
from fedveil.core.errors import ConfigError, did_you_mean, unknown_name
from fedveil.core.setting import Setting
from fedveil.core.system import Rows
from fedveil.core.taps import CHAIN, NODE_UNITS
from fedveil.federation import Arrays, Federation, federation
from fedveil.models.net import Model
from fedveil.runs import RunFolder
from fedveil.simulation.client import Task

METHODS = ("noise", "one-run", "f-dp", "trials")


@dataclass(frozen=True)
class Options:
    """What is audited, how, and at what size.

    `tap`, `unit`: the adversary's observation and the unit it looks for; unset: both units, at the taps where noise
    protects them (a tap that is only post-processing of one before it is left out). `rounds` of `steps` local steps are
    attacked together; unset: two rounds of two steps, or fewer if the config has fewer.
    """

    tap: str | None = None
    unit: str | None = None
    methods: Sequence[str] = METHODS
    trials: int = 200_000
    canaries: int = 600
    seeds: int = 1
    confidence: float = 0.999
    delta: float | None = None
    rounds: int | None = None
    steps: int | None = None

    def sizes(self, setting: Setting) -> Sizes:
        """The sizes of the audit in a setting."""
        rounds = min(2, setting.rounds) if self.rounds is None else self.rounds
        steps = min(2, setting.local_steps) if self.steps is None else self.steps
        return Sizes(self.trials, self.canaries, self.seeds, rounds, steps)


def audit(
    settings: Settings | Federation = None,
    *,
    run: str | Path | None = None,
    defense: Defenses | None = None,
    data: Arrays | None = None,
    model: Model | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Rows[AuditRow]:
    """Audits the defences of a config: tests of the executed noise, and lower bounds on ε by canaries.

    `settings`, `defense`, `data`, `model`: as in `fedveil.federation`; or a federation that is ready. `run`: a run folder,
    whose config and model are audited: also a model that was given from Python, if the run keeps it. `progress`: called
    with a line for each stage. Options: `tap`, `unit`, `methods` (of noise, one-run, f-dp, trials), `trials`, `canaries`,
    `seeds`, `confidence`, `delta`, `rounds`, `steps`; `fedveil.audit.run.Options` has their defaults. The rows say which
    tests alarm and which bounds exceed their certificate; `fedveil.audit.check_certificates` raises for them.
    """
    asked = _options(options)
    tell = progress or (lambda text: None)
    tell("preparing the federation")
    ready = settings
    if run is not None:
        if settings is not None or defense is not None:
            raise ConfigError("run", str(run), "a run has its own config: leave settings and defense out")
        ready, model = _of_run(Path(run), model)
    if not isinstance(ready, Federation):
        ready = federation(ready, defense=defense, data=data, model=model)
    simulator = ready.simulator
    task, sizes = simulator.task, asked.sizes(simulator.task.setting)
    _check(task, asked, sizes)
    made = Audit(simulator, sizes, asked.confidence, asked.delta, tell)
    with jax.enable_x64(task.dtype == "float64"):
        rows = NoiseTests(made).rows(asked.tap, asked.unit) if "noise" in asked.methods else []
        bounds = [method for method in METHODS[1:] if method in asked.methods]
        if bounds:
            rows += Bounds(made).rows(_observers(task, asked.tap, asked.unit), bounds, "noise" in asked.methods)
        return Rows(rows)


def _of_run(path: Path, model: Model | None) -> tuple[Config, Model | None]:
    """The config of a run, and the caller's own model that it was trained with, if any."""
    folder = RunFolder.open(path)
    folder.check_config()
    return from_dict(of_run(folder.config)), folder.own_network("run") if model is None else model


def _options(given: dict[str, Any]) -> Options:
    known = [field.name for field in fields(Options)]
    for key, value in given.items():
        if key not in known:
            raise ConfigError(key, value, "unknown option; " + did_you_mean(key, known))
    return Options(**given)


def _observers(task: Task, tap: str | None, unit: str | None) -> list[tuple[str, str]]:
    """The taps and units to attack: those behind some noise, unless named."""
    units = [unit] if unit else NODE_UNITS
    made = {r.unit for d in task.defenses for r in d.events(task.setting)}
    found = []
    for u in units:
        behind = u in made or "client" in made
        if unit or behind or not made:
            found += [(t, u) for t in ([tap] if tap else taps_to_audit(task.defenses, task.setting, u))]
    return found


# --- what can be audited


def _check(task: Task, asked: Options, sizes: Sizes) -> None:
    if asked.tap is not None and asked.tap not in CHAIN:
        raise unknown_name("tap", asked.tap, CHAIN)
    if asked.unit is not None and asked.unit not in NODE_UNITS:
        raise unknown_name("unit", asked.unit, NODE_UNITS)
    for method in asked.methods:
        if method not in METHODS:
            raise unknown_name("methods", method, METHODS)
    limits = {
        "trials": (sizes.trials, 1000, 10_000_000),
        "canaries": (sizes.canaries, 10, 5000),
        "seeds": (sizes.seeds, 1, 1000),
        "rounds": (sizes.rounds, 1, 10_000),
        "steps": (sizes.steps, 1, 10_000),
    }
    for key, (value, least, most) in limits.items():
        if not least <= value <= most:
            raise ConfigError(key, value, f"takes {least} to {most}")
    for key, share in (("confidence", asked.confidence), ("delta", asked.delta)):
        if share is not None and not 0.0 < share < 1.0:
            raise ConfigError(key, share, "takes a number between 0 and 1")
    measured = [d.name for d in task.defenses if d.held is not None]
    if measured:
        takes = "fits itself to the model and the data before training, which canaries have not: it cannot be audited"
        raise ConfigError("defense.name", measured[0], takes)
