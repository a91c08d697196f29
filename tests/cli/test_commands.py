"""What scripts rely on: names, JSON fields and the files of a run folder."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedveil
from fedveil.cli.demo import _studies
from fedveil.config import load
from fedveil.core.errors import Interrupted
from fedveil.federation import prepare
from fedveil.runs import RunFolder

SMALL = ("model.name=logistic", "train.rounds=6", "train.local_steps=2", "train.eval_every=2", "train.seed=3")
SMALL_OPTIONS = [part for setting in SMALL for part in ("-s", setting)]

LEDGER_FIELDS = {
    "tap",
    "unit",
    "accountant",
    "rule",
    "certified",
    "adjacency",
    "epsilon",
    "delta",
    "reason",
    "assumptions",
    "rounds",
}
NAMES = {
    "datasets": "digits cancer mnist fashion-mnist cifar10 cifar100 lfw adult xray",
    "partitions": "iid shards groups-disjoint groups-overlap classes copies dirichlet quantity groups-mixed own",
    "models": "cnn lenet-cpl lenet-dlg dpfl-net mlp logistic resnet20",
    "defenses": "none fed-sdp fed-cdp 2dp-fl nbafl dpfl lip dssgd prune dgc low-rank gradient-noise squeeze",
    "attacks": "cpl dlg idlg inverting aono",
    "inits": "patterned-2x2 patterned-4x4 random-normal random-uniform dark light red green blue optimal optimal-any file",
    "taps": "example batch client server broadcast release",
}


@pytest.fixture(scope="module")
def trained(fedveil_cli, tmp_path_factory):
    """A small training by `train --json`: its answer and its run folder."""
    folder = tmp_path_factory.mktemp("trained")
    answer = fedveil_cli("train", *SMALL_OPTIONS, "--out", "small", "--json", cwd=folder)
    assert answer.code == 0, answer.err
    return answer, folder / "small"


# --- train -------------------------------------------------------------------------------------------------------


def test_train_prints_one_json_document(trained):
    answer, _ = trained
    result = json.loads(answer.out)  # all of it: a word more would be an error
    assert set(result) >= {"accuracy", "split", "loss", "rounds", "seconds", "run", "ledger"}
    assert 0 <= result["accuracy"] <= 1 and result["split"] in ("validation", "test")
    assert result["loss"] > 0 and result["rounds"] == 6 and result["seconds"] > 0
    assert result["run"] == "small"
    assert answer.warned == []


def test_the_ledger_has_every_field_and_no_number_without_privacy(trained):
    rows = json.loads(trained[0].out)["ledger"]
    assert {row["tap"] for row in rows} == {"example", "client", "server", "broadcast", "release"}
    assert {row["unit"] for row in rows} == {"example", "image", "client"}
    for row in rows:
        assert set(row) >= LEDGER_FIELDS
        assert row["epsilon"] is None and row["certified"] is False and row["reason"]
        assert row["accountant"] in ("paper", "rdp", "pld")
        assert row["adjacency"] in ("add-remove", "zero-out", "replace")
        assert isinstance(row["assumptions"], list) and row["rounds"] == 6


def test_a_users_own_file(fedveil_cli, tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=200)
    np.savez(tmp_path / "mine.npz", x=np.eye(3, 7)[y] + 0.1 * rng.random((200, 7)), y=y)
    own = ("-s", "data.name=file", "-s", "data.file=mine.npz", "-s", "data.clients=5", "-s", "train.lr=1.0")
    answer = fedveil_cli("train", *SMALL_OPTIONS, *own, "-s", "data.split=cpl", "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    result = json.loads(answer.out)
    assert result["accuracy"] > 0.9 and result["split"] == "test"
    assert result["run"].startswith("runs/file-none-") and (tmp_path / result["run"] / "config.toml").is_file()


# --- the run folder ----------------------------------------------------------------------------------------------


def test_the_run_folder_holds_seven_files_and_nothing_else(trained):
    assert sorted(path.name for path in trained[1].iterdir()) == [
        "checkpoint.npz",
        "config.toml",
        "metrics.jsonl",
        "model.safetensors",
        "run.json",
        "secret.key",
        "transcript.jsonl",
    ]


def test_the_config_of_a_run_is_the_resolved_one(trained):
    written = load(trained[1] / "config.toml")
    resolved = prepare(load(None, list(SMALL))).config
    assert written == resolved
    assert written.train.sampling == "fixed" and written.train.batching == "shuffle"  # not 'auto'
    assert prepare(written).config == resolved  # and resolving it again changes nothing


def test_metrics_have_one_line_per_round(trained):
    rows = [json.loads(line) for line in (trained[1] / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(6))
    assert [("accuracy" in row) for row in rows] == [False, True] * 3
    result = json.loads(trained[0].out)
    assert rows[-1]["accuracy"] == result["accuracy"] and rows[-1]["loss"] == result["loss"]
    assert all(row["clients"] == 10 and row["not_finite"] == 0 for row in rows)


def test_the_checkpoint_is_plain_arrays(trained):
    with np.load(trained[1] / "checkpoint.npz", allow_pickle=False) as stored:
        arrays = dict(stored)
    assert int(arrays["#round"]) == 6
    assert arrays["params/dense/w"].shape == (64, 10) and arrays["params/dense/b"].shape == (10,)


def test_run_json_records_where_it_ran(trained):
    info = json.loads((trained[1] / "run.json").read_text())
    assert info["status"] == "done" and info["rounds_done"] == 6
    assert info["device"] and info["python"] and info["platform"] and info["backend"]
    assert info["versions"]["fedveil"] == fedveil.__version__
    assert all(info["versions"][name] for name in ("jax", "jaxlib", "numpy"))
    assert info["result"] == json.loads(trained[0].out)


def test_the_same_config_gives_the_same_run(trained, fedveil_cli, tmp_path):
    """From the config.toml of a run, in another folder: the same parameters, bit by bit."""
    answer = fedveil_cli("train", trained[1] / "config.toml", "--out", "again", "--json", cwd=tmp_path)
    assert answer.code == 0
    with np.load(trained[1] / "checkpoint.npz") as first, np.load(tmp_path / "again" / "checkpoint.npz") as second:
        assert set(first) == set(second)
        assert all(np.array_equal(first[name], second[name]) for name in first if name not in ("#seconds", "#digest"))
    assert (tmp_path / "again" / "metrics.jsonl").read_text() == (trained[1] / "metrics.jsonl").read_text()


# --- resume ------------------------------------------------------------------------------------------------------


def stop_after(rounds):
    def progress(row):
        if row["round"] + 1 == rounds:
            signal.raise_signal(signal.SIGINT)

    return progress


def test_a_bare_resume_goes_on_with_the_newest_unfinished_run(trained, fedveil_cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained[1], "runs/older")
    RunFolder(Path("runs/older")).write_info(status="stopped")
    with pytest.raises(Interrupted):
        fedveil.train(load(None, list(SMALL)), out="runs/newer", progress=stop_after(2))
    shutil.copytree(trained[1], "runs/finished")
    Path("runs/finished/config.toml").touch()
    answer = fedveil_cli("train", "--resume", "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    result, whole = json.loads(answer.out), json.loads(trained[0].out)
    assert result["run"] == "runs/newer"
    assert result["accuracy"] == whole["accuracy"] and result["rounds"] == 6
    answer = fedveil_cli("train", "--resume", "--out", "runs/older", "--json", cwd=tmp_path)
    assert json.loads(answer.out)["run"] == "runs/older"
    answer = fedveil_cli("train", "--resume", cwd=tmp_path)
    assert answer.code == 2 and "finds no unfinished run" in answer.err


def test_a_finished_run_resumed_says_the_same_again(trained, fedveil_cli, tmp_path):
    answer = fedveil_cli("train", "--resume", trained[1], "--json", cwd=tmp_path)
    again, whole = json.loads(answer.out), json.loads(trained[0].out)
    assert {key: again[key] for key in ("accuracy", "loss", "rounds", "ledger")} == {
        key: whole[key] for key in ("accuracy", "loss", "rounds", "ledger")
    }


# --- demo, list, data --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_demo_ends_with_a_report_of_four_runs(fedveil_cli, tmp_path):
    answer = fedveil_cli("demo", "-s", "train.rounds=20", "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    made = json.loads(answer.out)
    assert set(made) >= {"accuracy", "split", "loss", "rounds", "seconds", "run", "ledger", "report", "runs", "study"}
    assert made["study"].startswith("runs/demo-") and made["report"] == f"{made['study']}/report.html"
    seats = {Path(run["run"]).name: run["seats"] for run in made["runs"]}
    for tap in ("server", "client", "example"):
        assert seats["none"][tap]["verdict"] == seats["fed-sdp"][tap]["verdict"] == "leaks"
        each = seats["each-example"][tap]
        assert each["success_rate"] == 0 and each["epsilon"]["example"] > 0
    closed = seats["secure-sum"]
    assert closed["server"]["success_rate"] is None and closed["client"]["success_rate"] == 0
    assert closed["server"]["epsilon"]["example"] < 3 and closed["example"]["verdict"] == "leaks"
    page = (tmp_path / made["report"]).read_text(encoding="utf-8")
    assert (
        page.count("data:image/png") == 11 * 6 * 5
    )  # runs and seats but the server's under secure aggregation, examples; truth, three steps, result
    assert "1 of 4: training, none" in answer.err


def test_settings_of_the_demo_reach_all_its_runs_and_a_defence_takes_the_place_of_ours():
    ours = {name: load(None, given) for name, given in _studies(["train.rounds=7"]).items()}
    assert list(ours) == ["none", "fed-sdp", "each-example", "secure-sum"]
    assert {one.train.rounds for one in ours.values()} == {7}
    assert len({str((one.data, one.model)) for one in ours.values()}) == 1
    assert len({str(one.train) for name, one in ours.items() if name != "secure-sum"}) == 1
    own = {name: load(None, given) for name, given in _studies(["defense.name=lip", "model.name=logistic"]).items()}
    assert list(own) == ["none", "lip"] and {one.model.name for one in own.values()} == {"logistic"}
    assert list(_studies(["defense.name=none", "data.name=cancer"])) == ["none"]


def test_demo_refuses_what_a_training_refuses_before_it_begins(fedveil_cli, tmp_path):
    answer = fedveil_cli("demo", "-s", "train.batch=99", cwd=tmp_path)
    assert answer.code == 2 and "train.batch" in answer.err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", NAMES)
def test_list_knows_the_names_of_the_contract(kind, fedveil_cli, tmp_path):
    answer = fedveil_cli("list", kind, "--json", cwd=tmp_path)
    entries = json.loads(answer.out)
    assert set(NAMES[kind].split()) <= {entry["name"] for entry in entries}
    for entry in entries:
        assert set(entry) >= {"name", "summary", "keys"}
        assert entry["summary"] and isinstance(entry["keys"], list)
    assert list(tmp_path.iterdir()) == []


def test_list_alone_names_the_kinds(fedveil_cli, tmp_path):
    assert {entry["name"] for entry in json.loads(fedveil_cli("list", "--json", cwd=tmp_path).out)} == set(NAMES)
    table = fedveil_cli("list", "models", cwd=tmp_path).out
    assert all(name in table for name in NAMES["models"].split())


def test_data_check_says_how_each_file_stands(fedveil_cli, no_data, tmp_path):
    answer = fedveil_cli("data", "check", "digits", "mnist", "--json", cwd=tmp_path)
    assert answer.code == 0
    rows = json.loads(answer.out)
    assert [(row["dataset"], row["status"]) for row in rows] == [("digits", "embedded")] + [("mnist", "missing")] * 4
    assert all(set(row) >= {"dataset", "file", "path", "status", "detail"} for row in rows)
    assert "fedveil data get mnist" in rows[1]["detail"]


def test_data_check_fails_on_a_damaged_file(fedveil_cli, no_data, tmp_path):
    path = tmp_path / "mnist" / "t10k-labels-idx1-ubyte"
    path.parent.mkdir()
    path.write_bytes(b"\0\0\x08\x01")
    answer = fedveil_cli("data", "check", "mnist", "--data-dir", tmp_path, "--json", cwd=tmp_path)
    assert answer.code == 1
    assert [row["status"] for row in json.loads(answer.out)].count("damaged") == 1
    assert "delete it and run 'fedveil data get mnist'" in answer.err and len(answer.err.splitlines()) == 1


def test_data_list_and_get_of_what_is_embedded(fedveil_cli, no_data, tmp_path):
    status = {row["name"]: row["status"] for row in json.loads(fedveil_cli("data", "list", "--json", cwd=tmp_path).out)}
    assert status["digits"] == "embedded" and status["mnist"] == "fetch" and status["lfw"] == "fetch"
    answer = fedveil_cli("data", "get", "digits", "--json", cwd=tmp_path)
    assert json.loads(answer.out) == [{"name": "digits", "files": []}]
    assert "nothing to fetch" in answer.err


# --- help --------------------------------------------------------------------------------------------------------


def test_help_names_every_command(fedveil_cli, tmp_path):
    answer = fedveil_cli("--help", cwd=tmp_path)
    assert answer.code == 0 and answer.err == ""
    assert all(f"\n  {name} " in answer.out for name in ("train", "demo", "list", "data"))


@pytest.mark.parametrize("arguments", [[], ["data"]], ids=["fedveil", "fedveil data"])
def test_no_command_shows_the_help(arguments, fedveil_cli, tmp_path):
    answer = fedveil_cli(*arguments, cwd=tmp_path)
    assert answer.code == 2 and answer.out == ""
    assert answer.err.strip() == fedveil_cli(*arguments, "--help", cwd=tmp_path).out.strip()


def test_version(fedveil_cli, tmp_path):
    answer = fedveil_cli("--version", cwd=tmp_path)
    assert (answer.code, answer.out, answer.err) == (0, f"fedveil {fedveil.__version__}\n", "")


def test_help_and_listings_do_not_wait_for_jax(tmp_path):
    """One process for all of them: the heavy packages would still be there at the end."""
    script = (
        "import sys, fedveil\n"
        "from fedveil.cli.main import main\n"
        "for line in ('--help', 'train --help', 'list datasets', 'list models --json', 'trian', 'data list'):\n"
        "    main(line.split())\n"
        "heavy = {'jax', 'sklearn', 'scipy', 'dp_accounting', 'optax'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_former_key_gets_one_line_on_stderr(tmp_path):
    given = ["ledger", "-s", "attack.name=lira", "-s", "attack.seat=passive-global", "-s", "train.rounds=1", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "fedveil", *given], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0 and json.loads(done.stdout)
    assert done.stderr.splitlines() == ["fedveil: attack.seat is now called attack.adversary: please rename it"]


def test_defences_are_listed_by_what_the_ledger_certifies_for_them(fedveil_cli, tmp_path):
    entries = json.loads(fedveil_cli("list", "defenses", "--json", cwd=tmp_path).out)
    for entry in entries:
        rows = fedveil.account({"preset": "fedveil", "defense": {"name": entry["name"]}})
        units = {row.unit for row in rows if row.certified and row.epsilon is not None}
        wanted = "clients" if "client" in units else "records" if "example" in units else "nothing"
        assert entry["protects"].startswith(wanted), entry["name"]
    assert {entry["protects"].split(",")[0] for entry in entries} >= {"records", "clients"}
    shown = fedveil_cli("list", "defenses", cwd=tmp_path).out
    assert "protects records" in shown and "dp-sgd: fed-cdp, batch, flat" in shown
