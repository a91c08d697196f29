"""The dataset `file`: a user's own arrays, from the .npz file that `data.file` names."""

from __future__ import annotations

from pathlib import Path

from fedveil.core.errors import ConfigError
from fedveil.data.arrays import raw_arrays, read_arrays
from fedveil.data.dataset import Raw
from fedveil.data.info import DatasetInfo, LoadRequest

_ARRAYS = ("x", "y", "x_test", "y_test")


def load(request: LoadRequest) -> Raw:
    """The arrays x, y and optionally x_test, y_test of the file."""
    if not request.file:
        takes = "data.name 'file' takes here the path of an .npz file with arrays x and y"
        raise ConfigError("data.file", request.file, takes)
    path = Path(request.file).expanduser()
    found = read_arrays(path, _ARRAYS, "data.file")
    where = f"data.file: {path}"
    return raw_arrays(found["x"], found["y"], found.get("x_test"), found.get("y_test"), name=path.stem, where=where)


DATASET = DatasetInfo(
    name="file",
    summary="your own arrays: data.file names an .npz with x, y and optionally x_test, y_test",
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
