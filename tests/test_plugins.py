"""A defence and an accountant from outside the package, each one file, nothing inside touched."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedveil
from fedveil.accounting import ledger
from fedveil.accounting.accountants import ACCOUNTANTS, accountant_named
from fedveil.config import from_dict
from fedveil.core.errors import ConfigError
from fedveil.defenses import catalog
from fedveil.federation import plan

DEFENSE = '''
from dataclasses import dataclass
from typing import ClassVar

import fedveil
from fedveil.core.stage import Effect
from fedveil.defenses.base import Defense
from fedveil.mechanisms.mechanism import Clip, Mechanism, Placed, Schedule


@fedveil.register_defense
@dataclass(frozen=True)
class Loud(Defense):
    """Clip of the update and Gaussian noise, by the client."""

    clip: float = 1.0
    noise: float = 2.0

    name: ClassVar[str] = "loud"
    summary: ClassVar[str] = "clip and noise on the update"
    private: ClassVar[bool] = True

    def fills(self, stage):
        return stage == "update"

    def effect(self, stage):
        return Effect.MECHANISM

    def mechanism(self, setting):
        return Mechanism(Clip(Schedule(self.clip)), Schedule(self.noise))

    def mechanisms(self, setting):
        return [Placed(self.mechanism(setting), "client", "client", "round", "update", "update", client_noise_sums=True)]

    def update(self, update, at):
        return self.mechanism(at.setting).apply(update, at)
'''

ACCOUNTANT = '''
import fedveil
from fedveil.accounting.accountants import epsilon


class Doubled:
    """Twice the ε of privacy loss distributions."""

    name = "doubled"
    certifies = False

    def epsilon(self, rounds, delta):
        found = epsilon(rounds, delta, "pld")
        return None if found is None else 2 * found


fedveil.register_accountant(Doubled(), replace=True)
'''

SETTINGS: dict[str, Any] = {
    "data": {"name": "digits", "clients": 4, "per_client": 40},
    "model": {"name": "logistic"},
    "train": {"rounds": 2, "per_round": 4, "local_steps": 1, "batch": 5},
    "defense": [{"name": "loud", "noise": 3.0}],
}


def load(folder: Path, name: str, text: str) -> ModuleType:
    (folder / f"{name}.py").write_text(text)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def plugins(tmp_path: Path) -> Any:
    load(tmp_path, "loud_defense", DEFENSE)
    load(tmp_path, "doubled_accountant", ACCOUNTANT)
    yield
    del catalog.DEFENSES["loud"], ACCOUNTANTS["doubled"]


def test_both_are_used_like_those_of_the_package(plugins: None) -> None:
    result = fedveil.train(SETTINGS)
    row = next(r for r in result.ledger if (r.tap, r.unit, r.accountant) == ("client", "client", "pld"))
    assert row.certified and row.epsilon is not None
    twice = ledger.rows(plan(from_dict(SETTINGS)).transcript(), accountants=("doubled",))
    other = next(r for r in twice if (r.tap, r.unit, r.adjacency) == ("client", "client", row.adjacency))
    assert other.epsilon == 2 * row.epsilon and not other.certified


def test_keys_of_a_registered_defence_are_checked(plugins: None) -> None:
    with pytest.raises(ConfigError, match=r"defense\.loudness"):
        from_dict({**SETTINGS, "defense": [{"name": "loud", "loudness": 3}]})


def test_what_is_no_plugin_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes a dataclass"):
        fedveil.register_defense(int)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="no accountant"):
        fedveil.register_accountant(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not registered"):
        accountant_named("nobody")
