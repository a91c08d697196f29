"""Accuracies of the reproduction pages stand beside chance, and those that are no success are marked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedveil.config import load
from fedveil.core.errors import FedveilError
from fedveil.recipes.cache import Cache
from fedveil.recipes.cell import FULL, Cell, Job, Measure, Recipe
from fedveil.recipes.chance import ACCURACIES, AT_CHANCE, DIVERGED, HELD_OUT, KINDS, Chance, chance_of, states_of
from fedveil.recipes.kinds import train
from fedveil.recipes.page import page
from fedveil.recipes.table import entries

CELLS = Path(__file__).parents[2] / "docs" / "data" / "cells.jsonl"
MEASURES = (Measure("accuracy", "accuracy"), Measure("loss", "loss"))
SETTINGS = ("data.name=mnist", "data.clients=4", "model.name=logistic")


@pytest.mark.parametrize("key", HELD_OUT, ids=" ".join)
def test_the_table_counts_what_is_in_the_data(key):
    from fedveil.federation import prepare

    names, split, part = key
    given = [f"data.name={names.split(',')[0]}", *names.split(", ")[1:], f"data.split={split}", "data.clients=5"]
    try:
        data = prepare(load(None, [*given, "data.per_client=20"])).dataset
    except FedveilError as error:
        pytest.skip(f"the data is not here: {error}")
    held = data.test if part == "test" and data.test is not None else data.held_out
    assert HELD_OUT[key] == (np.bincount(held.y).max(), len(held))


def test_every_stored_accuracy_of_a_training_has_a_chance():
    rows = [json.loads(line) for line in CELLS.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["kind"] in KINDS and "cifar100" not in json.dumps(row["settings"])]
    without = [row["settings"] for row in rows if chance_of(row, "accuracy") is None]
    assert len(rows) > 500 and without == []
    assert all(chance_of(row, "success_rate") is None and "success_rate" not in ACCURACIES for row in rows[:5])


def test_a_result_that_knows_its_chance_is_believed():
    row = {"kind": "train", "settings": ["data.name=mnist"], "result": {"chance": 0.2, "held_out": 50}}
    assert chance_of(row, "accuracy") == Chance("mnist", 0.2, 50)
    assert chance_of(row, "test") == Chance("mnist", 1135 / 10000, 10000)  # of the other part
    assert chance_of({**row, "settings": ["data.name=nowhere"], "result": {}}, "accuracy") is None


def test_states():
    known = Chance("mnist", 0.1, 1000)
    assert states_of([0.5, 0.4], known, [1.0, 2.0]) == ()
    assert states_of([0.11], known, []) == (AT_CHANCE,)
    assert states_of([0.5, 0.4], known, [1.0, 70.0]) == (DIVERGED,)
    assert states_of([0.1], known, [None]) == (AT_CHANCE, DIVERGED)


def study(tmp_path, accuracy, loss):
    cell = Cell("one", "mnist", "train", SETTINGS)
    recipe = Recipe("fed-cdp/table-99", "A table", lambda size: [cell], MEASURES, quick="")
    cache = Cache(tmp_path / "cells.jsonl")
    cache.put(cell.jobs()[0], {"accuracy": accuracy, "loss": loss, "split": "validation"}, 1.0, {"device": "cpu"})
    return recipe, cache


@pytest.mark.parametrize(
    ("accuracy", "loss", "shown", "told"),
    [
        (0.9, 0.4, "| one | 0.900 |", ""),
        (0.11, 2.3, "| one | 0.110† |", " † no better than chance."),
        (0.3, 99.0, "| one | 0.300‡ |", " ‡ the loss of at least one seed diverged."),
    ],
)
def test_a_page_says_chance_and_marks_what_did_not_learn(tmp_path, accuracy, loss, shown, told):
    recipe, cache = study(tmp_path, accuracy, loss)
    text = page("fed-cdp", [recipe], cache, "")
    assert shown in text
    assert f"Chance, which is naming the most common class: mnist 0.109.{told}\n" in text
    assert text.count("Chance, which") == 1  # not under the table of losses
    found = {entry.measure.key: entry.as_dict() for entry in entries(recipe, FULL, cache)}
    assert found["accuracy"]["chance"] == 0.109 and found["loss"]["chance"] is None
    assert bool(found["accuracy"]["states"]) is bool(told)


def test_a_training_stores_its_own_chance():
    small = ("data.clients=4", "data.per_client=20", "model.name=logistic", "train.rounds=1", "train.noise_seed=0")
    result = train(Job("train", small, {}))
    assert (result["chance"], result["held_out"]) == (54 / 450, 450)
