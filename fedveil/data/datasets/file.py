"""The dataset `file`: a user's own arrays, from the .npz file that `data.file` names, or a folder with one per client."""

from __future__ import annotations

from pathlib import Path

from fedveil.core.errors import ConfigError
from fedveil.data.arrays import raw_arrays, read_arrays, read_folder, with_clients
from fedveil.data.dataset import Raw
from fedveil.data.info import DatasetInfo, LoadRequest

_ARRAYS = ("x", "y", "x_test", "y_test", "client")


def load(request: LoadRequest) -> Raw:
    """The arrays x, y and optionally x_test, y_test of the file."""
    if not request.file:
        takes = "data.name 'file' takes here the path of an .npz file with arrays x and y"
        raise ConfigError("data.file", request.file, takes)
    path = Path(request.file).expanduser()
    where = f"data.file: {path}"
    if path.is_dir():
        found, client = read_folder(path, "data.file")
    else:
        found = read_arrays(path, _ARRAYS, "data.file")
        client = found.get("client")  # type: ignore[assignment]
    raw = raw_arrays(found["x"], found["y"], found.get("x_test"), found.get("y_test"), name=path.stem, where=where)
    return raw if client is None else with_clients(raw, client, where)


DATASET = DatasetInfo(
    name="file",
    summary="your own arrays: data.file names an .npz with x, y and optionally client, x_test, y_test, or a folder of them",
    kind="image",
    shape=(),
    classes=0,
    load=load,
    model="mlp",
    partition="iid",
    rounds=10,
    local_steps=20,
    batch=4,
    lr=0.05,
    keys=("split", "file"),
    origin="given by data.file",
    note="shape and classes are read from the file",
    position=100,
)
