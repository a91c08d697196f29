"""Wrong usage: exit status 2, one line that names the key, what it got and what it takes; and nothing is written."""

from __future__ import annotations

import gzip
import io
import zipfile

import numpy as np
import pytest

EXAMPLES = np.random.default_rng(0).random((40, 5), np.float32)
LABELS = np.arange(40) % 3


def with_value(array, value):
    """A copy with this value somewhere in it."""
    array = array.astype(np.float64)
    array.flat[7] = value
    return array


# Files of a user's own data: what is wrong with each is its name.
OWN = {
    "nan": {"x": with_value(EXAMPLES, np.nan), "y": LABELS},
    "nans": {"x": np.where(np.arange(40)[:, np.newaxis] % 39, EXAMPLES, np.nan), "y": LABELS},
    "infinite": {"x": with_value(EXAMPLES, np.inf), "y": LABELS},
    "too-large": {"x": with_value(EXAMPLES, 1e39), "y": LABELS},
    "short": {"x": EXAMPLES, "y": LABELS[:39]},
    "column": {"x": EXAMPLES, "y": LABELS[:, np.newaxis]},
    "negative": {"x": EXAMPLES, "y": LABELS - 1},
    "fractional": {"x": EXAMPLES, "y": LABELS + 0.5},
    "nan-label": {"x": EXAMPLES, "y": with_value(LABELS, np.nan)},
    "infinite-label": {"x": EXAMPLES, "y": with_value(LABELS, np.inf)},
    "text-label": {"x": EXAMPLES, "y": LABELS.astype(str)},
    "huge-label": {"x": EXAMPLES, "y": LABELS + 2**40},
    "empty": {"x": EXAMPLES[:0], "y": LABELS[:0]},
    "featureless": {"x": EXAMPLES[:, :0], "y": LABELS},
    "flat": {"x": EXAMPLES[:, 0], "y": LABELS},
    "text": {"x": EXAMPLES.astype(str), "y": LABELS},
    "objects": {"x": EXAMPLES.astype(object), "y": LABELS},
    "unlabelled": {"x": EXAMPLES},
    "single": {"x": EXAMPLES[:1], "y": LABELS[:1]},
    "half-a-test": {"x": EXAMPLES, "y": LABELS, "x_test": EXAMPLES},
    "other-test": {"x": EXAMPLES, "y": LABELS, "x_test": EXAMPLES[:, :2], "y_test": LABELS},
    "nan-test": {"x": EXAMPLES, "y": LABELS, "x_test": with_value(EXAMPLES, np.nan), "y_test": LABELS},
}

