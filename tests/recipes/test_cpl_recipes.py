"""The recipes of cpl: all tables and figures are there, their configs hold, and the published figures fit them."""

from __future__ import annotations

import json
from collections import Counter
from importlib import resources

import pytest

from fedveil.config import for_attack, load, resolve
from fedveil.core.errors import ConfigError
from fedveil.recipes import cpl
from fedveil.recipes.cell import FULL, KIND_VERSIONS, QUICK, Job
from fedveil.recipes.published import published, value_of
from fedveil.recipes.run import jobs_of

NAMES = [f"cpl/table-{n}" for n in range(1, 10)] + [f"cpl/fig-{n}" for n in range(2, 14)]
BY_NAME = {recipe.name: recipe for recipe in cpl.RECIPES}
RATES = ("success_rate", "believed_rate", "label_success_rate", "accuracy", "ssim")
EACH = pytest.mark.parametrize("name", NAMES)
SIZES = pytest.mark.parametrize("size", (QUICK, FULL), ids=lambda size: size.name)


def test_all_tables_and_figures_are_there():
    assert list(BY_NAME) == NAMES
    assert set(published("cpl")) == {name.split("/")[1] for name in NAMES}


@SIZES
@EACH
def test_configs_hold(name, size):
    for cell in BY_NAME[name].cells(size):
        config = load(None, list(cell.settings))
        if cell.kind == "train":
            resolve(config)
        else:
            resolve(for_attack(config), trainable=False)
        assert cell.kind in KIND_VERSIONS
        assert config.attack.images <= config.data.clients or config.data.name == "xray"


@SIZES
@EACH
def test_a_place_is_taken_once(name, size):
    places = Counter((cell.row, cell.column) for cell in BY_NAME[name].cells(size))
    assert places and max(places.values()) == 1


@EACH
def test_published_figures_have_a_cell(name):
    """Every published number stands beside something that the full size measures."""
    recipe = BY_NAME[name]
    places = {(cell.row, cell.column) for cell in recipe.cells(FULL)}
    shown = {measure.key for measure in recipe.measures}
    given = published("cpl")[recipe.key]["cells"]
    assert {(cell["row"], cell["column"]) for cell in given} <= places
    assert {key for cell in given for key in cell["values"]} <= shown
    assert len({(cell["row"], cell["column"]) for cell in given}) == len(given)


@EACH
def test_quick_cells_are_places_of_the_full_size(name):
    """So that published figures stand beside quick ones too: only a limit on the channels has a row of its own."""
    recipe = BY_NAME[name]
    full = {(cell.row, cell.column) for cell in recipe.cells(FULL)}
    assert {(cell.row, cell.column) for cell in recipe.cells(QUICK)} <= full


@EACH
def test_published_numbers_are_in_range(name):
    entry = published("cpl")[name.split("/")[1]]
    assert entry["source"] and entry["claims"] and all(entry["claims"])
    assert bool(entry["cells"]) == name.startswith("cpl/table")
    for cell in entry["cells"]:
        values = cell["values"]
        assert all(0 <= values[key] <= 1 for key in RATES if key in values), cell
        assert 0 < values.get("mse", 0.1) < 1, cell
        assert 1 <= values.get("iterations", 1) <= (10_000 if cell["row"] == "inverting" else 300), cell
        assert values.get("success_rate") == values.get("believed_rate"), (
            "the paper has one rate, set beside both rules"
        )
        low, high = values.get("iterations_min", 1), values.get("iterations_max", 300)
        assert low <= values.get("iterations", low) <= (high if "iterations_max" in values else 10_000)


@pytest.mark.parametrize(
    ("place", "measure", "number"),
    [
        (("cpl/table-1", "cifar100, random", "100"), "believed_rate", 0.23),
        (("cpl/table-2", "inverting", "lfw"), "iterations", 4527),
        (("cpl/table-3", "dlg", "cancer"), "label_success_rate", 0.56),
        (("cpl/table-4", "lfw", "optimal-any"), "iterations", 13.3),
        (("cpl/table-5", "random", "cifar10"), "iterations_max", 272),
        (("cpl/table-6", "batch size", "16"), "ssim", 0.401),
        (("cpl/table-6", "local iterations", "9"), "mse", 5.5e-3),
        (("cpl/table-7", "mnist accuracy", "0.9"), "accuracy", 0.9556),
        (("cpl/table-7", "cifar10 attack", "0.4"), "ssim", 0.87),
        (("cpl/table-8", "lfw attack", "laplace 0.001"), "ssim", 0.803),
        (("cpl/table-8", "cifar100 accuracy", "gaussian 0.01"), "accuracy", 0.612),
        (("cpl/table-9", "mnist", "6"), "believed_rate", 0.06),
        (("cpl/table-9", "cifar10", "10"), "mse", 5.0e-3),
    ],
)
def test_numbers_as_the_paper_prints_them(place, measure, number):
    """A few of each table, typed a second time."""
    assert value_of(*place, measure) == number


