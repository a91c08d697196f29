"""The config: what is written reads back the same, settings say what they mean, datasets bring the papers' numbers."""

from __future__ import annotations

import tomllib
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedveil import config as config_module
from fedveil import federation
from fedveil.config import BATCHINGS, NAMES, SAMPLINGS, Budget, Config, from_dict, load, resolve, to_toml
from fedveil.core.errors import ConfigError
from fedveil.data.partition import PARTITIONS
from fedveil.data.registry import DATASETS
from fedveil.defenses.fed_cdp import FedCDP
from fedveil.defenses.fed_sdp import FedSDP
from fedveil.defenses.none import NoDefense
from fedveil.models.catalog import MODELS

# --- writing and reading back ------------------------------------------------------------------------------------

WHOLE = st.integers(1, 65_536)
POSITIVE = st.floats(1e-300, 1e300)
SHARE = st.floats(0, 1, exclude_max=True)
RATE = st.floats(1e-12, 1e6)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def names(key):
    return st.sampled_from(list(NAMES[key]))


def section(**keys):
    """A section with any of these keys."""
    return st.fixed_dictionaries({}, optional=keys)


BUDGETS = st.fixed_dictionaries(
    {"epsilon": POSITIVE, "delta": st.floats(0, 1, exclude_min=True, exclude_max=True)},
    optional={
        "tap": st.sampled_from(["example", "client", "server", "broadcast", "release"]),
        "unit": st.sampled_from(["example", "image", "client"]),
    },
)
DATA = section(
    name=names("data.name"),
    partition=names("data.partition"),
    clients=WHOLE,
    per_client=WHOLE,
    classes_per_client=WHOLE,
    groups_per_client=WHOLE,
    alpha=POSITIVE,
    min_images=st.sampled_from([14, 20]),
    size=st.sampled_from([32, 64, 128]),
    split=names("data.split"),
    file=TEXT,
    dir=TEXT,
)
MODEL = section(
    name=names("model.name"),
    activation=names("model.activation"),
    init=names("model.init"),
    dropout=SHARE,
    hidden=st.lists(WHOLE, min_size=1, max_size=8),
    pooling=names("model.pooling"),
    channels=st.integers(1, 4096),
)
TRAIN = section(
    rounds=WHOLE,
    per_round=WHOLE,
    sampling=names("train.sampling"),
    batch=WHOLE,
    batching=names("train.batching"),
    lr=RATE,
    lr_end=RATE,
    optimizer=names("train.optimizer"),
    server_lr=RATE,
    server_momentum=SHARE,
    aggregation=names("train.aggregation"),
    weights=names("train.weights"),
    dropout=SHARE,
    late=SHARE,
    secure_aggregation=st.booleans(),
    budget=BUDGETS,
    eval_every=WHOLE,
    seed=st.integers(0, 2**32 - 1),
)
LENGTH = st.one_of(st.just({}), WHOLE.map(lambda n: {"local_steps": n}), WHOLE.map(lambda n: {"local_epochs": n}))
SPEED = section(
    engine=names("speed.engine"), chunk=st.one_of(st.just("auto"), WHOLE), precision=names("speed.precision")
)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "data": DATA,
        "model": MODEL,
        "train": st.builds(lambda train, length: train | length, TRAIN, LENGTH),
        "speed": SPEED,
        "defense": st.sampled_from(
            [
                [{"name": "none"}],
                [{"name": "fed-cdp", "clip": 6.0, "clip_end": 2.0}],
                [{"name": "fed-cdp", "placement": "batch"}, {"name": "fed-sdp", "placement": "client"}],
            ]
        ),
    },
)


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS)
def test_what_is_written_reads_back_the_same(document):
    config = from_dict(document)
    text = to_toml(config)
    assert from_dict(tomllib.loads(text)) == config
    assert to_toml(from_dict(tomllib.loads(text))) == text


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS)
def test_a_resolved_config_reads_back_and_stays_resolved(document):
    try:
        config = resolve(from_dict(document))
    except ConfigError:
        assume(False)
    again = from_dict(tomllib.loads(to_toml(config)))
    assert again == config and resolve(again) == config
    assert "auto" not in (config.train.sampling, config.train.batching)


def test_a_file_reads_back_the_same(tmp_path):
    config = load(None, ["data.dir='ein Ördner \"β\"'", "train.lr=1e-5", "model.hidden=[3, 4]", "train.rounds=7"])
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    assert load(tmp_path / "config.toml") == config
    assert load(str(tmp_path / "config.toml"), ["train.rounds=8"]).train.rounds == 8


def test_control_characters_are_escaped():
    config = from_dict({"data": {"dir": "a\x7fb\x00\n\\\u2028\U0001f600"}})
    assert from_dict(tomllib.loads(to_toml(config))) == config


