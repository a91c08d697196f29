"""The vectorised simulator, its chunk sizes and the reference loop are one and the same federation."""

import jax
import numpy as np
import pytest

import fedveil

# One row per model family; image models on 8×8 images keep these quick.
FAMILIES = {
    "cnn": {},
    "lenet-cpl": {},
    "lenet-dlg": {"pooling": "max"},
    "dpfl-net": {"activation": "tanh"},
    "mlp": {"hidden": [16], "dropout": 0.3},
    "logistic": {},
    "resnet20": {},
}


def params_after(model, choices, rounds=3, train=None, data=None, **speed):
    settings = {
        "data": {"partition": "dirichlet", "alpha": 0.3, "clients": 16, **(data or {})},
        "model": {"name": model, **choices},
        "train": {"rounds": rounds, "per_round": 9, "local_steps": 3, "batch": 4, "noise_seed": 0, **(train or {})},
        "speed": speed,
    }
    return fedveil.train(settings)


def distance(a, b):
    """The largest difference of any parameter."""
    return max(
        float(np.abs(np.asarray(x) - np.asarray(y)).max())
        for x, y in zip(jax.tree.leaves(a.params), jax.tree.leaves(b.params), strict=True)
    )


# `make slow` has these: the first takes most of a minute to compile, the others are of families that are here already.
SLOW_TO_COMPILE = ("resnet20", "logistic", "lenet-cpl", "lenet-dlg", "dpfl-net")


@pytest.mark.parametrize(
    "model", [pytest.param(m, marks=pytest.mark.slow) if m in SLOW_TO_COMPILE else m for m in FAMILIES]
)
def test_chunks_and_reference_agree_in_float64(model):
    choices = FAMILIES[model]
    whole = params_after(model, choices, precision="float64", chunk=9)
    assert jax.tree.leaves(whole.params)[0].dtype == np.float64
    others = [{"engine": "reference"}]
    if model in ("cnn", "mlp"):  # one of each family in further chunks: they compile slowly
        others += [{"chunk": 1}, {"chunk": 7}]
    for other in others:
        assert distance(whole, params_after(model, choices, precision="float64", **other)) < 1e-9, other


@pytest.mark.parametrize("model", ["cnn", pytest.param("mlp", marks=pytest.mark.slow)])
def test_chunks_and_reference_agree_in_float32_after_one_step(model):
    one = {"local_steps": 1}
    whole = params_after(model, FAMILIES[model], rounds=1, train=one, chunk=9)
    for other in ({"chunk": 1}, {"chunk": 7}, {"engine": "reference"}):
        assert distance(whole, params_after(model, FAMILIES[model], rounds=1, train=one, **other)) < 1e-5, other


VARIANTS = {
    "poisson": {"sampling": "poisson", "batching": "poisson"},
    "without-replacement": {"batching": "without-replacement", "sampling": "with-replacement"},
    "with-replacement": {"batching": "with-replacement"},
    "epochs": {"local_steps": None, "local_epochs": 2},
    "momentum": {"optimizer": "momentum", "server_momentum": 0.9, "server_lr": 0.5},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "adagrad": {"optimizer": "adagrad", "lr_end": 0.01},
    "fedavg": {"aggregation": "fedavg", "weights": "size"},
    "faults": {"dropout": 0.3, "late": 0.4, "weights": "size"},
}


@pytest.mark.parametrize(
    "variant",
    [pytest.param(v, marks=pytest.mark.slow) if v in ("momentum", "adagrad", "adam") else v for v in VARIANTS],
)
def test_every_sampling_and_optimiser_agrees_with_the_reference(variant):
    train = VARIANTS[variant]
    whole = params_after("mlp", {"hidden": [8]}, train=train, precision="float64", chunk=4)  # nine clients: one padded
    again = params_after("mlp", {"hidden": [8]}, train=train, precision="float64", engine="reference")
    assert distance(whole, again) < 1e-9
    assert [r["clients"] for r in whole.history] == [r["clients"] for r in again.history]


def test_chunks_do_not_change_accuracy_in_float32():
    data = {"partition": "shards", "alpha": 0.5, "clients": 40}
    train = {"local_steps": 10, "per_round": 8}
    results = [params_after("cnn", {}, 25, train, data, chunk=chunk) for chunk in (3, 8)]
    assert abs(results[0].accuracy - results[1].accuracy) <= 0.005


def test_fedavg_with_equal_weights_equals_fedsgd():
    sgd = params_after("mlp", {"hidden": [8]}, precision="float64")
    avg = params_after("mlp", {"hidden": [8]}, train={"aggregation": "fedavg"}, precision="float64")
    assert distance(sgd, avg) < 1e-12


def test_precision_is_local_to_a_federation():
    before = params_after("logistic", {}, rounds=1)
    params_after("logistic", {}, rounds=1, precision="float64")
    again = params_after("logistic", {}, rounds=1)
    assert distance(before, again) == 0.0


def test_seeds_differ_and_repeat():
    one, same = params_after("logistic", {}, rounds=1), params_after("logistic", {}, rounds=1)
    assert distance(one, same) == 0.0
    for other in ({"seed": 1}, {"noise_seed": 1}, {"noise_seed": None}):
        assert distance(one, params_after("logistic", {}, rounds=1, train=other)) > 1e-3, other
