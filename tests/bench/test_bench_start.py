"""Cold starts: fresh processes are timed, and light commands load nothing heavy."""

import sys
from pathlib import Path

import pytest

from fedveil.bench import start as bench
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
def test_commands_wait_for_no_more_than_they_need(arguments, heavy):
    assert not heavy & set(bench.imported(arguments))


def test_what_is_loaded_is_seen():
    assert {"scipy", "dp_accounting"} <= set(bench.imported(("ledger", "-s", "defense.name=fed-cdp", "--rounds", "2")))


def test_rows_of_starts():
    (row,) = bench.run(repeats=3, commands={"help": bench.COMMANDS["help"]})
    assert row["name"] == "start/help" and row["limit"] == 0.3 and row["command"] == "fedveil --help"
    assert row["ratio"] > 1 and row["cpu"] > 0 and row["low"] <= row["ratio"] <= row["high"]
    assert "jax" not in row["imported"]


def test_a_second_start_finds_the_programs_of_the_first(monkeypatch):
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


def test_a_process_keeps_its_own_compiled_programs(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")
    script = f"import os; open({str(tmp_path / 'seen')!r}, 'w').write(str(os.environ.get('JAX_COMPILATION_CACHE_DIR')))"
    bench.spent([sys.executable, "-c", script])
    assert (tmp_path / "seen").read_text() == "None"


def test_a_failed_start_is_not_timed():
    with pytest.raises(RunError, match="ended with status 3"):
        bench.spent([sys.executable, "-c", "raise SystemExit(3)"])


def test_layers_are_counted_without_jax_as_with_it():
    """The account of a layerwise clip counts layers by name; these are the keys of the parameters."""
    import jax

    from fedveil.models.catalog import MODELS, build

    for name, info in MODELS.items():
        net = build(name, (32, 32, 3) if info.images else (20,), 10)
        assert set(net.named) == set(jax.eval_shape(net.init, jax.random.key(0))), name
        assert len(set(net.named)) == len(net.named)