def test_an_empty_list_of_defences_is_refused():
    with pytest.raises(ConfigError, match="is an empty list"):
        from_dict({"defense": []})


@pytest.mark.parametrize("key", ["data.clients", "train.rounds", "train.per_round", "train.local_steps"])
def test_numbers_that_no_machine_can_serve_are_refused_at_once(key):
    with pytest.raises(ConfigError, match=f"{key}: got 100000000000; takes .* or less"):
        load(None, [f"{key}=100000000000"])


# --- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "section", "key", "value"),
    [
        ("train.rounds=20", "train", "rounds", 20),
        ("train.rounds = 20 ", "train", "rounds", 20),
        ("train.rounds=1_000", "train", "rounds", 1000),
        ("train.lr=0.5", "train", "lr", 0.5),
        ("train.lr=1e-3", "train", "lr", 0.001),
        ("train.lr=1", "train", "lr", 1.0),
        ("train.secure_aggregation=true", "train", "secure_aggregation", True),
        ("model.hidden=[10, 20]", "model", "hidden", [10, 20]),
        ("data.name=fashion-mnist", "data", "name", "fashion-mnist"),
        ('data.name="cancer"', "data", "name", "cancer"),
        ("data.name='cancer'", "data", "name", "cancer"),
        ("data.dir=/a/b:/c d/e", "data", "dir", "/a/b:/c d/e"),
        ("data.dir=a=b", "data", "dir", "a=b"),
        ("model.pooling=none", "model", "pooling", "none"),  # a name here, not "no value"
        ("model.pooling=null", "model", "pooling", None),
        ("speed.chunk=auto", "speed", "chunk", "auto"),
        ("speed.chunk=8", "speed", "chunk", 8),
        ("train.budget={epsilon=2.5, delta=1e-5}", "train", "budget", Budget(epsilon=2.5, delta=1e-5)),
    ],
)
def test_a_setting_is_read_as_toml_or_else_as_text(setting, section, key, value):
    got = getattr(getattr(load(None, [setting]), section), key)
    assert got == value and type(got) is type(value)


def test_parts_of_a_table_may_be_set_apart():
    config = load(None, ["train.budget.epsilon=3.0", "train.budget.delta=0.1", "train.budget.unit=client"])
    assert config.train.budget == Budget(epsilon=3.0, delta=0.1, unit="client")


def test_the_last_setting_wins_and_all_win_over_the_file(tmp_path):
    (tmp_path / "own.toml").write_text('[train]\nrounds = 1\nbatch = 2\n[defense]\nname = "none"\n')
    config = load(tmp_path / "own.toml", ["train.rounds=3", "train.rounds=4"])
    assert (config.train.rounds, config.train.batch) == (4, 2)


def test_defences_are_set_by_number():
    assert load(None, ["defense.name=none"]).defense == (NoDefense(),)
    assert load(None, ["defense.0.name=none"]).defense == (NoDefense(),)
    both = (FedCDP(), FedSDP(placement="client"))
    settings = ["defense.0.name=fed-cdp", "defense.1.name=fed-sdp", "defense.1.placement=client"]
    assert load(None, settings).defense == both
    with pytest.raises(ConfigError, match=r"defense.1.clap: got 4; unknown key"):
        load(None, [*settings, "defense.1.clap=4"])


def test_a_setting_adds_to_the_defences_of_a_file(tmp_path):
    for text in ('[defense]\nname = "fed-cdp"\n', '[[defense]]\nname = "fed-cdp"\n'):
        (tmp_path / "own.toml").write_text(text)
        assert load(tmp_path / "own.toml", ["defense.1.name=fed-sdp"]).defense == (FedCDP(), FedSDP())


def test_a_config_with_measured_defences_equals_its_copy():
    """Objects of lip and dpfl are compared by identity; two configs of theirs are not."""
    one, other = (load(None, ["defense.name=dpfl"]) for _ in range(2))
    assert one.defense != other.defense and one == other
    assert one != load(None, ["defense.name=dpfl", "defense.epsilon=3.5"])


def test_a_defence_object_needs_no_name_in_the_table():
    config = from_dict({"defense": [FedCDP(clip=2.0), {"name": "prune"}]})
    assert [d.name for d in config.defense] == ["fed-cdp", "prune"] and config.defense[0].clip == 2.0
    with pytest.raises(ConfigError, match=r"defense.0: got .*; is a table of keys"):
        from_dict({"defense": [FedCDP, {"name": "prune"}]})


def test_a_config_cannot_be_changed():
    with pytest.raises(Exception, match="frozen"):
        load().train.rounds = 3


