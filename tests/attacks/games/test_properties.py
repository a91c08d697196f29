"""Property and membership from updates: properties, what each adversary sees, what the attack finds; and cpl's Fig 10."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedveil.attacks.games import compare, properties
from fedveil.attacks.games.federations import Target
from fedveil.attacks.games.observe import rules_of
from fedveil.attacks.inference import melis, property, replay, roc
from fedveil.attacks.inference.melis import Melis
from fedveil.attacks.observation import AuxiliaryData
from fedveil.attacks.taps import from_tap
from fedveil.config import load
from fedveil.core.errors import ConfigError
from fedveil.core.keys import Draws
from fedveil.data.dataset import Dataset, Part
from fedveil.federation import prepare

SMALL = [
    "data.name=digits",
    "data.partition=iid",
    "data.clients=6",
    "data.per_client=60",
    "model.name=mlp",
    "model.hidden=[12]",
    "train.per_round=3",
    "train.rounds=12",
    "train.local_steps=1",
    "train.batch=6",
    "attack.name=melis",
    "attack.property=class:3",
]


def quiet(done: int, total: int) -> None:
    assert 0 <= done <= total


def by(adversary: str = "active", **more):
    return Melis(adversary=adversary, property="class:3", **more)


def trained(federation, attack):
    wanted = property.parse("class:3", federation.dataset)
    return properties.train(federation, attack, wanted, 12)


@pytest.fixture(scope="module")
def federation():
    return prepare(load(None, SMALL))


@pytest.fixture(scope="module")
def active(federation):
    return trained(federation, by())


@pytest.fixture(scope="module")
def passive(federation):
    return trained(federation, by("passive-local"))


# --- properties


def census() -> Dataset:
    part = Part(np.eye(4, dtype=np.float32), np.zeros(4, np.int32))
    names = ("age", "sex=Female", "sex=Male", "fnlwgt")
    return Dataset("census", part, part, "test", 2, groups=((1, 3),), feature_names=names)


def test_a_class_is_there_or_not():
    wanted = property.parse("class:1", census())
    assert wanted.of_examples(np.array([False, True])) is True
    assert wanted.of_examples(np.array([False, False])) is False
    assert wanted.of_examples(np.zeros(0, bool)) is None


def test_a_column_is_had_by_most_or_by_few():
    wanted = property.parse("column:sex=Male", census())
    assert wanted.of_records(census().train.x, census().train.y).tolist() == [False, False, True, False]
    assert [wanted.of_examples(np.arange(4) < n) for n in range(5)] == [False, False, None, True, True]


@pytest.mark.parametrize("text", ["class:1", "column:sex=Male"])
def test_auxiliary_examples_have_what_is_wanted(text):
    rng, sought = np.random.default_rng(0), property.parse(text, census())
    have = np.arange(40) % 4 == 0
    for wanted in (True, False):
        drawn = [sought.drawn(rng, have, 12, wanted) for _ in range(30)]
        assert all(sought.of_examples(have[one]) is wanted and len(one) == 12 for one in drawn)
    counts = {int(have[sought.drawn(rng, have, 12, True)].sum()) for _ in range(30)}
    assert len(counts) > 2  # not always as many


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "takes class:N"),
        ("digit", "takes class:N"),
        ("class:2", "class:0 to class:1"),
        ("column:male", "takes one of: sex=Female, sex=Male"),
        ("column:age", "names no yes-or-no column"),
    ],
)
def test_other_properties_are_refused(text, says):
    with pytest.raises(ConfigError, match=says):
        property.parse(text, census())


# --- what is seen


def test_the_active_adversary_sees_what_the_victim_sends(federation, active):
    view, truth = active
    state = federation.simulator.start()
    values = federation.simulator.observe(state, 0, 1, frozenset({"server", "broadcast"}))
    assert np.allclose(view.updates[0].update, replay.flat(values["server"]), atol=1e-7)
    assert len(view.updates) == 12 and all(len(rows) == 6 for rows in truth.rows)
    assert all(np.isin(rows, federation.partition.client(1)).all() for rows in truth.rows)
    assert len(view.auxiliary.y) == len(federation.dataset.held_out)


def test_a_client_sees_the_mean_update_of_the_others(federation, passive):
    view, truth = passive
    simulator = federation.simulator
    state, index = simulator.start(), {seen.round: at for at, seen in enumerate(view.updates)}
    with_me = set()
    for number in range(6):
        clients = simulator.cohort(state, number).clients
        others = [int(c) for c in clients if c != 0]
        with_me.add(0 in clients)
        sent = [simulator.observe(state, number, c, frozenset({"client"}))["client"] for c in others]
        seen = view.updates[index[number]]
        assert seen.clients == len(others)
        assert np.allclose(seen.update, np.mean([replay.flat(one) for one in sent], axis=0), atol=1e-6)
        assert len(truth.rows[index[number]]) == 6 * len(others)
        state, _ = simulator.round(state, number)
    assert with_me == {True, False}  # with its own share taken away, and without


def test_replayed_updates_are_the_client_s_own_where_batches_are(federation):
    """With the victim's very batches, which the attacker does not have, the replay is what the victim computed."""
    state, rows = federation.simulator.start(), properties._rows(federation, 0, 1)
    data = federation.dataset
    records = AuxiliaryData(data.train.x[rows] * data.scale, data.train.y[rows])
    rows = np.arange(6, dtype=np.int32).reshape(1, 1, 6)
    batches = replay.Batches(rows, np.ones((1, 1, 6), bool), np.ones(1, np.int32))
    values = federation.simulator.observe(state, 0, 1, frozenset({"client", "broadcast"}))
    again = replay.updates(rules_of(federation), values["broadcast"], records, batches, 0)
    assert np.allclose(again[0], replay.flat(values["client"]), atol=1e-7)


