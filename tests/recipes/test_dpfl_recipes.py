"""The recipes of dpfl: all tables and figures are there, their configs hold, and their own measurements are right."""

from __future__ import annotations

import json
from importlib import resources

import jax
import numpy as np
import pytest
from recipe_checks import check_cells, check_places, config_of

from fedveil.attacks.observe import of_gradients
from fedveil.config import for_attack, load, resolve
from fedveil.federation import prepare
from fedveil.models.build import build
from fedveil.models.catalog import ModelConfig
from fedveil.recipes import dpfl, kinds, kinds_dpfl
from fedveil.recipes.cell import FULL, QUICK, Job
from fedveil.recipes.published import published, value_of
from fedveil.recipes.run import jobs_of

NAMES = ["dpfl/table-2", "dpfl/table-3", "dpfl/table-4", "dpfl/fig-1"] + [f"dpfl/fig-{n}" for n in range(4, 12)]
BY_NAME = {recipe.name: recipe for recipe in dpfl.RECIPES}
EACH = pytest.mark.parametrize("name", NAMES)
SIZES = pytest.mark.parametrize("size", (QUICK, FULL), ids=lambda size: size.name)


def test_all_tables_and_figures_are_there():
    assert list(BY_NAME) == NAMES
    assert set(published("dpfl")) == {name.split("/")[1] for name in NAMES}


@SIZES
@EACH
def test_configs_hold_and_places_are_taken_once(name, size):
    cells = BY_NAME[name].cells(size)
    check_cells(cells)
    for cell in cells:
        config = config_of(cell)
        made = resolve(for_attack(config) if cell.kind == "attack-layers" else config)
        assert (made.data.split, made.model.name) == ("dpfl", "dpfl-net")
        assert made.train.batching == "shuffle"


@EACH
def test_quick_cells_and_published_figures_are_places_of_the_full_size(name):
    recipe = BY_NAME[name]
    entry = check_places(recipe)
    given = [(cell["row"], cell["column"]) for cell in entry["cells"]]
    assert len(set(given)) == len(given)
    assert bool(given) == name.startswith("dpfl/table")
    shown = {measure.key for measure in recipe.measures}
    for cell in entry["cells"]:
        assert set(cell["values"]) <= shown, cell
        for key, value in cell["values"].items():
            assert 0 < value <= (3000 if key == "milliseconds" else 1.3 if key == "promotion" else 1), cell


def test_tables_have_all_their_numbers():
    """Table III stands beside two readings of the server step."""
    counted = {key: len(entry["cells"]) for key, entry in published("dpfl").items() if entry["cells"]}
    assert counted == {"table-2": 4, "table-3": 30, "table-4": 4}


@pytest.mark.parametrize(
    ("place", "measure", "number"),
    [
        (("dpfl/table-2", "ε = 0.5", "clip 1"), "pogz", 0.117),
        (("dpfl/table-2", "ε = 1", "clip 1"), "even", 0.161),
        (("dpfl/table-2", "ε = 5", "clip 1"), "promotion", 1.235),
        (("dpfl/table-2", "ε = 10", "clip 1"), "baseline_accuracy", 0.983),
        (("dpfl/table-3", "baseline", "fashion-mnist"), "accuracy", 0.849),
        (("dpfl/table-3", "dpfl, ε = 0.5", "mnist"), "accuracy", 0.888),
        (("dpfl/table-3", "dpfl, ε = 1", "cifar10"), "accuracy", 0.1),
        (("dpfl/table-3", "dpfl, server step as printed, ε = 5", "cifar10"), "accuracy", 0.452),
        (("dpfl/table-3", "dpfl, ε = 10", "mnist"), "accuracy", 0.953),
        (("dpfl/table-4", "lip", "cifar10 model"), "milliseconds", 2070.39),
        (("dpfl/table-4", "dpfl", "mnist model"), "milliseconds", 4.08),
    ],
)
def test_numbers_as_the_paper_prints_them(place, measure, number):
    """A few of each table, typed a second time."""
    assert value_of(*place, measure) == number


