"""All recipes, in the order of the papers.

This module imports quickly: neither JAX nor the published figures are loaded before a recipe is shown or run.
"""

from __future__ import annotations

from importlib import import_module

from fedveil.core.errors import unknown_name
from fedveil.recipes.cell import Recipe

MODULES = ("fed_cdp", "cpl", "two_dp_fl", "dpfl", "beyond")


def recipes() -> dict[str, Recipe]:
    """Every recipe by its name."""
    found = [recipe for module in MODULES for recipe in import_module(f"fedveil.recipes.{module}").RECIPES]
    return {recipe.name: recipe for recipe in found}


def choose(name: str) -> list[Recipe]:
    """The recipes that a name selects: one recipe, all of a paper, or all."""
    known = recipes()
    if name == "all":
        return list(known.values())
    if name in {recipe.paper for recipe in known.values()}:
        return [recipe for recipe in known.values() if recipe.paper == name]
    if name not in known:
        raise unknown_name("recipe", name, known)
    return [known[name]]