def test_tables_have_all_their_cells():
    counted = {key: len(entry["cells"]) for key, entry in published("cpl").items() if entry["cells"]}
    tables = {"table-1": 36, "table-2": 12, "table-3": 6, "table-4": 27, "table-5": 8, "table-6": 10}
    assert counted == {**tables, "table-7": 80, "table-8": 28, "table-9": 40}


def test_the_paper_s_size():
    """100 images under 10 starts, 4 datasets, three attacks; 300 iterations, which is the attack's default."""
    cells = {(cell.row, cell.column): cell for cell in cpl.table_2(FULL)}
    for attack in ("cpl", "dlg", "inverting"):
        for name in ("cifar10", "cifar100", "lfw", "mnist"):
            asked = load(None, list(cells[attack, name].settings)).attack
            assert (asked.name, asked.images, asked.seeds) == (attack, 100, 10)
            assert asked.iterations == (10_000 if attack == "inverting" else None)
    faces = load(None, list(cells["cpl", "lfw"].settings))
    assert faces.data.min_images == 14
    resolved = resolve(for_attack(faces), trainable=False)
    assert (resolved.model.name, resolved.model.init) == ("lenet-cpl", "uniform-0.5")
    assert (resolved.train.batch, resolved.train.local_steps) == (1, 1)


def test_quick_is_small():
    work = jobs_of(cpl.RECIPES, QUICK)
    assert len(work) <= 90
    for _, job in work.values():
        config = load(None, list(job.settings))
        assert config.data.clients <= 100 and (config.train.rounds or 10) <= 10
        if job.kind != "train":
            assert config.attack.images * config.attack.seeds <= 8
            assert (config.attack.iterations or 300) <= (2000 if config.attack.optimizer == "adam" else 500)


def test_figures_draw_what_tables_measure():
    """A figure that shows a table's attacks asks for no other work."""
    for size in (QUICK, FULL):
        pairs = ((3, 5), (5, 6), (9, 7), (12, 8), (13, 9))
        for figure, table in pairs:
            shown = jobs_of([BY_NAME[f"cpl/fig-{figure}"]], size)
            assert set(shown) <= set(jobs_of([BY_NAME[f"cpl/table-{table}"]], size)), figure


def test_charts_have_numbers_on_their_axis():
    for recipe in cpl.RECIPES:
        if recipe.chart is not None:
            assert recipe.chart.measure in {measure.key for measure in recipe.measures}
            columns = [float(cell.column) for cell in recipe.cells(FULL)]
            assert not recipe.chart.x_log or min(columns) > 0


def test_the_data_file_is_json_with_unique_keys():
    """A key typed twice would hide the first one."""

    def unique(pairs):
        keys = [key for key, _ in pairs]
        assert len(keys) == len(set(keys)), keys
        return dict(pairs)

    text = (resources.files("fedveil.recipes.published") / "cpl.json").read_text(encoding="utf-8")
    json.loads(text, object_pairs_hook=unique)


STEPS = (
    "data.name=cancer", "data.per_client=1", "data.clients=4", "model.hidden=[8]", "train.local_steps=3",
    "train.lr=0.001", "attack.name=aono", "attack.images=2",
)  # fmt: skip


def test_several_steps_on_one_example_are_attacked_as_one():
    """One example is looked for, not one for each step; what is found is the example, since short steps hardly move."""
    from fedveil.recipes.kinds import KINDS

    found = KINDS["attack-steps"](Job("attack-steps", STEPS, {}))
    assert (found["steps"], found["images"]) == (3, 2)
    assert found["mse"] < 1e-3 and found["label_success_rate"] == 1.0


def test_an_update_is_the_sum_of_its_steps_or_their_mean():
    import jax
    import numpy as np

    from fedveil.attacks.observe import of_gradients
    from fedveil.models.build import build
    from fedveil.models.catalog import ModelConfig
    from fedveil.recipes.kinds_cpl import one_example

    model = build("logistic", (3,), 2, ModelConfig())
    params = model.init(jax.random.key(0))
    behind = {"examples": 4, "local_steps": 4, "order": ((0,), (1,), (2,), (3,))}
    seen = of_gradients(model, params, params, (3,), 2, **behind)
    total, mean = one_example(seen, divided=False), one_example(seen, divided=True)
    assert (total.examples, total.order, mean.examples, mean.order) == (1, None, 1, None)
    for own, summed, kept in zip(*(jax.tree.leaves(o.gradients) for o in (seen, total, mean)), strict=True):
        np.testing.assert_allclose(summed, 4 * np.asarray(own))
        np.testing.assert_allclose(kept, own)


def test_steps_on_several_examples_are_refused():
    from fedveil.recipes.kinds import KINDS

    with pytest.raises(ConfigError, match="per_client"):
        KINDS["attack-steps"](Job("attack-steps", (*STEPS, "data.per_client=5"), {}))
