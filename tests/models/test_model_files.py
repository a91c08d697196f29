"""Parameter files: what is written reads back equal, and files that do not fit are refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fedveil
from fedveil.core.errors import DataError
from fedveil.models.catalog import ModelConfig, build
from fedveil.models.files import read_arrays, read_parameters
from fedveil.runs import parameters_as_bytes


@pytest.fixture
def params():
    return build("cnn", (8, 8, 1), 10, ModelConfig()).init(jax.random.key(1))


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_parameters_read_back_equal(params, tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    if suffix == ".safetensors":
        path.write_bytes(parameters_as_bytes(params))
    else:
        np.savez(path, **{f"{layer}/{name}": leaf for layer, own in params.items() for name, leaf in own.items()})
    again = read_parameters(path, params)
    assert jax.tree.structure(again) == jax.tree.structure(params)
    assert jax.tree.all(jax.tree.map(np.array_equal, again, params))
    assert {leaf.dtype for leaf in jax.tree.leaves(again)} == {np.dtype(np.float32)}


def test_a_run_leaves_its_final_parameters(tmp_path):
    settings = {"model": {"name": "logistic"}, "train": {"rounds": 2, "per_round": 2, "local_steps": 1}}
    result = fedveil.train(settings, out=tmp_path / "run")
    stored = load_file(tmp_path / "run/model.safetensors")
    assert sorted(stored) == ["dense/b", "dense/w"]
    for name, array in stored.items():
        layer, leaf = name.split("/")
        assert np.array_equal(array, result.params[layer][leaf])
    with np.load(tmp_path / "run/checkpoint.npz") as checkpoint:
        assert np.array_equal(checkpoint["params/dense/w"], stored["dense/w"])


def test_arrays_in_any_layout_and_type_are_written(tmp_path):
    tree = {"a": {"w": np.arange(6.0).reshape(2, 3).T, "b": jnp.zeros(2, jnp.bfloat16)}}
    (tmp_path / "m.safetensors").write_bytes(parameters_as_bytes(tree))
    with pytest.raises(DataError, match="'a/b' is BF16: takes F16, F32 or F64"):
        read_arrays(tmp_path / "m.safetensors")
    del tree["a"]["b"]
    (tmp_path / "m.safetensors").write_bytes(parameters_as_bytes(tree))
    assert np.array_equal(read_arrays(tmp_path / "m.safetensors")["a/w"], tree["a"]["w"])


def test_files_that_do_not_fit_are_refused(params, tmp_path):
    path = tmp_path / "m.safetensors"
    with pytest.raises(DataError, match="no such file"):
        read_parameters(path, params)
    save_file({"x": np.zeros(3)}, path)
    with pytest.raises(DataError, match="holds no 'conv1/w', which this model has; it holds x"):
        read_parameters(path, params)
    path.write_bytes(parameters_as_bytes(jax.tree.map(lambda leaf: leaf[..., :-1], params)))
    with pytest.raises(DataError, match="the model asks for"):
        read_parameters(path, params)
    for content in (b"", b"\xff" * 40, parameters_as_bytes(params)[:-9]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="is no whole .safetensors file"):
            read_parameters(path, params)
    (tmp_path / "m.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match="cannot be read as .npz"):
        read_parameters(tmp_path / "m.npz", params)
