"""Presets fill what nobody set: the default one learns at a small ε, `paper` is the papers' settings as before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedveil.accounting import ledger, transcript
from fedveil.config import from_dict, from_settings, load, of_run, resolve, to_toml
from fedveil.core.errors import ConfigError, DataError
from fedveil.defenses import presets
from fedveil.defenses.fed_cdp import FedCDP
from fedveil.federation import federation, plan
from fedveil.recipes.cell import Job
from fedveil.training import Result, resume, train

OURS = {"preset": "fedveil"}


def epsilon(result: Result, unit: str = "example", tap: str = "release") -> float:
    """The smallest certified ε at a tap."""
    rows = [row for row in result.ledger if row.certified and (row.tap, row.unit) == (tap, unit)]
    return min(row.epsilon for row in rows if row.epsilon is not None)


def bar(name: str, defense: str, unit: str = "example") -> tuple[float, float]:
    """The accuracy of a default private training, and the midpoint of chance and the default training without defence."""
    private = train({**OURS, "data": {"name": name}, "defense": {"name": defense}})
    assert epsilon(private, unit) <= 8.0
    bare = train({**OURS, "data": {"name": name}})
    return private.accuracy, (private.chance + bare.accuracy) / 2


@pytest.mark.parametrize(
    "name", [pytest.param("digits", marks=pytest.mark.optimised), pytest.param("cancer", marks=pytest.mark.slow)]
)
def test_the_default_private_training_learns(name: str) -> None:
    """More than half of the way from chance to 1, so more than half of what any training without a defence reaches."""
    private = train({**OURS, "data": {"name": name}, "defense": {"name": "fed-cdp"}})
    assert epsilon(private) <= 8.0 and private.accuracy > (private.chance + 1.0) / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "cancer"])
def test_the_default_of_2dp_learns(name: str) -> None:
    reached, wanted = bar(name, "2dp-fl")
    assert reached > wanted


@pytest.mark.slow
def test_the_default_that_protects_clients_learns() -> None:
    reached, wanted = bar("digits", "fed-sdp", "client")
    assert reached > wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adult", "mnist", "fashion-mnist"])
def test_the_default_learns_on_data_that_is_fetched(name: str) -> None:
    """Data that is not here is skipped. CIFAR-10 is left out: its training takes over ten minutes on two cores."""
    try:
        reached, wanted = bar(name, "fed-cdp")
    except DataError as error:
        pytest.skip(str(error))
    assert reached > wanted


def test_keys_that_the_user_set_are_kept() -> None:
    config = resolve(
        from_dict({**OURS, "defense": {"name": "fed-cdp", "noise": 3.0}, "train": {"batch": 2, "server_momentum": 0.0}})
    )
    (defense,) = config.defense
    assert isinstance(defense, FedCDP) and (defense.noise, defense.placement) == (3.0, "batch")
    assert (config.train.batch, config.train.server_momentum, config.train.local_steps) == (2, 0.0, 1)
    epochs = resolve(from_dict({**OURS, "defense": {"name": "fed-cdp"}, "train": {"local_epochs": 2}}))
    assert epochs.train.local_steps is None and epochs.train.local_epochs == 2


def test_photographs_get_a_bounded_activation_where_the_user_chose_none() -> None:
    photos = {**OURS, "data": {"name": "cifar10"}, "defense": {"name": "fed-cdp"}}
    made = resolve(from_dict(photos))
    assert (made.model.activation, made.train.rounds, made.train.batch) == ("tanh", 400, 40)
    assert resolve(from_dict({**photos, "model": {"activation": "relu"}})).model.activation == "relu"
    assert resolve(from_dict({**photos, "model": {"name": "lenet-cpl"}})).model.activation == "sigmoid"
    assert resolve(from_dict({**photos, "preset": "paper"})).model.activation == "relu"
    assert resolve(from_dict({**photos, "defense": {"name": "none"}})).model.activation == "relu"
    assert resolve(from_dict({**photos, "data": {"name": "digits"}})).model.activation == "relu"


def test_the_default_of_photographs_keeps_epsilon_below_8() -> None:
    made = plan(from_dict({**OURS, "data": {"name": "cifar10"}, "defense": {"name": "fed-cdp"}}))
    rounds = transcript.planned(made.defenses, made.setting, made.setting.rounds)
    found = ledger.certified(rounds, "release", "example", 1e-5)
    assert found.epsilon is not None and 4.0 < found.epsilon <= 8.0


def test_momentum_is_not_added_to_a_learning_rate_that_the_user_chose() -> None:
    """Momentum of 0.9 makes a step ten times as long: a setting that learned would diverge."""
    chosen = resolve(from_dict({**OURS, "defense": {"name": "fed-cdp"}, "train": {"lr": 1.0}}))
    assert (chosen.train.lr, chosen.train.server_momentum) == (1.0, 0.0)
    assert resolve(from_dict({**OURS, "defense": {"name": "fed-cdp"}})).train.server_momentum == 0.9


def test_a_defence_object_has_all_its_keys() -> None:
    for config in (from_dict({"defense": FedCDP()}), from_settings(from_dict({}), defense=FedCDP())):
        assert config.preset == "paper" and config.defense == (FedCDP(),)
    table = from_settings(from_dict(OURS), defense={"name": "fed-cdp"})
    assert table.preset == "fedveil" and table.defense != (FedCDP(),)


def test_the_default_is_ours_and_paper_is_the_dataclass() -> None:
    told = subprocess.run(  # in a process of its own: the tests' own default is `paper`
        [sys.executable, "-c", "from fedveil.config import from_dict; print(from_dict({}).preset)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.strip() == "fedveil" and presets.PRESETS.keys() == {"fedveil", "paper"}
    paper = from_dict({"preset": "paper", "defense": {"name": "fed-cdp"}})
    assert paper.defense == (FedCDP(),)
    assert resolve(paper).train.local_steps == 20 and resolve(paper).train.server_momentum == 0
    with pytest.raises(ConfigError, match="preset: got 'papers'; did you mean 'paper'"):
        load(None, ["preset=papers"])


def test_a_resolved_config_is_the_same_under_every_preset(tmp_path: Path) -> None:
    """So a run folder from before presets means what it meant, whoever reads it."""
    for name in ("fed-cdp", "fed-sdp", "2dp-fl", "dpfl", "nbafl", "none"):
        config = plan(from_dict({"preset": "paper", "defense": {"name": name}})).config
        file = tmp_path / f"{name}.toml"
        old = to_toml(config).replace('preset = "paper"\n', "")
        assert "preset" not in old
        file.write_text(old)
        again = [resolve(from_dict({**document})) for document in (of_run(file), {**of_run(file), **OURS})]
        assert again[0] == config and again[1].model_copy(update={"preset": "paper"}) == config


def test_an_old_run_is_resumed_with_the_papers_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"data": {"clients": 5}, "train": {"rounds": 2, "local_steps": 2}, "defense": {"name": "fed-cdp"}}
    first = train({**settings, "preset": "paper"}, tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace('preset = "paper"\n', ""))
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({k: v for k, v in info.items() if k != "config_sha256"}))
    monkeypatch.setattr(presets, "DEFAULT", "fedveil")
    again = resume(tmp_path / "run")
    assert again.accuracy == first.accuracy and [r.as_dict() for r in again.ledger] == [
        r.as_dict() for r in first.ledger
    ]


def test_a_small_client_lowers_the_batch_of_the_preset_and_never_the_users() -> None:
    small = {**OURS, "data": {"clients": 100, "per_client": 6}, "defense": {"name": "fed-cdp"}}
    assert plan(from_dict(small)).config.train.batch == 6 == federation(small).config.train.batch
    with pytest.raises(ConfigError, match="largest client holds 6"):
        plan(from_dict({**small, "train": {"batch": 7}}))


def test_recipes_mean_the_papers_settings() -> None:
    one = Job("train", ("defense.name=fed-cdp",), {})
    assert one.settings[-1] == "preset=paper"
    ours = Job("train", ("defense.name=fed-cdp", "preset=fedveil"), {})
    assert ours.settings[-1] == "preset=fedveil" and ours.digest != one.digest
    same = Job("train", ("preset=fedveil",), {})
    assert same.digest == Job("train", (), {}).digest  # without a private defence nothing is filled


def test_every_tuned_key_exists() -> None:
    for name, by_kind in presets.TUNED.items():
        assert {"image", "table"} <= set(by_kind) <= set(presets.KINDS)
        for kind, data in (("image", "digits"), ("table", "cancer")):
            config = resolve(from_dict({**OURS, "data": {"name": data}, "defense": {"name": name}}))
            for key, value in by_kind[kind].train.items():
                assert getattr(config.train, key) == value
            for key, value in by_kind[kind].defense.items():
                assert getattr(config.defense[0], key) == value
