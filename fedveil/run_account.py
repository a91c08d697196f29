"""The privacy account of a config or of a run folder (`account`), and the noise or the rounds for a given ε (`calibrate`).

A run folder is accounted by its transcript. A folder from before there were transcripts is accounted by its plan.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from fedveil.accounting import calibrate as search
from fedveil.accounting import ledger, transcript
from fedveil.accounting.accountants import ACCOUNTANTS
from fedveil.accounting.accounts import CERTIFYING
from fedveil.accounting.calibrate import Found
from fedveil.accounting.ledger import Row
from fedveil.accounting.published import CLAIMED
from fedveil.accounting.transcript import Transcript
from fedveil.config import Defenses, Settings, from_dict, from_settings, of_run
from fedveil.core.errors import ConfigError, RunError, unknown_name
from fedveil.core.system import Rows
from fedveil.core.taps import ACCOUNTED_TAPS, ADJACENCIES, UNITS
from fedveil.federation import IN_MEMORY, Plan, plan
from fedveil.runs import MOST_ROUNDS, RunFolder

Parts = Sequence[tuple[Transcript, tuple[Row, ...]]]


class Ledger(Rows[Row]):
    """The rows of an account, and the transcript that each group of them was made from."""

    parts: Parts
    curves: bool  # whether `as_dict` adds μ and the trade-off curve to certified rows

    def __new__(cls, parts: Parts, curves: bool = False) -> Self:
        made = super().__new__(cls, [row for _, rows in parts for row in rows])
        made.parts, made.curves = parts, curves
        return made

    def __getnewargs__(self) -> tuple[Parts, bool]:
        """What copies and pickles are made from."""
        return self.parts, self.curves

    def as_dict(self) -> list[dict[str, object]]:
        """The JSON document of `fedveil ledger`: a list of rows."""
        return [self._document(made, row) for made, rows in self.parts for row in rows]

    def best(self) -> Ledger:
        """One row per tap and unit: see `best_row`."""
        return Ledger([(made, best_rows(rows)) for made, rows in self.parts], self.curves)

    def _document(self, made: Transcript, row: Row) -> dict[str, object]:
        curve = ledger.curve(made, row) if self.curves and row.certified else None
        return {**row.as_dict(), **(curve.as_dict() if curve is not None else {})}


def best_rows(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The row that says most of each tap and unit, of one account."""
    found = (best_row(rows, tap, unit) for tap in ACCOUNTED_TAPS for unit in UNITS)
    return tuple(row for row in found if row is not None)


def best_row(rows: Sequence[Row], tap: str, unit: str) -> Row | None:
    """The smallest certified ε of a tap and unit; without one the smallest ε, else the reason why there is none.

    The adjacency `replace` counts only where no other has an ε, and a paper's claim only where nothing else is asked for.
    """
    here = [row for row in rows if (row.tap, row.unit) == (tap, unit)]
    own = [row for row in here if row.rule not in CLAIMED] or here
    plain = [row for row in own if row.adjacency != "replace"]
    return smallest(plain) or smallest(own) or (own[0] if own else None)


def smallest(rows: Sequence[Row]) -> Row | None:
    """The row of the smallest certified ε over all accountants; else of the smallest ε."""
    known = [(not row.certified, row.epsilon, index) for index, row in enumerate(rows) if row.epsilon is not None]
    return rows[min(known)[2]] if known else None


def account(
    settings: Settings | Plan = None,
    *,
    rounds: int | Sequence[int] | None = None,
    delta: float | None = None,
    accountant: str | Sequence[str] | None = None,
    curves: bool = False,
    defense: Defenses | None = None,
) -> Ledger:
    """The privacy account: ε for each tap, unit and adjacency, certified or as published, with its assumptions.

    `settings`: as in `fedveil.train`, or a plan, for a training that has not happened; or the path of a run folder, for
    the rounds that it has executed. `rounds`: after this many rounds, or after each of several numbers of rounds.
    `delta`: by default the defence's own. `accountant`: only this one, or only these. `curves`: also μ-GDP and trade-off
    curves of certified rows. `defense`: a defence object, or several in order; it replaces the one in the settings.
    """
    check_delta(delta)
    chosen = (accountant,) if isinstance(accountant, str) else accountant or ("paper", *CERTIFYING)
    for name in chosen:
        if name not in ACCOUNTANTS:
            raise unknown_name("accountant", name, ACCOUNTANTS)
    made = _transcripts(settings, _numbers(rounds), defense)
    return Ledger(tuple((one, tuple(ledger.rows(one, delta, accountants=chosen))) for one in made), curves)


def _numbers(rounds: int | Sequence[int] | None) -> list[int]:
    asked = [] if rounds is None else [rounds] if isinstance(rounds, int) else list(rounds)
    if not all(1 <= number <= MOST_ROUNDS for number in asked):
        raise ConfigError("rounds", rounds, "takes whole numbers from 1")
    return asked


