"""The attacks recover what they should, and a batch of them is nothing but many attacks."""

import dataclasses
import threading
import time

import jax
import numpy as np
import pytest
from attack_helpers import IMAGES, VECTORS, mean_gradients, only, victims

from fedveil.attacks.base import Execution
from fedveil.attacks.gradients import from_update
from fedveil.attacks.observation import GradientObservation
from fedveil.attacks.reconstruction import scheduler
from fedveil.attacks.reconstruction.cpl import CPL
from fedveil.attacks.reconstruction.regularise import total_variation
from fedveil.attacks.registry import make_attack
from fedveil.attacks.score import score
from fedveil.core.errors import ConfigError
from fedveil.models.adapters import from_functions

QUICK = make_attack("cpl", iterations=40)
KINDS = {
    "cpl": QUICK,
    "dlg": make_attack("dlg", iterations=20),
    "inverting": make_attack("inverting", iterations=60, tv=0.0),
    "momentum": make_attack("cpl", optimizer="momentum", lr=0.01, alpha=0.01, iterations=60),
}


def quick(observation, chosen=QUICK, width=4, precision="float64", **more):
    """Blocks of one width throughout, so that tests share what was compiled."""
    return chosen.run(observation, Execution(width=width, workers=1, precision=precision, **more))


def far(a, b):
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


@pytest.mark.parametrize("kind", KINDS)
def test_an_attack_alone_is_the_same_as_in_a_batch(kind):
    given = victims(count=5, **VECTORS)
    together = quick(given.observation, KINDS[kind], seeds=(0, 3))
    assert together.attack.tolist() == [0, 1, 2, 3, 4] * 2 and together.seed.tolist() == [0] * 5 + [3] * 5
    alone = quick(only(given.observation, [3]), KINDS[kind], seeds=(3,), width=1)
    assert far(together.inputs[8], alone.inputs[0]) < 1e-6
    assert together.labels[8] == alone.labels[0] and together.iterations[8] == alone.iterations[0]
    assert together.evaluations[8] == alone.evaluations[0] and together.ending[8] == alone.ending[0]
    assert far(np.nan_to_num(together.trace[8]), np.nan_to_num(alone.trace[0])) < 1e-6


def test_the_outcome_is_the_same_in_float32():
    given = victims(count=5, dtype="float32", **VECTORS)
    together = quick(given.observation, precision="float32")
    alone = quick(only(given.observation, [3]), width=1, precision="float32")
    assert far(together.inputs[3], alone.inputs[0]) < 1e-2 and together.labels[3] == alone.labels[0]


