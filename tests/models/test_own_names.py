"""`model.name` names a file of a network, or Python code; a run refuses either after a change."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fedveil
from fedveil.core.errors import ConfigError, DataError, RunError

CODE = """
import jax, jax.numpy as jnp
import fedveil

def init(key):
    return {"only": {"w": 0.1 * jax.random.normal(key, (64, 10))}}

def apply(params, x):
    return x.reshape(len(x), -1) @ params["only"]["w"]

model = fedveil.from_functions(init, apply)
number = 3

def make():
    return model

def broken():
    raise ValueError("no")
"""
SETTINGS = {
    "data": {"clients": 10, "per_client": 20},
    "train": {"rounds": 2, "local_steps": 1, "batch": 2},
}


@pytest.fixture
def code(tmp_path):
    (tmp_path / "net.py").write_text(CODE, encoding="utf-8")
    return tmp_path / "net.py"


def test_code_by_its_name_is_trained_attacked_and_accounted(code, tmp_path, fedveil_cli):
    run = tmp_path / "run"
    command = ("train", "-s", f"model.name={code}:make", "-s", "data.clients=10", "-s", "data.per_client=20")
    done = fedveil_cli(*command, "-s", "train.rounds=2", "-s", "train.batch=2", "--out", run, cwd=tmp_path)
    assert done.code == 0, done.err
    ask = ("attack", "--run", run, "-s", "attack.images=1", "-s", "attack.iterations=2", "--json")
    assert fedveil_cli(*ask, cwd=tmp_path).code == 0
    assert fedveil.account({**SETTINGS, "model": {"name": f"{code}:model"}})
    code.write_text(CODE + "\n# changed\n", encoding="utf-8")
    answer = fedveil_cli(*ask, cwd=tmp_path)
    assert answer.code == 1 and "was changed after the run began" in answer.err
    with pytest.raises(RunError, match="was changed after the run began"):
        fedveil.train(out=run, resume=True)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("{}:nothing", "the module has no 'nothing'"),
        ("{}:number", "names no model"),
        ("{}:broken", "could not be called .ValueError: no"),
        ("{}x.py:model", "no such file"),
        ("no_such_module_here:model", "cannot be imported"),
        (":model", "takes MODULE:NAME"),
    ],
)
def test_code_that_names_no_model_is_refused(code, name, says):
    with pytest.raises(ConfigError, match=says):
        fedveil.federation({**SETTINGS, "model": {"name": name.format(code)}})


def test_a_file_by_its_name_is_trained(tmp_path):
    nn = pytest.importorskip("torch.nn")
    model = fedveil.from_torch(nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.GELU()), (8, 8, 1))
    path = fedveil.save_model(model, tmp_path / "net.safetensors")
    ready = fedveil.federation({**SETTINGS, "model": {"name": str(path)}})
    start = ready.simulator.start().params
    assert np.array_equal(start["1"]["weight"], model.init(jax.random.key(0))["1"]["weight"])
    assert ready.config.model.name == str(path) and not ready.own_model
    with pytest.raises(ConfigError, match=r"model\.dropout.*is not read by your own model"):
        fedveil.federation({**SETTINGS, "model": {"name": str(path), "dropout": 0.1}})
    with pytest.raises(ConfigError, match=r"\.safetensors file"):
        fedveil.save_model(model, tmp_path / "net.pt")
    with pytest.raises(DataError, match="no such file"):
        fedveil.federation({**SETTINGS, "model": {"name": str(tmp_path / "x.safetensors")}})
