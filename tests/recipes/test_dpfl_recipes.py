"""The recipes of dpfl: the published values, the paper's size, shared jobs, and the kinds that only dpfl uses."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from recipe_checks import config_of

from fedveil.attacks.observation import of_gradients
from fedveil.config import for_attack, load, resolve
from fedveil.federation import prepare
from fedveil.models.catalog import ModelConfig, build
from fedveil.recipes import dpfl, kinds, kinds_dpfl
from fedveil.recipes.cell import FULL, QUICK, Job
from fedveil.recipes.published import published
from fedveil.recipes.run import jobs_of

BY_NAME = {recipe.name: recipe for recipe in dpfl.RECIPES}


@pytest.mark.parametrize("name", BY_NAME)
def test_cells_have_the_network_and_split_of_the_paper(name):
    for cell in (*BY_NAME[name].cells(QUICK), *BY_NAME[name].cells(FULL)):
        config = config_of(cell)
        made = resolve(for_attack(config) if cell.kind == "attack-layers" else config)
        assert (made.data.split, made.model.name, made.train.batching) == ("dpfl", "dpfl-net", "shuffle")


@pytest.mark.parametrize("name", BY_NAME)
def test_published_numbers_are_in_range(name):
    entry = published("dpfl")[name.split("/")[1]]
    assert bool(entry["cells"]) == name.startswith("dpfl/table")
    for cell in entry["cells"]:
        for key, value in cell["values"].items():
            assert 0 < value <= (3000 if key == "milliseconds" else 1.3 if "promotion" in key else 1), cell


def test_published_promotions_follow_from_their_accuracies():
    for cell in published("dpfl")["table-2"]["cells"]:
        values = cell["values"]
        assert values["pogz"] / values["even"] - 1 == pytest.approx(values["promotion"], abs=1e-3), cell


def test_the_paper_s_size():
    """100 clients of two classes or i.i.d., a tenth in each of 200 rounds, Adam at 0.01, batches of 128 and 50."""
    for cell in dpfl.table_3(FULL):
        made = resolve(config_of(cell))
        colour = cell.column == "cifar10"
        assert (made.data.clients, made.train.per_round, made.data.per_client) == (100, 10, 500)
        assert made.train.rounds == 200
        assert (made.train.optimizer, made.train.lr) == ("adam", 0.001 if "lr 0.001" in cell.row else 0.01)
        assert made.train.batch == (50 if colour else 128)
        assert made.data.partition == ("iid" if colour else "classes")
        assert colour or made.data.classes_per_client == 2


def test_readings_of_the_server_step_and_the_public_set_have_rows_of_their_own():
    rows = {cell.row: config_of(cell).defense[0] for cell in dpfl.table_3(FULL) if cell.column == "mnist"}
    assert rows["public set only"].public_only is True
    for row, defense in rows.items():
        assert getattr(defense, "server_step", "mean") == ("as-printed" if "as printed" in row else "mean"), row
        if row.startswith("dpfl"):
            assert row.endswith(f"ε = {defense.epsilon:g}") and defense.clip == (0.1 if "clamp 0.1" in row else 1.0)
            assert defense.clip_norm == ("value" if "clamp" in row else "l1")
            assert defense.allocation == ("inverse" if "inverse" in row else "pogz")
            assert defense.validation == (0.1 if "validation" in row else None)


def test_the_baseline_has_no_noise_to_speak_of():
    """It selects and fine-tunes as DPFL does; the scale of its noise on a layer with a thousandth of the budget."""
    defense = dict(setting.removeprefix("defense.").split("=") for setting in dpfl.BASELINE)
    assert 2 * 0.01 * float(defense["clip"]) / (float(defense["epsilon"]) / 1000) < 1e-6


def test_attacks_see_the_gradient_of_one_example():
    for name in ("dpfl/fig-1", "dpfl/fig-7", "dpfl/fig-9", "dpfl/fig-10"):
        for cell in BY_NAME[name].cells(FULL):
            made = resolve(for_attack(config_of(cell)), trainable=False)
            assert (made.train.batch, made.train.local_steps, made.train.optimizer) == (1, 1, "sgd")
            assert made.attack.tap == "server" and made.model.init == "uniform-0.5"
            assert made.attack.images <= made.data.clients
            assert made.attack.own().get("label") == ("given" if made.attack.name == "inverting" else None)


def test_partly_noised_layers_and_those_left_out_make_up_the_network():
    for cell in dpfl.fig_10(FULL):
        noised = getattr(config_of(cell).defense[0], "layers", None)
        if cell.column == "clean layers matched":
            assert sorted([*noised, *cell.options["layers"]]) == ["conv1", "conv2", "dense"]


def test_figures_share_their_cells():
    for size in (QUICK, FULL):
        table = set(jobs_of([BY_NAME["dpfl/table-3"]], size))
        for figure in (4, 5, 6):
            assert set(jobs_of([BY_NAME[f"dpfl/fig-{figure}"]], size)) <= table
        assert set(jobs_of([BY_NAME["dpfl/fig-8"]], size)) == set(jobs_of([BY_NAME["dpfl/fig-7"]], size))
        undefended = [cell for cell in dpfl.fig_1(size) if cell.row == "none, all layers"]
        attacked = jobs_of([BY_NAME["dpfl/fig-7"]], size)
        assert all(job.digest in attacked for cell in undefended for job in cell.jobs())


# --- the kinds of cells that only dpfl uses


def test_gradients_of_some_layers_are_those_of_the_whole_network():
    """Unobserved layers are constants; observed layers have the same gradient as in the whole network."""
    model = build("mlp", (6,), 4, ModelConfig(hidden=[5, 3]))
    params = model.init(jax.random.key(0))
    x = np.random.default_rng(0).random((1, 6)).astype(np.float32)

    def slopes(net, own):
        return jax.jit(jax.grad(lambda p: -jax.nn.log_softmax(net.apply(p, x))[0, 3]))(own)

    whole = slopes(model, params)
    seen = kinds_dpfl.only(of_gradients(model, params, whole, (6,), 4), ("hidden1", "hidden2"))
    assert set(seen.params) == set(seen.gradients) == {"hidden1", "hidden2"}
    part = slopes(seen.model, seen.params)
    assert set(part) == set(seen.gradients) == set(seen.model.init(jax.random.key(1)))
    for name, own in part.items():
        for key, slope in own.items():
            np.testing.assert_allclose(slope, seen.gradients[name][key][0], rtol=1e-5, atol=1e-7)


def test_the_loss_of_an_attack_that_ended_stays():
    nan = float("nan")
    trace = np.array([[8.0, 4.0, nan, nan], [9.0, 5.0, 3.0, 1.0], [7.0, 6.0, 5.0, 2.0]])
    assert kinds_dpfl.losses(trace, 3) == {"0": 8.0, "1": 5.0, "end": 2.0}


EPOCH = (
    "data.name=digits", "data.split=dpfl", "data.partition=iid", "data.clients=1", "data.per_client=200",
    "train.per_round=1", "train.rounds=1", "model.name=mlp", "model.hidden=[8]", "train.local_steps=1", "train.batch=10",
)  # fmt: skip


@pytest.fixture
def epoch(monkeypatch):
    """`noised_epoch` on an untrained model and a known update."""
    federation = prepare(load(None, list(EPOCH)))
    params = federation.simulator.start().params
    update = jax.tree.map(lambda a: 0.0 * a, params)
    monkeypatch.setattr(kinds_dpfl, "_trained", lambda settings, target: (federation, params, update))

    def run(epsilon):
        options = {"epsilon": epsilon, "clip": 1.0, "target": 0.9, "draws": 1}
        return kinds_dpfl.noised_epoch(Job("noised-epoch", EPOCH, options))

    return run


def test_an_epoch_without_noise_changes_nothing_and_with_much_noise_everything(epoch):
    silent, loud = epoch(1e12), epoch(1e-6)
    before = silent["baseline_accuracy"]
    assert silent["pogz"] == silent["inverse"] == silent["even"] == silent["clipped_accuracy"] == before
    assert silent["promotion"] == silent["inverse_promotion"] == silent["update_l1"] == 0.0
    assert sum(silent["shares"].values()) == pytest.approx(1.0)
    assert loud["even"] != silent["even"]


def test_pogz_of_a_noised_epoch_may_come_from_examples_that_nobody_holds():
    settings = tuple(setting.replace("per_client=200", "per_client=1300") for setting in EPOCH)
    federation = prepare(load(None, list(settings)))
    params = federation.simulator.start().params
    free = np.setdiff1d(np.arange(len(federation.dataset.train)), federation.partition.client(0))
    assert len(free) == 47
    x = federation.dataset.train.x[free].reshape(47, -1) * federation.dataset.scale
    z = x @ np.asarray(params["hidden1"]["w"]) + np.asarray(params["hidden1"]["b"])
    found = kinds_dpfl._shares(federation, params, validation=True)
    odds = found["pogz"]["hidden1"] / found["pogz"]["dense"]
    hidden = np.maximum(z, 0.0) @ np.asarray(params["dense"]["w"]) + np.asarray(params["dense"]["b"])
    assert odds == pytest.approx((z > 0).mean() / (hidden > 0).mean(), rel=1e-5)
    assert found["inverse"]["hidden1"] / found["inverse"]["dense"] == pytest.approx(1 / odds, rel=1e-5)
    assert set(found["even"].values()) == {0.5}
    assert kinds_dpfl._shares(federation, params, validation=False) != found


def test_the_time_of_noise_is_a_median_without_the_first_call(monkeypatch):
    settings = (
        "data.name=digits", "data.clients=2", "data.per_client=20", "train.per_round=1", "train.local_steps=1",
        "model.name=logistic", "train.batching=shuffle", "defense.name=dpfl", "defense.finetune=false",
        "defense.allocation=even",
    )  # fmt: skip
    clock = iter([0.0, 9.0, 10.0, 10.5, 11.0, 11.1, 12.0, 12.2])  # calls of 9, 0.5, 0.1 and 0.2 s
    monkeypatch.setattr(kinds_dpfl, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    found = kinds.KINDS["noise-time"](Job("noise-time", settings, {"repeats": 3}))
    assert found == pytest.approx({"milliseconds": 200.0, "low": 100.0, "high": 500.0})
    assert next(clock, None) is None
