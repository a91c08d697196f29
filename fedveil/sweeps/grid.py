"""The cells of a sweep: every combination of the lists in `[sweep]`, each as the settings of one config.

[train]
rounds = 20                 # everything outside [sweep] is the same in all cells

[sweep]
seeds = 3                   # 0, 1, 2; or a list
taps = ["server"]           # where each cell is attacked
train.lr = [0.1, 0.3]       # any section.key

[[sweep.defense]]           # each is combined with its own lists
name = "fed-cdp"
noise = [0.5, 1.0, 2.0]

[sweep.calibrate]           # instead of strengths: the least noise that keeps each ε
epsilon = [1, 3, 8]
tap = "server"
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedveil.config import SECTIONS, load
from fedveil.core.errors import ConfigError, did_you_mean, unknown_name
from fedveil.core.taps import ACCOUNTED_TAPS, TAPS, UNITS
from fedveil.federation import plan
from fedveil.recipes.cell import Job
from fedveil.recipes.kinds_sweep import bench_for

KEYS = ("seeds", "taps", "defense", "calibrate", *SECTIONS)
GOAL = ("epsilon", "delta", "tap", "unit", "adjacency")
MOST_CELLS = 100_000

Values = dict[str, Any]  # section.key → value


@dataclass(frozen=True)
class Cell:
    """One training of a sweep. `values` are those that differ between cells, the seed apart."""

    values: Values
    seed: int
    job: Job

    @property
    def label(self) -> str:
        """The values in one line: `fed-cdp, noise 2, train.lr 0.1`."""
        return label(self.values)


def label(values: Mapping[str, Any]) -> str:
    """Values in one line. The name of a defence or an attack stands for itself."""
    words = []
    for key, value in values.items():
        section, _, name = key.partition(".")
        short = name.rpartition(".")[2] if section == "defense" else "ε" if section == "calibrate" else key
        text = "+".join(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else _short(value)
        words.append(text if short == "name" else f"{short} {text}")
    return ", ".join(words) or "as configured"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def cells_of(document: Mapping[str, Any]) -> list[Cell]:
    """The cells of a document. Each is checked as far as possible without loading data."""
    base = {key: value for key, value in document.items() if key != "sweep"}
    asked = document.get("sweep", {})
    if not isinstance(asked, dict):
        raise ConfigError("sweep", asked, "is a section: write [sweep] with lists below it")
    for key, value in asked.items():
        if key not in KEYS:
            raise ConfigError(f"sweep.{key}", value, did_you_mean(key, KEYS))
    seeds, taps = _seeds(asked.get("seeds", 1)), _taps(asked.get("taps", []))
    made, checked = [], set()
    for values, settings, attack in _combined(base, asked):
        options = {"taps": taps, "attack": attack} if taps else {}
        for tap in taps:
            bench_for(tap, attack).make()
        for place, seed in enumerate(seeds):
            job = Job("sweep", (*settings, *_seeded(settings, seed)), options)
            made.append(Cell(values, seed, job))
            if place == 0 and settings not in checked:
                checked.add(settings)
                plan(load(None, list(job.settings)))
        if len(made) > MOST_CELLS:
            raise ConfigError("sweep", f"{len(made)} cells", f"takes lists with at most {MOST_CELLS:,} combinations")
    return made


def _combined(base: Values, asked: Mapping[str, Any]) -> Iterator[tuple[Values, tuple[str, ...], Values]]:
    """Values that differ, settings and `[attack]` of each combination."""
    attack = dict(base.get("attack", {}))
    base = {key: value for key, value in base.items() if key != "attack"}
    lists = {key: values for section in SECTIONS for key, values in _lists(section, asked.get(section, {}))}
    defenses = list(_defenses(asked["defense"])) if "defense" in asked else [None]
    if defenses[0] is not None:
        base.pop("defense", None)
    goals = list(_goals(asked["calibrate"])) if "calibrate" in asked else []
    for defense in defenses:
        for chosen in itertools.product(*lists.values()):
            values = dict(zip(lists, chosen, strict=True))
            own = {**attack, **{key.partition(".")[2]: v for key, v in values.items() if key.startswith("attack.")}}
            given = {key: v for key, v in values.items() if not key.startswith("attack.")}
            differs, keys = defense or ({}, {})
            settings = (*_settings(base), *_settings(keys), *_settings(given))
            for goal, found in _calibrated(settings, goals):
                yield {**differs, **values, **goal}, (*settings, *found), own


def _lists(section: str, table: Any) -> Iterator[tuple[str, list[Any]]]:
    if not isinstance(table, dict):
        raise ConfigError(f"sweep.{section}", table, f"takes lists by key: sweep.{section}.KEY = [value, value]")
    for key, values in table.items():
        if key not in SECTIONS[section].model_fields and section != "attack":
            raise ConfigError(f"sweep.{section}.{key}", values, did_you_mean(key, SECTIONS[section].model_fields))
        if not isinstance(values, list) or not values:
            raise ConfigError(f"sweep.{section}.{key}", values, "takes a list of values: [value, value]")
        yield f"{section}.{key}", values


def _defenses(given: Any) -> Iterator[tuple[Values, Values]]:
    """(values that differ, settings) for each defence and each of its strengths. A list of tables is one combination."""
    takes = 'takes tables of keys: [[sweep.defense]] with name = "fed-cdp" and noise = [1, 2]'
    if not isinstance(given, list) or not given:
        raise ConfigError("sweep.defense", given, takes)
    for entry in given:
        stack = entry if isinstance(entry, list) else [entry]
        if not stack or not all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in stack):
            raise ConfigError("sweep.defense", entry, takes)
        names = [one["name"] for one in stack]
        keys = [f"defense.{place}.{key}" for place, one in enumerate(stack) for key in one]
        choices = [value if isinstance(value, list) else [value] for one in stack for value in one.values()]
        for key, choice in zip(keys, choices, strict=True):
            if not choice:
                raise ConfigError(f"sweep.{key}", choice, "takes a value, or a list of at least one")
        several = {key for key, choice in zip(keys, choices, strict=True) if len(choice) > 1}
        for chosen in itertools.product(*choices):
            settings = dict(zip(keys, chosen, strict=True))
            differs = {key: value for key, value in settings.items() if key in several}
            yield {"defense.name": "+".join(names), **differs}, settings


def _goals(given: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(given, dict) or not isinstance(given.get("epsilon"), list) or not given["epsilon"]:
        raise ConfigError("sweep.calibrate", given, "takes {epsilon = [1, 3, 8]}, and delta, tap, unit, adjacency")
    for key, value in given.items():
        if key not in GOAL:
            raise ConfigError(f"sweep.calibrate.{key}", value, did_you_mean(key, GOAL))
    for key, known in (("tap", ACCOUNTED_TAPS), ("unit", UNITS)):
        if given.get(key, known[0]) not in known:
            raise unknown_name(f"sweep.calibrate.{key}", given[key], known)
    for epsilon in given["epsilon"]:
        if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < math.inf:
            raise ConfigError("sweep.calibrate.epsilon", epsilon, "takes numbers above 0")
        yield {**given, "epsilon": epsilon}


def _calibrated(settings: tuple[str, ...], goals: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Values, list[str]]]:
    """(the ε, the setting that keeps it) for each goal; one empty pair without goals or without adjustable noise."""
    config = load(None, list(settings))
    unit = goals[0].get("unit", "example") if goals else "example"
    if not goals or all(defense.dial(unit) is None for defense in config.defense):
        yield {}, []
        return
    from fedveil.run_account import calibrate

    for goal in goals:
        found = calibrate(config, **goal)
        yield {"calibrate.epsilon": goal["epsilon"]}, [f"{found.key}={found.found.value!r}"]


def _seeds(given: Any) -> list[int]:
    takes = "takes the number of seeds, or a list of them: 3, or [0, 1, 2]"
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= 10_000:
        return list(range(given))
    whole = isinstance(given, list) and all(type(seed) is int and 0 <= seed < 2**31 for seed in given)
    if whole and given and len(set(given)) == len(given):
        return list(given)
    raise ConfigError("sweep.seeds", given, takes)


def _taps(given: Any) -> list[str]:
    if not isinstance(given, list):
        raise ConfigError("sweep.taps", given, 'takes a list of taps to attack: ["client", "server"]')
    for tap in given:
        if tap not in TAPS:
            raise unknown_name("sweep.taps", tap, TAPS)
    return list(dict.fromkeys(given))


def _seeded(settings: Sequence[str], seed: int) -> tuple[str, ...]:
    """The settings of a seed. Draws are secret, as in any training, unless the sweep names `train.noise_seed`."""
    given = [one.partition("=")[2] for one in settings if one.startswith("train.noise_seed=")]
    return (f"train.seed={seed}", *(f"train.noise_seed={int(value) + seed}" for value in given[-1:]))


def _settings(table: Mapping[str, Any], before: str = "") -> tuple[str, ...]:
    """Nested tables as `section.key=value`."""
    found: list[str] = []
    for key, value in table.items():
        name = f"{before}{key}"
        if name == "defense":
            stack = value if isinstance(value, list) else [value]
            for place, one in enumerate(stack):
                found += _settings(one, f"defense.{place}.")
        elif isinstance(value, Mapping):
            found += _settings(value, f"{name}.")
        else:
            found.append(f"{name}={_toml(value)}")
    return tuple(found)


def _toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value)
