"""The report says what run folders hold, on one page that needs nothing from outside, and in charts and tables."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from fedveil.accounting.ledger import Row
from fedveil.attacks import results
from fedveil.attacks.results import Pictures
from fedveil.config import load, resolve, to_toml
from fedveil.core.errors import ConfigError
from fedveil.report.figures import figures
from fedveil.report.gather import best, gather
from fedveil.report.glossary import delta_text, limit, percent, weak
from fedveil.report.page import render
from fedveil.report.verdict import HINTS, LEAKS, LIMITED, OPEN, UNKNOWN, WEAK, rebuilt_text, verdict
from fedveil.report.write import report

SETTINGS = ["data.clients=20", "train.rounds=12", "model.name=logistic", "train.local_steps=1"]
NASTY = "<img src=x onerror=alert(1)>&\"'"


def folder(path, *settings, rounds=12, status="done", note="", metrics=None):
    """A run folder as a training leaves it, without the training."""
    path.mkdir(parents=True)
    config = resolve(load(None, [*SETTINGS, *settings]))
    (path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    (path / "secret.key").write_text("00" * 32, encoding="utf-8")  # by which its draws were secret
    rows = metrics or [
        {"round": r, "clients": 2, "lost": 0, "late": 0, "not_finite": 0, "train_loss": 2 / (r + 1), "update_norm": 0.5,
         "lr": 0.1, **({"accuracy": 0.1 + 0.07123456789 * r, "loss": 2 / (r + 1)} if r % 3 == 2 else {})}
        for r in range(rounds)
    ]  # fmt: skip
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    info = {"status": status, "versions": {"jax": "1.2.3"}, "note": note, "result": {"split": "validation"}}
    (path / "run.json").write_text(json.dumps(info), encoding="utf-8")
    return path


def document(tap, share=0.75, **more):
    return {
        "attack": "cpl",
        "tap": tap,
        "round": 12,
        "success_rate": share,
        "images": 16,
        "seeds": 1,
        "rule": "SSIM",
        **more,
    }


def pictures(count=2):
    rng = np.random.default_rng(0)
    truth = rng.random((count, 8, 8, 1))
    found = np.stack([rng.random((count, 8, 8, 1)), truth])
    labels = np.array([[3, 3], [4, 9]])[:count]
    return Pictures(
        truth, found, ("step 1", "result"), np.array([1.0, 0.2]), np.zeros(2), labels, np.array([True, False])
    )


GUESS = {
    "attack": "loss-threshold",
    "tap": "release",
    "success_rate": None,
    "auc": 0.6,
    "interval": [0.55, 0.65],
    "delta": 1e-5,
}
CURVE = {"loss-threshold": (np.array([0, 0.2, 1.0]), np.array([0, 0.4, 1.0]))}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Three runs: undefended and leaking, Fed-SDP with its server untried, Fed-CDP attacked in vain."""
    base = tmp_path_factory.mktemp("study")
    none = folder(base / "none")
    results.save(none, {"name": "cpl"}, document("server"), pictures())
    results.save(none, {"name": "cpl", "distance": "cosine"}, document("example", 1.0))
    results.save(none, {"name": "loss-threshold"}, GUESS, None, CURVE)
    sdp = folder(base / "sdp", "defense.name=fed-sdp", "defense.noise=20", "defense.clip_scope=flat")
    cdp = folder(base / "cdp", "defense.name=fed-cdp", "defense.noise=60", "defense.clip_scope=flat")
    results.save(cdp, {"name": "cpl"}, document("server", 0.0))
    results.save(cdp, {}, {**GUESS, "auc": 0.51, "interval": [0.46, 0.56], "epsilon": 0.4}, None, CURVE)
    return [none, sdp, cdp]


@pytest.fixture(scope="module")
def page(study):
    return render(study)


