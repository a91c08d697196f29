"""What a recipe is made of: cells to measure, and where they stand in the table. Cheap to import: no JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedveil import __version__

# Raised when a change of the code changes what a kind of cell measures: cells measured before are then done again.
KIND_VERSIONS: dict[str, int] = {
    "train": 1,
    "calibrated": 1,
    "attack": 1,
    "infer": 1,
    "ledger": 1,
    "round-time": 1,
    "norms": 1,
    "inversion-figure": 1,
    "compare-attacks": 1,
    "dataset": 1,
    "noised-epoch": 1,
    "noise-time": 1,
    "attack-layers": 1,
    "curve": 1,
    "public-only": 1,
    "attack-steps": 2,  # since 2 an update is read as the sum of its steps unless `divided`
    "bound": 1,
}


@dataclass(frozen=True)
class Cell:
    """One thing to measure: settings of a config, what is done with them, and its place in the table.

    `kind` names the function in `kinds.KINDS` that measures it, `options` what that function is told beside the config.
    """

    row: str
    column: str
    kind: str
    settings: tuple[str, ...] = ()  # section.key=value
    options: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 1  # train.seed and train.noise_seed 0, 1, …; the table shows their mean
    note: str = ""  # what is different here from the paper's setting

    def jobs(self) -> list[Job]:
        """One job for each seed. Its draws follow the seed too, so that it can be measured again."""
        return [
            Job(self.kind, (*self.settings, f"train.seed={seed}", f"train.noise_seed={seed}"), dict(self.options))
            for seed in range(self.seeds)
        ]


@dataclass(frozen=True)
class Job:
    """What is run and cached: a cell at one seed, whatever table it stands in."""

    kind: str
    settings: tuple[str, ...]
    options: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """The same for the same work: two recipes that ask for it share the result (`recipes.digest`)."""
        from fedveil.recipes.digest import digest  # loads the config's schema: too slow for a list of recipes

        return digest(self.kind, self.settings, self.options, [__version__, KIND_VERSIONS[self.kind]])


@dataclass(frozen=True)
class Measure:
    """A number of a cell's result that the table shows: `key` may reach in by dots (`ledger.release`)."""

    key: str
    label: str
    digits: int = 3


@dataclass(frozen=True)
class Size:
    """How large a recipe is run: the paper's size, or one that fits two cores and minutes."""

    full: bool

    def pick(self, *, full: Any, quick: Any) -> Any:
        return full if self.full else quick

    @property
    def name(self) -> str:
        return "full" if self.full else "quick"


QUICK, FULL = Size(False), Size(True)


@dataclass(frozen=True)
class Recipe:
    """One table or figure."""

    name: str  # paper/table-N or paper/fig-N
    title: str
    cells: Callable[[Size], list[Cell]]
    measures: tuple[Measure, ...]
    quick: str  # what is smaller in the quick size
    why: str = ""  # why measured and published differ, where they do
    chart: Chart | None = None

    @property
    def paper(self) -> str:
        return self.name.split("/")[0]

    @property
    def key(self) -> str:
        return self.name.split("/")[1]


@dataclass(frozen=True)
class Chart:
    """How a figure is drawn from its cells: rows are lines, columns the x axis (numbers)."""

    measure: str
    x_label: str
    y_label: str
    x_log: bool = False


def grid(
    rows: Mapping[str, tuple[str, ...]],
    columns: Mapping[str, tuple[str, ...]],
    kind: str,
    common: tuple[str, ...] = (),
    **more: Any,
) -> list[Cell]:
    """Every row with every column: each brings its settings, later ones win."""
    return [
        Cell(row, column, kind, (*common, *ours, *theirs), **more)
        for row, ours in rows.items()
        for column, theirs in columns.items()
    ]


def seeded(cells: list[Cell], seeds: int) -> list[Cell]:
    """The same cells over so many seeds."""
    return [replace(cell, seeds=seeds) for cell in cells]
