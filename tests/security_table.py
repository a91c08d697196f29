"""The table of docs/security.md on run folders, caches and the lab, counted from tests: `python -m tests.security_table`.

Every attack is an assertion of a test, so what was tried was survived if the tests pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests import test_compilation, test_damage, test_kills, test_too_large
from tests.lab import test_lab_fuzz

PAGE = Path(__file__).parents[1] / "docs" / "security.md"
BEGIN, END = "<!-- local: counted by tests/security_table.py -->", "<!-- local: end -->"
KILLS, REQUESTS, HALVES = 60, 1500, 600


def cases(function: object) -> int:
    """The number of cases that a test is parametrised with."""
    total = 1
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "parametrize":
            total *= len(mark.args[1])
    return total


def rows() -> Iterator[tuple[str, int, str]]:
    """What was tried, how often, and where."""
    damages, commands = len(test_damage.CASES), len(test_damage.COMMANDS)
    kills, lab, cache = test_kills, test_lab_fuzz, test_compilation
    yield f"damaged files of a run ({damages}), each under {commands} commands", damages * commands, "test_damage"
    yield "`kill -9` at random moments of `train`, `attack`, `report`, `reproduce`", KILLS, "test_kills"
    full = (
        kills.test_a_full_disk_while_training,
        kills.test_a_full_disk_while_an_attack_is_stored,
        kills.test_a_full_disk_while_a_report_is_written,
        kills.test_a_full_disk_while_reproducing,
    )
    yield "a disk that is full at some write", sum(map(cases, full)), "test_kills"
    yield "a folder that cannot be written", cases(kills.test_a_read_only_folder), "test_kills"
    yield "a link in place of a file that is written", 6, "test_kills"
    yield "a second writer: `train`, `attack`, `report`, `reproduce`", 4, "test_kills"
    planted = cache.test_a_folder_into_which_others_can_put_programs_is_not_used
    yield "folders of compiled programs that others can write to", cases(planted), "test_compilation"
    yield "a planted program, from the command line and from Python", 2, "test_compilation"
    large = (
        test_too_large.test_a_million_clients_of_500,
        test_too_large.test_ten_million_rounds_that_differ,
        test_too_large.test_a_real_bomb_is_refused_in_no_time,
        test_too_large.test_archives_that_do_not_fit,
        test_too_large.test_an_array_that_claims_more_than_it_holds,
        test_too_large.test_packages_and_files_of_datasets,
    )
    yield "sizes and archives beyond the memory", sum(map(cases, large)), "test_too_large"
    yield "requests to the lab made from its OpenAPI schema, at least", REQUESTS, "test_lab_fuzz"
    extreme = cases(lab.test_extreme_values_of_a_defence) * 2 * len(lab.EXTREME)
    yield "extreme values of a defence in the lab", extreme, "test_lab_fuzz"
    yield "malformed run folders in the lab", len(lab.NASTY) + 2, "test_lab_fuzz"
    yield "connections that never send a whole request", HALVES, "test_lab_fuzz"


def table() -> str:
    """The table as Markdown."""
    lines = ["| tried | times | survived | test |", "| --- | ---: | ---: | --- |"]
    lines += [f"| {what} | {times:,} | {times:,} | `{test}.py` |" for what, times, test in rows()]
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with the table as it is now."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
