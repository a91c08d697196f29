"""Cold starts: fresh processes are timed, and light commands load nothing heavy."""

import sys

import pytest

from fedveil.bench import start as bench
from fedveil.errors import RunError


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


def test_a_failed_start_is_not_timed():
    with pytest.raises(RunError, match="ended with status 3"):
        bench.spent([sys.executable, "-c", "raise SystemExit(3)"])


def test_layers_are_counted_without_jax_as_with_it():
    """The account of a layerwise clip counts layers by name; these are the keys of the parameters."""
    import jax

    from fedveil.models.build import build
    from fedveil.models.catalog import MODELS

    for name, info in MODELS.items():
        net = build(name, (32, 32, 3) if info.images else (20,), 10)
        assert set(net.named) == set(jax.eval_shape(net.init, jax.random.key(0))), name
        assert len(set(net.named)) == len(net.named)
