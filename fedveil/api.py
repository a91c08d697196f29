"""The Python face of Fedveil: the same words as the config, with your own arrays and models where you have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.assemble import Federation, prepare
from fedveil.config import Config, from_dict, load
from fedveil.data.arrays import from_arrays
from fedveil.data.dataset import Dataset
from fedveil.errors import ConfigError
from fedveil.models.net import Model
from fedveil.runs import RunFolder
from fedveil.training import Result
from fedveil.training import train as _train

Settings = Mapping[str, Any] | Config | str | Path | None
Arrays = Dataset | Sequence[np.ndarray]
IN_MEMORY = "(arrays in memory)"


def federation(settings: Settings = None, *, data: Arrays | None = None, model: Model | None = None) -> Federation:
    """A federation ready to train or to be observed.

    `settings`: nested dicts as in a config file, a `Config`, or the path of a TOML file. `data`: a `Dataset`, or arrays
    `(x, y)` or `(x, y, x_test, y_test)`. `model`: anything with `init(key)` and `apply(params, x)`.
    """
    config = _config(settings)
    dataset = None
    if data is not None:
        dataset = data if isinstance(data, Dataset) else _from_sequence(data)
        config = config.model_copy(update={"data": config.data.model_copy(update={"name": "file", "file": IN_MEMORY})})
    return prepare(config, dataset=dataset, model=model)


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
    run = None
    if resume and out is not None:
        run = RunFolder.open(Path(out))
        settings = settings if settings is not None else run.config
    ready = federation(settings, data=data, model=model)
    if out is not None and run is None:
        run = RunFolder.create(Path(out))
    return _train(ready, run, progress)


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