def test_how_long_things_take_does_not_enter_a_result(monkeypatch):
    """Blocks shrink whenever they can here, and one worker or the other is slow."""
    given = victims(count=12, dtype="float32", **VECTORS)
    monkeypatch.setattr(scheduler, "COMPILING", {"cpu": 0.0})
    chunk, widths = scheduler.Programs.chunk, set()

    def slowed(slow):
        def program(self, slots, job, *rest):
            widths.add(len(slots.status))
            if threading.current_thread().name.endswith(f"_{slow}"):
                time.sleep(0.05)
            return chunk(self, slots, job, *rest)

        monkeypatch.setattr(scheduler.Programs, "chunk", program)
        return QUICK.run(given.observation, Execution(width=4, workers=2, precision="float32"))

    first, second = slowed(0), slowed(1)
    assert len(widths) > 1
    for name in ("inputs", "labels", "iterations", "evaluations", "objective"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize("spoil", [np.nan, np.inf, 0.0, 1e30])
def test_neighbours_are_not_disturbed(spoil):
    given = victims(count=4, **VECTORS)
    spoilt = jax.tree.map(
        lambda a: np.where(np.arange(4).reshape(-1, *[1] * (a.ndim - 1)) == 1, spoil, a), given.observation.gradients
    )
    observation = dataclasses.replace(given.observation, gradients=spoilt)
    clean = quick(given.observation)
    found = quick(observation)
    assert far(found.inputs[[0, 2, 3]], clean.inputs[[0, 2, 3]]) < 1e-6
    assert np.isfinite(found.inputs).all()
    if not np.isfinite(spoil):
        assert found.ending[1] == "failed" and found.evaluations[1] == 1


def test_the_truth_does_not_enter():
    names = {f.name for f in dataclasses.fields(GradientObservation)}
    assert not names & {"x", "y", "inputs", "truth", "truth_x", "truth_y", "labels", "data", "dataset"}
    given = victims(count=3, **VECTORS)
    found = quick(given.observation)
    good = score(found, given.x, given.y)
    scrambled = score(found, given.x[::-1], given.y[::-1])
    again = quick(given.observation)
    assert far(found.inputs, again.inputs) == 0.0
    assert good.success.all() and not scrambled.success[[0, 2]].any()


@pytest.mark.parametrize("name", ["cpl", "dlg"])
def test_images_come_back(name):
    given = victims(count=4, **IMAGES)
    found = quick(given.observation, make_attack(name, iterations=40))
    scored = score(found, given.x, given.y)
    assert scored.summary()["label_success_rate"] == 1.0
    assert scored.success.mean() >= 0.75 and scored.items.mse[scored.success].max() < 1e-2


@pytest.mark.parametrize("distance", ["cosine", "entropy"])
def test_other_distances_go_as_far_as_the_paper_s_with_lbfgs(distance):
    """Its tolerances are absolute, and these distances are small numbers: unscaled, the attack ends at once."""
    given = victims(count=3, dtype="float32", **IMAGES)
    found = quick(given.observation, make_attack("cpl", distance=distance, iterations=40), precision="float32")
    assert (found.distance < 1e-4).all() and (found.iterations > 0).all()
    assert score(found, given.x, given.y).success.all()


def test_inverting_by_cosine_and_total_variation():
    given = victims(count=3, dtype="float32", **IMAGES)
    smooth = np.linspace(0, 1, 8)[None, None, :, None, None] * np.ones((3, 1, 8, 8, 1), np.float32)
    net, params = given.observation.model, given.observation.params
    seen = dataclasses.replace(given.observation, gradients=mean_gradients(net, params, smooth, given.y))
    found = quick(seen, make_attack("inverting", iterations=300), precision="float32")
    assert found.inputs.min() >= 0 and found.inputs.max() <= 1
    assert score(found, smooth, given.y).items.ssim.min() > 0.8


def test_total_variation():
    x = np.zeros((1, 1, 3, 3, 1))
    x[0, 0, 1, 1] = 1.0  # two of six differences down are 1, and two of six across
    assert np.isclose(total_variation(x)[0], 2 / 3)


def test_attributes_come_back():
    given = victims(count=4, classes=2, span=None, **VECTORS)
    scored = score(quick(given.observation), given.x, given.y)
    assert scored.rule.name == "mse" and scored.summary()["success_rate"] == 1.0
    with pytest.raises(ConfigError, match="is for images"):
        make_attack("cpl", tv=0.1).run(given.observation)


def test_aono_is_exact_for_one_example():
    given = victims(count=5, shape=(4, 4, 1), model="mlp", choices={"hidden": [8]}, dtype="float32")
    found = make_attack("aono").run(given.observation, Execution(seeds=(0, 1)))
    assert far(found.inputs, np.concatenate([given.x, given.x])) < 1e-4
    assert np.array_equal(found.labels[:5], given.y) and found.distance.max() < 1e-6
    pair = victims(count=1, shape=(6,), model="mlp", examples=2, choices={"hidden": [64]}, dtype="float32")
    assert score(make_attack("aono").run(pair.observation), pair.x, pair.y).items.mse.min() < 0.05
    with pytest.raises(ConfigError, match="first layer is fully connected"):
        make_attack("aono").run(victims(count=1, **IMAGES).observation)


def test_batches_are_matched_by_assignment():
    given = victims(count=3, examples=2, **VECTORS)
    found = quick(given.observation)
    scored = score(found, given.x, given.y)
    assert found.inputs.shape == (3, 2, 10) and scored.success.mean() >= 0.5
    backwards = score(found, given.x[:, ::-1], given.y[:, ::-1])
    assert np.allclose(backwards.items.mse, scored.items.mse[:, ::-1])


def test_every_victim_may_have_a_model_of_its_own():
    given = victims(count=3, **VECTORS)
    own = jax.tree.map(lambda a: np.stack([a, 0.9 * a, 1.1 * a]), given.observation.params)
    with jax.enable_x64(True):
        seen = jax.tree.map(np.asarray, mean_gradients(given.observation.model, own, given.x, given.y, own_params=True))
    observation = dataclasses.replace(given.observation, params=own, gradients=seen, own_params=True)
    assert score(quick(observation), given.x, given.y).success.all()


def test_a_model_from_elsewhere():
    given = victims(count=2, **VECTORS)
    net = given.observation.model
    elsewhere = dataclasses.replace(given.observation, model=from_functions(net.init, net.apply))
    found = [
        make_attack("cpl", iterations=10).run(o, Execution(precision="float64")) for o in (given.observation, elsewhere)
    ]
    assert far(found[0].inputs, found[1].inputs) < 1e-6


def test_updates_of_several_steps_are_better_simulated():
    given = victims(count=2, **VECTORS)
    net, params, lr, steps = given.observation.model, given.observation.params, 0.5, 3
    with jax.enable_x64(True):
        local = jax.tree.map(lambda a: np.stack([a, a]), params)
        for _ in range(steps):
            g = mean_gradients(net, local, given.x, given.y, own_params=True)
            local = jax.tree.map(lambda w, g: np.asarray(w - lr * g), local, g)
    update = jax.tree.map(lambda w, p: w - p, local, params)
    seen = dataclasses.replace(given.observation, gradients=from_update(update, lr, steps), lr=lr, local_steps=steps)
    simple, simulated = (
        score(quick(seen, make_attack("cpl", iterations=40, reading=how)), given.x, given.y)
        for how in ("simple", "simulated")
    )
    assert simulated.success.all() and simulated.items.mse.max() < 1e-4 < simple.items.mse.min()
    with pytest.raises(ConfigError, match="learning rate"):
        make_attack("cpl", reading="simulated").run(given.observation)


def test_stop_rules():
    given = victims(count=2, **VECTORS)
    stopped = quick(given.observation, make_attack("cpl", stop=1e-2))
    assert (stopped.ending == "stop").all() and (stopped.distance <= 1e-2).all()
    assert (stopped.trace[np.arange(2), stopped.iterations] <= 1e-2).all()
    spent = quick(given.observation, make_attack("cpl", optimizer="sgd", lr=1e-9, iterations=2))
    assert (spent.ending == "spent").all() and (spent.iterations == 2).all() and spent.trace.shape == (2, 3)
    flat = quick(given.observation, make_attack("cpl", optimizer="sgd", lr=1e-9, plateau=5))
    assert (flat.ending == "plateau").all() and (flat.iterations == 5).all()


def test_restarts_keep_the_least_objective():
    given = victims(count=2, **VECTORS)
    single = quick(given.observation, make_attack("idlg", iterations=40))
    several = quick(given.observation, make_attack("idlg", iterations=40, restarts=2))
    assert (several.objective <= 1.001 * single.objective).all() and (several.evaluations > single.evaluations).all()


def test_what_was_not_granted_is_refused():
    given = victims(count=2, **VECTORS)
    with pytest.raises(ConfigError, match="granted no labels"):
        make_attack("cpl", label="given").run(given.observation)
    granted = dataclasses.replace(given.observation, known_labels=given.y)
    assert np.array_equal(quick(granted, make_attack("cpl", label="given", iterations=40)).labels, given.y)


def test_limits_are_what_shorter_attacks_return():
    seen, limits = victims(3, **IMAGES).observation, (1, 2, 4)
    settings = {"seeds": (0, 1), "precision": "float64"}
    whole = CPL(iterations=30, restarts=1).run(seen, Execution(**settings, limits=limits))
    assert whole.iterations.min() < 4  # attacks that ended before a limit are in it as they ended
    for most, found in zip(limits, whole.earlier, strict=True):
        alone = CPL(iterations=most, restarts=1).run(seen, Execution(**settings))
        for name in ("attack", "seed", "labels", "iterations", "evaluations", "ending"):
            assert np.array_equal(getattr(found, name), getattr(alone, name)), name
        for name in ("inputs", "objective", "distance", "trace"):
            np.testing.assert_allclose(getattr(found, name), getattr(alone, name), rtol=1e-6, atol=1e-12)
    assert not np.allclose(whole.earlier[0].inputs, whole.inputs)


@pytest.mark.parametrize("label", ["infer", "joint"])
def test_the_geometric_form_begins_at_the_start_and_finds_the_example(label):
    known = victims(3, **IMAGES)
    plain, geometric = (CPL(form=form, label=label) for form in ("plain", "geometric"))
    first = [one.shortened(1).run(known.observation) for one in (plain, geometric)]
    np.testing.assert_allclose(first[0].trace[:, 0], first[1].trace[:, 0], rtol=1e-5)  # the same gradient at the start
    assert not np.allclose(first[0].inputs, first[1].inputs, atol=1e-6)  # and another path
    found = geometric.run(known.observation)
    truth = known.x.reshape(found.inputs.shape)
    assert np.abs(found.inputs - truth).max() < 0.1 and np.array_equal(found.labels, known.y)


def test_the_geometric_form_has_no_box():
    with pytest.raises(ConfigError, match="attack.box"):
        CPL(form="geometric", optimizer="adam", box=True).check()
