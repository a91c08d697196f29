"""`fedveil.tune`: a search for good settings on private data, whose own cost in ε is counted.

Choosing the best of several trainings on the same data is one more look at the data. Papernot and Steinke (2022) bound its
cost: a random number K of trainings is made, each with settings drawn at random from the list, and only the best one is
released. K is geometric, drawn in secret, and neither printed nor stored; nor are the other trainings' results.

All settings in the list must cost the same ε for one training: learning rates, momentum, clips (noise is a multiple of the
clip). The ε is that of the released model. Messages during training show all K trainings, so no other tap has an ε.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.accounting.ledger import tuned
from fedveil.config import Config, Settings, load, resolve, to_toml
from fedveil.core.errors import ConfigError, RunError
from fedveil.core.files import SHARED, write_atomic, write_text
from fedveil.core.system import to_json
from fedveil.core.taps import ADJACENCIES, UNITS
from fedveil.federation import plan, prepare
from fedveil.sweeps.grid import Cell, cells_of
from fedveil.sweeps.run import document_of

MOST_TRIALS = 10_000
Say = Callable[[str], None]


@dataclass(frozen=True)
class Tuned:
    """The best training, and the ε of the whole search."""

    values: Mapping[str, Any]
    config: Config
    accuracy: float
    split: str
    chance: float
    mean_trials: float
    candidates: int
    epsilon: tuple[Mapping[str, Any], ...]  # one row per unit and adjacency that has an account
    params: Any
    files: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        """The JSON document of `fedveil tune`."""
        return {
            "values": dict(self.values),
            "config": to_toml(self.config),
            "accuracy": self.accuracy,
            "split": self.split,
            "chance": self.chance,
            "mean_trials": self.mean_trials,
            "candidates": self.candidates,
            "epsilon": [dict(row) for row in self.epsilon],
            "files": dict(self.files),
        }


def tune(
    settings: Settings = None,
    out: str | Path | None = None,
    *,
    trials: float = 10.0,
    delta: float | None = None,
    progress: Say | None = None,
) -> Tuned:
    """Trains with settings drawn from the lists in `[sweep]`, a secret number of times, and releases the best training.

    `settings`: as in `fedveil.sweep`, without seeds and taps. `trials`: the mean number of trainings. `out`: a folder for
    `model.safetensors`, `config.toml` and `tune.json`. `delta`: by default the defence's own.
    """
    if isinstance(trials, bool) or not (1 <= trials <= MOST_TRIALS and math.isfinite(trials)):
        raise ConfigError("trials", trials, f"takes the mean number of trainings, from 1 to {MOST_TRIALS:,}")
    if out is not None and (str(out) == "" or (Path(out) / "tune.json").exists()):
        raise ConfigError("out", str(out), "takes a folder that holds no tuning yet")
    cells = _candidates(document_of(settings))
    rows = _account(cells, trials, delta)
    if progress is not None:
        progress("tuning: a number of trainings that is drawn in secret; it is not shown, because ε counts on that")
    cell, done, config = _best(cells, _drawn(trials))
    result = Tuned(
        cell.values, config, done.accuracy, done.split, done.chance, trials, len(cells), rows, done.params, {}
    )
    return result if out is None else _written(result, Path(out))


def _candidates(document: Mapping[str, Any]) -> list[Cell]:
    asked = document.get("sweep", {})
    for key in ("seeds", "taps"):
        if isinstance(asked, Mapping) and key in asked:
            raise ConfigError(f"sweep.{key}", asked[key], "is not for tuning: leave it out")
    cells = cells_of(document)
    seed = load(None, list(cells[0].job.settings)).train.noise_seed
    if seed is not None:
        raise ConfigError("train.noise_seed", seed, "makes all draws known: leave it out, tuning needs secret ones")
    return cells


def _account(cells: list[Cell], trials: float, delta: float | None) -> tuple[Mapping[str, Any], ...]:
    """The ε of the released model by unit and adjacency, before anything is trained."""
    planned = [plan(load(None, list(cell.job.settings))).transcript() for cell in cells]
    target = planned[0].delta if delta is None else delta
    rows = []
    for unit in UNITS:
        for adjacency in ADJACENCIES:
            (epsilon, assumed), (once, _) = (tuned(planned, unit, adjacency, target, mean) for mean in (trials, 1.0))
            if epsilon is not None:
                row = {"tap": "release", "unit": unit, "adjacency": adjacency, "epsilon": epsilon, "delta": target}
                rows.append({**row, "epsilon_of_one_training": once, "rule": "tuning", "assumptions": list(assumed)})
    if not rows:
        takes = (
            "must all cost the same ε, and some: vary learning rates, momentum or clips of a defence with an account"
        )
        raise ConfigError("sweep", [cell.label for cell in cells][:3], takes)
    return tuple(rows)


def _drawn(mean: float) -> int:
    """A geometric number from 1 on with this mean, from the operating system's generator."""
    source, count = secrets.SystemRandom(), 1
    while source.random() * mean >= 1.0:
        count += 1
    return count


def _best(cells: list[Cell], times: int) -> tuple[Cell, Any, Config]:
    """The training of the highest accuracy on held-out records. One that is not finite counts as the worst."""
    from fedveil.training import train

    best: tuple[Cell, Any, Config] | None = None
    for _ in range(times):
        cell = secrets.choice(cells)
        config = resolve(load(None, list(cell.job.settings)))
        done = train(prepare(config))
        if best is None or _score(done) > _score(best[1]):
            best = cell, done, config
    assert best is not None
    return best


def _score(done: Any) -> float:
    return done.accuracy if math.isfinite(done.loss) else -1.0


def _written(result: Tuned, folder: Path) -> Tuned:
    """Writes model, config and account. No run folder: its ledger would show the ε of a single training."""
    from dataclasses import replace

    from fedveil.runs import parameters_as_bytes

    names = ("model.safetensors", "config.toml", "tune.json")
    result = replace(result, files={name: str(folder / name) for name in names})
    content = parameters_as_bytes(result.params)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / names[0], lambda file: file.write(content), SHARED)
        write_text(folder / names[1], to_toml(result.config), SHARED)
        write_text(folder / names[2], to_json(result.as_dict(), indent=2) + "\n", SHARED)
    except OSError as error:
        raise RunError(
            f"{folder} cannot be written ({error.strerror}); the result is lost, and its ε is spent"
        ) from None
    return result
