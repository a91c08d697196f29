"""`fedveil attack`: studies of configs and runs, pictures, files of gradients good and bad, refusals."""

import json
import struct

import jax
import numpy as np
import pytest
from PIL import Image

from fedveil.attacks import results, study
from fedveil.attacks.files import read_gradients
from fedveil.attacks.orchestrate import attack
from fedveil.attacks.pictures import write_pairs
from fedveil.attacks.score import RULES
from fedveil.config import NAMES, for_attack, load
from fedveil.federation import prepare
from fedveil.models.catalog import ModelConfig, build

SMALL = ["model.name=mlp", "model.hidden=[64]", "attack.images=3", "attack.iterations=15", "data.clients=6"]


def given(*settings):
    return [part for item in [*SMALL, *settings] for part in ("-s", item)]


FIELDS = {"success_rate", "label_success_rate", "ssim", "mse", "psnr", "iterations", "seconds", "images", "rule"}


def test_a_study_of_a_config_and_of_a_run(fedveil_cli, tmp_path):
    whole = (*given("attack.limits=[1,5]"), "--pictures", "seen", "--out", "kept", "--json")
    answer = fedveil_cli("attack", *whole, cwd=tmp_path)
    document = json.loads(answer.out)
    assert answer.code == 0 and set(document) >= FIELDS and document["tap"] == "client" and document["images"] == 3
    assert document["limits"]["1"]["ssim"] < document["limits"]["5"]["ssim"] <= document["ssim"]
    assert document["label_success_rate"] == 1.0 and document["success_rate"] == 1.0 and document["mse"] < 1e-3
    for name in ("victims.png", "grid.png", "steps.gif"):
        assert (tmp_path / "seen" / name).stat().st_size > 100
    (kept,), _ = results.read_all(tmp_path / "kept")
    assert kept.pictures.shown == ("step 1", "step 5", "result") and kept.pictures.success.all()
    np.testing.assert_allclose(kept.pictures.found[-1], kept.pictures.truth, atol=0.1)
    other = fedveil_cli("attack", *given("train.seed=1"), "--out", "kept", cwd=tmp_path)
    assert other.code == 2 and "holds attacks on another config" in other.err
    report = fedveil_cli("report", "kept", cwd=tmp_path)
    assert report.code == 0 and "client leaks" in report.out and "accuracy not measured" in report.out
    # The same federation, trained a little, then attacked at its start: the very same observation.
    settings = [s for s in SMALL if not s.startswith("attack")]
    train = [
        part for item in [*settings, "train.batch=1", "train.local_steps=1", "train.rounds=2"] for part in ("-s", item)
    ]
    assert fedveil_cli("train", *train, "--out", "run", cwd=tmp_path).code == 0
    ask = ["-s", "attack.images=3", "-s", "attack.iterations=15"]
    first = json.loads(fedveil_cli("attack", "--run", "run", *ask, "-s", "attack.round=0", "--json", cwd=tmp_path).out)
    assert {k: first[k] for k in ("mse", "iterations")} == {k: document[k] for k in ("mse", "iterations")}
    last = fedveil_cli("attack", "--run", "run", *ask, cwd=tmp_path)
    assert last.code == 0 and last.out.startswith("3 of 3 examples rebuilt") and "rebuilt" in last.out
    assert json.loads(fedveil_cli("attack", "--run", "run", *ask, "--json", cwd=tmp_path).out)["round"] == 2
    kept, problems = results.read_all(tmp_path / "run")
    assert not problems and sorted(one.document["round"] for one in kept) == [0, 2]
    assert first["stored"] in {f"run/attacks/{one.name}.json" for one in kept}
    assert all(one.pictures.shown == ("result",) and len(one.pictures.truth) == 3 for one in kept)


@pytest.mark.parametrize(
    ("arguments", "key", "word"),
    [
        (given("attack.tap=release"), "attack.tap", "needs the gradient or update of single clients"),
        (given("attack.name=cpll"), "attack.name", "did you mean 'cpl'?"),
        (given("attack.images=100"), "attack.images", "takes at most 6"),
        (given("attack.name=aono"), "attack.iterations", "no such key"),
        (given("attack.rule=sim"), "attack.rule", "did you mean 'ssim'?"),
        (given("attack.init=patterned-3x3"), "attack.init", "did you mean"),
        (given("attack.limits=[2,99999]"), "attack.limits", "takes numbers below attack.iterations"),
        (given("attack.name=aono", "attack.limits=[2]"), "attack.limits", "no such key"),
        (["--run", "nowhere"], "--resume", "holds no run"),
        (["--gradients", "none.safetensors", "-s", "model.name=mlp"], "none.safetensors", "no such file"),
        (["--gradients", "a.npz", "-s", "attack.tap=server"], "attack.tap", "not read with --gradients"),
        (["--gradients", "a.npz", "-s", "defense.name=fed-cdp"], "defense", "as they were seen"),
        (["--gradients", "a.npz", "--run", "b"], "--gradients", "keep one of them"),
        (["--run", "a", "--out", "b"], "--out", "kept in that run"),
        (given("data.name=xray", "data.clients=1", "attack.round=1"), "attack.round", "cannot be trained on"),
    ],
)
def test_refusals_are_one_line(arguments, key, word, fedveil_cli, tmp_path):
    answer = fedveil_cli("attack", *arguments, cwd=tmp_path)
    assert answer.code == 2 and answer.out == "" and answer.err.count("\n") == 1
    assert key in answer.err and word in answer.err and not list(tmp_path.iterdir())


