"""The recipes of cpl: the published values, the paper's size, shared jobs, and the kinds that only cpl uses."""

from __future__ import annotations

import pytest

from fedveil.config import for_attack, load, resolve
from fedveil.core.errors import ConfigError
from fedveil.recipes import cpl
from fedveil.recipes.cell import FULL, QUICK, Job
from fedveil.recipes.published import published
from fedveil.recipes.run import jobs_of

BY_NAME = {recipe.name: recipe for recipe in cpl.RECIPES}


@pytest.mark.parametrize("name", BY_NAME)
def test_published_numbers_are_in_range(name):
    entry = published("cpl")[name.split("/")[1]]
    assert bool(entry["cells"]) == name.startswith("cpl/table")
    for cell in entry["cells"]:
        values = cell["values"]
        assert 0 < values.get("mse", 0.1) < 1, cell
        assert 1 <= values.get("iterations", 1) <= (10_000 if cell["row"] == "inverting" else 300), cell
        # The paper has one rate, which is compared with both rules.
        assert values.get("success_rate") == values.get("believed_rate"), cell
        low, high = values.get("iterations_min", 1), values.get("iterations_max", 10_000)
        assert low <= values.get("iterations", low) <= high


def test_the_paper_s_size():
    """100 images under 10 starts, 4 datasets, three attacks; 300 iterations, which is the attack's default."""
    cells = {(cell.row, cell.column): cell for cell in cpl.table_2(FULL)}
    for attack in ("cpl", "dlg", "inverting"):
        for name in ("cifar10", "cifar100", "lfw", "mnist"):
            asked = load(None, list(cells[attack, name].settings)).attack
            assert (asked.name, asked.images, asked.seeds) == (attack, 100, 10)
            assert asked.make().iterations == (10_000 if attack == "inverting" else 300)
    faces = load(None, list(cells["cpl", "lfw"].settings))
    assert faces.data.min_images == 14
    resolved = resolve(for_attack(faces), trainable=False)
    assert (resolved.model.name, resolved.model.init) == ("lenet-cpl", "uniform-0.5")
    assert (resolved.train.batch, resolved.train.local_steps) == (1, 1)


def test_figures_draw_what_tables_measure():
    """A figure that shows a table's attacks asks for no other work."""
    for size in (QUICK, FULL):
        pairs = ((3, 5), (5, 6), (9, 7), (12, 8), (13, 9))
        for figure, table in pairs:
            shown = jobs_of([BY_NAME[f"cpl/fig-{figure}"]], size)
            assert set(shown) <= set(jobs_of([BY_NAME[f"cpl/table-{table}"]], size)), figure


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

    from fedveil.attacks.observation import of_gradients
    from fedveil.models.catalog import ModelConfig, build
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