class Reader(HTMLParser):
    """Text and references of a page; fails on a tag that is not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.references, self.tags, self.words = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        given = dict(attributes)
        self.references += [given[key] for key in ("src", "href", "action", "srcset") if given.get(key)]
        assert not any(key.startswith("on") for key in given)
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


# --- the page as a whole


def test_page_needs_nothing_from_outside(page):
    read = Reader(page)
    assert page.startswith("<!DOCTYPE html>")
    assert not {"script", "link", "iframe", "object", "form"} & set(read.tags)
    assert all(one.startswith(("#", "data:image/png;base64,")) for one in read.references)
    links = {one[1:] for one in read.references if one.startswith("#")}
    assert links and all(f'id="{link}"' in page for link in links)
    outside = set(re.findall(r"(?:https?:)?//[^\s\"'<>)]+", re.sub(r"base64,[^\"]+", "", page)))
    assert outside <= {"http://www.w3.org/2000/svg"}
    assert "@media print" in page and "prefers-color-scheme: dark" in page and "width=device-width" in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids)) and sum(one.startswith("chart-") for one in ids) > 7


def test_page_answers_first(page):
    text = Reader(page).text
    order = [
        "What leaks, to whom",
        "Who is protected, against whom",
        "What was tried, and what to take",
        "What an attack saw",
        "Signature",
        "Appendix",
        "In sentences",
        "Hazards",
        "Training",
        "Privacy over the rounds",
        "Attacks",
        "Certificates",
        "Config",
    ]
    places = [page.index(f"<h2>{word}") for word in order]
    assert places == sorted(places)
    assert "no defence" in text and "rebuilt 12 of 16" in text and "rebuilt 0 of 16" in text
    assert "still leaks" not in text.split("fed-cdp costs")[1].split(".")[0]
    assert "Nothing is proved against the server" in text and "were not tried" in text
    assert "That proves nothing by itself" in text


def test_page_gives_the_ledgers_numbers_and_assumptions(study, page):
    text = Reader(page).text
    for run in gather(study)[1:]:
        row = run.best("release", "example")
        assert row is not None and f"ε = {row.epsilon:.3g}" in text
        assert all(line in text for line in row.assumptions)
    assert "jax 1.2.3" in text and 'name = "fed-cdp"' in text


def test_verdicts(study):
    none, sdp, cdp = gather(study)
    words = {
        (run.label, tap): verdict(run, tap).word for run in (none, sdp, cdp) for tap in ("server", "example", "release")
    }
    assert words["no defence", "server"] == words["no defence", "example"] == LEAKS
    assert words["no defence", "release"] == HINTS
    assert words["fed-sdp", "server"] == UNKNOWN  # neither proved nor tried is not safe
    assert words["fed-cdp", "server"] == LIMITED and words["fed-cdp", "release"] == LIMITED


def test_a_failed_attack_is_no_limit_and_a_large_epsilon_a_weak_one(tmp_path):
    run = folder(tmp_path / "a")
    results.save(run, {}, document("server", 0.0))
    assert verdict(gather([run])[0], "server").word == OPEN
    loose = folder(tmp_path / "b", "defense.name=fed-cdp", "defense.noise=0.3", "train.per_round=20")
    one = verdict(gather([loose])[0], "server")
    assert one.word == WEAK and weak(one.record.epsilon, one.record.delta)
    assert "rules out next to nothing" in Reader(render([loose])).text


def test_single_run_and_the_best_of_several_attacks(tmp_path):
    run = folder(tmp_path / "a")
    for share in (0.25, 0.5, 0.0):
        results.save(run, {"tv": share}, document("client", share))
    text = Reader(render([run])).text
    assert "Leaks to an observer who reads a client's update before it leaves. An attack rebuilt 8 of 16" in text
    assert text.count("cpl (tv 0.25)") == 1


# --- folders that are not whole


def test_stopped_killed_and_empty_runs(tmp_path):
    cut = folder(tmp_path / "cut", "defense.name=fed-cdp", rounds=7, status="stopped")
    with (cut / "metrics.jsonl").open("a") as file:
        file.write('{"round": 7, "cli')
    (cut / "checkpoint.npz").write_bytes(b"no archive")
    text = Reader(render([cut])).text
    assert "7 of 12 rounds made; stopped before its end" in text
    assert "cut after 7 of 8 lines" in text and "checkpoint.npz is damaged" in text
    assert "Certified, after 7 rounds" in text
    bare = folder(tmp_path / "bare", status="running")
    for name in ("metrics.jsonl", "run.json"):
        (bare / name).unlink()
    text = Reader(render([bare])).text
    assert (
        "Accuracy was never measured" in text
        and "No account." in text
        and "No attack was made that the folder keeps" in text
    )


def test_numbers_that_are_none(tmp_path):
    nothing = dict.fromkeys(("train_loss", "update_norm", "accuracy", "loss"))
    rows = [{"round": r, "not_finite": 2, "lr": 0.1, **nothing} for r in range(3)]
    run = folder(tmp_path / "nan", "defense.name=fed-cdp", metrics=rows)
    text = Reader(render([run, folder(tmp_path / "fine")])).text
    assert "is not a number" in text and "6 updates were not finite" in text and "not a number from round 1 on" in text


def test_an_accuracy_stands_beside_chance(tmp_path):
    """A run that knows its chance says so in the text, the table, the chart and the exported rows; others say nothing."""
    run, old = folder(tmp_path / "known"), folder(tmp_path / "old")
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"chance": 0.93, "held_out": 450}))
    text = Reader(render([run])).text
    assert (
        "No better than chance: accuracy 88 % of held-out" in text
        and "naming the most common class always gets 93.0 %" in text
    )
    assert "88 % (chance 93.0 %), not learned" in Reader(render([run, old])).text
    assert "chance" not in Reader(render([old])).text.split("Training")[0]
    (run / "run.json").write_text(json.dumps(info | {"chance": 0.12, "held_out": 450}))
    assert gather([run])[0].learned is True and gather([old])[0].learned is None
    made = report([run], tmp_path / "page.html").document["runs"][0]
    assert made["chance"] == 0.12 and made["learned"] is True


def test_damaged_attacks_are_named_and_the_rest_is_shown(tmp_path):
    run = folder(tmp_path / "a")
    results.save(run, {}, document("server"))
    (run / "attacks" / "x.json").write_text("{")
    (run / "attacks" / "y.json").write_text('{"tap": "server"}')
    path = results.save(run, {"a": 1}, document("example"), pictures())
    path.with_suffix(".npz").write_bytes(b"PK")
    text = Reader(render([run])).text
    assert "attacks/x.json cannot be read" in text and "attacks/y.json cannot be read" in text
    assert f"{path.name} cannot be read" in text and "rebuilt 12 of 16" in text


def test_runs_that_differ_in_more_than_the_defence_are_said_to(tmp_path):
    runs = [folder(tmp_path / "a"), folder(tmp_path / "b", "train.lr=0.5")]
    text = Reader(render(runs)).text
    assert "differ in more than the defence: train.lr" in text
    assert "no defence (a)" in text and "no defence (b)" in text


def test_own_models_keep_the_account_they_wrote(tmp_path):
    run = folder(tmp_path / "own", "defense.name=fed-cdp")
    row = Row("release", "example", "pld", "participation", True, "add-remove", 1.2345, 1e-5, "why", ("so",), 12)
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "own_model": True, "result": {"ledger": [row.as_dict()]}}))
    assert gather([run])[0].best("release", "example").epsilon == 1.2345
    (run / "run.json").write_text(json.dumps({**info, "own_model": True}))
    assert "stored no account" in Reader(render([run])).text


def test_nothing_in_a_folder_becomes_markup(tmp_path):
    run = folder(tmp_path / f"r{NASTY.replace('/', '')}", note=NASTY + "\x00\x1b{{ 7 * 7 }}")
    shown = json.dumps({**document("server"), "attack": NASTY, "rule": NASTY, "settings": {NASTY: NASTY}})
    (run / "attacks").mkdir()
    (run / "attacks" / "a.json").write_text(shown)
    text = render([run, folder(tmp_path / "b")])
    read = Reader(text)
    assert NASTY in read.text and "<img src=x" not in text
    assert NASTY + "\ufffd\ufffd{{ 7 * 7 }}" in read.text  # no control characters, and no template


# --- pictures, charts, tables


def test_pictures_are_the_pixels_that_were_kept(study, page):
    kept = results.read_all(study[0])[0]
    truth = next(one.pictures for one in kept if one.pictures is not None).truth
    found = [base64.b64decode(part) for part in re.findall(r"base64,([^\"]+)", page)]
    images = [np.asarray(Image.open(io.BytesIO(data))) for data in found]
    assert len(images) == 4 + 6  # two of truth and result on the first pages, two of truth, step and result below
    np.testing.assert_array_equal(images[4], images[0])
    np.testing.assert_array_equal(images[0], (truth[0, ..., 0] * 255).round())
    assert "SSIM" in page and "3→3" in page and "4→9" in page


def test_attacks_are_read_back_as_they_were_saved(tmp_path):
    path = results.save(tmp_path, {"tv": 1, "lr": None}, document("server"), pictures(), CURVE)
    (back,), problems = results.read_all(tmp_path)
    assert not problems and back.document == {**document("server"), "settings": {"tv": 1}}
    np.testing.assert_allclose(back.pictures.truth, pictures().truth, atol=1 / 500)
    np.testing.assert_array_equal(back.pictures.labels, pictures().labels)
    np.testing.assert_array_equal(back.curves["loss-threshold"], CURVE["loss-threshold"])
    assert results.save(tmp_path, {"tv": 1}, document("server", 0.1)) == path  # the same settings: in its place
    assert results.read_all(tmp_path)[0][0].pictures is None
    assert results.save(tmp_path, {"tv": 2}, document("server")) != path


def test_charts(study):
    runs = gather(study)
    drawn = {figure.name: figure for figure in figures(runs)}
    assert set(drawn) == {
        "accuracy-epsilon", "accuracy", "loss", "gradient-norms", "epsilon-fed-sdp", "epsilon-fed-cdp", "attack-success",
        "roc-loss-threshold-release",
    }  # fmt: skip
    texts = {name: "".join(ET.fromstring(one.chart.svg()).itertext()) for name, one in drawn.items()}
    assert "not attacked" in texts["attack-success"] and "0.75" in texts["attack-success"]
    assert "fed-cdp: allowed by ε = 0.4" in texts["roc-loss-threshold-release"]
    assert "release" in texts["epsilon-fed-sdp"] and "server" not in texts["epsilon-fed-sdp"]


def test_epsilon_grows_over_the_rounds_and_ends_at_the_ledgers(study):
    run = gather(study)[2]
    values = [best(rows, "server", "example").epsilon for _, rows in run.over_rounds]
    assert len(values) >= 5 and values == sorted(values) and run.over_rounds[-1][0] == 12
    assert values[-1] == pytest.approx(run.best("server", "example").epsilon)


def test_command_writes_page_charts_and_tables(study, tmp_path, fedveil_cli):
    more = ["--svg", "svg", "--tables", "tables", "--out", "page.html", "--json"]
    answer = fedveil_cli("report", *study, *more, cwd=tmp_path)
    assert answer.code == 0, answer.err
    made = json.loads(answer.out)
    assert made["report"] == "page.html" and (tmp_path / "page.html").read_text(encoding="utf-8").startswith(
        "<!DOCTYPE"
    )
    assert len(made["svg"]) == 8 and all(ET.parse(tmp_path / name) for name in made["svg"])
    seats = {run["label"]: run["seats"] for run in made["runs"]}
    assert seats["no defence"]["server"] == {
        "verdict": "leaks", "success_rate": 0.75, "auc": None, "epsilon": None, "delta": None,
    }  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "tables" / "runs.csv").open(encoding="utf-8")))
    run = gather(study)[2]
    assert float(rows[2]["ε release example"]) == run.best("release", "example").epsilon  # all digits
    assert float(rows[0]["accuracy"]) == run.scores[0] and rows[0]["ε server example"] == ""
    assert (tmp_path / "tables" / "attacks.tex").read_text(encoding="utf-8").startswith(r"\begin{tabular}")
    assert len(list(csv.reader((tmp_path / "tables" / "metrics.csv").open(encoding="utf-8")))) == 1 + 3 * 12


def test_command_writes_charts_in_every_form(study, tmp_path, fedveil_cli):
    starts = {"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF", "pgf": b"% Include"}
    folders = [part for form in starts for part in (f"--{form}", f"all/{form}")]
    answer = fedveil_cli("report", study[1], *folders, "--json", cwd=tmp_path)
    made = json.loads(answer.out)
    for form, start in starts.items():
        assert made[form] == [f"all/{form}/{name}.{form}" for name in ("accuracy", "loss", "epsilon-fed-sdp")]
        assert all((tmp_path / name).read_bytes().startswith(start) for name in made[form])


def test_command_prints_where_the_page_is(study, fedveil_cli, tmp_path):
    answer = fedveil_cli("report", *study, cwd=tmp_path)
    place = (study[0].parent / "report.html").resolve()
    printed = answer.out.splitlines()[-1].removeprefix("report: ")
    assert answer.code == 0 and (tmp_path / printed).resolve() == place and place.exists()
    one = fedveil_cli("report", study[0], cwd=tmp_path)
    assert one.code == 0 and (study[0] / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], ("RUN", "'nowhere'", "fedveil train")),
        (["."], ("RUN", "no config.toml")),
        (["{run}", "--out", "page.pdf"], ("--out", "page.pdf", "report.html")),
        (["{run}", "--tables", ""], ("--tables", "takes a path")),
        (["{run}", "--pgf", ""], ("--pgf", "takes a path")),
    ],
)
def test_wrong_use_is_one_line(arguments, words, study, fedveil_cli, tmp_path):
    answer = fedveil_cli("report", *(part.format(run=study[1]) for part in arguments), cwd=tmp_path)
    assert answer.code == 2 and answer.out == "" and answer.err.count("\n") == 1
    assert all(word in answer.err for word in words) and not list(tmp_path.iterdir())


def test_no_folders_at_all():
    with pytest.raises(ConfigError, match="takes the folders"):
        gather([])


# --- words


def test_words():
    assert delta_text(1e-5) == "10⁻⁵" and delta_text(3e-6) == "3e-6"
    assert percent(0.5) == "50 %" and percent(0.947) == "94.7 %" and percent(1) == "100 %"
    assert "1.7 in 100" in limit(0.53, 1e-5) and "next to nothing" in limit(8, 1e-5)
    assert rebuilt_text(document("server", 0.0)) == "rebuilt 0 of 16 (95\u00a0% interval 0 to 19\u00a0%)"
    assert "in 3 tries each" in rebuilt_text(document("server", 0.5) | {"seeds": 3})
