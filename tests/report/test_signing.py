"""What a reader signs is true: for runs without attacks, with one attack, on own data, stopped, leaking or certified."""

from __future__ import annotations

import json
import re

import pytest
from test_page import GUESS, Reader, document, folder

from fedveil.attacks import results
from fedveil.report import hazards, registry, signing
from fedveil.report.gather import expanded, gather
from fedveil.report.page import render
from fedveil.report.write import report

CDP = ("defense.name=fed-cdp", "defense.noise=60", "defense.clip_scope=flat")


def known(path, chance=0.1):
    """A run that knows its chance: its accuracy of 0.88 is then clearly above it."""
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | {"chance": chance, "held_out": 450}))
    return path


def state(run, start):
    return next(one for one in hazards.hazards(run) if one.name.startswith(start)).state


def test_a_run_without_attacks_says_so_and_claims_nothing_found(tmp_path):
    (run,) = gather([folder(tmp_path / "a")])
    line = signing.headline(run)
    assert line.strong == "No attack was made on this run." and "No ε is certified against anyone." in line.rest
    text = Reader(render([run.path])).text
    assert "Nobody is protected by a certificate." in text
    for untrue in ("failed", "found nothing", "Training examples leak", "Attacks by"):
        assert untrue not in text.split("Training ")[0]
    assert "nobody tried" in text


def test_one_failed_attack_is_told_of_its_adversary_alone(tmp_path):
    path = folder(tmp_path / "a")
    results.save(path, {"name": "cpl"}, document("server", 0.0))
    (run,) = gather([path])
    assert signing.headline(run).strong == "The attacks that were made by the server found nothing."
    assert state(run, "Nobody has to be trusted") == hazards.NOT_HELD


def test_a_leak_comes_first_also_where_a_certificate_is_there(tmp_path):
    path = folder(tmp_path / "a", *CDP)
    results.save(path, {"name": "cpl"}, document("server"))
    (run,) = gather([path])
    line = signing.headline(run)
    assert line.strong.startswith("Training examples leak to the server: an attack rebuilt 12 of 16")
    assert "Against the server an ε is certified, and the attack succeeded within it." in line.rest
    assert signing.choice([run]).run is None and "it leaks to the server" in signing.choice([run]).text


def test_hints_are_named_with_their_attack(tmp_path):
    path = folder(tmp_path / "a")
    results.save(path, {"name": "loss-threshold"}, GUESS)
    (run,) = gather([path])
    strong = signing.headline(run).strong
    assert strong.startswith("Hints leak to a recipient of the final model: an attack guesses which records")


def test_a_stopped_run_is_accounted_for_its_own_rounds_and_not_recommended(tmp_path):
    (run,) = gather([known(folder(tmp_path / "a", *CDP, rounds=7, status="stopped"))])
    assert signing.choice([run]).run is None and "it did not finish" in signing.choice([run]).text
    assert "Certified, after 7 rounds" in Reader(render([run.path])).text
    none = folder(tmp_path / "b", *CDP, rounds=0, status="running")
    assert "No round was made, so there is no ε." in signing.headline(gather([none])[0]).rest


def test_a_run_whose_account_is_lost_is_called_unknown_and_not_unprotected(tmp_path):
    """A caller's own model without a transcript: no certificate can be computed, and none is denied."""
    path = known(folder(tmp_path / "own", *CDP))
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | {"own_model": True}))
    (run,) = gather([path])
    assert run.account_lost and "no ε is known" in signing.headline(run).rest
    for name in ("ε is small", "δ is far", "The unit", "Nobody has to be trusted", "Losses of all", "Noise is drawn"):
        assert state(run, name) == hazards.NOT_KNOWN
    assert "its account is not known" in signing.choice([run]).text
    text = Reader(render([path])).text
    assert "who is protected is not known" in text and "Nobody is protected" not in text


def test_protected_rows_are_the_ledgers_smallest_and_largest(tmp_path):
    (run,) = gather([folder(tmp_path / "a", *CDP)])
    rows = {(row[0], row[1]): row for row in signing.protected(run)}
    row = rows["The server", "one record"]
    here = [r for r in run.ledger if r.certified and (r.tap, r.unit) == ("server", "example")]
    assert {r.adjacency for r in here} >= {"replace"}
    assert row[2] == min(r.epsilon for r in here if r.adjacency != "replace")
    assert row[4] == max(r.epsilon for r in here) > row[2] and row[5] == "replaced by any other"


