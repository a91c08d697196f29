"""A deployed run in test mode gives the same parameters as the simulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from loopback import Loopback

from fedveil.config import load
from fedveil.core.errors import DataError
from fedveil.core.keys import Draws
from fedveil.federation import prepare
from fedveil.runs import named_leaves
from fedveil.training import train

EXAMPLE = Path(__file__).parents[2] / "examples" / "deploy" / "mnist.toml"


@pytest.mark.slow
def test_fed_cdp_on_mnist_shards_equals_the_simulator(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedveil[flower]'")
    try:
        ready = prepare(load(EXAMPLE), draws=Draws(load(EXAMPLE).train.seed))  # as test mode draws
    except DataError as error:
        pytest.skip(str(error))
    with Loopback(tmp_path / "federation", EXAMPLE, "--test") as federation:
        code, result, said = federation.run("--test", "--out", str(tmp_path / "run"), patience=400)
    assert code == 0, said
    assert result["rounds"] == 5 and result["clients_lost"] == 0 and result["ledger"] == []
    simulated = train(ready)
    with np.load(tmp_path / "run" / "checkpoint.npz") as stored:
        deployed = dict(stored)
    worst = max(
        np.abs(deployed[n] - np.asarray(a)).max() for n, a in named_leaves({"params": simulated.params}).items()
    )
    print(f"largest difference {worst:.3g}, accuracy {result['accuracy']} and {simulated.accuracy}")
    assert worst <= 1e-5
    assert abs(result["accuracy"] - simulated.accuracy) < 1e-3