def test_rules_have_the_names_that_configs_take():
    assert set(NAMES["attack.rule"]) == set(RULES)


def studied(settings):
    """A federation, and a function that attacks its first round."""
    config = for_attack(load(None, settings))
    federation = prepare(config, trainable=False)
    state = federation.simulator.start()
    return lambda: study.run_on(study.Round(federation, state, 0), config.attack.make(), config.attack)


def test_scrambled_truth_changes_no_reconstruction(monkeypatch):
    attack = studied(SMALL)
    honest = attack()
    real = study.taps.truth_at_tap

    def scrambled(*arguments):
        x, y = real(*arguments)
        return np.zeros_like(x), (y + 1) % 10

    monkeypatch.setattr(study.taps, "truth_at_tap", scrambled)
    other = attack()
    one, two = (s.groups[0].reconstruction for s in (honest, other))
    np.testing.assert_array_equal(one.inputs, two.inputs)
    np.testing.assert_array_equal(one.labels, two.labels)
    assert other.as_dict()["success_rate"] == 0.0 and other.as_dict()["label_success_rate"] == 0.0


def test_poisson_batches_are_attacked_in_groups():
    done = studied([*SMALL, "train.batching=poisson", "train.batch=2", "data.clients=12"])()
    sizes = [group.truth_x.shape[1] for group in done.groups]
    assert len(set(sizes)) == len(sizes) > 1 and sum(len(g.observation) for g in done.groups) == 3
    document = done.as_dict()
    assert document["images"] == sum(g.truth_y.size for g in done.groups) and 0 <= document["success_rate"] <= 1


# --- files of gradients


@pytest.fixture(scope="module")
def seen():
    """Parameters and the gradient of one example of a small network, as arrays by name."""
    model = build("mlp", (8, 8, 1), 10, ModelConfig(hidden=[12]))
    params = model.init(jax.random.key(1))
    x = np.random.default_rng(0).random((1, 8, 8, 1))
    gradients = jax.grad(lambda p: -jax.nn.log_softmax(model.apply(p, x))[0, 3])(params)
    arrays = {}
    for part, tree in (("params", params), ("gradients", gradients)):
        for layer, own in tree.items():
            arrays |= {f"{part}/{layer}/{name}": np.asarray(a, np.float32) for name, a in own.items()}
    return arrays, x