def test_published_promotions_follow_from_their_accuracies():
    for cell in published("dpfl")["table-2"]["cells"]:
        values = cell["values"]
        assert values["pogz"] / values["even"] - 1 == pytest.approx(values["promotion"], abs=1e-3), cell


def test_the_paper_s_size():
    """100 clients of two classes or i.i.d., a tenth per round, Adam at 0.01, batches of 128 and 50."""
    for cell in dpfl.table_3(FULL):
        made = resolve(config_of(cell))
        colour = cell.column == "cifar10"
        assert (made.data.clients, made.train.per_round, made.data.per_client) == (100, 10, 500)
        assert (made.train.optimizer, made.train.lr) == ("adam", 0.01)
        assert made.train.batch == (50 if colour else 128)
        assert made.data.partition == ("iid" if colour else "classes")
        assert colour or made.data.classes_per_client == 2


def test_readings_of_the_server_step_and_the_public_set_have_rows_of_their_own():
    rows = {cell.row: config_of(cell).defense[0] for cell in dpfl.table_3(FULL) if cell.column == "mnist"}
    assert rows["public set only"].public_only is True
    for row, defense in rows.items():
        assert getattr(defense, "server_step", "mean") == ("as-printed" if "as printed" in row else "mean"), row
        if row.startswith("dpfl"):
            assert row.endswith(f"ε = {defense.epsilon:g}") and defense.clip == 1.0


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
            assert made.attack.label == ("given" if made.attack.name == "inverting" else None)


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


def test_quick_is_small():
    work = jobs_of(dpfl.RECIPES, QUICK)
    assert len(work) <= 45
    for _, job in work.values():
        made = load(None, list(job.settings))
        assert made.data.clients <= 100 and (made.train.rounds or 1) <= 10
        if job.kind == "attack-layers":
            assert made.attack.images * made.attack.seeds <= 8 and made.attack.iterations <= 400


def test_charts_have_numbers_on_their_axis():
    charted = [recipe for recipe in dpfl.RECIPES if recipe.chart is not None]
    assert [recipe.key for recipe in charted] == ["fig-4", "fig-5", "fig-6"]
    for recipe in charted:
        assert recipe.chart.measure in {measure.key for measure in recipe.measures}
        assert min(float(cell.column) for cell in recipe.cells(FULL)) > 0


def test_the_data_file_has_unique_keys():
    def unique(pairs):
        keys = [key for key, _ in pairs]
        assert len(keys) == len(set(keys)), keys
        return dict(pairs)

    text = (resources.files("fedveil.recipes.published") / "dpfl.json").read_text(encoding="utf-8")
    json.loads(text, object_pairs_hook=unique)


# --- the kinds of its own


def test_gradients_of_some_layers_are_those_of_the_whole_network():
    """The layers that are not looked at are constants; what is looked at has the gradient it has in the whole."""
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
    """A model that was not trained, in place of the trained one, and an update that is known."""
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
    assert silent["pogz"] == silent["even"] == silent["baseline_accuracy"] == silent["clipped_accuracy"]
    assert silent["promotion"] == 0.0 and silent["update_l1"] == 0.0
    assert sum(silent["shares"].values()) == pytest.approx(1.0)
    assert loud["even"] != silent["even"]


def test_noise_takes_time():
    settings = (
        "data.name=digits", "data.clients=2", "data.per_client=20", "train.per_round=1", "train.local_steps=1",
        "model.name=logistic", "train.batching=shuffle", "defense.name=dpfl", "defense.finetune=false",
        "defense.allocation=even",
    )  # fmt: skip
    found = kinds.KINDS["noise-time"](Job("noise-time", settings, {"repeats": 3}))
    assert 0 < found["low"] <= found["milliseconds"] <= found["high"] < 1e4