def test_the_recommended_run_learned_leaked_to_nobody_and_is_limited(tmp_path):
    bare, good = known(folder(tmp_path / "bare")), known(folder(tmp_path / "good", *CDP))
    results.save(bare, {"name": "cpl"}, document("server"))
    taken = signing.choice(gather([bare, good]))
    assert taken.run is not None and taken.run.path == good and "It was not attacked by the server" in taken.text
    known(good, chance=0.93)
    taken = signing.choice(gather([bare, good]))
    assert taken.run is None and "fed-cdp: it learned nothing" in taken.text
    text = Reader(render([bare, good])).text
    assert "None of these runs is recommended" in text and "Recommended:" not in text


def test_nothing_is_advised_that_was_not_tried(tmp_path):
    """Every setting that the answer names is one of a run on the page."""
    page = render([folder(tmp_path / "a"), folder(tmp_path / "b", *CDP)])
    body = page.split("<main>")[1].split('id="record"')[0]
    assert not re.search(r"(defense|train)\.\w+=", body) and "calibrate" not in body


def test_each_certificate_names_its_own_assumptions(tmp_path):
    (run,) = gather([folder(tmp_path / "a", *CDP)])
    text = render([run.path])
    section = text.split('id="certificates"')[1].split("</section>")[0]
    notes = re.findall(r"<li>(.*?)\.</li>", section)
    shown = section.split("<tbody>")[1].split("</tbody>")[0].split("</tr>")[:-1]
    proved = [row for row in run.ledger if row.certified]
    for line in shown:
        cells = [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", line)]
        numbers = set()
        for part in cells[-1].split(", "):
            ends = [int(end) for end in part.split("–")]
            numbers |= set(range(ends[0], ends[-1] + 1))
        mine = [r for r in proved if r.tap in cells[0] and f"{r.rule} ({r.accountant})" == cells[5]]
        import html

        named = {html.unescape(notes[n - 1]) for n in numbers}
        assert named in [set(r.assumptions) for r in mine]


def test_hazards_follow_the_run(tmp_path):
    (open_run,) = gather([folder(tmp_path / "open")])
    (closed,) = gather([folder(tmp_path / "closed", *CDP)])
    seeded = folder(tmp_path / "seeded", *CDP, "train.noise_seed=1")
    assert state(open_run, "ε is small") == hazards.NOT_HELD and state(closed, "Losses of all rounds") == hazards.HELD
    assert state(closed, "Noise and samples are drawn from a secret") == hazards.HELD
    assert state(gather([seeded])[0], "Noise and samples are drawn from a secret") == hazards.NOT_HELD
    assert state(closed, "Noise is drawn in a way") == hazards.NOT_HELD
    for run in (open_run, closed):
        assert state(run, "Other releases") == state(run, "Settings were not tuned") == hazards.NOT_KNOWN
        assert {one.state for one in hazards.hazards(run)} <= {hazards.HELD, hazards.NOT_HELD, hazards.NOT_KNOWN}


def test_a_folder_of_runs_stands_for_its_runs(tmp_path, fedveil_cli):
    one, two = folder(tmp_path / "study" / "one"), folder(tmp_path / "study" / "two", *CDP)
    assert expanded([tmp_path / "study"]) == [one, two] and expanded([one]) == [one]
    assert report(tmp_path / "study").path == tmp_path / "study" / "report.html"
    answer = fedveil_cli("report", "study", "--json", cwd=tmp_path)
    assert answer.code == 0 and [run["label"] for run in json.loads(answer.out)["runs"]] == ["no defence", "fed-cdp"]


def test_digests_are_of_the_files(tmp_path):
    path = folder(tmp_path / "a")
    before = signing.digests(gather([path])[0])
    (path / "model.safetensors").write_bytes(b"other")
    after = signing.digests(gather([path])[0])
    assert [name for name, _ in before] == ["config.toml"] and len(after) == 2 and after[0] == before[0]


# --- the registry

FACTS = """
name = "Bed days"
curator = "Northern Hospitals"
curator_type = "Nonprofit"
description = "Predicts bed days"
intended_use = "Planning of wards"
region = "Norway"
publication_date = 2026-11-01
authors = ["A. Person"]
sector = "Healthcare"
number_of_units = 1200
"""

TEXT, NUMBER = {"type": "string"}, {"type": "number"}


def closed(needed, **fields):
    """An object with these fields and no others."""
    return {"type": "object", "additionalProperties": False, "required": needed, "properties": fields}


# The registry's schema: names of fields, which are required, and which values they take.
SCHEMA = closed(
    ["url_slug", "deployment"],
    url_slug=TEXT,
    deployment=closed(
        ["basic", "administrative"],
        basic=closed(
            ["name", "data_curators", "description", "intended_use", "data_product_type", "data_product_region",
             "publication_date"],
            **dict.fromkeys(("name", "description", "intended_use", "data_product_region"), TEXT),
            data_curators={
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": ["data_curator_name", "data_curator_type"],
                    "properties": {
                        "data_curator_name": TEXT,
                        "data_curator_type": {"enum": ["Government", "Industry", "Nonprofit"]},
                    },
                },
            },
            data_product_type={
                "enum": ["Summary statistics", "Machine learning model", "Dataset", "Synthetic data", "Interactive API",
                         "SQL queries"]
            },
            data_product_sector={
                "enum": ["Technology", "Healthcare", "Education", "Government", "Energy", "Finance"]
            },
            publication_date={"type": "string", "format": "date"},
        ),
        dp_variant=closed(
            [],
            variant_name={"enum": ["Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"]},
            data_domain=TEXT,
            unprotected_quantities=TEXT,
        ),
        privacy_loss=closed(
            [],
            privacy_unit=TEXT,
            privacy_unit_details=TEXT,
            number_of_privacy_units={"type": "integer"},
            privacy_parameters=closed([], epsilon=NUMBER, delta={"type": ["number", "string"]}, rho=NUMBER),
            privacy_parameters_details={},
        ),
        deployment_model=closed(
            [],
            model_name={"enum": ["Local", "Central", "Shuffle", "Federated", "Varies"]},
            model_name_details=TEXT,
            trust_assumptions=TEXT,
            actors={},
            release_type={"enum": ["One release", "Many releases"]},
            release_type_details=TEXT,
            data_source_type={"enum": ["Static", "Dynamic"]},
            data_source_type_details=TEXT,
            access_type={"enum": ["Interactive", "Non-interactive"]},
            access_type_details=TEXT,
        ),
        implementation=closed(
            [],
            **dict.fromkeys(
                ("preprocessing_and_hyperparameter_tuning", "mechanisms", "composition", "post_processing",
                 "justification"),
                TEXT,
            ),
            utility={},
            additional_information={},
        ),
        administrative=closed(
            ["status", "registry_authors", "tier"],
            evidence_sources={"type": "object"},
            status={"enum": ["Converted", "Draft", "Pending", "Changes Required", "Approved"]},
            registry_authors={"type": "array", "items": TEXT, "minItems": 1},
            tier={"enum": [1, 2, 3]},
        ),
    ),
)  # fmt: skip


