"""Finished programs that are kept: the same results, one more for whatever changes a program, none that is in doubt."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedveil import federation as federation_module
from fedveil import from_functions, kept
from fedveil.attacks import study
from fedveil.attacks.games.shadows import Fleet
from fedveil.config import AttackConfig, load
from fedveil.core.keys import Draws
from fedveil.defenses.fed_cdp import FedCDP
from fedveil.models.layers import Dense
from fedveil.models.net import Net

SMALL = (
    *("data.partition=iid", "data.clients=12", "data.per_client=10", "model.name=mlp", "model.hidden=[8]"),
    *("train.rounds=3", "train.per_round=6", "train.batch=4", "train.local_steps=2"),
)
DEFENSE = ("defense.name=fed-cdp", "defense.clip=1", "defense.noise=1")


@pytest.fixture
def folder(tmp_path):
    kept.use(tmp_path / "programs")
    yield tmp_path / "programs"
    kept.use(None)


@pytest.fixture
def loaded(monkeypatch):
    """Whether each program that was asked for was there."""
    seen, real = [], kept.program

    def program(jitted, args, static, options=None):
        asked = []
        made = real(_Lowered(jitted, asked), args, static, options)
        seen.append(not asked)
        return made

    monkeypatch.setattr(kept, "program", program)
    return seen


class _Lowered:
    """A jitted function that notes when it is lowered."""

    def __init__(self, jitted, asked):
        self.jitted, self.asked = jitted, asked

    def lower(self, *args):
        self.asked.append(True)
        return self.jitted.lower(*args)


def trained(*settings, rounds=3, defense=DEFENSE, **given):
    federation = federation_module.prepare(load(None, [*SMALL, *defense, *settings]), **given)
    state = federation.simulator.start()
    for number in range(rounds):
        state, _ = federation.simulator.round(state, number)
    return federation, state


def leaves(tree):
    return [np.asarray(a).tobytes() for a in jax.tree.leaves(jax.device_get(tree))]


def double(x):
    return 2 * x


def asked(function, *args, static=(kept.told, "test"), donate=()):
    return kept.program(jax.jit(function, donate_argnums=donate), args, static)(*args)


# --- the same results


def test_training_is_the_same_bit_for_bit(folder, loaded):
    _, first = trained()
    assert not any(loaded)
    loaded.clear()
    _, second = trained()
    assert loaded and all(loaded)
    kept.use(None)
    _, without = trained()
    assert leaves(first.params) == leaves(second.params) == leaves(without.params)


def test_an_attack_is_the_same_bit_for_bit(folder, loaded):
    from fedveil.attacks.reconstruction import scheduler

    def attacked():
        scheduler._kept.cache_clear()
        federation, state = trained("train.batch=1", "train.local_steps=1", defense=())
        asked = AttackConfig.model_validate({"name": "cpl", "tap": "example", "iterations": 20, "images": 3})
        (group,) = study.run(federation, state, 3, asked.make(), asked).groups
        found = group.reconstruction
        return [a.tobytes() for a in (found.inputs, found.labels, found.objective, found.evaluations, found.trace)]

    first = attacked()
    loaded.clear()
    second = attacked()
    assert loaded and all(loaded)
    kept.use(None)
    assert first == second == attacked()


def test_shadow_federations_are_the_same_bit_for_bit(folder, loaded):
    federation = federation_module.prepare(load(None, [*SMALL, *DEFENSE]))
    given = np.ones((2, len(federation.simulator.y)), bool)

    def shadows():
        loaded.clear()
        return leaves(Fleet(federation, (1, 2), (Draws(1), Draws(2)), given).train().models)

    first = shadows()
    assert not any(loaded)
    second = shadows()
    assert len(loaded) == 4 and all(loaded)
    kept.use(None)
    assert first == second == shadows()


def test_a_donated_state_is_gone_after_the_round(folder):
    for _ in range(2):
        federation, state = trained(rounds=1)
        federation.simulator.round(state, 1)
        with pytest.raises(RuntimeError, match="deleted"):
            np.asarray(jax.tree.leaves(state.params)[0])
        with pytest.raises((RuntimeError, ValueError), match="deleted"):
            federation.simulator.round(state, 1)


def test_a_start_of_its_own_finds_what_another_left(tmp_path):
    """Through the command line, with JAX's own cache beside it."""
    settings = [part for item in (*SMALL, *DEFENSE, "train.noise_seed=0") for part in ("-s", item)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_COMPILATION", "JAX_PERSISTENT"))}
    environment["FEDVEIL_COMPILED"] = str(tmp_path / "compiled")
    said, found = [], []
    for place in range(2):
        command = [sys.executable, "-m", "fedveil", "train", *settings, "--json", "--out", str(tmp_path / str(place))]
        subprocess.run(command, check=True, env=environment, capture_output=True)
        said.append((tmp_path / str(place) / "metrics.jsonl").read_text())
        found.append(sorted(os.listdir(tmp_path / "compiled" / "programs")))
    assert said[0] == said[1] and found[0] == found[1] and len(found[0]) > 4
    assert (tmp_path / "compiled" / "programs").stat().st_mode & 0o777 == 0o700


# --- what decides a program


CHANGES = (
    *("defense.noise=2", "defense.clip=0.5", "defense.clip_scope=flat", "defense.placement=batch", "train.batch=5"),
    *("train.local_steps=1", "train.optimizer=momentum", "train.aggregation=fedavg", "model.hidden=[9]"),
    "speed.precision=float64",
)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A folder with the programs of a round."""
    path = tmp_path_factory.mktemp("once") / "programs"
    kept.use(path)
    trained(rounds=1)
    kept.use(None)
    return path


@pytest.mark.parametrize("changed", CHANGES)
def test_another_setting_is_another_round(changed, once, folder, loaded):
    shutil.copytree(once, folder, dirs_exist_ok=True)
    for settings, there in (((), True), ((changed,), False)):
        loaded.clear()
        trained(*settings, rounds=1)
        assert loaded[1] is there  # the round of a chunk of clients, after an empty sum


def test_changed_source_is_another_program(folder, monkeypatch):
    x = jnp.arange(3.0)
    asked(double, x)
    before = set(os.listdir(folder))
    monkeypatch.setattr(kept, "_source", lambda sources: "another")
    asked(double, x)
    assert before < set(os.listdir(folder)) and len(set(os.listdir(folder)) - before) == 1  # by its text it is the same
    found = {os.stat(folder / name).st_ino for name in os.listdir(folder)}
    assert len(found) == 1


def test_the_same_name_with_another_text_is_made_anew(folder, monkeypatch):
    x = jnp.arange(3.0)
    assert asked(double, x).tolist() == [0, 2, 4]
    monkeypatch.setattr(kept, "_source", lambda sources: "another")
    assert asked(lambda x: 3 * x, x).tolist() == [0, 3, 6]


def test_which_argument_is_left_out_tells_programs_apart(folder):
    x, y = jnp.arange(3.0), jnp.ones(3)
    assert asked(lambda x, y: 2 * x, x, y, static=(kept.told, 1)).tolist() == [0, 2, 4]
    assert asked(lambda x, y: 2 * y, x, y, static=(kept.told, 2)).tolist() == [2, 2, 2]


def test_nothing_is_kept_or_taken_once_a_source_file_has_changed(folder, monkeypatch, loaded):
    x = jnp.arange(3.0)
    asked(double, x)
    before = set(os.listdir(folder))
    monkeypatch.setattr(kept, "signature", lambda: (("client.py", 1, 1),))
    asked(double, x)
    asked(double, x, static=(kept.told, "other"))
    assert loaded == [False] * 3 and set(os.listdir(folder)) == before


def test_precision_types_and_options_tell_programs_apart(folder):
    def path(x, options=None):
        return kept._path(kept.told, kept.told, (x,), options)

    x = jnp.arange(3.0)
    found = [path(x), path(x, {"xla_cpu_prefer_vector_width": "512"}), path(x.astype(int)), path({"x": x}), path(1.0)]
    found.append(path(np.float32(1)))
    with jax.default_matmul_precision("highest"):
        found.append(path(x))
    with jax.enable_x64(True):
        found.append(path(x))
    assert None not in found and len(set(found)) == len(found)
    assert path(x) == found[0]


# --- what is never kept


@dataclass(frozen=True)
class Own:
    value: float = 1.0


def init(key):
    return {"dense": {"w": 0.01 * jax.random.normal(key, (64, 10)), "b": jnp.zeros(10)}}


def apply(params, x):
    return x.reshape(len(x), -1) @ params["dense"]["w"] + params["dense"]["b"]


def test_statics_that_their_text_may_not_tell_are_refused():
    net = Net((Dense("a", 3),), (4,))
    assert kept.told(net) == kept.told(Net((Dense("a", 3),), (4,))) != kept.told(Net((Dense("a", 3, False),), (4,)))
    assert kept.told(1) != kept.told(1.0) != kept.told(True) and kept.told("1") != kept.told(1)
    assert kept.told(frozenset("abc")) == kept.told(frozenset("cba"))
    local = lambda x: x  # noqa: E731
    held = FedCDP().holding(np.ones(3))
    wrong = (Own(), local, partial(local, 1), np.ones(3), jnp.ones(3), held, object(), net.apply, np.float32(1), {1, 2})
    for part in wrong:
        with pytest.raises(kept.Untold):
            kept.told((net, part))


def test_all_of_a_defence_and_its_setting_is_told():
    federation = federation_module.prepare(load(None, [*SMALL, *DEFENSE]))
    task = federation.simulator.task
    said = kept.told(task)
    for other in (replace(task.defenses[0], noise=1.5), replace(task.defenses[0], clip=2.0)):
        assert kept.told(replace(task, defenses=(other,))) != said
    for name, value in (("scale", 2.0), ("dtype", "float64"), ("optimizer", "adam"), ("half", True)):
        assert kept.told(replace(task, **{name: value})) != said


def test_a_model_of_ones_own_is_compiled_in_every_start(folder, loaded):
    for _ in range(2):
        loaded.clear()
        trained(model=from_functions(init, apply), rounds=1)
        assert len(loaded) > 2
    assert len([fast for fast in loaded if not fast]) >= 2  # all that the model is part of


def test_a_way_back_into_the_process_is_not_kept(folder):
    def noisy(x):
        jax.debug.callback(lambda a: None, x)
        return 2 * x

    assert asked(noisy, jnp.arange(3.0)).tolist() == [0, 2, 4]
    assert not os.listdir(folder)


def test_without_a_folder_nothing_is_kept(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (None, tmp_path / "file" / "below"):
        kept.use(folder)
        assert asked(double, jnp.arange(3.0)).tolist() == [0, 2, 4]
    kept.use(None)
    assert sorted(os.listdir(tmp_path)) == ["file"]


# --- files


@pytest.mark.parametrize("broken", [b"", b"short", b"\0" * 4096, None])
def test_a_broken_file_is_replaced(broken, folder, loaded):
    x = jnp.arange(3.0)
    asked(double, x)
    whole = {name: (folder / name).read_bytes() for name in os.listdir(folder)}
    for name, text in whole.items():
        (folder / name).unlink()
        (folder / name).write_bytes(text[:-1] + b"?" if broken is None else broken)
        (folder / name).chmod(0o600)
    assert asked(double, x).tolist() == [0, 2, 4]
    assert sorted(os.listdir(folder)) == sorted(whole)
    assert asked(double, x).tolist() == [0, 2, 4]
    assert loaded == [False, False, True]


def test_what_others_could_have_written_is_not_read(folder, loaded, monkeypatch):
    x = jnp.arange(3.0)
    asked(double, x)
    for name in os.listdir(folder):
        (folder / name).chmod(0o622)
    asked(double, x)
    asked(double, x)
    assert loaded == [False, False, True]
    assert all((folder / name).stat().st_mode & 0o777 == 0o600 for name in os.listdir(folder))
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    asked(double, x)
    assert not loaded[-1]


def test_a_constant_tells_texts_apart(folder):
    x, many = jnp.ones(3), np.arange(3000.0, dtype=np.float32).reshape(1000, 3)
    other = many + (np.arange(1000) == 500)[:, None]
    first = asked(lambda x: many @ x, x, static=(kept.told, 1))
    assert (np.asarray(asked(lambda x: other @ x, x, static=(kept.told, 2)) - first) != 0).sum() == 1


def test_links_are_not_followed(folder, loaded, tmp_path):
    x = jnp.arange(3.0)
    asked(double, x)
    for name in os.listdir(folder):
        os.rename(folder / name, tmp_path / name)
        os.symlink(tmp_path / name, folder / name)
    asked(double, x)
    assert loaded == [False, False] and not any((folder / name).is_symlink() for name in os.listdir(folder))


def test_a_folder_that_others_may_write_is_not_used(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    kept.use(tmp_path / "open")
    asked(double, jnp.arange(3.0))
    kept.use(None)
    assert not os.listdir(tmp_path / "open")


def test_what_was_not_used_for_longest_goes(folder, loaded, monkeypatch):
    x = jnp.arange(3.0)
    for place in range(3):
        asked(lambda x, n=place: n * x, x, static=(kept.told, place))
        for name in os.listdir(folder):
            if os.stat(folder / name).st_mtime > 3:  # the newest
                os.utime(folder / name, (place, place))
    asked(lambda x: 0 * x, x, static=(kept.told, 0))  # used again: newest now
    monkeypatch.setattr(kept, "MOST_FILES", 4)
    asked(lambda x: 5 * x, x, static=(kept.told, 5))
    assert len(os.listdir(folder)) <= 5
    loaded.clear()
    asked(lambda x: 0 * x, x, static=(kept.told, 0))
    asked(lambda x: x, x, static=(kept.told, 1))
    assert loaded == [True, False]
    monkeypatch.setattr(kept, "MOST", 1)
    asked(lambda x: 6 * x, x, static=(kept.told, 6))
    assert not os.listdir(folder)


def test_what_jax_took_from_its_own_cache_is_not_written(folder, monkeypatch):
    """It would come out broken."""
    monkeypatch.setattr(kept, "_settings", lambda: "")
    monkeypatch.setattr(jax, "config", SimpleNamespace(jax_compilation_cache_dir="/some"))  # which told of no miss
    asked(double, jnp.arange(3.0))
    assert not os.listdir(folder)
