"""`fedveil.attack` from Python: attacks from outside, own arrays, runs, and what is refused."""

import importlib.util
import json
import sys

import numpy as np
import pytest

from fedveil.attacks import results
from fedveil.attacks.orchestrate import attack
from fedveil.attacks.reconstruction.cpl import CPL
from fedveil.attacks.registry import ATTACKS
from fedveil.core.errors import ConfigError
from fedveil.training import train

MEAN_IMAGE = '''
"""A reconstruction from outside: the answer is always the mean of the attacker's auxiliary data."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedveil.attacks.base import AUXILIARY_DATA, Reconstruction, ReconstructionAttack
from fedveil.attacks.registry import register_attack


@register_attack
@dataclass(frozen=True)
class MeanImage(ReconstructionAttack):
    """Ignores the gradients."""

    brightness: Annotated[float, Field(gt=0)] = 1.0

    name: ClassVar[str] = "mean-image"
    summary: ClassVar[str] = "the mean of the auxiliary data"

    def capabilities(self):
        return frozenset({AUXILIARY_DATA})

    def run(self, observation, execution):
        n = len(observation) * len(execution.seeds)
        assert observation.known_labels is None and observation.auxiliary is not None
        mean = np.clip(self.brightness * observation.auxiliary.x.mean(axis=0), 0, 1)
        zeros = np.zeros(n)
        return Reconstruction(
            attack=np.tile(np.arange(len(observation)), len(execution.seeds)),
            seed=np.repeat(execution.seeds, len(observation)),
            inputs=np.broadcast_to(mean, (n, observation.examples, *mean.shape)),
            labels=np.zeros((n, observation.examples), int),
            objective=zeros,
            distance=zeros,
            iterations=np.zeros(n, int),
            evaluations=np.zeros(n, int),
            ending=np.full(n, "converged"),
            trace=zeros[:, None],
            seconds=0.0,
            compile_seconds=0.0,
        )
'''

CALIBRATED_LOSS = '''
"""A membership attack from outside: the loss, minus the mean loss under the attacker's shadow models."""

from dataclasses import dataclass
from typing import ClassVar

from fedveil.attacks.inference.base import MembershipAttack, Shadows
from fedveil.attacks.registry import register_attack


@register_attack
@dataclass(frozen=True)
class CalibratedLoss(MembershipAttack):
    """Scores a record by how much surer of it the attacked model is than the shadows."""

    shadows: Shadows = 2

    name: ClassVar[str] = "calibrated-loss"
    summary: ClassVar[str] = "the loss, minus the mean loss of shadows"
    fewest_shadows: ClassVar[int] = 2

    def run(self, observation, execution=None):
        return observation.target - observation.shadows.mean(axis=0)
'''

SMALL = {
    "data": {"name": "digits", "partition": "iid", "clients": 4, "per_client": 40},
    "model": {"name": "logistic"},
    "train": {"rounds": 3, "per_round": 4, "local_steps": 2, "lr": 0.5, "noise_seed": 0},
}


def load_file(folder, name, text):
    (folder / f"{name}.py").write_text(text)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def outside(tmp_path):
    """Both files, each loaded once; the registry is as before afterwards."""
    known = dict(ATTACKS)
    yield load_file(tmp_path, "mean_image", MEAN_IMAGE), load_file(tmp_path, "calibrated_loss", CALIBRATED_LOSS)
    ATTACKS.clear()
    ATTACKS.update(known)


def test_a_reconstruction_from_one_file_outside(outside, tmp_path):
    by_name = attack({**SMALL, "attack": {"name": "mean-image", "images": 3, "brightness": 2.0}})
    mean_image = outside[0].MeanImage(brightness=2.0)
    del ATTACKS["mean-image"]  # an object needs no registration
    settings = {**SMALL, "attack": {"images": 3, "tap": "server"}}
    by_object = attack(settings, attack=mean_image, out=tmp_path / "kept").as_dict()
    assert by_name.as_dict()["attack"] == by_object["attack"] == "mean-image" and by_object["tap"] == "server"
    assert by_object["success_rate"] == 0.0 and by_object["mse"] == by_name.as_dict()["mse"] > 0
    (kept,), _ = results.read_all(tmp_path / "kept")
    assert kept.document["settings"]["brightness"] == 2.0 and kept.document["settings"]["name"] == "mean-image"
    assert by_object["stored"] == str(tmp_path / "kept" / "attacks" / f"{kept.name}.json")