def _transcripts(settings: Settings | Plan, rounds: list[int], defense: Defenses | None) -> list[Transcript]:
    """Of a config the plan, for each number of rounds; of a run folder what it executed, or its first rounds."""
    if isinstance(settings, str | Path) and settings != "" and Path(settings).is_dir():
        return [transcript_of(Path(settings), count) for count in rounds] or [transcript_of(Path(settings))]
    planned = settings if isinstance(settings, Plan) else plan(from_settings(settings, defense))
    return [planned.transcript(count) for count in rounds or [planned.setting.rounds]]


def check_delta(delta: float | None) -> None:
    if delta is not None and not 0 < delta < 1:
        raise ConfigError("delta", delta, "takes a number above 0 and below 1: 1e-5, say")


# --- from an ε to a setting


@dataclass(frozen=True)
class Calibration:
    """A setting that keeps an ε: the noise of one defence, and the number of rounds."""

    key: str  # of the config, such as defense.noise
    found: Found

    def as_dict(self) -> dict[str, object]:
        """The JSON document of `fedveil calibrate`."""
        found = self.found
        return {
            self.key: found.value,
            "noise": found.value,
            "rounds": found.rounds,
            "epsilon": found.row.epsilon,
            "row": found.row.as_dict(),
        }


def calibrate(
    settings: Settings = None,
    *,
    epsilon: float,
    delta: float | None = None,
    tap: str = "release",
    unit: str = "example",
    adjacency: str | None = None,
    noise: float | None = None,
    defense: Defenses | None = None,
) -> Calibration:
    """Finds the least noise that keeps ε over the rounds of the config; with `noise`, the most rounds that it affords.

    `settings`, `defense`: as in `fedveil.train`, or the path of a run folder, whose config is taken. `tap`, `unit`,
    `adjacency`: whose ε it is; by default of one example in the released model.
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ConfigError("epsilon", epsilon, "takes a number above 0")
    check_delta(delta)
    if noise is not None and not (noise > 0 and math.isfinite(noise)):
        raise ConfigError("noise", noise, "takes a number above 0, the defence's noise multiplier")
    tables = {"tap": (tap, ACCOUNTED_TAPS), "unit": (unit, UNITS), "adjacency": (adjacency, ADJACENCIES)}
    for key, (value, known) in tables.items():
        if value is not None and value not in known:
            raise unknown_name(key, value, known)
    if isinstance(settings, str | Path) and settings != "" and Path(settings).is_dir():
        settings = Path(settings) / "config.toml"
    planned = plan(from_settings(settings, defense))
    goal = search.Goal(epsilon, planned.transcript(1).delta if delta is None else delta, tap, unit, adjacency)
    if noise is None:
        found = search.noise_for(planned.defenses, planned.setting, goal)
    else:
        found = search.rounds_with(planned.defenses, planned.setting, goal, noise)
    where = "defense" if len(planned.defenses) == 1 else f"defense.{found.index}"
    return Calibration(f"{where}.{found.key}", found)


# --- the transcript of a run


def transcript_of(path: Path, rounds: int | None = None) -> Transcript:
    """What the run in a folder executed so far, or in its first `rounds` rounds."""
    file, run = path / transcript.FILE, RunFolder.open(path)
    if os.path.lexists(file):
        return transcript.read(file, rounds, at_least=_shown(run))
    return _older(run, rounds)


def _shown(run: RunFolder) -> int:
    """The number of rounds that any file of the run shows.

    Metrics are written before the checkpoint of their round, so an unreadable checkpoint hides no round.
    """
    shown = len(run.read_metrics())
    try:
        return max(shown, run.checkpoint_round())
    except RunError:
        return shown


def _older(run: RunFolder, rounds: int | None) -> Transcript:
    """The plan of a simulated run, for the rounds that its files show. For other runs the config is not enough."""
    config = from_dict(of_run(run.config))
    why = ""
    if (run.path / "deploy.json").exists():
        why = "it was deployed, and its nodes, lost answers and repeated rounds are in no transcript"
    elif run.read_info().get("own_model"):
        why = "it was trained with a caller's own model, whose layers are not in the config"
    elif config.data.file == IN_MEMORY:
        why = "it was trained on arrays in memory, whose sizes are not in the config"
    if why:
        raise RunError(f"{run.path} has no {transcript.FILE}: {why}; run it again to get an account")
    done = _shown(run)
    dropped = sum(int(row.get("not_finite", 0)) for row in run.read_metrics())
    made = plan(config).transcript(done if rounds is None else min(rounds, done))
    if not run.secret.exists():  # before there were secret draws, all draws followed `train.seed`
        made = replace(made, setting=replace(made.setting, secret_draws=False))
    return replace(made, dropped=dropped)
