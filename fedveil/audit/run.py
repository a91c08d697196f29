"""`run`: the audit of a config. Tests of the noise on the executed path, and lower bounds on ε by canaries.

With probability `confidence` no bound is too large and no test alarms wrongly, in the whole call: half of the error is
divided among the tests, half among the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from fedveil.audit.bounds import Bounds
from fedveil.audit.certificate import taps_to_audit
from fedveil.audit.noise_tests import NoiseTests
from fedveil.audit.rows import AuditRow
from fedveil.audit.shared import Audit, Progress, Sizes
from fedveil.config import Config
from fedveil.core.errors import ConfigError, unknown_name
from fedveil.core.taps import CHAIN, NODE_UNITS
from fedveil.federation import Federation, prepare
from fedveil.simulation.client import Task

METHODS = ("noise", "one-run", "f-dp", "trials")


def run(
    config: Config | Federation,
    *,
    tap: str | None = None,
    unit: str | None = None,
    methods: Sequence[str] = METHODS,
    trials: int = 200_000,
    canaries: int = 600,
    seeds: int = 1,
    confidence: float = 0.999,
    delta: float | None = None,
    rounds: int | None = None,
    steps: int | None = None,
    progress: Progress | None = None,
) -> list[AuditRow]:
    """Audits the defences of a config.

    `tap`, `unit`: where the adversary stands and whom it looks for; unset: both units, at the taps where noise protects
    them (a tap that is only post-processing of one before it is left out). `rounds` of `steps` local steps are attacked;
    unset: two of two, as far as the config has them.
    """
    tell = progress or (lambda text: None)
    tell("preparing the federation")
    federation = config if isinstance(config, Federation) else prepare(config)
    simulator = federation.simulator
    setting = simulator.task.setting
    rounds = min(2, setting.rounds) if rounds is None else rounds
    steps = min(2, setting.local_steps) if steps is None else steps
    sizes = Sizes(trials, canaries, seeds, rounds, steps)
    _check(simulator.task, tap, unit, methods, sizes, confidence, delta)
    audit = Audit(simulator, sizes, confidence, delta, tell)
    with jax.enable_x64(simulator.task.dtype == "float64"):
        rows = NoiseTests(audit).rows(tap, unit) if "noise" in methods else []
        bounds = [method for method in METHODS[1:] if method in methods]
        if bounds:
            rows += Bounds(audit).rows(_places(simulator.task, tap, unit), bounds, "noise" in methods)
        return rows


def _places(task: Task, tap: str | None, unit: str | None) -> list[tuple[str, str]]:
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


def _check(
    task: Task, tap: str | None, unit: str | None, methods: Sequence[str], sizes: Sizes, confidence: float,
    delta: float | None,
) -> None:  # fmt: skip
    if tap is not None and tap not in CHAIN:
        raise unknown_name("tap", tap, CHAIN)
    if unit is not None and unit not in NODE_UNITS:
        raise unknown_name("unit", unit, NODE_UNITS)
    for method in methods:
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
    for key, share in (("confidence", confidence), ("delta", delta)):
        if share is not None and not 0.0 < share < 1.0:
            raise ConfigError(key, share, "takes a number between 0 and 1")
    measured = [d.name for d in task.defenses if d.held is not None]
    if measured:
        takes = "fits itself to the model and the data before training, which canaries have not: it cannot be audited"
        raise ConfigError("defense.name", measured[0], takes)
