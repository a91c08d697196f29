"""The table of datasets: what the package has, and what one file from inside or outside adds."""

from __future__ import annotations

import importlib
import subprocess
import sys

import numpy as np
import pytest

import fedveil
from fedveil.config import from_dict
from fedveil.core.errors import ConfigError
from fedveil.data import datasets, registry
from fedveil.data.partition import PARTITIONS
from fedveil.data.registry import DATASETS, load, register_dataset

# A whole dataset in one module: description, source and loader.
TOY = """
import hashlib

import numpy as np

from fedveil.data.dataset import Part
from fedveil.data.info import DatasetInfo, FileInfo, Source
from fedveil.data.sources import downloader
from fedveil.data.dataset import Raw

CONTENT = bytes(range(240))


def load(request):
    x = np.frombuffer(request.read("toy.bin"), np.uint8).reshape(60, 4).astype(np.float32) / 255
    return Raw("toy", Part(x, np.arange(60, dtype=np.int32) % 2), classes=2)


DATASET = DatasetInfo(
    name="toy",
    summary="sixty rows of four numbers",
    kind="attributes",
    shape=(4,),
    classes=2,
    load=load,
    model="logistic",
    partition="iid",
    per_client=10,
    rounds=2,
    local_steps=1,
    batch=2,
    lr=0.1,
    files=(FileInfo("toy.bin", 240, hashlib.sha256(CONTENT).hexdigest()),),
    folders=("toy",),
    sources=(Source("a string", lambda work: downloader(lambda name: CONTENT)),),
)
"""


def test_the_table_is_sound():
    names = "digits cancer mnist fashion-mnist cifar10 cifar100 lfw adult xray file"
    assert list(DATASETS) == names.split()
    for name, info in DATASETS.items():
        assert info.name == name and info.summary
        assert info.partition in PARTITIONS
        assert all((len(file.sha256), len(file.md5) in (0, 32)) == (64, True) for file in info.files)
        assert bool(info.files) == bool(info.folders)


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """A file with the toy dataset, found by the scan of the package; forgotten afterwards."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/toy.py").write_text(TOY)
    monkeypatch.setattr(datasets, "__path__", [*datasets.__path__, str(tmp_path / "modules")])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDVEIL_DATA", "")
    importlib.invalidate_caches()
    yield registry._built_in()["toy"]
    DATASETS.pop("toy", None)
    del sys.modules[f"{datasets.__name__}.toy"]


def test_one_file_adds_a_dataset(toy, fedveil_cli, tmp_path):
    assert list(registry._built_in())[-1] == "toy"  # after those that have a position
    assert register_dataset(toy) is toy
    assert fedveil_cli("data", "get", "toy", cwd=tmp_path).code == 0
    assert np.array_equal(load("toy").train.x.shape, (45, 4))
    settings = {"data": {"name": "toy", "clients": 4}, "train": {"per_round": 2}}
    result = fedveil.train(settings)
    assert result.rounds == 2 and 0 <= result.accuracy <= 1
    assert "toy" in fedveil_cli("list", "datasets", cwd=tmp_path).out
    with pytest.raises(ConfigError, match="toy.*is the name of another dataset"):
        register_dataset(toy)
    register_dataset(toy, replace=True)


def test_what_is_no_dataset_is_refused():
    with pytest.raises(ConfigError, match="takes a fedveil.data.info.DatasetInfo"):
        register_dataset("toy")
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        registry.dataset_named("mnits")
    with pytest.raises(ConfigError, match="data.name"):
        from_dict({"data": {"name": "toy"}})


def test_descriptions_are_cheap_to_import():
    heavy = {"jax", "sklearn", "skimage", "scipy", "PIL", "pooch", "requests"}
    code = f"import sys, fedveil.data.registry; sys.exit(len({heavy} & {{*sys.modules}}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
