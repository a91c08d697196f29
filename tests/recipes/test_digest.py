"""Digests: every measured cell is found, and a cell whose settings changed is not."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from fedveil.attacks.reconstruction.cpl import CPL
from fedveil.attacks.registry import ATTACKS
from fedveil.config import resolve
from fedveil.data.registry import DATASETS
from fedveil.recipes import cache as digest
from fedveil.recipes.cache import Cache
from fedveil.recipes.catalog import recipes
from fedveil.recipes.cell import FULL, QUICK, Cell, Job

DATA = Path(__file__).parents[2] / "docs" / "data"

# Measured cells of each recipe, quick and full. A count that falls: stored results no longer match their settings.
MEASURED = {
    "fed-cdp/table-1": (15, 24),
    "fed-cdp/table-2": (14, 205),
    "fed-cdp/table-3": (20, 8),
    "fed-cdp/table-4": (14, 144),
    "fed-cdp/table-5": (14, 144),
    "fed-cdp/table-6": (20, 20),
    "fed-cdp/table-7": (8, 90),
    "fed-cdp/fig-1": (4, 12),
    "fed-cdp/fig-3": (2, 3),
    "fed-cdp/fig-4": (10, 21),
    "fed-cdp/fig-5": (6, 48),
    "cpl/table-1": (12, 40),
    "cpl/table-2": (8, 24),
    "cpl/table-3": (10, 20),
    "cpl/table-4": (7, 34),
    "cpl/table-5": (4, 16),
    "cpl/table-6": (6, 22),
    "cpl/table-7": (14, 87),
    "cpl/table-8": (7, 44),
    "cpl/table-9": (8, 15),
    "cpl/fig-1": (4, 4),
    "cpl/fig-2": (5, 11),
    "cpl/fig-3": (2, 6),
    "cpl/fig-4": (3, 9),
    "cpl/fig-5": (3, 5),
    "cpl/fig-6": (4, 15),
    "cpl/fig-7": (1, 3),
    "cpl/fig-8": (11, 44),
    "cpl/fig-9": (8, 11),
    "cpl/fig-10": (5, 20),
    "cpl/fig-11": (8, 37),
    "cpl/fig-12": (3, 12),
    "cpl/fig-13": (3, 5),
    "2dp-fl/fig-3": (6, 18),
    "2dp-fl/fig-4": (4, 36),
    "2dp-fl/fig-5": (6, 51),
    "2dp-fl/fig-6": (16, 87),
    "2dp-fl/fig-7": (6, 36),
    "dpfl/table-2": (2, 28),
    "dpfl/table-3": (13, 171),
    "dpfl/table-4": (4, 0),
    "dpfl/fig-1": (3, 12),
    "dpfl/fig-4": (7, 72),
    "dpfl/fig-5": (6, 72),
    "dpfl/fig-6": (6, 72),
    "dpfl/fig-7": (6, 21),
    "dpfl/fig-8": (6, 21),
    "dpfl/fig-9": (2, 21),
    "dpfl/fig-10": (6, 6),
    "dpfl/fig-11": (6, 0),
    "beyond/fig-1": (18, 108),
    "beyond/table-1": (1, 9),
}


@pytest.fixture(autouse=True)
def afresh():
    digest._text.cache_clear()
    yield
    digest._text.cache_clear()


def test_every_measured_cell_is_found_by_its_job():
    cache = Cache(DATA)
    found = {}
    for name, recipe in recipes().items():
        jobs = [[job for cell in recipe.cells(size) for job in cell.jobs()] for size in (QUICK, FULL)]
        found[name] = tuple(sum(cache.get(job) is not None for job in some) for some in jobs)
    assert {name: counts for name, counts in found.items() if any(counts)} == MEASURED


def test_every_line_has_the_digest_of_its_own_settings():
    rows = [json.loads(line) for line in (DATA / "cells.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 1865
    for row in rows:
        assert Job(row["kind"], tuple(row["settings"]), row["options"]).digest == row["digest"], row["settings"]
        seed = next(setting for setting in row["settings"] if setting.startswith("train.seed="))
        assert seed.replace("seed", "noise_seed") in row["settings"]


def of(*settings, kind="train", **options):
    return Job(kind, settings, options).digest


def test_a_default_that_is_written_out_is_no_other_cell():
    resolved = resolve(digest.load(None, ["defense.name=fed-cdp"]))
    said = [
        f"defense.{key}={value}" for key, value in asdict(resolved.defense[0]).items() if isinstance(value, float | int)
    ]
    assert of("defense.name=fed-cdp") == of("defense.name=fed-cdp", *said, f"train.lr={resolved.train.lr}")
    assert of("defense.name=fed-cdp", "defense.clip=4") == of("defense.name=fed-cdp", "defense.clip=4.0")
    assert of() != of("train.noise_seed=0") != of("train.noise_seed=1")


def test_a_default_that_changes_gives_another_digest_to_those_who_took_it(monkeypatch):
    took, named = of(), of("train.lr=0.123")
    attacked, short = of(kind="attack"), of("attack.iterations=77", kind="attack")
    monkeypatch.setitem(DATASETS, "digits", replace(DATASETS["digits"], lr=0.987))
    digest._text.cache_clear()
    assert of() != took and of("train.lr=0.123") == named
    monkeypatch.undo()
    shorter = dataclass(frozen=True)(type("CPL", (CPL,), {"__annotations__": {"iterations": int}, "iterations": 123}))
    monkeypatch.setitem(ATTACKS, "cpl", shorter)
    digest._text.cache_clear()
    assert of(kind="attack") != attacked and of("attack.iterations=77", kind="attack") == short
    assert of() == took  # which attacks nothing


def test_a_new_key_changes_nothing_where_it_is_unset_or_neutral(monkeypatch):
    """A key that exists now stands for one that did not when cells were measured."""
    made = digest.document("train", ())
    assert "noise_seed" not in made["train"] and "budget" not in made["train"]
    assert made["train"]["server_lr"] == 1 and made["defense"] == [{"name": "none"}]
    other = digest.document("train", ("train.server_lr=0.5",))
    monkeypatch.setitem(digest.NEUTRAL, "train.server_lr", 1.0)
    assert "server_lr" not in digest.document("train", ())["train"]
    assert digest.document("train", ("train.server_lr=0.5",)) == other


def test_each_kind_of_job_has_the_sections_that_it_reads():
    assert set(digest.document("train", ())) == {"data", "model", "train", "speed", "defense"}
    attack = digest.document("attack", ())["attack"]
    assert (attack["name"], attack["tap"], attack["rule"], attack["iterations"]) == ("cpl", "client", "ssim", 300)
    infer = digest.document("infer", ("attack.name=lira",))["attack"]
    assert infer["name"] == "lira" and infer["tap"] == "release" and "images" not in infer
    assert of(kind="attack") == of("attack.rule=ssim", "attack.tap=client", kind="attack")


def test_cells_are_measured_with_draws_by_their_seed():
    jobs = Cell("row", "column", "train", seeds=2).jobs()
    assert [job.settings for job in jobs] == [
        (f"train.seed={n}", f"train.noise_seed={n}", "preset=paper") for n in range(2)
    ]
