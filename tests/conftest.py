"""What several tests share: calling the command line inside the test's own process, machines that are not here."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Answer:
    """What a command gave back."""

    code: int
    out: str
    err: str
    warned: list[str]  # warnings that a terminal would show on stderr


def pytest_sessionstart() -> None:
    """Sets up the process of the tests.

    Programs make many objects that live as long as the process: the collector need not look at them again and again.
    """
    from tests import executables

    gc.set_threshold(100_000, 20, 50)
    executables.share()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Most programs of the tests run once: compile them without optimisation, also in processes that a test starts.

    Marked otherwise are long computations (`optimised`, `slow`) and tests of rounding (`codegen`).
    """
    import jax

    quick = not any(map(item.get_closest_marker, ("codegen", "optimised", "slow")))
    jax.config.update("jax_disable_most_optimizations", quick)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(quick))


@pytest.fixture(scope="session", autouse=True)
def one_secret() -> Iterator[Callable[[], bytes]]:
    """One secret for all federations that tests make: so tests repeat, and two federations of a test draw alike.

    It gives what it stands for. Processes that a test starts have secrets of their own: give them train.noise_seed.
    """
    from fedveil.core import keys

    real = keys.fresh_secret
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "fresh_secret", lambda: hashlib.sha256(b"of the tests").digest())
        yield real


@pytest.fixture(scope="session", autouse=True)
def papers_settings() -> Iterator[None]:
    """Tests mean the papers' settings where they set nothing else: tests of presets name theirs."""
    from fedveil.defenses import presets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(presets, "DEFAULT", "paper")
        yield


@pytest.fixture
def true_secrets(one_secret: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets from the operating system, as outside of tests."""
    from fedveil.core import keys

    monkeypatch.setattr(keys, "fresh_secret", one_secret)


@pytest.fixture(scope="session")
def fedveil_cli() -> Callable[..., Answer]:
    """`fedveil_cli("train", "--json", cwd=folder)`: one command, in this process, started in that folder."""
    from fedveil.cli.main import main

    def call(*arguments: object, cwd: Path) -> Answer:
        out, err, before = io.StringIO(), io.StringIO(), Path.cwd()
        handler = signal.getsignal(signal.SIGTERM)
        os.chdir(cwd)
        try:
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                warnings.catch_warnings(record=True) as caught,
            ):
                warnings.simplefilter("default")
                for silent in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
                    warnings.simplefilter("ignore", silent)  # as Python itself does
                code = main([str(argument) for argument in arguments])
        finally:
            os.chdir(before)
            signal.signal(signal.SIGTERM, handler)
        return Answer(code, out.getvalue(), err.getvalue(), [str(w.message) for w in caught])

    return call


@pytest.fixture
def a_card() -> contextlib.AbstractContextManager[object]:
    """Within it, programs may be lowered for a graphics card; none need be here."""
    import jax

    device = jax.sharding.AbstractDevice("NVIDIA H200", num_cores=None, platform="gpu")
    kinds = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((1,), ("card",), axis_types=kinds, abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A machine that holds no fetched dataset."""
    from fedveil.data import files

    monkeypatch.setenv("FEDVEIL_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(files, "SYSTEM_FOLDERS", ())
    yield
