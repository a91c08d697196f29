"""Compiled programs: where JAX stores them, when nothing is stored, and what is compiled once."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedveil import compilation
from fedveil.attacks.games.shadows import Fleet
from fedveil.config import load
from fedveil.core.keys import Draws
from fedveil.federation import prepare

SMALL = (
    *("data.partition=iid", "data.clients=12", "data.per_client=10", "model.name=mlp", "model.hidden=[8]"),
    *("train.rounds=3", "train.per_round=6", "train.batch=4", "train.local_steps=2"),
    *("defense.name=fed-cdp", "defense.clip=1", "defense.noise=1"),
)


@pytest.fixture
def clean(monkeypatch, tmp_path):
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", compilation.SETTING):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# --- the cache on disk


def test_programs_are_stored_in_the_users_cache(clean, tmp_path):
    folder = compilation.use_cache()
    assert folder.parent == tmp_path / "cache" / "fedveil" and folder.stat().st_mode & 0o777 == 0o700
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)


@pytest.mark.parametrize("setting", ["off", "0"])
def test_off(clean, setting, monkeypatch, tmp_path):
    monkeypatch.setenv(compilation.SETTING, setting)
    assert compilation.use_cache() is None
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ and not list(tmp_path.iterdir())


def test_another_folder_and_jaxs_own_setting(clean, monkeypatch, tmp_path):
    monkeypatch.setenv(compilation.SETTING, str(tmp_path / "mine"))
    assert compilation.use_cache() == tmp_path / "mine"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")
    assert compilation.use_cache() is None and os.environ["JAX_COMPILATION_CACHE_DIR"] == "/elsewhere"


def test_a_home_that_cannot_be_written_is_no_error(clean, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compilation.use_cache() is None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o707])
def test_a_folder_that_others_may_write_is_not_used(clean, mode, monkeypatch, tmp_path):
    """Its programs are machine code: whoever can write them decides what runs."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    monkeypatch.setenv(compilation.SETTING, str(tmp_path / "open"))
    assert compilation.use_cache() is None and "JAX_COMPILATION_CACHE_DIR" not in os.environ
    (tmp_path / "open").chmod(0o755)
    assert compilation.use_cache() == tmp_path / "open"


def test_a_folder_of_another_user_is_not_used(clean, monkeypatch, tmp_path):
    monkeypatch.setenv(compilation.SETTING, str(tmp_path / "theirs"))
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert compilation.use_cache() is None and "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_the_oldest_programs_are_deleted_first(clean, monkeypatch, tmp_path):
    monkeypatch.setattr(compilation, "MAX_BYTES", 250)
    folder = compilation.use_cache()
    for time, name in enumerate("abc"):
        (folder / name).write_bytes(b"x" * 100)
        os.utime(folder / name, (time, time))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    compilation.use_cache()
    assert sorted(path.name for path in folder.iterdir()) == ["b", "c"]


def test_the_cache_is_set_up_without_jax():
    code = "import sys; from fedveil import compilation; compilation.use_cache(); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_second_start_compiles_nothing_and_trains_the_same(tmp_path):
    settings = [part for item in (*SMALL, "train.noise_seed=0") for part in ("-s", item)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_COMPILATION", "JAX_PERSISTENT"))}
    environment["FEDVEIL_COMPILED"] = str(tmp_path / "compiled")
    metrics, stored = [], []
    for number in range(2):
        out = str(tmp_path / str(number))
        command = [sys.executable, "-m", "fedveil", "train", *settings, "--json", "--out", out]
        subprocess.run(command, check=True, env=environment, capture_output=True)
        metrics.append((tmp_path / str(number) / "metrics.jsonl").read_text())
        stored.append({name for name in os.listdir(tmp_path / "compiled") if name.endswith("-cache")})
    assert metrics[0] == metrics[1] and stored[0] == stored[1] and len(stored[0]) > 4


# --- programs


def test_a_program_is_compiled_once_for_each_set_of_shapes():
    compiler, traced = compilation.Compiler(), []
    double = compiler.program(lambda x: traced.append(jax.tree.structure(x)) or jax.tree.map(lambda a: 2 * a, x))
    for given in (jnp.arange(3.0), jnp.ones(3), jnp.ones(4), jnp.ones(3, int), {"a": jnp.ones(3)}, {"a": jnp.ones(3)}):
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, 2 * b), double(given), given)
    assert len(traced) == 4
    seconds = compiler.seconds
    assert seconds > 0
    double(jnp.zeros(3))
    assert compiler.seconds == seconds


def test_a_donated_state_is_gone_after_the_round():
    simulator = prepare(load(None, SMALL)).simulator
    state = simulator.start()
    simulator.round(state, 0)
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(jax.tree.leaves(state.params)[0])
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        simulator.round(state, 0)


def test_variants_share_the_compiled_programs():
    simulator = prepare(load(None, SMALL)).simulator
    simulator.round(simulator.start(), 0)
    seconds = simulator.compile_seconds
    other = simulator.variant(seed=7, draws=Draws(7), present=np.arange(12) % 2 == 0)
    assert not np.array_equal(other.start().params["dense"]["w"], simulator.start().params["dense"]["w"])
    assert set(other.cohort(other.start(), 0).clients) <= set(range(0, 12, 2)) and simulator.present is None
    other.round(other.start(), 0)
    assert other.compile_seconds == simulator.compile_seconds == seconds
    for name in ("seed", "draws", "present", "x", "y", "sampling"):
        with pytest.raises(AttributeError):
            setattr(simulator, name, None)


def test_shadow_federations_compile_a_program_once_for_all_threads():
    federation = prepare(load(None, SMALL))
    given = np.ones((4, len(federation.simulator.y)), bool)
    fleet = Fleet(federation, (1, 2, 3, 4), [Draws(n) for n in (1, 2, 3, 4)], given, slots=6)
    assert len(fleet.parts()) == 4
    fleet.train()
    programs = (fleet._rounds.empty, fleet._rounds.chunk, fleet._rounds.advance)
    assert [len(program._compiled) for program in programs] == [1, 1, 1]
