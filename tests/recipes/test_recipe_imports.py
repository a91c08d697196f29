"""The recipe catalog is quick to import: what only a shown or measured recipe needs is loaded then."""

import json
import subprocess
import sys

import pytest

# Reports the modules that a statement imports and the JSON files that it opens.
PROBE = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
{statement}
read = [name for name in opened if name.endswith(".json")]
print(json.dumps({{"modules": sorted(sys.modules), "read": read}}))
"""
HEAVY = {"jax", "numpy", "scipy", "pydantic", "matplotlib", "PIL", "fedveil.config"}


def probe(statement):
    code = PROBE.format(statement=statement)
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(told.stdout)


@pytest.mark.parametrize(
    "statement",
    [
        "import fedveil.recipes.catalog",
        "from fedveil.recipes.catalog import recipes; [(r.name, r.title) for r in recipes().values()]",
    ],
)
def test_the_catalog_loads_neither_jax_nor_charts_nor_published_numbers(statement):
    found = probe(statement)
    assert not HEAVY & set(found["modules"])
    assert not [name for name in found["modules"] if "chart" in name or name.startswith("fedveil.report")]
    assert found["read"] == []


def test_published_numbers_are_read_when_a_recipe_is_shown():
    found = probe("from fedveil.recipes.published import claims_of; claims_of('fed-cdp/table-1')")
    assert [name.rpartition("/")[2] for name in found["read"]] == ["fed-cdp.json"]
