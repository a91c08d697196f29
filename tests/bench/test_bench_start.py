"""Cold starts: fresh processes are timed, and light commands import nothing heavy."""

import sys
from pathlib import Path

import pytest

from benchmarks import start as bench
from fedveil.core.errors import RunError


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (("--help",), {"numpy", "pydantic", "scipy", "dp_accounting", "jax", "optax", "sklearn"}),
        (("list", "models"), {"scipy", "dp_accounting", "jax", "optax", "sklearn"}),
        (("ledger", "-s", "defense.name=none"), {"scipy", "dp_accounting", "jax", "optax", "sklearn"}),
        (("ledger", "-s", "defense.name=fed-cdp", "--rounds", "2"), {"jax", "optax", "sklearn"}),
    ],
)
def test_commands_import_no_more_than_they_need(arguments, heavy):
    assert not heavy & set(bench.imported(arguments))


def test_heavy_imports_are_seen():
    assert {"scipy", "dp_accounting"} <= set(bench.imported(("ledger", "-s", "defense.name=fed-cdp", "--rounds", "2")))


def test_rows_compare_a_command_with_the_bare_interpreter(monkeypatch):
    """The command takes 1, 2 and 3 s, the interpreter always half a second."""
    wall = iter((1.0, 2.0, 3.0))

    def spent(command):
        return bench.Spent(next(wall), 0.75) if "fedveil" in command else bench.Spent(0.5, 0.25)

    monkeypatch.setattr(bench, "spent", spent)
    (row,) = bench.run(repeats=3, commands={"help": bench.COMMANDS["help"]})
    assert row["name"] == "start/help" and row["limit"] == 0.3 and row["command"] == "fedveil --help"
    assert (row["low"], row["ratio"], row["high"], row["ours"], row["theirs"]) == (2.0, 4.0, 6.0, 2.0, 0.5)
    assert row["cpu"] == 0.75 and "jax" not in row["imported"]


def test_waiting_is_wall_time_and_computing_is_processor_time():
    waits = bench.spent([sys.executable, "-c", "import time; time.sleep(0.5)"])
    computes = bench.spent([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"])
    assert waits.wall >= 0.5 > waits.cpu and computes.cpu >= 0.5


def test_the_second_start_of_the_demo_finds_compiled_programs(monkeypatch):
    seen = []
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")

    def spent(command, settings):
        folder = Path(settings["FEDVEIL_COMPILED"])
        first = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        seen.append((first, command[-1]))
        return bench.Spent(10.0 if first else 4.0, 1.0)

    monkeypatch.setattr(bench, "spent", spent)
    row = bench.demo(2)
    assert row["name"] == "start/demo" and row["ratio"] == pytest.approx(0.4) and row["theirs"] == 10.0
    assert [first for first, _ in seen] == [True, False] * 2 and len({out for _, out in seen}) == 4


def test_a_process_does_not_inherit_the_cache_of_compiled_programs(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")
    script = f"import os; open({str(tmp_path / 'seen')!r}, 'w').write(str(os.environ.get('JAX_COMPILATION_CACHE_DIR')))"
    bench.spent([sys.executable, "-c", script])
    assert (tmp_path / "seen").read_text() == "None"


def test_a_failed_start_is_not_timed():
    with pytest.raises(RunError, match="ended with status 3"):
        bench.spent([sys.executable, "-c", "raise SystemExit(3)"])


def test_layers_are_counted_without_jax_as_with_it():
    """The account of a layerwise clip counts layers by name. The names are the keys of the parameters."""
    import jax

    from fedveil.models.catalog import MODELS, build

    for name, info in MODELS.items():
        net = build(name, (32, 32, 3) if info.images else (20,), 10)
        assert set(net.named) == set(jax.eval_shape(net.init, jax.random.key(0))), name
        assert len(set(net.named)) == len(net.named)
