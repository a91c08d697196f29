"""The jobs of the workers: one function per kind. Runs in worker processes only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.errors import ConfigError, RunError
from fedveil.core.files import write_atomic
from fedveil.data.dataset import Dataset
from fedveil.data.pixels import png_uri, to_bytes
from fedveil.lab import pictures
from fedveil.lab.requests import LeakRequest, Picture, read

Tell = Callable[[dict[str, Any]], None]
Task = Callable[..., Any]  # (payload, folder, tell) -> result
TOLD = ("accuracy", "chance", "learned", "diagnosis", "split", "loss", "rounds", "seconds", "stopped")
OTHERS = 200  # held-out examples in a file of picked pictures


def gallery(payload: dict[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """Pictures of a dataset's training part."""
    data = _dataset(payload["dataset"])
    first = min(max(0, payload["first"]), max(0, len(data.train) - 1))
    last = min(first + payload["count"], len(data.train))
    shown = [
        {"index": i, "label": _label(data, int(data.train.y[i])), "png": png_uri(_example(data, i))}
        for i in _in_turn(data.train.y)[first:last].tolist()
    ]
    return {"dataset": payload["dataset"], "total": len(data.train), "pictures": shown}


def _in_turn(y: np.ndarray) -> np.ndarray:
    """The order in which pictures are shown: one of each class in turn, if the dataset is sorted by class.

    So faces of several people are seen at once, and a batch holds several of them.
    """
    rows = np.arange(len(y))
    if len(y) < 2 or (np.diff(y) < 0).any():
        return rows
    first = np.searchsorted(y, y)  # the first row of each one's class
    return np.lexsort((y, rows - first))


def upload(payload: dict[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """Checks an upload and stores it."""
    picture = pictures.decode(payload["content"])
    name = pictures.keep(picture, folder)
    return {"upload": name, "png": png_uri(np.asarray(picture))}


def sized(payload: dict[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """An upload in the size and colours of a dataset, as it is attacked."""
    shape = _dataset(payload["dataset"]).shape
    height, width, channels = shape
    found = png_uri(pictures.read_upload(folder, payload["upload"], shape))
    return {"png": found, "size": f"{width} × {height}, {'in colour' if channels == 3 else 'grey'}"}


def pick(payload: dict[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """A file with the pictures of a leak, for `data.file`; the same request gives the same file."""
    ask: LeakRequest = read(LeakRequest, payload["ask"])
    picture, count = ask.picture, ask.pictures
    data = _dataset(picture.dataset)
    x, y = _picked(data, picture, count, folder)
    rows = np.arange(min(OTHERS, len(data.held_out)))
    told = {int(c): int(i) for i, c in reversed(list(enumerate(data.held_out.y)))}
    rows = np.unique([*rows, *told.values()])  # every class, so that the file shows how many there are
    others = data.held_out.take(rows)
    name = hashlib.sha256(x.tobytes() + y.tobytes() + picture.dataset.encode()).hexdigest()[:16]
    path = folder / "picked" / f"{picture.dataset}-{name}.npz"
    if not path.is_file():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        arrays: dict[str, Any] = {"x": x, "y": y, "x_test": _bytes(data, others.x), "y_test": others.y}
        savez: Callable[..., None] = np.savez
        write_atomic(path, lambda file: savez(file, **arrays))
    return {"file": str(path), "labels": [_label(data, int(label)) for label in y]}


def _picked(data: Dataset, picture: Picture, count: int, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The picture itself, then the next ones as the gallery shows them."""
    total = len(data.train)
    if picture.upload is None and picture.index >= total:
        raise ConfigError("picture.index", picture.index, f"{picture.dataset} has {total} training pictures")
    order = _in_turn(data.train.y)
    start = int(np.flatnonzero(order == picture.index % total)[0])
    rows = order[[(start + i) % total for i in range(count)]]
    x, y = _bytes(data, data.train.x[rows]), data.train.y[rows].copy()
    if picture.upload is not None:
        if picture.label >= data.classes:
            raise ConfigError("picture.label", picture.label, f"{picture.dataset} has classes 0 to {data.classes - 1}")
        x[0], y[0] = pictures.read_upload(folder, picture.upload, data.shape), picture.label
    return x, y


def leak(payload: dict[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """Attacks, live."""
    from fedveil.lab import leak as live

    return live.run(payload["documents"], tell)


def account(payload: dict[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """ε against every adversary for a config."""
    from fedveil.lab.account import account_of

    return account_of(payload["document"])


def train(payload: dict[str, Any], folder: Path, tell: Tell) -> dict[str, Any]:
    """A training, into a run folder."""
    from fedveil.config import from_dict
    from fedveil.federation import prepare
    from fedveil.runs import RunFolder
    from fedveil.training import train as go

    path = Path(payload["run"])
    tell({"stage": "preparing", "text": "data and model are prepared"})
    federation = prepare(from_dict(payload["document"]))
    run = RunFolder.create(path)
    tell({"stage": "training", "run": path.name, "rounds": federation.rounds})

    def progress(row: dict[str, Any]) -> None:
        known = {key: row.get(key) for key in ("round", "train_loss", "accuracy", "loss")}
        tell({"stage": "round", "rounds": federation.rounds, **known})

    result = go(federation, run, progress)
    shown = result.as_dict()
    return {key: shown[key] for key in TOLD} | {"run": path.name}


def report(payload: dict[str, Any], folder: Path, tell: Tell) -> str:
    """The report page of runs."""
    try:
        from fedveil.report.page import render
    except ImportError as error:
        raise RunError(f"the report cannot be made ({error})") from None

    return render([Path(run) for run in payload["runs"]])


@lru_cache(maxsize=3)
def _dataset(name: str) -> Dataset:
    from fedveil.data.registry import load

    return load(name)


def _bytes(data: Dataset, x: np.ndarray) -> np.ndarray:
    return x if x.dtype == np.uint8 else to_bytes(x.astype(np.float64) * data.scale)


def _example(data: Dataset, index: int) -> np.ndarray:
    return _bytes(data, data.train.x[index])


def _label(data: Dataset, label: int) -> str:
    return data.class_names[label] if data.class_names else str(label)


TASKS: dict[str, Task] = {task.__name__: task for task in (gallery, upload, sized, pick, leak, account, train, report)}
