"""`-s defense.name=X` over a file replaces its defence: keys that X lacks are left out, and one line says so."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from fedveil.config import load
from fedveil.core.errors import ConfigError
from fedveil.defenses.fed_cdp import FedCDP
from fedveil.defenses.fed_sdp import FedSDP
from fedveil.defenses.nbafl import NbAFL
from fedveil.defenses.none import NoDefense

CDP = 'preset = "paper"\n[defense]\nname = "fed-cdp"\nclip = 2.0\nnoise = 3.0\nclip_mode = "lr"\n'
TWO = 'preset = "paper"\n[[defense]]\nname = "fed-cdp"\nclip = 2.0\n[[defense]]\nname = "prune"\nshare = 0.5\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(CDP)
    return path


def test_none_replaces_the_defence_of_a_file(file: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"defense.name = 'none' replaces 'fed-cdp' of the file; left out: clip, noise"
    ):
        assert load(file, ["defense.name=none"]).defense == (NoDefense(),)


def test_another_defence_keeps_the_keys_that_it_has(file: Path) -> None:
    said = "left out: clip_mode; kept: clip = 2.0, noise = 3.0$"
    with pytest.warns(UserWarning, match=said):
        assert load(file, ["defense.name=fed-sdp"]).defense == (FedSDP(clip=2.0, noise=3.0),)
    with pytest.warns(UserWarning, match="left out: noise, clip_mode; kept: clip = 2.0$"):
        assert load(file, ["defense.name=nbafl", "defense.epsilon=7.0"]).defense == (NbAFL(clip=2.0, epsilon=7.0),)


def test_a_standard_name_leaves_out_what_it_fixes_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('preset = "paper"\n[defense]\nname = "fed-sdp"\nclip_scope = "layerwise"\nclip = 2.0\n')
    with pytest.warns(UserWarning, match="left out: clip_scope; kept: clip = 2.0$"):
        made = load(path, ["defense.name=dp-sgd"]).defense
    assert made == (FedCDP(placement="batch", clip_scope="flat", clip=2.0),)


def test_none_replaces_several_and_a_number_replaces_one(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(TWO)
    with pytest.warns(UserWarning, match="replaces all defences of the file; left out: prune"):
        assert load(path, ["defense.name=none"]).defense == (NoDefense(),)
    with pytest.warns(UserWarning, match=r"defense.1.name = 'squeeze' replaces 'prune' of the file; left out: share$"):
        assert [one.name for one in load(path, ["defense.1.name=squeeze"]).defense] == ["fed-cdp", "squeeze"]
    with pytest.warns(UserWarning), pytest.raises(ConfigError, match="leave it out of a combination"):
        load(path, ["defense.name=none", "defense.1.share=0.2"])


def test_what_was_set_beside_the_name_is_never_dropped(file: Path) -> None:
    """A user who types a key expects an effect."""
    for settings in (["defense.name=none", "defense.noise=1.0"], ["defense.noise=1.0", "defense.name=none"]):
        with pytest.warns(UserWarning), pytest.raises(ConfigError, match=r"defense.noise: got 1.0; unknown key"):
            load(file, settings)
    with pytest.raises(ConfigError, match="did you mean"):
        load(file, ["defense.name=fed-cpd"])


def test_nothing_is_said_where_nothing_is_switched(file: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(file, ["defense.noise=1.0"]).defense == (FedCDP(clip=2.0, noise=1.0, clip_mode="lr"),)
        assert load(file, ["defense.name=fed-cdp"]).defense == load(file).defense
        assert load(None, ["defense.name=none"]).defense == (NoDefense(),)


def test_the_command_line_says_it_in_one_line(file: Path, fedveil_cli) -> None:  # type: ignore[no-untyped-def]
    small = ["-s", "train.rounds=1", "-s", "data.clients=4", "-s", "train.per_round=1", "-s", "train.local_steps=1"]
    answer = fedveil_cli("train", file, "-s", "defense.name=none", *small, "--json", cwd=file.parent)
    assert answer.code == 0, answer.err
    assert [line for line in answer.warned if "replaces" in line] == [
        "defense.name = 'none' replaces 'fed-cdp' of the file; left out: clip, noise, clip_mode"
    ]