def safetensors(arrays):
    header, body = {}, b""
    for name, a in arrays.items():
        raw = np.ascontiguousarray(a).tobytes()
        header[name] = {"dtype": "F32", "shape": list(a.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


OWN = ["--gradients", "seen.safetensors", "-s", "model.name=mlp", "-s", "model.hidden=[12]"]


def test_gradients_from_a_file(seen, fedveil_cli, tmp_path):
    arrays, x = seen
    (tmp_path / "seen.safetensors").write_bytes(safetensors(arrays))
    answer = fedveil_cli("attack", *OWN, "-s", "attack.iterations=20", "--pictures", "out", "--json", cwd=tmp_path)
    document = json.loads(answer.out)
    assert document["labels"] == [[3]] and document["success_rate"] is None
    with np.load(tmp_path / document["found"]) as found:
        assert np.mean(np.square(found["inputs"][0, 0] - x[0])) < 1e-3
    np.savez(tmp_path / "seen.npz", **arrays)
    again = fedveil_cli("attack", "--gradients", "seen.npz", *OWN[2:], "-s", "attack.iterations=20", cwd=tmp_path)
    assert again.code == 0 and "the truth is not known" in again.out


def weights_after(arrays, lr, steps=1):
    """The file of somebody who saw the weights before and after: params, and after = params − lr · steps · gradient."""
    before = {name: a for name, a in arrays.items() if name.startswith("params/")}
    after = {
        name.replace("params/", "after/"): a - lr * steps * arrays[name.replace("params/", "gradients/")]
        for name, a in before.items()
    }
    return before | after


def test_weights_from_before_and_after_are_attacked_as_the_gradient_between_them(seen, fedveil_cli, tmp_path):
    arrays, x = seen
    np.savez(tmp_path / "seen.npz", **weights_after(arrays, 0.05))
    own = ["--gradients", "seen.npz", *OWN[2:], "-s", "attack.iterations=20", "--pictures", "out", "--json"]
    answer = fedveil_cli("attack", *own, "-s", "train.lr=0.05", cwd=tmp_path)
    assert json.loads(answer.out)["labels"] == [[3]]
    with np.load(tmp_path / "out" / "found.npz") as found:
        assert np.mean(np.square(found["inputs"][0, 0] - x[0])) < 1e-3
    refused = fedveil_cli("attack", *own, cwd=tmp_path)
    assert refused.code == 2 and "train.lr" in refused.err and "the victims' rate" in refused.err


def test_weights_after_several_steps_give_the_mean_gradient(seen, tmp_path):
    arrays, _ = seen
    np.savez(tmp_path / "seen.npz", **weights_after(arrays, 0.05, steps=4))
    model = build("mlp", (8, 8, 1), 10, ModelConfig(hidden=[12]))
    _, found = read_gradients(tmp_path / "seen.npz", model, lr=0.05, local_steps=4)
    for layer, own in found.items():
        for name, gradient in own.items():
            np.testing.assert_allclose(gradient[0], arrays[f"gradients/{layer}/{name}"], atol=1e-5)


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda raw, a: raw[: len(raw) // 2], "is no whole .safetensors file"),
        (lambda raw, a: b"", "is no whole .safetensors file"),
        (lambda raw, a: b"\xff" * 40, "is no whole .safetensors file"),
        (lambda raw, a: safetensors({k: v for k, v in a.items() if "dense/b" not in k}), "holds no 'params/dense/b'"),
        (lambda raw, a: safetensors({k: v[..., :-1] for k, v in a.items()}), "the model asks for"),
        (lambda raw, a: safetensors({k: v * np.nan for k, v in a.items()}), "not finite"),
    ],
)
def test_bad_files_of_gradients(spoil, word, seen, fedveil_cli, tmp_path):
    arrays, _ = seen
    (tmp_path / "seen.safetensors").write_bytes(spoil(safetensors(arrays), arrays))
    answer = fedveil_cli("attack", *OWN, cwd=tmp_path)
    assert answer.code == 2 and word in answer.err and answer.err.count("\n") == 1 and "Traceback" not in answer.err


def test_zero_gradients_end_as_an_attack_that_found_nothing(seen, fedveil_cli, tmp_path):
    arrays, _ = seen
    zero = {k: v * 0 if k.startswith("gradients") else v for k, v in arrays.items()}
    (tmp_path / "seen.safetensors").write_bytes(safetensors(zero))
    answer = fedveil_cli("attack", *OWN, "-s", "attack.iterations=3", "--json", cwd=tmp_path)
    assert answer.code == 0 and len(json.loads(answer.out)["distance"]) == 1


@pytest.mark.parametrize("seed", range(2))
def test_large_batches_may_leave_nothing_to_later_groups(seed):
    """At the tap `example` a client has as many gradients as examples; never more than `images` are attacked."""
    settings = ["data.clients=12", "train.batching=poisson", "train.batch=2", f"train.noise_seed={seed}"]
    asked = ["attack.name=aono", "attack.tap=example", "attack.images=6", "attack.rule=mse", "model.name=logistic"]
    done = attack([*settings, *asked, "train.local_steps=1"]).as_dict()
    assert 1 <= done["images"] <= 6


def test_pictures_show_every_victim_below_its_truth(tmp_path):
    """20 pairs: 16 in the first two rows of pictures, 4 in the last two."""
    truth = np.linspace(0.0, 1.0, 20).reshape(20, 1, 1, 1) * np.ones((1, 4, 4, 1))
    write_pairs(tmp_path / "victims.png", truth, 1.0 - truth)
    with Image.open(tmp_path / "victims.png") as picture:
        pixels = np.asarray(picture.convert("L"), float) / 255
    high, wide = pixels.shape[0] // 4, pixels.shape[1] // 16
    middle = pixels[high // 2 :: high, wide // 2 :: wide][:4]
    np.testing.assert_allclose(middle[0], truth[:16, 0, 0, 0], atol=0.01)
    np.testing.assert_allclose(middle[1], 1 - truth[:16, 0, 0, 0], atol=0.01)
    np.testing.assert_allclose(middle[3, :4], 1 - truth[16:, 0, 0, 0], atol=0.01)
    assert (middle[2:, 4:] == 1).all()