CONFIGS = {
    "broken.toml": b"[data\n",
    "twice.toml": b'[data]\nname = "digits"\nname = "cancer"\n',
    "binary.toml": b"\xff\xfe\x00",
    "section.toml": b"data = 3\n",
    "sections.toml": b'[[data]]\nname = "digits"\n',
    "defense-number.toml": b"defense = 3\n",
    "defense-list.toml": b"defense = [1, 2]\n",
    "defense-empty.toml": b"defense = []\n",
    "second-defense.toml": b'[[defense]]\nname = "none"\n[[defense]]\nname = "nine"\n',
    "lines.toml": b'[data]\nname = "file"\nfile = "two\\nlines"\n',
    "nul.toml": b'[data]\nname = "file"\nfile = "a\\u0000b"\n',
    "nul-dir.toml": b'[data]\nname = "mnist"\ndir = "a\\u0000b"\n',
}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """All the files that the table below speaks of as {given}."""
    folder = tmp_path_factory.mktemp("given")
    for name, content in CONFIGS.items():
        (folder / name).write_bytes(content)
    for name, arrays in OWN.items():
        np.savez(folder / f"{name}.npz", **arrays)
    whole = io.BytesIO()
    np.savez_compressed(whole, x=np.zeros((400, 50)), y=np.zeros(400, int))
    content = whole.getvalue()
    (folder / "no-archive.npz").write_bytes(b"a few words")
    (folder / "zero-bytes.npz").write_bytes(b"")
    (folder / "cut.npz").write_bytes(content[: len(content) // 2])
    (folder / "scratched.npz").write_bytes(content[:60] + b"\xaa" * 60 + content[120:])
    local, central = content.index(b"PK\3\4"), content.index(b"PK\1\2")
    for name, offset, value in (("encrypted", 6, 1), ("packed-otherwise", 8, 97)):  # fields of the zip's headers
        changed = bytearray(content)
        changed[local + offset] = changed[central + offset + 2] = value
        (folder / f"{name}.npz").write_bytes(changed)
    with zipfile.ZipFile(folder / "no-array.npz", "w") as archive:
        archive.writestr("x", "a few words")
        archive.writestr("y", "a few words")
    with (folder / "one-array.npz").open("wb") as file:
        np.save(file, EXAMPLES)
    images = "mnist/train-images-idx3-ubyte"
    for place, suffix, damaged in (
        ("broken-gz", ".gz", b"\x1f\x8b and then nothing that could be unpacked"),
        ("cut-gz", ".gz", gzip.compress(b"\0\0\x08\x03" + bytes(5000))[:-12]),
        ("cut-idx", "", b"\0\0\x08\x03\0\0\xea\x60"),
    ):
        path = folder / place / f"{images}{suffix}"
        path.parent.mkdir(parents=True)
        path.write_bytes(damaged)
    (folder / "run").mkdir()
    (folder / "run" / "config.toml").write_text('[data]\nname = "digits"\n')
    (folder / "no-run").mkdir()
    (folder / "a-file").write_text("not a folder")
    return folder


def settings(*given):
    return ["train", *(part for setting in given for part in ("-s", setting))]


def own(name):
    return settings("data.name=file", f"data.file={{given}}/{name}.npz", "data.clients=4")


def mnist(place):
    return settings("data.name=mnist", f"data.dir={{given}}/{place}")


def case(arguments, key, got, takes):
    """A row: the arguments; the key that the line names, the value it shows, and words of the remedy."""
    return pytest.param(arguments, key, got, takes, id=" ".join(arguments))


NAMES_AND_TYPES = [
    case(settings("trian.rounds=3"), "trian", "{'rounds': 3}", "did you mean 'train'?"),
    case(settings("quux.rounds=3"), "quux", "{'rounds': 3}", "takes one of: attack, data, defense, model"),
    case(settings("train.roundz=3"), "train.roundz", "3", "did you mean 'rounds'?"),
    case(settings("train.local_step=3"), "train.local_step", "3", "did you mean 'local_steps'?"),
    case(settings("data.nam=digits"), "data.nam", "'digits'", "did you mean 'name'?"),
    case(settings("train.rounds=many"), "train.rounds", "'many'", "takes a whole number"),
    case(settings("train.rounds="), "train.rounds", "''", "takes a whole number"),
    case(settings("train.rounds=true"), "train.rounds", "True", "takes a whole number"),
    case(settings("train.rounds=2.5"), "train.rounds", "2.5", "takes a whole number"),
    case(settings("train.rounds.x=3"), "train.rounds", "{'x': 3}", "takes a whole number"),
    case(settings("data.clients='100'"), "data.clients", "'100'", "takes a whole number"),
    case(settings("train.lr=fast"), "train.lr", "'fast'", "takes a number"),
    case(settings("train.lr=1979-05-27"), "train.lr", "1979-05-27", "takes a number"),
    case(settings("train.secure_aggregation=1"), "train.secure_aggregation", "1", "takes true or false"),
    case(settings("data.dir=5"), "data.dir", "5", "in quotes"),
    case(settings("model.hidden=64"), "model.hidden", "64", "takes a list"),
    case(settings("model.hidden=[]"), "model.hidden", "[]", "at least one"),
    case(settings("model.hidden=['wide']"), "model.hidden", "'wide'", "takes a whole number"),
    case(settings("data.name=null"), "data.name", "None", "takes"),
    case(settings("data.name=[1]"), "data.name", "[1]", "takes one of: adult, cancer"),
    case(settings("data.name=digit"), "data.name", "'digit'", "did you mean 'digits'?"),
    case(settings("model.name=cnnn"), "model.name", "'cnnn'", "did you mean 'cnn'?"),
    case(settings("model.activation=rely"), "model.activation", "'rely'", "did you mean 'relu'?"),
    case(settings("data.partition=shard"), "data.partition", "'shard'", "did you mean 'shards'?"),
    case(settings("data.split=fedcdp"), "data.split", "'fedcdp'", "did you mean 'fed-cdp'?"),
    case(settings("train.optimizer=adma"), "train.optimizer", "'adma'", "did you mean 'adam'?"),
    case(settings("train.sampling=poison"), "train.sampling", "'poison'", "did you mean 'poisson'?"),
    case(settings("speed.engine=vectorized"), "speed.engine", "'vectorized'", "did you mean 'vectorised'?"),
    case(settings("defense.name=nonne"), "defense.name", "'nonne'", "did you mean 'none'?"),
    case(settings("defense.name=none", "defense.clipp=4"), "defense.clipp", "4", "unknown key"),
    case(settings("defense.clip=4"), "defense.name", "None", "takes one of"),
    case(
        settings("defense.name=[1]"),
        "defense.name",
        "[1]",
        "takes one of",
    ),
    case(settings("train.budget=3"), "train.budget", "3", "takes a table"),
    case(settings("train.budget={epsilon=1}"), "train.budget.delta", "{'epsilon': 1}", "required"),
    case(settings("train.budget={epsilon=1,delta=1e-5,tap='sever'}"), "train.budget.tap", "'sever'", "'server'"),
]

NUMBERS = [
    case(settings("train.rounds=-1"), "train.rounds", "-1", "takes 1 or more"),
    case(settings("train.rounds=0"), "train.rounds", "0", "takes 1 or more"),
    case(settings("train.per_round=0"), "train.per_round", "0", "takes 1 or more"),
    case(settings("train.batch=0"), "train.batch", "0", "takes 1 or more"),
    case(settings("data.clients=0"), "data.clients", "0", "takes 1 or more"),
    case(settings("train.seed=-1"), "train.seed", "-1", "takes 0 or more"),
    case(settings("train.lr=0"), "train.lr", "0", "takes 1e-12 or more"),
    case(settings("train.lr=-0.1"), "train.lr", "-0.1", "takes 1e-12 or more"),
    case(settings("train.lr=1e39"), "train.lr", "1e+39", "takes 1000000.0 or less"),
    case(settings("train.lr_end=1e39"), "train.lr_end", "1e+39", "takes 1000000.0 or less"),
    case(settings("train.server_lr=1e39"), "train.server_lr", "1e+39", "takes 1000000.0 or less"),
    case(settings("train.server_lr=1e-46"), "train.server_lr", "1e-46", "takes 1e-12 or more"),
    case(settings("train.lr=nan"), "train.lr", "nan", "takes"),
    case(settings("train.lr=-inf"), "train.lr", "-inf", "takes"),
    case(settings("train.lr=inf"), "train.lr", "inf", "takes a finite number"),
    case(settings("train.lr_end=inf"), "train.lr_end", "inf", "takes a finite number"),
    case(settings("train.server_lr=inf"), "train.server_lr", "inf", "takes a finite number"),
    case(settings("train.server_lr=nan"), "train.server_lr", "nan", "takes"),
    case(settings("train.dropout=nan"), "train.dropout", "nan", "takes"),
    case(settings("train.dropout=1"), "train.dropout", "1", "takes less than 1"),
    case(settings("train.server_momentum=1"), "train.server_momentum", "1", "takes less than 1"),
    case(settings("model.dropout=-0.5"), "model.dropout", "-0.5", "takes 0"),
    case(settings("model.name=mlp", "model.hidden=[64,0]"), "model.hidden", "[64, 0]", "1 or more"),
    case(settings("model.name=lenet-cpl", "model.channels=0"), "model.channels", "0", "takes 1 or more"),
    case(settings("data.partition=dirichlet", "data.alpha=inf"), "data.alpha", "inf", "takes a finite number"),
    case(settings("data.partition=dirichlet", "data.alpha=nan"), "data.alpha", "nan", "takes a finite number"),
    case(settings("data.name=lfw", "data.size=48"), "data.size", "48", "takes 32, 64 or 128"),
    case(
        settings("defense.name=dpfl", "train.sampling=poisson"),
        "train.sampling",
        "'poisson'",
        "dpfl selects its clients itself",
    ),
    case(
        settings("defense.name=nbafl", "train.aggregation=fedsgd"),
        "train.aggregation",
        "'fedsgd'",
        "clips and averages models",
    ),
    case(settings("speed.chunk=0"), "speed.chunk", "0", "takes 'auto' or a whole number of clients"),
    case(settings("speed.chunk=-3"), "speed.chunk", "-3", "takes 'auto' or a whole number of clients"),
    case(settings("speed.chunk=big"), "speed.chunk", "'big'", "takes 'auto' or a whole number of clients"),
    case(settings("speed.chunk=1.5"), "speed.chunk", "1.5", "takes 'auto' or a whole number of clients"),
    case(settings("speed.chunk=true"), "speed.chunk", "True", "takes 'auto' or a whole number of clients"),
]

KEYS_THAT_DEPEND_ON_OTHERS = [
    case(settings("train.per_round=101"), "train.per_round", "101", "at most data.clients = 100"),
    case(settings("train.sampling=poisson", "train.per_round=200"), "train.per_round", "200", "raise data.clients"),
    case(settings("train.batch=13"), "train.batch", "13", "lower train.batch or raise data.per_client"),
    case(settings("train.local_steps=5", "train.local_epochs=2"), "train.local_epochs", "2", "keep one of the two"),
    case(settings("model.name=cnn", "model.hidden=[9]"), "model.hidden", "[9]", "is not read by 'cnn'"),
    case(settings("model.name=logistic", "model.activation=tanh"), "model.activation", "'tanh'", "leave it out"),
    case(settings("data.alpha=2"), "data.alpha", "2.0", "is not read by partition 'shards'"),
    case(settings("data.partition=dirichlet", "data.per_client=3"), "data.per_client", "3", "which reads alpha"),
    case(settings("data.name=mnist", "data.size=64"), "data.size", "64", "is not read by dataset 'mnist'"),
    case(settings("data.name=cancer", "model.name=cnn"), "model.name", "'cnn'", "use 'mlp' or 'logistic'"),
    case(settings("data.name=xray"), "data.name", "'xray'", "use another dataset"),
    case(settings("data.classes_per_client=11"), "data.classes_per_client", "11", "takes 1 to 10"),
    case(settings("data.per_client=1"), "data.per_client", "1", "takes at least 2"),
    case(settings("data.per_client=1348"), "data.per_client", "1348", "takes 1 to 1347"),
    case(settings("data.partition=dirichlet", "data.clients=1348"), "data.clients", "1348", "takes at most 1347"),
    case(settings("data.name=cancer", "data.partition=groups-overlap"), "data.partition", "'groups-overlap'", "10"),
    case(settings("train.budget={epsilon=1,delta=1e-5}"), "train.budget", "'epsilon': 1.0", "needs a defence"),
    case(settings("data.file=own.npz"), "data.file", "'own.npz'", 'data.name = "file"'),
    case(settings("data.name=file"), "data.file", "None", 'data.name = "file"'),
]

FILES = [
    case(["train", "{given}/no-such.toml"], "FILE", "no-such.toml", "no such file; give the path"),
    case(["train", "{given}"], "FILE", "given", "is a folder; give the path"),
    case(["train", "{given}/broken.toml"], "FILE", "broken.toml", "is not TOML: Expected ']'"),
    case(["train", "{given}/twice.toml"], "FILE", "twice.toml", "is not TOML"),
    case(["train", "{given}/binary.toml"], "FILE", "binary.toml", "give a TOML config in UTF-8"),
    case(["train", "{given}/section.toml"], "data", "3", "write [data] with keys below it"),
    case(["train", "{given}/sections.toml"], "data", "[{'name': 'digits'}]", "write [data] with keys below it"),
    case(["train", "{given}/defense-number.toml"], "defense", "3", "takes a list"),
    case(
        ["train", "{given}/defense-list.toml"],
        "defense.0",
        "1",
        "is a table of keys",
    ),
    case(
        ["train", "{given}/defense-empty.toml"],
        "defense",
        "[]",
        "is an empty list",
    ),
    case(["train", "{given}/second-defense.toml"], "defense.1.name", "'nine'", "did you mean 'none'?"),
    case(["train", ""], "FILE", "''", "takes the path of a TOML config"),
    case(["train", "{given}/lines.toml"], "data.file", "two\\nlines", "give the path of an .npz file"),
    case(["train", "{given}/nul.toml"], "data.file", "a\\x00b", "give the path of an .npz file"),
    case(["train", "{given}/nul-dir.toml"], "mnist", "train-images", "run 'fedveil data get mnist'"),
    case(settings("data.dir=a\udcffb"), "data.dir", "a\\udcffb", "takes a path in UTF-8"),
    case(["train", "two\nlines.toml"], "FILE", "two\\nlines.toml", "no such file"),
]

DATA = [
    case(settings("data.name=mnist"), "mnist", "train-images-idx3-ubyte", "run 'fedveil data get mnist'"),
    case(settings("data.name=lfw"), "lfw", "lfw_32.npz", "put lfw_32.npz"),
    case(mnist("broken-gz"), "mnist", "train-images-idx3-ubyte.gz", "is damaged (cannot be read"),
    case(mnist("cut-gz"), "mnist", "train-images-idx3-ubyte.gz", "delete it and run 'fedveil data get mnist'"),
    case(mnist("cut-idx"), "mnist", "cut short: 8 bytes instead of 47040016", "run 'fedveil data get mnist'"),
    case(own("no-such"), "data.file", "no-such.npz", "give the path of an .npz file"),
    case(own("no-archive"), "data.file", "no-archive.npz is no .npz of plain", "save it with numpy.savez"),
    case(own("zero-bytes"), "data.file", "zero-bytes.npz", "save it with numpy.savez"),
    case(own("cut"), "data.file", "cut.npz", "save it with numpy.savez"),
    case(own("scratched"), "data.file", "scratched.npz", "save it with numpy.savez"),
    case(own("encrypted"), "data.file", "encrypted", "save it with numpy.savez"),
    case(own("packed-otherwise"), "data.file", "compression", "save it with numpy.savez"),
    case(own("no-array"), "data.file", "x is no array", "save it with numpy.savez"),
    case(own("one-array"), "data.file", "holds one array", "save it as .npz with x and y"),
    case(own("nan"), "data.file", "nan.npz: 1 example holds NaN or infinity", "clean or drop it"),
    case(own("nans"), "data.file", "nans.npz: 2 examples hold NaN or infinity (first: 0)", "clean or drop them"),
    case(own("infinite"), "data.file", "infinite.npz: 1 example holds NaN or infinity", "clean or drop it"),
    case(own("too-large"), "data.file", "1 example holds numbers too large for float32", "scale, clean or drop it"),
    case(own("nan-test"), "data.file", "nan-test.npz (test part): 1 example holds NaN", "clean or drop it"),
    case(own("short"), "data.file", "(39,)", "one label for each of the 40 examples"),
    case(own("column"), "data.file", "(40, 1)", "one label for each of the 40 examples"),
    case(own("negative"), "data.file", "-1", "labels count from 0"),
    case(own("fractional"), "data.file", "float64 with fractions", "give whole numbers 0, 1, 2"),
    case(own("nan-label"), "data.file", "labels hold NaN or infinity", "give whole numbers 0, 1, 2"),
    case(own("infinite-label"), "data.file", "labels hold NaN or infinity", "give whole numbers 0, 1, 2"),
    case(own("text-label"), "data.file", "<U21", "give whole numbers"),
    case(own("huge-label"), "data.file", "1099511627778", "give whole numbers below"),
    case(own("empty"), "data.file", "(0, 5)", "give at least one example"),
    case(own("featureless"), "data.file", "(40, 0)", "at least one feature"),
    case(own("flat"), "data.file", "(40,)", "shape [n, ...features]"),
    case(own("text"), "data.file", "<U32", "give numbers"),
    case(own("objects"), "data.file", "(it holds Python objects)", "save it with numpy.savez"),
    case(own("unlabelled"), "data.file", "holds the arrays x;", "it takes x, y"),
    case(own("single"), "data.file", "one example", "give x_test and y_test too"),
    case(own("half-a-test"), "data.file", "only one is given", "give both or neither"),
    case(own("other-test"), "data.file", "float32 [2]", "give both alike"),
]

COMMANDS = [
    case(settings("rounds"), "-s", "'rounds'", "takes section.key=value"),
    case(settings("rounds=3"), "-s", "'rounds=3'", "takes section.key=value"),
    case(settings("=3"), "-s", "'=3'", "takes section.key=value"),
    case(settings("train=3"), "-s", "'train=3'", "takes section.key=value"),
    case(settings("train.=3"), "-s", "'train.=3'", "takes section.key=value"),
    case(settings("defense=none"), "-s", "'defense=none'", "takes section.key=value"),
    case(settings("defense.name.x=3"), "-s", "defense.name.x", "takes defense.key=value"),
    case(
        settings("defense.7.name=none"),
        "-s",
        "defense.7.name",
        "number the next one 0",
    ),
    case(["train", "-s"], "-s", "-s", "requires an argument"),
    case(["train", "--out", "{given}/run"], "--out", "run", "use --resume to go on with it"),
    case(["train", "--out", "{given}/a-file"], "--out", "a-file", "give a folder you can write"),
    case(["train", "--out", "{given}/a-file/below"], "--out", "a-file/below", "give a folder you can write"),
    case(["train", "--resume", "{given}/no-run"], "--resume", "no-run", "give the folder of a run"),
    case(["train", "--resume", "{given}/no-such"], "--resume", "no-such", "give the folder of a run"),
    case(["train", "--resume", "no-such.toml"], "--resume", "'no-such.toml'", "give the folder of a run"),
    case(["train", "--out", "a\udcffb"], "--out", "a\\udcffb", "give a folder you can write"),
    case(["train", "--out="], "--out", "''", "takes the folder of a run"),
    case(["demo", "--out", ""], "--out", "''", "takes the folder of a run"),
    case(["train", "--resume", "--out="], "--out", "''", "takes the folder of a run"),
    case(["train", "--resume", "-s", "train.lr=1"], "--resume", "None", "leave out FILE and -s"),
    case(["train", "--resume"], "--resume", "None", "finds no unfinished run below runs/"),
    case(["train", "--resume", "{given}/run", "-s", "train.lr=1"], "--resume", "run", "leave out FILE and -s"),
    case(["train", "--resume={given}/run", "{given}/a.toml"], "--resume", "run", "leave out FILE and -s"),
    case(["train", "--jsn"], "--jsn", "--jsn", "--json"),
    case(["train", "a.toml", "b.toml"], "b.toml", "b.toml", "unexpected"),
    case(["trian"], "command", "'trian'", "did you mean 'train'?"),
    case(["data", "gte"], "command", "'gte'", "did you mean 'get'?"),
    case(["list", "modles"], "list", "'modles'", "did you mean 'models'?"),
    case(["data", "get", "mnits"], "data.name", "'mnits'", "did you mean 'mnist'?"),
    case(["data", "check", "mnits"], "data.name", "'mnits'", "did you mean 'mnist'?"),
]


def snapshot(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.fixture
def never_train(monkeypatch):
    """Bad usage has to be found before training: what gets this far was accepted."""

    def train(*_):
        raise AssertionError("accepted: training would start")

    monkeypatch.setattr("fedveil.training.train", train)


@pytest.mark.parametrize(
    ("arguments", "key", "got", "takes"),
    NAMES_AND_TYPES + NUMBERS + KEYS_THAT_DEPEND_ON_OTHERS + FILES + DATA + COMMANDS,
)
def test_wrong_usage_is_one_line(
    arguments, key, got, takes, given, fedveil_cli, no_data, never_train, tmp_path, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")
    before = snapshot(given)
    answer = fedveil_cli(*(argument.replace("{given}", str(given)) for argument in arguments), cwd=tmp_path)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.endswith("\n") and len(answer.err.splitlines()) == 1 and not answer.warned
    assert answer.err.startswith("fedveil: ")
    said = answer.err.removeprefix("fedveil: ")
    assert key in said.split(";")[0] and got in said and takes in said
    assert "pickle" not in said
    assert list(tmp_path.iterdir()) == [] and snapshot(given) == before


def test_the_data_folder_may_come_from_the_environment(given, fedveil_cli, no_data, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDVEIL_DATA", f"{tmp_path}:{given / 'cut-gz'}")
    answer = fedveil_cli("train", "-s", "data.name=mnist", cwd=tmp_path)
    assert answer.code == 2 and "is damaged" in answer.err and str(given / "cut-gz") in answer.err


def test_a_dataset_that_cannot_be_fetched_says_why(fedveil_cli, no_data, tmp_path):
    """LFW has no source: the line says which file is wanted and where to put it."""
    answer = fedveil_cli("data", "get", "lfw", cwd=tmp_path)
    assert answer.code == 2 and answer.out == ""
    assert "lfw_32.npz" in answer.err.splitlines()[-1]
