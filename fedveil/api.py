"""The Python face of Fedveil: the same words as the config, with your own arrays and models where you have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.config import SECTIONS, Config, from_dict, load, resolve
from fedveil.core.errors import ConfigError, show
from fedveil.core.keys import Draws
from fedveil.data.arrays import from_arrays
from fedveil.data.dataset import Dataset
from fedveil.federation import Federation, prepare
from fedveil.models.net import Model
from fedveil.runs import RunFolder
from fedveil.training import Result
from fedveil.training import train as _train

Settings = Mapping[str, Any] | Config | str | Path | None
Arrays = Dataset | Sequence[np.ndarray]
IN_MEMORY = "(arrays in memory)"


def federation(
    settings: Settings = None,
    *,
    data: Arrays | None = None,
    model: Model | None = None,
    draws: Draws | None = None,
) -> Federation:
    """A federation ready to train or to be observed.

    `settings`: nested dicts as in a config file, a `Config`, or the path of a TOML file. `data`: a `Dataset`, or arrays
    `(x, y)` or `(x, y, x_test, y_test)`. `model`: anything with `init(key)` and `apply(params, x)`. `draws`: what cohorts,
    batches and noise come from; by default `train.noise_seed`, or a new secret.
    """
    if model is not None and (isinstance(model, type) or not isinstance(model, Model)):
        takes = "takes an object with init(key) and apply(params, x); the name of a model goes into the settings"
        raise ConfigError("model", model, f"{takes}: {{'model': {{'name': ...}}}}")
    config = _config(settings)
    dataset = None
    if data is not None:
        dataset, config = in_memory(data, config)
    return prepare(config, dataset=dataset, model=model, draws=draws)


def in_memory(data: Arrays, config: Config) -> tuple[Dataset, Config]:
    """A caller's arrays as a dataset, and the config that says so."""
    dataset = data if isinstance(data, Dataset) else _from_sequence(data)
    named = config.data.model_copy(update={"name": "file", "file": IN_MEMORY})
    return dataset, config.model_copy(update={"data": named})


def train(
    settings: Settings = None,
    *,
    data: Arrays | None = None,
    model: Model | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> Result:
    """Trains and returns the result. With `out`, writes a run folder; with `resume` too, goes on with the run in it."""
    if resume and out is None:
        raise ConfigError("resume", resume, "needs out, the folder of the run to go on with")
    if out == "":
        raise ConfigError("out", out, "takes the folder of a run: leave it out to write none")
    run = RunFolder.open(Path(out)) if resume and out is not None else None
    own = load(run.config) if run is not None else None
    draws = run.draws(own.train.noise_seed) if run is not None and own is not None else None
    ready = federation(own if settings is None else settings, data=data, model=model, draws=draws)
    if own is not None:
        _check_same(ready.config, resolve(own))
    elif out is not None:
        run = RunFolder.create(Path(out))
    return _train(ready, run, progress)


def _check_same(given: Config, own: Config) -> None:
    """A run goes on as it began: other settings half way would leave a folder whose config.toml is untrue."""
    if given == own:
        return
    for section in SECTIONS:
        was = getattr(own, section).model_dump()
        for key, value in getattr(given, section).model_dump().items():
            if value != was[key]:
                takes = f"the run to go on with has {show(was[key])}: leave the settings out to keep its own"
                raise ConfigError(f"{section}.{key}", value, takes)
    takes = f"the run to go on with has {show(own.defense)}: leave the settings out to keep its own"
    raise ConfigError("defense", given.defense, takes)


def _from_sequence(data: Sequence[np.ndarray]) -> Dataset:
    if len(data) == 2:
        return from_arrays(data[0], data[1])
    if len(data) == 4:
        return from_arrays(data[0], data[1], data[2], data[3])
    raise ConfigError("data", f"{len(data)} arrays", "takes (x, y) or (x, y, x_test, y_test)")


def _config(settings: Settings) -> Config:
    if isinstance(settings, Config):
        return settings
    if isinstance(settings, str | Path):
        return load(settings)
    return from_dict(dict(settings or {}))
