"""Compiled programs: where JAX stores them, when nothing is stored, and what is compiled once."""

import os
import subprocess
import sys
import warnings

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
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "jax"))
    assert compilation.use_cache() is None and os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "jax")


def test_a_home_that_cannot_be_written_is_no_error(clean, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compilation.use_cache() is None


def opened(folder):
    folder.chmod(0o777)


def by_group(folder):
    folder.chmod(0o770)


def parent(folder):
    folder.parent.chmod(0o777)


def foreign_file(folder):
    os.chown(folder / "program-cache", 12345, 12345)


def open_file(folder):
    folder.chmod(0o755)
    (folder / "program-cache").chmod(0o666)


def link(folder):
    (folder / "program-cache").unlink()
    (folder / "program-cache").symlink_to(folder.parent / "theirs")


def foreign_folder(folder):
    os.chown(folder, 12345, 12345)


def foreign_parent(folder):
    os.chown(folder.parent, 12345, 12345)


PLANTS = (opened, by_group, parent, foreign_file, open_file, link, foreign_folder, foreign_parent)


@pytest.mark.parametrize("name", [compilation.SETTING, "JAX_COMPILATION_CACHE_DIR"])
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_folder_into_which_others_can_put_programs_is_not_used(clean, name, plant, monkeypatch, tmp_path):
    """Its programs are machine code: whoever can write them decides what runs."""
    if plant.__name__.startswith("foreign") and os.getuid() != 0:
        pytest.skip("only root can give a file away")
    folder = tmp_path / "on the way" / "programs"
    folder.mkdir(mode=0o700, parents=True)
    (folder / "program-cache").write_bytes(b"machine code")
    monkeypatch.setenv(name, str(folder))
    assert compilation.distrust(folder) == ""
    plant(folder)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert compilation.use_cache() is None
    assert os.environ.get("JAX_COMPILATION_CACHE_DIR") is None
    assert len(told) == (name != compilation.SETTING)  # the user's own folder: one line says why
    assert (folder / "program-cache").is_symlink() or (folder / "program-cache").read_bytes() == b"machine code"


def test_a_remote_folder_is_not_used(clean, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "gs://bucket/programs")
    with pytest.warns(UserWarning, match="who can write there is not known"):
        assert compilation.use_cache() is None
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_a_folder_of_another_user_is_not_used(clean, monkeypatch, tmp_path):
    monkeypatch.setenv(compilation.SETTING, str(tmp_path / "theirs"))
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert compilation.use_cache() is None and "JAX_COMPILATION_CACHE_DIR" not in os.environ


# A program that is stored under the name of another: what JAX would run in its place.
PLANTED = """
import os, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from fedveil import compilation
if sys.argv[1] == "guarded":
    compilation.use_cache()
import jax, jax.numpy as jnp
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
if sys.argv[1] == "from python":
    compilation.check_jax_cache()
scale = float(sys.argv[2])
def noised(x):
    return x * scale
print(float(jax.jit(noised)(jnp.float32(3.0))), flush=True)
"""


def test_a_planted_program_does_not_run(clean, tmp_path):
    folder = tmp_path / "programs"
    folder.mkdir()

    def ran(guard: str, scale: float) -> float:
        environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder)}
        command = [sys.executable, "-c", PLANTED, guard, str(scale)]
        return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    def stored() -> set[str]:
        return {path.name for path in folder.iterdir() if "noised" in path.name and path.name.endswith("-cache")}

    assert ran("unguarded", 1.0) == 3.0
    (honest,) = stored()
    assert ran("unguarded", 0.001) == pytest.approx(0.003)
    (planted,) = stored() - {honest}
    (folder / honest).write_bytes((folder / planted).read_bytes())
    assert ran("unguarded", 1.0) == pytest.approx(0.003)  # the plant works: JAX runs what is stored there
    folder.chmod(0o777)
    assert ran("guarded", 1.0) == 3.0 and ran("from python", 1.0) == 3.0


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


@pytest.mark.slow
def test_shadow_federations_compile_a_program_once_for_all_threads():
    federation = prepare(load(None, SMALL))
    given = np.ones((4, len(federation.simulator.y)), bool)
    fleet = Fleet(federation, (1, 2, 3, 4), [Draws(n) for n in (1, 2, 3, 4)], given, slots=6)
    assert len(fleet.parts()) == 4
    fleet.train()
    programs = (fleet._rounds.empty, fleet._rounds.chunk, fleet._rounds.advance)
    assert [len(program._compiled) for program in programs] == [1, 1, 1]
