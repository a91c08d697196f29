"""Model inversion: both methods against their own definitions, the boundary to the truth, scores, refusals, figures."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from PIL import Image

from benchmarks import inversion_figures
from benchmarks.inversion_charts import chart4, chart6a, draw3
from benchmarks.inversion_figures import Ground, figure3, figure4, figure6a, more_clients, trend
from fedveil.attacks.games import inversion
from fedveil.attacks.games.federations import Target
from fedveil.attacks.games.inversion import gather, judge, play
from fedveil.attacks.games.inversion_score import Truth, score_classes, summary
from fedveil.attacks.inference.inversion import CONFIDENCE, solve, stretched
from fedveil.attacks.observation import InversionObservation, ModelObservation, TrainingTerms
from fedveil.attacks.registry import make_attack
from fedveil.config import from_dict
from fedveil.core.errors import ConfigError
from fedveil.core.keys import Draws
from fedveil.federation import prepare
from fedveil.models.catalog import ModelConfig, build

ADVERSARIES = ("passive-local", "passive-global", "active")
TERMS = TrainingTerms(2, 2, 1, 1, 0.1, "fedavg")


def document(**sections):
    """A small federation on digits: client 0 has classes 0 to 4, client 1 classes 5 to 9."""
    made = {
        "data": {"name": "digits", "clients": 8, "partition": "groups-disjoint", "per_client": 60},
        "model": {"name": "logistic"},
        "train": {
            "rounds": 6,
            "per_round": 6,
            "local_steps": 5,
            "batch": 20,
            "lr": 0.5,
            "aggregation": "fedavg",
            "noise_seed": 0,
        },
        "attack": {"name": "inversion", "seeds": 2, "iterations": 150},
    }
    made["data"]["label_sets"] = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    return from_dict({key: made.get(key, {}) | sections.get(key, {}) for key in {**made, **sections}})


def attack(adversary="passive-global", **given):
    short = {} if given.get("method") == "closed" else {"iterations": 150}
    return make_attack("inversion", adversary=adversary, **{**short, **given})


def invert(seen, classes, chosen):
    return chosen.run(InversionObservation(tuple(seen), tuple(classes)))


def target(config):
    return Target(config, Draws.of(config.train.noise_seed))


@pytest.fixture(scope="module")
def cases():
    """Two trained federations, seen by all three adversaries."""
    return list(gather(target(document()), [attack(one) for one in ADVERSARIES]))


def observed(model="logistic", shape=(6, 5, 1), classes=4, seed=0, span=(0.0, 1.0), scale=1.0):
    net = build(model, shape, classes, ModelConfig(hidden=[8]))
    shapes = jax.eval_shape(net.init, jax.random.key(0))
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda a: scale * rng.normal(size=a.shape), shapes)
    return ModelObservation(net, (params,), (3,), shape, classes, span, TERMS)


# --- the methods


def test_the_closed_form_is_the_shortest_input_with_the_probabilities_asked_for():
    rng = np.random.default_rng(0)
    w, b = rng.normal(size=(30, 4)), rng.normal(size=4)
    found = solve(w, b, np.array([2, 0]))
    logits = found @ w + b
    odds = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    wanted = np.full((2, 4), (1 - CONFIDENCE) / 3)
    wanted[[0, 1], [2, 0]] = CONFIDENCE
    np.testing.assert_allclose(odds, wanted, rtol=1e-9)
    # Any other solution differs by what changes no difference of logits, and is longer: the found one has none of it.
    aside = rng.normal(size=30)
    centred = w - w.mean(axis=1, keepdims=True)
    aside -= centred @ np.linalg.pinv(centred) @ aside
    assert np.linalg.norm(aside) > 1 and abs(found @ aside).max() < 1e-9


def test_the_closed_form_fills_the_span():
    found = invert([observed(span=(-1.0, 3.0))], [0, 1, 2, 3], attack(method="closed"))
    np.testing.assert_allclose([found.min(axis=(2, 3, 4)), found.max(axis=(2, 3, 4))], [[[-1.0] * 4], [[3.0] * 4]])


def test_ascent_comes_to_rest_where_prior_and_class_balance():
    seen = observed(shape=(12,), span=None)
    found = invert([seen], [0, 1, 2, 3], attack(iterations=2000))[0]
    w, b = seen.last["dense"]["w"], seen.last["dense"]["b"]
    for label, x in enumerate(found):
        logits = x @ w + b
        odds = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        # The gradient of log p(label | x) is w_label minus the mean of all columns by their probability; of the prior, -x.
        np.testing.assert_allclose(x, w[:, label] - w @ odds, atol=2e-3)


def test_ascent_keeps_to_the_span_and_total_variation_smooths():
    seen = observed(scale=3.0, span=(0.0, 0.1))
    rough = invert([seen], [1], attack())[0, 0]
    smooth = invert([seen], [1], attack(tv=100.0))[0, 0]
    assert rough.min() == 0.0 and rough.max() == pytest.approx(0.1)

    def steps(x):
        return np.abs(np.diff(x, axis=0)).mean() + np.abs(np.diff(x, axis=1)).mean()

    assert steps(smooth) < 0.5 * steps(rough)


def test_a_network_without_biases_can_be_inverted():
    seen = observed("cnn", shape=(8, 8, 1), scale=0.3)
    found = invert([seen], [0, 1, 2, 3], attack(iterations=50))[0]
    assert (inversion.answers(seen, found) == np.arange(4)).all()


@pytest.mark.parametrize("method", ["ascent", "closed"])
def test_a_federation_is_inverted_alone_as_among_others(method):
    several = [observed(seed=seed) for seed in range(3)]
    asked = attack(method=method)
    together = invert(several, [0, 1, 2, 3], asked)
    np.testing.assert_allclose(invert(several[1:2], [2, 0], asked)[0], together[1][[2, 0]], atol=1e-6)


@pytest.mark.parametrize("method", ["ascent", "closed"])
def test_a_broken_model_gives_blank_pictures_and_spoils_no_other(method):
    good = observed(seed=1)
    broken = replace(good, models=(jax.tree.map(lambda a: np.full_like(a, np.nan), good.last),))
    found = invert([broken, good], [0, 3], attack(method=method))
    assert (found[0] == 0).all()
    np.testing.assert_allclose(found[1], invert([good], [0, 3], attack(method=method))[0], atol=1e-6)


# --- the boundary


@pytest.mark.parametrize("method", ["ascent", "closed"])
def test_scrambling_the_truth_changes_the_scores_and_not_what_is_recovered(cases, method):
    rng = np.random.default_rng(0)
    lied = [
        replace(case, truth=Truth(case.truth.classes, tuple(rng.random(x.shape) for x in case.truth.examples)))
        for case in cases
    ]
    for index in range(len(ADVERSARIES)):
        found, scores = judge(cases, attack(method=method), index)
        again, other = judge(lied, attack(method=method), index)
        np.testing.assert_array_equal(found, again)
        assert summary(scores)["ssim"] != summary(other)["ssim"]


def test_adversaries_see_the_models_they_name(cases):
    local, outgoing, active = cases[0].seen
    weight = [seen.last["dense"]["w"] for seen in (local, outgoing, active)]
    assert [seen.rounds for seen in cases[0].seen] == [(6,)] * 3
    # A local model has moved towards its own classes: their weights rose together, those of the others fell.
    for own, moved in (((0, 1, 2, 3, 4), weight[0] - weight[1]), ((5, 6, 7, 8, 9), weight[2] - weight[1])):
        others = [c for c in range(10) if c not in own]
        assert moved[:, own].sum() > 0 > moved[:, others].sum()
    assert local.auxiliary is not None and set(local.auxiliary.y) <= {0, 1, 2, 3, 4} and active.auxiliary is None


# --- scores


def test_a_perfect_recovery_and_a_wrong_one():
    rng = np.random.default_rng(0)
    truth = Truth((3, 7), (rng.random((4, 8, 8, 1)), rng.random((5, 8, 8, 1))))
    means = np.stack([stretched(x) for x in truth.means((3, 7))])
    exact = Truth((3, 7), tuple(np.stack([m, m]) for m in means))  # means that are their own stretched selves
    right = score_classes(5.0 * means - 2.0, np.array([3, 0]), (3, 7), exact)
    assert [s["ssim"] for s in right] == pytest.approx([1, 1]) and [s["mse"] for s in right] == pytest.approx([0, 0])
    assert [s["classified"] for s in right] == [True, False] and all(s["recognised"] for s in right)
    swapped = score_classes(means[::-1], np.array([3, 7]), (3, 7), exact)
    assert not any(s["recognised"] for s in swapped) and max(s["ssim"] for s in swapped) < 0.5
    near = score_classes(truth.of(3)[2:3], np.array([3]), (3,), truth)[0]
    assert near["mse_nearest"] < 0.01 < near["mse"] and near["ssim_nearest"] > near["ssim"]


def test_attributes_have_no_ssim():
    truth = Truth((0, 1), (np.zeros((3, 5)), np.ones((3, 5))))
    (only,) = score_classes(np.full((1, 5), 0.1), np.array([0]), (0,), truth)
    assert only["ssim"] is None and only["mse"] == pytest.approx(0.01) and only["recognised"]
    means = summary([[only], [only]])
    assert means["ssim"] is None and means["interval"] == pytest.approx([0.01, 0.01])


def test_trained_models_give_more_than_untrained_ones(cases):
    for index, adversary in enumerate(ADVERSARIES):
        scores = summary(judge(cases, attack(adversary), index)[1])
        floor = inversion.controls(cases, attack(adversary))
        assert scores["ssim"] > 0.1 + max(control["ssim"] for control in floor.values())
        assert scores["recognised_rate"] >= 0.6 and scores["label_success_rate"] == 1.0


# --- the whole attack


def test_the_command_and_its_document(fedveil_cli, tmp_path):
    (tmp_path / "a.toml").write_text(
        '[data]\nclients = 8\npartition = "groups-disjoint"\nper_client = 60\nlabel_sets = [[0, 1, 2], [5, 6]]\n'
        '[model]\nname = "logistic"\n[train]\nrounds = 2\nper_round = 3\nlocal_steps = 2\nbatch = 10\n'
        '[attack]\nname = "inversion"\nadversary = "active"\nmethod = "closed"\nclasses = [6]\nround = 1\n'
    )
    answer = fedveil_cli("attack", "a.toml", "--pictures", "seen", "--json", cwd=tmp_path)
    made = json.loads(answer.out)
    assert answer.code == 0 and (made["attack"], made["adversary"], made["tap"]) == ("inversion", "active", "server")
    assert made["round"] == 1 and made["success_rate"] is None and made["interval"] is None
    assert [c["class"] for c in made["classes"]] == [6] and -1 <= made["ssim"] <= 1 and made["seconds"] > 0
    assert set(made["controls"]) == {"untrained", "noise", "blank"}
    assert (tmp_path / "seen" / "grid.png").stat().st_size > 100


@pytest.mark.parametrize(
    ("sections", "key", "word"),
    [
        ({"model": {"name": "mlp"}, "attack": {"method": "closed"}}, "attack.method", "model.name to 'logistic'"),
        ({"attack": {"method": "closed", "iterations": 9}}, "attack.iterations", "not read by method 'closed'"),
        ({"attack": {"classes": [5, 2]}}, "attack.classes", "client 1 holds 5, 6, 7, 8, 9"),
        ({"attack": {"round": 7}}, "attack.round", "takes 0 to 6"),
        ({"attack": {"victim": 8}}, "attack.victim", "from 0 to 7"),
        ({"attack": {"adversary": "active"}, "train": {"secure_aggregation": True}}, "attack.tap", "shows sums only"),
        (
            {"data": {"name": "cancer", "partition": "iid", "label_sets": None}, "attack": {"tv": 0.1}},
            "attack.tv",
            "images",
        ),
    ],
)
def test_refusals(sections, key, word):
    asked = {"name": "inversion", **sections.pop("attack", {})}
    with pytest.raises(ConfigError) as error:
        config = document(attack={"iterations": None, **asked}, **sections)
        play(target(config), config.attack.make())
    assert error.value.key == key and word in str(error.value)


def test_an_adversary_without_such_a_tap_is_refused():
    with pytest.raises(ConfigError, match="seen at server or client"):
        attack("active", tap="release")


# --- the figures


@pytest.fixture
def played(monkeypatch, cases):
    """The figures with the two small federations in place of those that they ask for, and the configs they asked for."""
    asked = []

    def stand_in(target, attacks):
        asked.append(target.config)
        seen = [ADVERSARIES.index(one.adversary) for one in attacks]
        return [replace(case, seen=tuple(case.seen[i] for i in seen)) for case in cases]

    monkeypatch.setattr(inversion_figures, "gather", stand_in)
    return asked


SMALL = Ground(dataset="digits", per_client=40, batch=20, rounds=2)


def test_figure_3_shows_two_classes_by_three_adversaries_with_and_without_noise(played, tmp_path):
    made = figure3(SMALL, seeds=2)
    draw3(tmp_path / "3.png", made)
    with Image.open(tmp_path / "3.png") as drawn:
        assert drawn.width > 8 * 64 and drawn.height > 6 * 64 and np.asarray(drawn).std() > 10
    assert [c.defense[0].name for c in played] == ["none", "2dp-fl"]
    assert len(made.captions) == 8 and {x.shape for x in made.pictures.values()} == {(2, 8, 8, 8, 1)}
    scored = [row for row in made.rows if "seat" in row]
    assert len(scored) == 18 and all(row["seeds"] == [0, 1] and row["setting"]["rounds"] == 2 for row in made.rows)


def test_figure_4_moves_the_attacker_and_keeps_the_victim(played):
    rows = figure4(SMALL, clients=(12, 20), seeds=2, ways=("closed",))
    sets = [config.data.label_sets for config in played]
    assert sets[:6] == [[list(range(5 - d, 10 - d)), [5, 6, 7, 8, 9]] for d in range(6)] and sets[6:] == sets[:6]
    assert [c.data.clients for c in played] == [12] * 6 + [20] * 6
    points = [row for row in rows if "differing" in row]
    assert len(points) == 24 and points[0]["ssim_unseen"] is None
    assert "passive-local, K = 12: 6 points, " in chart4(rows, "closed").description
    # The stand-in's federations are the same at every point, so nothing can have a slope.
    trends = [row["trend"]["slope"]["mean"] for row in rows if "trend" in row]
    effects = [row["more_clients"]["mean"] for row in rows if "more_clients" in row]
    assert len(trends) == 4 and len(effects) == 2 and trends + effects == pytest.approx([0] * 6, abs=1e-9)


def test_a_trend_is_found_where_there_is_one():
    def scores(apart, seed):
        return [{"class": c, "ssim": 0.5 + 0.01 * seed - 0.1 * (c > 9 - apart)} for c in range(5, 10)]

    found = trend([[scores(apart, seed) for seed in range(3)] for apart in range(6)])
    assert found["slope"]["mean"] == pytest.approx(-0.02) and found["slope"]["interval"] == pytest.approx(
        [-0.02, -0.02]
    )
    assert found["unseen_minus_seen"]["mean"] == pytest.approx(-0.1)


def test_what_more_clients_change_is_found():
    head = {"figure": "4", "way": "ascent", "seeds": [0, 1], "device": "", "versions": {}, "seat": "active"}
    each = {10: [0.5, 0.7], 20: [9.0, 9.0], 50: [0.4, 0.7]}
    rows = [
        {**head, "setting": {"clients": k}, "differing": d, "ssim_each": v} for k, v in each.items() for d in range(2)
    ]
    (found,) = more_clients(rows)
    assert found["more_clients"]["mean"] == pytest.approx(-0.05) and found["setting"]["clients"] == [10, 50]


def test_figure_6a_turns_up_the_noise(played):
    rows = figure6a(SMALL, sigmas=(5.0,), modes=("same",), seeds=2, ways=("closed",))
    told = [(row["seat"], row["sigma"], row["server_noise_mode"]) for row in rows if "seat" in row]
    assert told == [(seat, s, m) for s, m in ((None, "none"), (0.0, "none"), (5.0, "same")) for seat in ADVERSARIES]
    drawn = chart6a(rows, "closed").description
    assert all(f"{seat}, same" in drawn and f"{seat}, no defence" in drawn for seat in ADVERSARIES)
    noised = played[-1].defense[0]
    assert noised.noise == noised.server_noise == 5.0 and noised.server_noise_mode == "same"
    proofs = {row["sigma"]: row["epsilon"] for row in rows if "seat" in row}
    assert proofs[None] is None and proofs[0.0] is None and 0 < proofs[5.0] < 20
    federation = prepare(played[-1])
    assert federation.simulator.task.setting.per_round == 10 and federation.rounds == 2
