"""Tests of the noise of every declared release: on the canary model, on the user's own, and in a node."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fedveil.audit import checks, measure
from fedveil.audit.checks import Finding
from fedveil.audit.path import NodePath, Path, own_path
from fedveil.audit.rows import AuditRow, test_row
from fedveil.audit.shared import Audit
from fedveil.core.events import Release
from fedveil.core.setting import Setting
from fedveil.defenses.base import Defense

OWN_CLIENTS = 2  # whose noise is looked at on the user's own model
CANARY_CLIENTS = 8


@dataclass(frozen=True)
class NoiseTests:
    """The tests of one audit."""

    audit: Audit

    def rows(self, tap: str | None, unit: str | None) -> list[AuditRow]:
        """Scale, correlation and clip of every declared release; p-values are corrected for all of them together."""
        found: list[tuple[Finding, float]] = []
        for defense in self.audit.task.defenses:
            own: Path | None = None
            for release in defense.events(self.audit.task.setting):
                testable = release.certifiable and release.multiplier > 0.0 and math.isfinite(release.multiplier)
                if not testable or (tap and release.tap != tap) or (unit and release.unit != unit):
                    continue
                if release.tap != "example" and own is None:
                    self.audit.tell("own model: compiling its round")
                    own = own_path(self.audit.simulator, (defense,), self.audit.seed)
                began = time.monotonic()
                for finding in self._of_release(defense, release, own):
                    found.append((finding, time.monotonic() - began))
                    began = time.monotonic()
        alpha = (1.0 - self.audit.confidence) / 2.0
        counted = sum(finding.p_value is not None for finding, _ in found)
        return [test_row(finding, counted, alpha, self.audit.confidence, seconds) for finding, seconds in found]

    def _of_release(self, defense: Defense, release: Release, own: Path | None) -> Iterator[Finding]:
        where = f"{release.unit} at {release.tap}"
        path = self.audit.canaries((defense,))
        setting = path.task.setting
        rounds = measure.rounds_to_probe(release, setting)
        if not rounds:
            return
        clients = list(range(min(CANARY_CLIENTS, setting.clients)))
        self.audit.tell(f"noise, {where}: canary model")
        if release.tap == "example":
            yield from findings(measure.measure_examples(path, release, rounds, clients))
            return
        # What is declared may depend on the number of steps, which is cut short on the canary model.
        short = _same(defense, release, setting)
        yield from findings(measure.measure_canaries(path, short, rounds, clients))
        if path.simulator.microbatches is not None and release.stage in measure.STEP_STAGES:
            self.audit.tell(f"noise, {where}: canary model, batches not cut into micro-batches")
            whole = measure.measure_canaries(path.in_whole_batches(), short, rounds[:1], clients)
            yield from findings(replace(whole, path="whole batches"))
        assert own is not None
        yield from self._own(own, _same(defense, release, own.task.setting), rounds, clients[:OWN_CLIENTS])

    def _own(self, own: Path, release: Release, rounds: Sequence[int], clients: list[int]) -> Iterator[Finding]:
        """Tests on the user's own model: in the simulator, and in a node if the clients add the noise."""
        where = f"{release.unit} at {release.tap}"
        self.audit.tell(f"noise, {where}: own model")
        own.forced = None
        yield from findings(measure.measure_own(own, release, rounds, clients))
        if release.stage in (*measure.STEP_STAGES, *measure.CLIENT_STAGES):
            self.audit.tell(f"noise, {where}: a node's program and keys")
            yield from findings(measure.measure_own(NodePath(own), release, rounds[:1], clients))


def findings(measured: measure.Measured) -> Iterator[Finding]:
    """All tests of what was measured."""
    yield from checks.scale(measured)
    yield from checks.correlations(measured)
    yield from filter(None, [checks.clip(measured)])


def _same(defense: Defense, release: Release, setting: Setting) -> Release:
    """The same release as declared for another setting."""
    made = defense.events(setting)
    key = (release.tap, release.unit, release.stage)
    return next((r for r in made if (r.tap, r.unit, r.stage) == key), release)
