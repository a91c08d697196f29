"""The limits of a node, and how its config is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedveil.accounting.accountants import Round
from fedveil.accounting.accounts import declared
from fedveil.config import from_dict, resolve
from fedveil.core.errors import ConfigError
from fedveil.core.events import Release
from fedveil.deploy.limits import Limits, Refused, check, check_complete, check_size, deployable, read_node, with_data
from fedveil.federation import plan

USE = Round(((1.0, 2.0),))


def ask(limits: Limits, use: Round | None = USE, steps: int = 5, **defense: object) -> None:
    config = from_dict({"defense": [{"name": "fed-cdp", "clip": 4.0, "noise": 6.0, **defense}]})
    check_size(limits, 100, steps, 1000)
    check(limits, config.defense, use, "open")


@pytest.mark.parametrize(
    ("limits", "defense", "word"),
    [
        ({"clip": 3.9}, {}, "clip of at most 3.9"),
        ({"clip": 4.0}, {"clip_end": 8.0}, "clip of at most 4"),
        ({"noise": 6.1}, {}, "noise of at least 6.1"),
        ({"noise": 6.0}, {"noise_end": 1.0}, "noise of at least 6"),
        ({"noise": 1.0}, {"noise": 0.0}, "noise of at least 1"),
        ({"multiplier": 2.1}, {}, "z of at least 2.1"),
        ({"clip_min": 4.1}, {}, "clip of at least 4.1"),
        ({"clip_min": 1.0}, {"clip_end": 0.5}, "clip of at least 1"),
        ({"steps": 4}, {}, "at most 4 local steps"),
        ({"rounds": 99}, {}, "at most 99 rounds"),
        ({"parameters": 999}, {}, "at most 999 parameters"),
        ({"defenses": ["fed-sdp"]}, {}, "accepts the defences fed-sdp, not fed-cdp"),
    ],
)
def test_a_request_below_a_limit_is_refused(limits: dict, defense: dict, word: str) -> None:
    with pytest.raises(Refused, match=word):
        ask(Limits(**limits), **defense)


def test_a_request_at_its_limits_is_taken() -> None:
    ask(Limits(clip=4.0, clip_min=4.0, noise=6.0, multiplier=2.0, steps=5, rounds=100, defenses=["fed-cdp"]))


def test_a_node_without_limits_takes_part_in_nothing(tmp_path: Path) -> None:
    head = 'client = 1\ndata = "data.npz"\nclasses = 10\n'
    for text, missing in (
        ("", "steps, rounds, epsilon, multiplier, clip, clip_min"),
        ("[limits]\nepsilon = 1.0\nmultiplier = 1.0\nsteps = 1\nrounds = 1\n", "clip, clip_min"),
        ("[limits]\nunaccounted = true\n", "steps, rounds"),
    ):
        (tmp_path / "node.toml").write_text(head + text)
        with pytest.raises(Refused, match=f"no limits for {missing}:"):
            check_complete(read_node(tmp_path))


def test_a_limit_that_a_defence_knows_nothing_of_is_not_met() -> None:
    config = from_dict({"defense": [{"name": "prune"}]})
    with pytest.raises(Refused, match="requested: none"):
        check(Limits(noise=1.0, unaccounted=True), config.defense, None, "open")


def test_what_is_not_certified_needs_the_owners_word() -> None:
    with pytest.raises(Refused, match="requires a certificate"):
        ask(Limits(), use=None)
    ask(Limits(unaccounted=True), use=None)


def releases_of(**defense: object) -> tuple[tuple[object, ...], tuple[Release, ...]]:
    keys = {"data": {"name": "digits", "clients": 4}, "train": {"rounds": 2, "per_round": 4, "sampling": "fixed"}}
    made = plan(deployable(resolve(from_dict({**keys, "defense": [defense]}))))
    return made.defenses, declared(made.defenses, made.setting)


def test_noise_in_floating_point_carries_no_certificate_unless_the_owner_accepts_it() -> None:
    even = {"name": "dpfl", "allocation": "even", "selection": "uniform", "finetune": False}
    for defense, exact in (({"name": "fed-cdp"}, True), ({"name": "nbafl", "epsilon": 500.0}, True), (even, False)):
        defenses, releases = releases_of(**defense)
        if not exact:
            with pytest.raises(Refused, match="whole numbers alone"):
                check(Limits(), defenses, USE, "", releases)
        check(Limits(floating=not exact), defenses, USE, "", releases)


def test_a_node_file_with_a_slip_is_refused_in_one_line(tmp_path: Path) -> None:
    text = 'client = 1\ndata = "data.npz"\nclasses = 10\n'
    (tmp_path / "node.toml").write_text(text + "[limits]\nepsilon = 2.0\n")
    assert read_node(tmp_path).limits.epsilon == 2.0
    assert read_node(tmp_path).test is False
    for wrong, word in (
        ("[limits]\nepsilom = 2.0\n", "did you mean 'epsilon'"),
        ("[limits]\nepsilon = -1.0\n", "epsilon"),
        ("[limits]\nepsilon = 1.0\nunaccounted = true\n", "leave one of the two out"),
        ("[limits]\ndefenses = ['fed-cpd']\n", "did you mean 'fed-cdp'"),
        ("[limits]\nclip = 1.0\nclip_min = 2.0\n", "above limits.clip"),
        ("clint = 3\n", "unknown key"),
    ):
        (tmp_path / "node.toml").write_text(text + wrong)
        with pytest.raises(ConfigError, match=word):
            read_node(tmp_path)
    with pytest.raises(ConfigError, match="holds no node.toml"):
        read_node(tmp_path / "elsewhere")


def test_another_data_file_is_written_into_the_node_file(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text('client = 1\ndata = "data.npz"  # here\nclasses = 10\n[limits]\nnoise = 2.0\n')
    assert with_data(tmp_path, Path("/else/where.npz")).data == "/else/where.npz"
    assert read_node(tmp_path).limits.noise == 2.0