def test_an_inference_attack_from_one_file_outside(outside):
    by_name = attack({**SMALL, "attack": {"name": "calibrated-loss", "records": 60}}).as_dict()
    by_object = attack(SMALL, attack=outside[1].CalibratedLoss(records=60)).as_dict()
    assert {key: value for key, value in by_name.items() if key != "seconds"} == {
        key: value for key, value in by_object.items() if key != "seconds"
    }
    assert by_name["shadows"] == 2 and by_name["records"] == 60 and 0 <= by_name["auc"] <= 1
    with pytest.raises(ConfigError, match=r"attack.shadows: got 1; calibrated-loss compares shadows"):
        attack({**SMALL, "attack": {"name": "calibrated-loss", "shadows": 1}})


def test_own_arrays_and_an_own_model_are_attacked():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=60)
    x = np.eye(3, 6)[y] + 0.1 * rng.normal(size=(60, 6))
    settings = {
        "data": {"clients": 6, "partition": "iid"},
        "model": {"name": "mlp", "hidden": [8]},
        "attack": {"name": "aono", "images": 2},
    }
    assert attack(settings, data=(x, y)).as_dict()["success_rate"] == 1.0
    from fedveil.models.catalog import ModelConfig, build

    net = build("mlp", (6,), 3, ModelConfig(hidden=[5]))
    done = attack(settings, data=(x, y), model=net)
    assert done.study.groups[0].observation.model is net and done.as_dict()["success_rate"] == 1.0


def test_a_run_is_attacked_and_stores_its_attacks(tmp_path):
    run = tmp_path / "run"
    train({**SMALL, "attack": {"name": "loss-threshold", "records": 40}}, out=run)
    first = attack(run=run)  # the run's own [attack]
    assert first.outcome is not None and first.as_dict()["run"] == str(run) and first.as_dict()["records"] == 40
    again = attack({"attack": {"records": 60}}, run=run).as_dict()
    assert again["attack"] == "loss-threshold" and again["records"] == 60
    assert attack(["attack.records=60"], run=run).as_dict()["auc"] == again["auc"]
    kept, problems = results.read_all(run)
    assert not problems and sorted(one.document["records"] for one in kept) == [40, 60]
    assert json.loads((run / "attacks" / f"{kept[0].name}.json").read_text())["settings"]["name"] == "loss-threshold"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"run": "a", "gradients": "b"}, "gradients: got 'b'; and run are two things to attack"),
        ({"run": "a", "out": "b"}, "out: got 'b'; an attack on a run is kept in that run"),
        ({"out": ""}, "out: got ''; takes a folder"),
        ({"pictures": ""}, "pictures: got ''; takes a folder"),
        ({"attack": "cpl"}, "attack: got 'cpl'; takes an attack object"),
        ({"settings": {"attack": {"tv": 0.1}}, "attack": CPL()}, "attack.tv: got 0.1; is set beside an attack object"),
        ({"settings": "a.toml", "run": "b"}, "settings: got 'a.toml'; a run has its own config"),
        ({"settings": ["data.clients=3"], "run": "b"}, "-s: got 'data.clients=3'; a run has its own config"),
        (
            {"settings": {"attack": {"name": "lira"}}, "gradients": "a.npz"},
            "attack.name: got 'lira'; infers and does not reconstruct",
        ),
    ],
)
def test_what_cannot_be_attacked_is_refused(arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        attack(**arguments)
    assert str(caught.value).startswith(says) and not list(tmp_path.iterdir())


def test_settings_of_a_run_other_than_the_attack_are_refused(tmp_path):
    run = tmp_path / "run"
    train(SMALL, out=run)
    with pytest.raises(ConfigError, match="data: got .*a run has its own config: only keys of"):
        attack({"data": {"clients": 3}}, run=run)
