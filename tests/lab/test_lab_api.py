"""The lab over HTTP: the real command, its pages and its API. Tests that attack or train are marked slow."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedveil.config import from_dict, load, resolve, to_toml

Server = Any


@pytest.fixture(scope="module")
def lab(lab_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    for name, noise in (("one", 1.0), ("two", 2.0)):
        path = folder / "runs" / name
        path.mkdir(parents=True)
        config = resolve(from_dict({"defense": {"name": "fed-cdp", "noise": noise}, "train": {"rounds": 2}}))
        (path / "config.toml").write_text(to_toml(config))
        result = {"accuracy": 0.25 * noise, "split": "validation", "loss": 2.0, "seconds": 1.0, "ledger": []}
        (path / "run.json").write_text(json.dumps({"status": "done", "rounds_done": 2, "result": result}))
        rows = [{"round": n, "train_loss": 2.0, "accuracy": 0.1, "loss": 2.0} for n in range(2)]
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with lab_server(folder, "-s", "defense.name=fed-sdp", "-s", "train.rounds=7") as served:
        yield served


def test_pages(lab: Server) -> None:
    status, headers, _ = lab.raw("/")
    assert (status, headers["location"]) == (307, "/leak")
    for page in ("leak", "tradeoff", "runs"):
        status, headers, body = lab.raw(f"/{page}")
        assert status == 200 and headers["content-type"].startswith("text/html")
        assert "script-src 'self'" in headers["content-security-policy"]
        text = body.decode()
        for path in re.findall(r'(?:src|href)="([^"#]+)"', text):
            assert path.startswith("/"), path  # nothing from elsewhere
            assert lab.raw(path)[0] == 200, path
        assert not re.search(r"<script(?![^>]*src=)|style=|onclick=", text)  # what the policy would block
    assert lab.ask("/nowhere")[0] == 404
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py"):
        assert lab.raw(path)[0] == 404


def test_strangers_are_refused(lab: Server) -> None:
    assert lab.raw("/leak", headers={"Host": "evil.example"})[0] == 421
    sent = {"content-type": "application/json", "origin": "http://evil.example"}
    assert lab.raw("/api/train", b"{}", sent)[0] == 403
    assert lab.raw("/api/train", b"{}", {"content-type": "text/plain"})[0] == 422  # what another site's form can send
    assert lab.raw("/api/uploads", b"x", {"content-type": "multipart/form-data"})[0] == 422
    assert lab.raw("/api/train", method="OPTIONS")[0] == 405


def test_choices_open_with_the_command_s_settings(lab: Server) -> None:
    status, told = lab.ask("/api/choices")
    assert status == 200 and {"datasets", "models", "defenses", "attacks", "taps"} <= told.keys()
    assert told["start"]["trade"]["defense"] == {"name": "fed-sdp"} and told["start"]["trade"]["rounds"] == 7
    assert told["start"]["leak"]["federation"]["rounds"] == 7
    assert next(d for d in told["datasets"] if d["name"] == "digits")["here"]


def test_account_is_the_ledger_s(lab: Server) -> None:
    trade = {"defense": {"name": "fed-cdp", "noise": 3.0}, "rounds": 5, "clients": 50, "per_round": 5}
    status, told = lab.ask("/api/account", {"trade": trade, "page": "test"})
    assert status == 200
    from fedveil.accounting import ledger, transcript
    from fedveil.core import taps
    from fedveil.federation import plan
    from fedveil.lab.requests import TradeRequest

    planned = plan(from_dict(TradeRequest(**trade).document()))
    rows = ledger.rows(transcript.planned(planned.defenses, planned.setting, 5), accountants=("pld",))
    for entry in told["seats"]:
        same = [r.epsilon for r in rows if (r.tap, r.unit) == (entry["tap"], entry["unit"])]
        assert entry["epsilon"] in same
        if entry["epsilon"] is not None:
            assert entry["epsilon"] == min(
                r.epsilon
                for r in rows
                if (r.tap, r.unit, r.adjacency) == (entry["tap"], entry["unit"], entry["adjacency"]) and r.epsilon
            )
    assert {entry["tap"] for entry in told["seats"]} == set(taps.ACCOUNTED_TAPS) and told["batching"] == "poisson"
    assert lab.ask("/api/account", {"trade": trade})[1] == told  # remembered


def test_wrong_questions_get_one_line(lab: Server) -> None:
    cases = [
        ("/api/account", {"trade": {"rounds": 0}}, "rounds: got 0; takes 1 or more"),
        ("/api/account", {"trade": {"defense": {"name": "fed-cpd"}}}, "did you mean 'fed-cdp'"),
        ("/api/account", {"trade": {"batch": 100}}, "lower train.batch"),
        ("/api/account", {}, "takes a JSON object"),
        ("/api/leak", {"leak": {"picture": {"index": 99_999}}}, "digits has 1347 training pictures"),
        ("/api/leak/script", {"leak": {"picture": {"upload": "0" * 16}}}, "is no longer stored"),
        ("/api/jobs/nope/cancel", {}, "is not known"),
    ]
    for path, body, says in cases:
        status, told = lab.ask(path, body)
        assert status == 422 and says in told["error"] and "\n" not in told["error"], (path, body, told)
    assert lab.raw("/api/account", b"{", {"content-type": "application/json"})[0] == 422
    assert lab.raw("/api/account", b"[" * 60_000, {"content-type": "application/json"})[0] == 422
    assert lab.raw("/api/account", b" " * 70_000, {"content-type": "application/json"})[0] == 422
    assert lab.ask("/api/gallery?dataset=nope")[0] == 422
    assert lab.ask("/api/gallery?first=-1")[0] == 422


def test_uploads_and_scripts(lab: Server, tmp_path: Path) -> None:
    out = io.BytesIO()
    Image.linear_gradient("L").save(out, "PNG")
    kind = {"content-type": "application/octet-stream"}
    status, _, body = lab.raw("/api/uploads", out.getvalue(), kind)
    assert status == 200
    upload = json.loads(body)["upload"]
    status, _, body = lab.raw("/api/uploads", b"GIF89a nothing", kind)
    assert status == 422 and json.loads(body)["error"] == "upload: got 'a GIF'; takes a PNG, JPEG or WebP picture"
    assert lab.raw("/api/uploads", b"x" * 6_000_000, kind)[0] == 413
    leak = {"picture": {"upload": upload, "label": 3}, "batch": 2}
    status, told = lab.ask("/api/leak/script", {"leak": leak})
    assert status == 200
    for name, command in (("open", "attack"), ("defended", "attack"), ("account", "ledger")):
        file = tmp_path / f"{name}.toml"
        file.write_text(told[name]["toml"])
        parts = shlex.split(told[name]["cli"])
        assert parts[1] == command and load(file) == load(None, parts[3::2])
    with np.load(load(tmp_path / "open.toml").data.file) as stored:
        assert stored["x"].shape == (2, 8, 8, 1) and stored["y"][0] == 3 and stored["x"].dtype == np.uint8
        assert stored["y_test"].max() == 9
        assert stored["x"][0, 0].mean() < stored["x"][0, -1].mean()  # the gradient that was uploaded
    inside = {p.relative_to(lab.folder).parts[0] for p in lab.folder.rglob("*") if p.is_file()}
    assert inside <= {"lab", "runs", "stderr.log"}


def test_gallery(lab: Server) -> None:
    status, told = lab.ask("/api/gallery?dataset=digits&first=24")
    assert status == 200 and told["total"] == 1347
    assert [p["index"] for p in told["pictures"]] == list(range(24, 48))
    assert all(p["png"].startswith("data:image/png") for p in told["pictures"])


def test_runs(lab: Server) -> None:
    status, told = lab.ask("/api/runs")
    assert status == 200 and {run["name"] for run in told["runs"]} == {"one", "two"}
    status, run = lab.ask("/api/runs/one?first=1")
    assert status == 200 and len(run["metrics"]) == 1
    assert load(None, shlex.split(run["scripts"]["cli"])[3::2]) == load(lab.folder / "runs" / "one" / "config.toml")
    for name in ("nope", "..", "%2e%2e", "..%2f..%2fetc", "one%2f..%2ftwo", "%00"):
        assert lab.raw(f"/api/runs/{name}")[0] in (404, 422), name
        assert lab.raw(f"/report?run={name}")[0] == 422, name
    assert lab.raw("/report")[0] == 422


def test_accuracy_comes_from_runs_with_the_same_settings(lab: Server) -> None:
    trade = {"defense": {"name": "fed-cdp", "noise": 2.0}, "rounds": 2}
    status, told = lab.ask("/api/trade", {"trade": trade})
    assert status == 200 and [run["name"] for run in told["same"]] == ["two"]
    assert told["same"][0]["accuracy"] == 0.5
    shipped = lab.ask("/api/trade", {"trade": {"defense": {"name": "none"}}})[1]["same"]
    assert shipped[0]["name"].startswith("shipped with ") and shipped[0]["accuracy"] > 0.9
    parts = shlex.split(told["scripts"]["train"]["cli"])
    assert parts[:2] == ["fedveil", "train"] and load(None, parts[3::2]).train.rounds == 2


def test_jobs_are_told(lab: Server) -> None:
    status, told = lab.ask("/api/jobs")
    assert status == 200 and told["jobs"] == []
    assert [worker["pool"] for worker in told["workers"]] == ["work", "quick"]
    assert told["limits"]["seconds"] == 1800


def test_a_quick_worker_that_dies_is_replaced(lab: Server) -> None:
    assert lab.ask("/api/gallery?first=96")[0] == 200  # a new lab has no worker yet
    before = next(w["pid"] for w in lab.ask("/api/jobs")[1]["workers"] if w["pool"] == "quick")
    os.kill(before, signal.SIGKILL)
    for _ in range(3):  # the current request may be lost, the next is not
        status, _ = lab.ask("/api/gallery?first=48")
        if status == 200:
            break
    assert status == 200
    told = lab.ask("/api/jobs")[1]
    assert before not in [w["pid"] for w in told["workers"]] and any(str(before) in n["text"] for n in told["news"])


# --- the command ------------------------------------------------------------------------------------------------------


def test_missing_extra_is_one_line(fedveil_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedveil.cli import lab as command

    monkeypatch.setattr(command, "find_spec", lambda name: None)
    answer = fedveil_cli("lab", cwd=tmp_path)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "fedveil: lab: got 'no fastapi'; it needs an extra: pip install 'fedveil[lab]'\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--host", "0.0.0.0"), 2, "can be reached by other machines, so it needs a token"),
        (("--host", "0.0.0.0", "--token", "short"), 2, "16 to 128"),
        (("--port", "70000"), 2, "65535"),
        (("-s", "train.rounds=x"), 2, "train.rounds: got 'x'"),
        (("nope.toml",), 2, "no such file"),
        (("--host", "203.0.113.7", "--token", "auto"), 1, "cannot listen on 203.0.113.7"),
    ],
)
def test_wrong_usage(fedveil_cli: Any, tmp_path: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra: pip install 'fedveil[lab]'")
    answer = fedveil_cli("lab", *arguments, cwd=tmp_path)
    assert answer.code == code and says in answer.err and answer.err.count("\n") == 1 and answer.out == ""
    assert list(tmp_path.iterdir()) == []


# --- whole jobs -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_attack_gives_what_its_script_gives(lab: Server, tmp_path: Path, fedveil_cli: Any) -> None:
    leak = {"defense": {"name": "fed-cdp", "noise": 0.0, "clip": 1.0}, "iterations": 20}
    _, scripts = lab.ask("/api/leak/script", {"leak": leak})
    status, job = lab.ask("/api/leak", {"leak": leak})
    assert status == 200
    told = lab.wait(job["id"])
    assert told["state"] == "done", told
    stages = [event["stage"] for event in told["events"]]
    assert stages[:3] == ["observing", "truth", "compiling"] and stages.count("step") > 10
    assert {event["side"] for event in told["events"] if event["stage"] == "step"} == {"open", "defended"}
    for side in ("open", "defended"):
        parts = shlex.split(scripts[side]["cli"])
        answer = fedveil_cli(*parts[1:], "--json", cwd=tmp_path)
        assert answer.code == 0, answer.err
        assert json.loads(answer.out)["ssim"] == pytest.approx(told["result"][side]["ssim"], abs=0.02)
        assert json.loads(answer.out)["success_rate"] == told["result"][side]["success_rate"]


@pytest.mark.slow
def test_a_training_is_a_run_and_can_be_cancelled(lab: Server) -> None:
    trade = {"defense": {"name": "none"}, "rounds": 3, "local_steps": 2, "model": "mlp"}
    _, job = lab.ask("/api/train", {"trade": trade})
    told = lab.wait(job["id"])
    assert told["state"] == "done", told
    run = lab.ask(f"/api/runs/{job['run']}")[1]
    assert run["status"] == "done" and len(run["metrics"]) == 3
    assert run["accuracy"] == told["result"]["accuracy"]
    assert lab.ask("/api/trade", {"trade": trade})[1]["same"][0]["name"] == job["run"]
    status, headers, page = lab.raw(f"/report?run={job['run']}")
    assert status == 200 and job["run"].encode() in page and "sandbox" in headers["content-security-policy"]
    _, long = lab.ask("/api/train", {"trade": {**trade, "rounds": 1000, "local_steps": 100}})
    while not any(event["stage"] == "round" for event in lab.ask(f"/api/jobs/{long['id']}")[1]["events"]):
        time.sleep(0.05)
    lab.ask(f"/api/jobs/{long['id']}/cancel", {})
    told = lab.wait(long["id"])
    assert told["state"] == "cancelled" and "fedveil train --resume" in told["message"]
    assert lab.ask(f"/api/runs/{long['run']}")[1]["status"] == "stopped"
