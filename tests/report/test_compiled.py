"""Compiled programs that are kept: where, when not, and how much."""

import os
import subprocess
import sys

import pytest

from fedveil import compiled


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", compiled.SETTING):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_programs_lie_in_the_users_cache(tmp_path):
    folder = compiled.keep()
    assert folder.parent == tmp_path / "cache" / "fedveil" and folder.is_dir()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)


@pytest.mark.parametrize("setting", ["off", "0"])
def test_off(setting, monkeypatch, tmp_path):
    monkeypatch.setenv(compiled.SETTING, setting)
    assert compiled.keep() is None and "JAX_COMPILATION_CACHE_DIR" not in os.environ and not list(tmp_path.iterdir())


def test_a_folder_of_ones_own_and_jaxs_own_setting(monkeypatch, tmp_path):
    monkeypatch.setenv(compiled.SETTING, str(tmp_path / "mine"))
    assert compiled.keep() == tmp_path / "mine"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")
    assert compiled.keep() is None and os.environ["JAX_COMPILATION_CACHE_DIR"] == "/elsewhere"


def test_a_home_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compiled.keep() is None


def test_the_oldest_go_when_there_is_no_room(monkeypatch, tmp_path):
    monkeypatch.setattr(compiled, "MOST", 250)
    folder = compiled.keep()
    for place, name in enumerate("abc"):
        (folder / name).write_bytes(b"x" * 100)
        os.utime(folder / name, (place, place))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    compiled.keep()
    assert sorted(path.name for path in folder.iterdir()) == ["b", "c"]


def test_keeping_does_not_wait_for_jax():
    code = "import sys; from fedveil import compiled; compiled.keep(); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
