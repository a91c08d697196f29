"""The vocabulary of recipes: cells to measure, the measures that a table shows, and sizes. Imports no JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedveil import __version__

# Versions of kinds, 1 unless given. A version is raised when the code changes what its kind measures: cells measured before
# are then measured again.
KIND_VERSIONS: dict[str, int] = {
    "attack-steps": 2,  # since 2 an update is read as the sum of its steps unless `divided`
}


@dataclass(frozen=True)
class Cell:
    """One measurement of a table: its row and column, the settings of its config, and how it is measured.

    `kind` names the function in `kinds.KINDS` that measures it; `options` are arguments of that function.
    """

    row: str
    column: str
    kind: str
    settings: tuple[str, ...] = ()  # section.key=value
    options: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 1  # number of seeds; the table shows their mean
    note: str = ""  # how this cell differs from the paper's setting
    like: str = ""  # the row whose published values it is compared with, if not its own
    as_printed: bool = False  # whether this reading, not the row that it is `like`, follows the paper's text
    part: str = ""  # dotted key of the part of the result that it shows; "": all of it

    def jobs(self) -> list[Job]:
        """One job for each seed. The seed also fixes the private draws, so that a job can be repeated."""
        return [
            Job(self.kind, (*self.settings, f"train.seed={seed}", f"train.noise_seed={seed}"), dict(self.options))
            for seed in range(self.seeds)
        ]


@dataclass(frozen=True)
class Job:
    """A unit of work, run once and cached: a cell with one seed, independent of the table that shows it."""

    kind: str
    settings: tuple[str, ...]
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Recipes reproduce papers, so what a setting leaves out is the papers'."""
        if not any(setting.startswith("preset=") for setting in self.settings):
            object.__setattr__(self, "settings", (*self.settings, "preset=paper"))

    @property
    def digest(self) -> str:
        """The key of the result in the cache. Recipes with the same job share its result."""
        from fedveil.recipes.cache import digest  # loads the schema of the config: too slow for a list of recipes

        return digest(self.kind, self.settings, self.options, [__version__, KIND_VERSIONS.get(self.kind, 1)])


@dataclass(frozen=True)
class Measure:
    """A number of a result that the table shows.

    Dots in `key` reach into the result (`ledger.release`); with a leading √ it is the root of that number. `published` is
    the key of the published value, if it is another one.
    """

    key: str
    label: str
    digits: int = 3
    published: str = ""


@dataclass(frozen=True)
class Size:
    """The size of a recipe: the paper's, or a quick one that takes minutes on two cores."""

    full: bool

    def pick(self, *, full: Any, quick: Any) -> Any:
        return full if self.full else quick

    @property
    def name(self) -> str:
        return "full" if self.full else "quick"


QUICK, FULL = Size(False), Size(True)


@dataclass(frozen=True)
class Recipe:
    """One table or figure of a paper."""

    name: str  # paper/table-N or paper/fig-N
    title: str
    cells: Callable[[Size], list[Cell]]
    measures: tuple[Measure, ...]
    quick: str  # how the quick size differs from the paper's
    why: str = ""  # why measured and published values differ
    chart: Chart | None = None

    @property
    def paper(self) -> str:
        return self.name.split("/")[0]

    @property
    def key(self) -> str:
        return self.name.split("/")[1]


@dataclass(frozen=True)
class Chart:
    """How a figure is drawn: each row is a line, the columns are numbers on the x axis."""

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
    """A cell for every row and column, with the settings of both; later settings override earlier ones."""
    return [
        Cell(row, column, kind, (*common, *ours, *theirs), **more)
        for row, ours in rows.items()
        for column, theirs in columns.items()
    ]
