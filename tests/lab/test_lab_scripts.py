"""Every request can be scripted: its TOML and its command line give the same valid config."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.config import from_dict, load, resolve
from fedveil.core.errors import ConfigError
from fedveil.defenses.catalog import DEFENSES
from fedveil.lab import requests, script


def _both(document: dict[str, Any], tmp_path: Path, command: str) -> None:
    texts = script.both(command, document, "file.toml")
    file = tmp_path / "file.toml"
    file.write_text(texts["toml"], encoding="utf-8")
    parts = shlex.split(texts["cli"])
    assert parts[:2] == ["fedveil", command] and set(parts[2::2]) == {"-s"}
    by_file, by_line = load(file), load(None, parts[3::2])
    assert by_file == by_line == from_dict(document)
    resolve(by_file, trainable=False)
    assert shlex.split(texts["with_file"]) == ["fedveil", command, "file.toml"]


@pytest.mark.parametrize("name", DEFENSES)
@pytest.mark.parametrize("tap", requests.LEAK_TAPS)
def test_leaks(name: str, tap: str, tmp_path: Path) -> None:
    body = {"defense": {"name": name}, "tap": tap, "batch": 2, "local_steps": 3, "attack": "inverting", "model": "mlp"}
    ask = requests.read(requests.LeakRequest, body)
    for defended in (False, True):
        document = ask.attack_document("/a folder/it's [1].npz", defended=defended)
        _both(document, tmp_path, "attack")
        assert document["attack"]["images"] == (2 if tap == "example" else 1)
    _both(ask.federation_document(), tmp_path, "ledger")
    assert ask.pictures == (2 if tap == "example" else 6)


@settings(max_examples=40, deadline=None)
@given(
    dataset=st.sampled_from(requests.TRAIN_SETS),
    noise=st.just(0.0) | st.floats(1e-9, 50),  # the lab refuses values that no training has
    clip=st.floats(1e-3, 50),
    rounds=st.integers(1, 1000),
    clients=st.integers(50, 5000),
    name=st.sampled_from(["fed-sdp", "fed-cdp", "2dp-fl"]),
    delta=st.floats(1e-12, 0.5),
)
def test_trainings(tmp_path_factory: pytest.TempPathFactory, dataset: str, name: str, **values: Any) -> None:
    defense = {"name": name, **{key: values.pop(key) for key in ("noise", "clip", "delta")}}
    ask = requests.read(requests.TradeRequest, {"dataset": dataset, "defense": defense, **values})
    _both(ask.document(), tmp_path_factory.getbasetemp(), "train")


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=30))
def test_any_path_survives(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    _both({"data": {"name": "file", "file": text}}, tmp_path_factory.getbasetemp(), "train")


def test_every_default_of_the_forms_is_the_config_s() -> None:
    offered = {entry["name"]: entry for entry in requests.choices()["defenses"]}
    assert list(offered) == list(DEFENSES)
    for name, kind in DEFENSES.items():
        keys = {field["key"]: field for field in offered[name]["keys"]}
        fields = {field.name: field.default for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
        assert {key: field["default"] for key, field in keys.items()} == {k: fields[k] for k in keys}
        assert set(fields) - set(keys) <= {"layers", "noise_factors"}  # lists: on the command line only
        from_dict({"defense": {"name": name, **{k: v for k, v in fields.items() if k in keys and v is not None}}})
    assert offered["fed-cdp"]["keys"][0]["key"] == "noise" and offered["fed-cdp"]["keys"][0]["ge"] == 0


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"batch": 9}, "batch: got 9; takes 8 or less"),
        ({"batch": "2"}, "batch: got '2'; takes a whole number"),
        ({"batch": 8, "local_steps": 3}, "more than the 16 pictures"),
        ({"model": "lenet"}, "did you mean 'lenet-"),
        ({"surprise": 1}, "surprise: got 1; unknown key"),
        ({"picture": {"dataset": "mnits"}}, "did you mean 'mnist'"),
        ({"picture": {"upload": "../../etc/passwd"}}, "picture.upload"),
        ({"federation": {"clients": 10**9}}, "federation.clients: got 1000000000; takes 5000 or less"),
        ([], "takes a JSON object"),
    ],
)
def test_refusals_are_one_line(body: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        requests.read(requests.LeakRequest, body)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_defence_is_refused_in_the_config_s_words() -> None:
    ask = requests.read(requests.TradeRequest, {"defense": {"name": "fed-cdp", "nosie": 1}})
    with pytest.raises(ConfigError, match="did you mean 'noise'"):
        requests.check(ask.document())