# --- what the attacker makes of it


def test_a_rule_learnt_from_updates_tells_which_side_one_is_on():
    rng = np.random.default_rng(0)
    shift = rng.normal(size=500)
    having, lacking = rng.normal(size=(32, 500)) + 0.3 * shift, rng.normal(size=(32, 500)) - 0.3 * shift
    scores = [melis.classify(having, lacking, rng.normal(size=500) + sign * 0.3 * shift) for sign in (1, -1)]
    assert scores[0] > 0 > scores[1]
    assert melis.classify(np.ones((4, 9)), np.ones((4, 9)), np.ones(9)) == 0.0


def test_coordinates_in_a_span_keep_all_products():
    rng = np.random.default_rng(1)
    known, asked = rng.normal(size=(6, 50)), rng.normal(size=(2, 50))
    ours, theirs = melis.in_span(known, asked)
    assert np.allclose(ours @ ours.T, known @ known.T) and np.allclose(theirs @ ours.T, asked @ known.T)


def test_property_and_records_are_told_from_a_victim_s_updates(federation, active):
    view, truth = active
    done = properties.score(federation, by(records=200), view, truth)
    assert roc.auc(done.scores, done.has) > 0.9
    assert done.record_areas.mean() > 0.65


def test_the_scores_do_not_depend_on_the_truth(federation, active):
    view, truth = active
    records, which, _ = properties.asked_records(federation, truth, 30)
    asked = dataclasses.replace(view, asked=np.arange(3), records=records, record_update=which)
    found = by().run(asked)
    secrets = [federation.dataset.train.y, *truth.rows]
    kept = [secret.copy() for secret in secrets]
    try:
        for secret in secrets:
            secret[:] = (secret + 1) % 10
        again = by().run(asked)
        assert (again.updates == found.updates).all() and (again.records == found.records).all()
    finally:
        for secret, before in zip(secrets, kept, strict=True):
            secret[:] = before
    assert not {f.name for f in dataclasses.fields(view)} & {"truth", "rows", "has"}


def test_the_document_of_a_passive_adversary_is_whole():
    config = load(
        None, [*SMALL, "attack.adversary=passive-local", "attack.round=8", "attack.records=40", "train.batch=2"]
    )
    done = properties.play(Target(config, Draws.of(None)), config.attack.make(), quiet)
    document = done.document
    assert document["tap"] == "broadcast" and document["adversary"] == "passive-local" and document["rounds"] == 8
    assert document["success_rate"] is None and 0 <= document["auc"] <= 1 and 0 <= document["record_auc"] <= 1
    assert document["members"] + document["others"] <= 8 and set(done.curves) == {"class:3"}


@pytest.mark.parametrize(
    ("more", "key", "says"),
    [
        (["attack.attacker=2"], "attack.attacker", "no client"),
        (["attack.adversary=passive-local", "attack.victim=2"], "attack.victim", "all others are seen together"),
        (["attack.adversary=passive-local", "train.late=0.1"], "train.late", "late"),
        (["attack.victim=6"], "attack.victim", "0 to 5"),
        (["train.secure_aggregation=true"], "attack.tap", "sums only"),
    ],
)
def test_what_cannot_be_played_is_refused(more, key, says):
    config = load(None, [*SMALL, *more])
    with pytest.raises(ConfigError, match=says) as error:
        properties.check(prepare(config), config.attack.make())
    assert error.value.key == key


def test_an_attacker_without_examples_of_both_kinds_is_told_so(passive):
    own = AuxiliaryData(np.zeros((5, 2)), np.zeros(5, int))
    view = dataclasses.replace(passive[0], auxiliary=own, property=property.Property("class:1", label=1))
    with pytest.raises(ConfigError, match=r"of the 5 examples .* none have it.*attack\.attacker"):
        properties.check_auxiliary(view, by("passive-local"))


def test_rounds_that_all_have_the_property_are_no_game(federation, active):
    view, truth = active
    everything = dataclasses.replace(truth, rows=tuple(np.arange(1000) for _ in truth.rows))
    with pytest.raises(ConfigError, match="in 12 of 12 rounds"):
        properties.score(federation, by(), view, everything)


# --- cpl, Fig 10


def test_the_best_guess_is_the_image_itself_where_the_attacker_has_it(federation):
    small = prepare(load(None, [s for s in SMALL if not s.startswith(("attack", "train.batch"))] + ["train.batch=1"]))
    state = small.simulator.start()
    seen = from_tap(small, state, 0, [0, 1, 2], "client")
    rows = np.concatenate([properties._rows(small, 0, c) for c in (0, 1, 2)])
    data = small.dataset
    mixed = np.concatenate([rows, np.setdiff1d(np.arange(60), rows)])
    own = AuxiliaryData(data.train.x[mixed] * data.scale, data.train.y[mixed])
    guessed = compare.best_guesses(seen, rules_of(small), own)
    assert guessed.tolist() == [0, 1, 2]


def test_rows_of_the_comparison(tmp_path):
    config = load(None, ["data.name=digits", "model.hidden=[12]"])
    made = compare.rows(config, 3, (("aono", "mlp"), ("melis", "mlp")))
    aono, guess = made
    assert aono["ssim"] > 0.99 and aono["mse"] < 1e-6  # a dense first layer gives one example away
    assert guess["ssim"] < aono["ssim"] and guess["mse"] > aono["mse"]
    assert all(
        row["victims"] == 3 and row["versions"]["jax"] and row["settings"]["train"]["batch"] == 1 for row in made
    )
    compare.write(tmp_path / "rows.jsonl", made)
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 2