def test_the_registry_entry_fits_its_schema_and_has_the_ledgers_numbers(tmp_path, fedveil_cli):
    jsonschema, yaml = pytest.importorskip("jsonschema"), pytest.importorskip("yaml")
    path = folder(tmp_path / "run", *CDP)
    (tmp_path / "facts.toml").write_text(FACTS, encoding="utf-8")
    answer = fedveil_cli("report", path, "--registry", "facts.toml", "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    (file,) = json.loads(answer.out)["registry"]
    assert re.fullmatch(r"[a-z0-9_]+\.yaml", file.rsplit("/")[-1])
    entry = yaml.safe_load((tmp_path / file).read_text(encoding="utf-8"))
    jsonschema.Draft7Validator(SCHEMA).validate(entry)
    row = gather([path])[0].best("release", "example")
    stated = entry["deployment"]["privacy_loss"]["privacy_parameters"]
    assert stated == {"epsilon": row.epsilon, "delta": row.delta}
    assert entry["deployment"]["basic"]["data_curators"][0]["data_curator_type"] == "Nonprofit"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("curator_type", '"Company"'), "curator_type: got 'Company'; takes one of: Government"),
        (("sector", '"Bakery"'), "sector: got 'Bakery'"),
        (("publication_date", '"soon"'), "publication_date: got 'soon'"),
        (("tap", '"server"\nunit = "client"'), "nothing is certified"),
        (("nmae", '"x"'), "nmae: got 'x'; takes name"),
    ],
)
def test_wrong_facts_are_refused_and_nothing_is_written(tmp_path, fedveil_cli, change, says):
    path = folder(tmp_path / "run", *CDP)
    key, value = change
    lines = [line for line in FACTS.splitlines() if not line.startswith(f"{key} ")]
    (tmp_path / "facts.toml").write_text("\n".join([*lines, f"{key} = {value}"]), encoding="utf-8")
    answer = fedveil_cli("report", path, "--registry", "facts.toml", cwd=tmp_path)
    assert answer.code == 2 and says in answer.err and len(answer.err.splitlines()) == 1
    assert not (path / "report.html").exists()


def test_yaml_of_nasty_texts_reads_back():
    yaml = pytest.importorskip("yaml")
    given = {"a": {"b": "x: y # 'z' \"q\"\n–ε", "c": [1, 1e-5, "- no"], "d": [{"e": "f", "g": "h"}]}, "t": True}
    assert yaml.safe_load(registry.yaml(given)) == given