# --- resolving ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "per_client", "local_steps", "batch", "rounds"),
    [
        ("mnist", 500, 100, 5, 100),
        ("cifar10", 400, 100, 4, 100),
        ("lfw", 300, 100, 3, 60),
        ("adult", 300, 100, 3, 10),
        ("cancer", None, 100, 4, 3),  # every client holds all of it
    ],
)
def test_the_numbers_of_table_1(name, per_client, local_steps, batch, rounds):
    """Fed-CDP, Table I: N_i, L, B and T of each dataset."""
    config = resolve(load(None, [f"data.name={name}"]))
    train = config.train
    assert (config.data.per_client, train.local_steps, train.batch, train.rounds) == (
        per_client,
        local_steps,
        batch,
        rounds,
    )


@pytest.mark.parametrize("name", [name for name, info in DATASETS.items() if info.trainable and name != "file"])
def test_resolving_leaves_nothing_open(name):
    info = DATASETS[name]
    config = resolve(load(None, [f"data.name={name}"]))
    train = config.train
    assert config.model.name == info.model and config.data.partition == info.partition
    assert None not in (train.rounds, train.per_round, train.local_steps, train.batch, train.lr, train.eval_every)
    assert train.lr_end == train.lr and train.per_round == 10
    assert (train.sampling, train.batching) == ("fixed", "shuffle")
    assert config.model.activation in ("relu", "sigmoid")


def test_what_was_given_is_kept():
    given = ["train.rounds=7", "train.lr=0.3", "train.sampling=poisson", "train.batching=poisson", "train.per_round=3"]
    train = resolve(load(None, given)).train
    assert (train.rounds, train.lr, train.lr_end, train.sampling, train.batching, train.per_round) == (
        7,
        0.3,
        0.3,
        "poisson",
        "poisson",
        3,
    )
    epochs = resolve(load(None, ["train.local_epochs=2"])).train
    assert (epochs.local_steps, epochs.local_epochs) == (None, 2)


def test_a_tenth_of_the_clients_and_at_least_one():
    assert resolve(load(None, ["data.clients=1000"])).train.per_round == 100
    assert resolve(load(None, ["data.clients=4"])).train.per_round == 1


def test_faces_have_fifteen_people_per_client():
    data = resolve(load(None, ["data.name=lfw"])).data
    assert (data.partition, data.classes_per_client) == ("classes", 15)


def test_partitions_that_deal_out_everything_take_no_size_from_the_dataset():
    for name in PARTITIONS:
        data = resolve(load(None, [f"data.partition={name}"])).data
        assert data.per_client == (12 if name in ("iid", "shards", "classes") else None)


def test_sampling_with_replacement_may_draw_more_than_there_are():
    config = load(None, ["train.sampling=with-replacement", "train.per_round=150"])
    assert resolve(config).train.per_round == 150


def test_the_xray_resolves_for_attacks_alone():
    config = load(None, ["data.name=xray"])
    assert resolve(config, trainable=False).data.partition == "copies"
    with pytest.raises(ConfigError, match="data.name"):
        resolve(config)


@pytest.mark.parametrize("name", MODELS)
def test_each_model_says_what_it_reads(name):
    """A key that a model reads is taken; one that it does not read is refused."""
    given = {"activation": "tanh", "dropout": "0.5", "hidden": "[5]", "pooling": "mean", "channels": "3"}
    for key, value in given.items():
        config = load(None, [f"model.name={name}", f"model.{key}={value}"])
        if key in MODELS[name].keys:
            resolve(config)
        else:
            with pytest.raises(ConfigError, match=f"model.{key}: .* is not read by '{name}'"):
                resolve(config)


def test_every_name_has_its_table():
    assert set(NAMES["train.sampling"]) == set(SAMPLINGS) and set(NAMES["train.batching"]) == set(BATCHINGS)
    assert isinstance(from_dict({}), Config)


def test_a_training_reads_and_resolves_its_config_once(monkeypatch, tmp_path, fedveil_cli):
    """One document, one check, one set of defence objects, from the command line to the run folder."""
    calls = Counter()

    def counted(where, name):
        real = getattr(where, name)

        def call(*arguments, **keywords):
            calls[name] += 1
            return real(*arguments, **keywords)

        monkeypatch.setattr(where, name, call)

    counted(config_module, "from_dict")
    counted(config_module, "make_all")
    counted(Config, "model_validate")
    counted(federation, "resolve")
    given = ["defense.name=fed-cdp", "train.rounds=1", "model.name=logistic", "train.local_steps=1", "data.clients=4"]
    answer = fedveil_cli("train", *(word for one in given for word in ("-s", one)), "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert calls == {"from_dict": 1, "make_all": 1, "model_validate": 1, "resolve": 1}
