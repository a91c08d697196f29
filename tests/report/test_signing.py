"""What a reader signs is true: for runs without attacks, with one attack, on own data, stopped, leaking or certified."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import jsonschema_rs
import pytest
import yaml
from test_page import GUESS, Reader, document, folder

from fedveil.attacks import results
from fedveil.report import hazards, registry, signing
from fedveil.report.choice import choice
from fedveil.report.gather import expanded, gather
from fedveil.report.page import render
from fedveil.report.verdict import OPEN, verdict
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
    assert "nobody is protected by a certificate." in text
    for untrue in ("failed", "found nothing", "Training examples leak", "Attacks by"):
        assert untrue not in text.split("Training ")[0]
    assert "nobody tried" in text


def test_one_failed_attack_is_told_of_its_adversary_alone(tmp_path):
    path = folder(tmp_path / "a")
    results.save(path, {"name": "cpl"}, document("server", 0.0))
    (run,) = gather([path])
    assert signing.headline(run).strong == (
        "The attacks that were made got nothing, which proves nothing: "
        "an attack by the server rebuilt 0 of 16 (95\u00a0% interval 0 to 19\u00a0%)."
    )
    assert state(run, "Nobody has to be trusted") == hazards.NOT_HELD


def test_a_leak_comes_first_also_where_a_certificate_is_there(tmp_path):
    path = folder(tmp_path / "a", *CDP)
    results.save(path, {"name": "cpl"}, document("server"))
    (run,) = gather([path])
    line = signing.headline(run)
    assert line.strong.startswith("Training examples leak: an attack by the server rebuilt 12 of 16")
    assert "A certified ε bounds what leaks and does not exclude it." in line.rest
    assert choice([run]).run is None and "it leaks to the server" in choice([run]).text


def test_hints_are_named_with_their_attack(tmp_path):
    path = folder(tmp_path / "a")
    results.save(path, {"name": "loss-threshold"}, GUESS)
    (run,) = gather([path])
    strong = signing.headline(run).strong
    assert strong.startswith("Hints leak: an attack by a recipient of the final model guesses which records")


def test_a_stopped_run_is_accounted_for_its_own_rounds_and_not_recommended(tmp_path):
    (run,) = gather([known(folder(tmp_path / "a", *CDP, rounds=7, status="stopped"))])
    assert choice([run]).run is None and "it did not finish" in choice([run]).text
    assert "The training did not finish: 7 of 12 rounds were made" in signing.headline(run).rest
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
    assert "its account is not known" in choice([run]).text
    text = Reader(render([path])).text
    assert "who is protected is not known" in text and "nobody is protected" not in text
    assert "nothing proved" not in text and "not known (there is no account" in text


def test_protected_rows_are_the_ledgers_smallest_and_largest(tmp_path):
    (run,) = gather([folder(tmp_path / "a", *CDP)])
    rows = {(row[0], row[1]): row for row in signing.protected(run)}
    row = next(row for (who, unit), row in rows.items() if "the server" in who and unit.startswith("one record"))
    here = [r for r in run.ledger if r.certified and (r.tap, r.unit) == ("server", "example")]
    assert {r.adjacency for r in here} >= {"replace"}
    assert row[2] == min(r.epsilon for r in here if r.adjacency != "replace")
    assert row[4] == max(r.epsilon for r in here) > row[2] and row[5] == "replaced by any other"


def test_the_recommended_run_learned_was_attacked_and_is_limited(tmp_path):
    bare, good = known(folder(tmp_path / "bare")), known(folder(tmp_path / "good", *CDP))
    results.save(bare, {"name": "cpl"}, document("server"))
    assert choice(gather([bare, good])).run is None  # nobody has attacked it
    results.save(good, {"name": "cpl"}, document("client", 0.0))
    taken = choice(gather([bare, good]))
    assert taken.run is not None and taken.run.path == good
    assert "No attack by the server, an observer who watches a client train" in taken.text
    assert "It costs 0 points of accuracy against training without a defence." in taken.text
    assert "What it costs is not known" in choice(gather([good])).text
    known(good, chance=0.93)
    taken = choice(gather([bare, good]))
    assert taken.run is None and "fed-cdp: it learned nothing" in taken.text
    text = Reader(render([bare, good])).text
    assert "None of these runs is recommended" in text and "Recommended:" not in text


def test_a_leak_inside_a_client_is_a_condition_and_one_outside_an_objection(tmp_path):
    good = known(folder(tmp_path / "good", *CDP))
    results.save(good, {"name": "cpl"}, document("example"))
    taken = choice(gather([good]))
    assert taken.run is not None and "against the server" in taken.text
    results.save(good, {"name": "cpl"}, document("server", 0.2))
    assert choice(gather([good])).run is None


def test_no_more_than_a_guess_is_no_leak_and_messages_are_what_was_tried(tmp_path):
    """299 examples in 4 messages are four tries: they say little of the next message."""
    path = folder(tmp_path / "a")
    results.save(path, {"name": "cpl"}, document("server", 0.25, guess_rate=0.3))
    results.save(path, {"name": "cpl"}, document("client", 0.0, images=299, victims=4))
    (run,) = gather([path])
    assert verdict(run, "server").word == verdict(run, "client").word == OPEN
    strong = signing.headline(run).strong
    assert "rebuilt 4 of 16 (95\u00a0% interval 10 to 49\u00a0%), no more than a guess gets" in strong
    assert "rebuilt 0 of 299 examples in 4 messages (95\u00a0% interval 0 to 49\u00a0%)" in strong
    cut = {"planned": 8, "unfinished": 2, "not_started": 1}
    results.save(path, {"name": "cpl"}, document("client", 0.0, attacks=cut))
    assert "3 of 8 attacks not finished" in signing.headline(*gather([path])).strong


def test_the_first_pages_show_four_runs_and_the_appendix_all(tmp_path):
    paths = [folder(tmp_path / f"r{n}", *(CDP if n else ()), rounds=2) for n in range(6)]
    text = Reader(render(paths)).text
    first, rest = text.rsplit(" Appendix In sentences", 1)
    assert "4 of 6 runs are in the tables of these first pages" in first
    assert [f"fed-cdp (r{n})" in first.split("Accuracy on held-out records")[1] for n in range(1, 6)].count(True) == 3
    assert choice(gather(paths)).text.count("no attack was made on it") == 4
    assert all(f"fed-cdp (r{n}) Accuracy" in rest for n in range(1, 6))


def test_the_command_of_a_run_that_is_not_recommended_is_one(tmp_path, fedveil_cli):
    """It names the run's own size, and every option is one of `fedveil advise`."""
    taken = choice(gather([folder(tmp_path / "a", "data.per_client=24")]))
    assert taken.next == "fedveil advise --clients 20 --records 24 --data digits --epsilon 3"
    answer = fedveil_cli(*taken.next.split()[1:], "--seconds", "0", cwd=tmp_path)
    assert answer.code == 2 and "--seconds" in answer.err  # all that stands before was read


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

SCHEMA = yaml.safe_load((Path(__file__).parent / "registry-schema.yaml").read_text(encoding="utf-8"))
VALIDATOR = jsonschema_rs.Draft7Validator(SCHEMA, validate_formats=True)


def entry_of(tmp_path, fedveil_cli, facts=FACTS):
    path = folder(tmp_path / "run", *CDP)
    (tmp_path / "facts.toml").write_text(facts, encoding="utf-8")
    answer = fedveil_cli("report", path, "--registry", "facts.toml", "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    (file,) = json.loads(answer.out)["registry"]
    return path, tmp_path / file


def test_the_registry_entry_fits_its_schema_and_has_the_ledgers_numbers(tmp_path, fedveil_cli):
    path, file = entry_of(tmp_path, fedveil_cli)
    text = file.read_text(encoding="utf-8")
    styles = {token.style for token in yaml.scan(text) if hasattr(token, "style")}
    assert styles <= {None, '"', "'", "|"}  # the registry refuses folded text
    assert re.fullmatch(r"[a-z0-9_]+\.yaml", file.name)
    entry = yaml.safe_load(text)
    VALIDATOR.validate(entry)
    row = gather([path])[0].best("release", "example")
    stated = entry["deployment"]["privacy_loss"]["privacy_parameters"]
    assert stated == {"epsilon": row.epsilon, "delta": row.delta}
    assert entry["deployment"]["basic"]["data_curators"][0]["data_curator_type"] == "Nonprofit"
    assert entry["url_slug"] == "bed-days-northern-hospitals-2026"
    assert entry["deployment"]["administrative"]["tier"] == 3


def test_an_entry_names_what_stays_open(tmp_path, fedveil_cli):
    """Who took part is named as unprotected only where the certificate does not need it to be secret."""
    path = folder(tmp_path / "run", *CDP)
    secret = folder(tmp_path / "secret", "defense.name=fed-sdp", "defense.noise=20", "defense.clip_scope=flat",
                    "train.sampling=poisson")  # fmt: skip
    facts = registry.check_facts(tomllib.loads("\n".join(FACTS.splitlines()[:-2])))
    for one, told in ((path, True), (secret, False)):
        (run,) = gather([one])
        made = registry.entry(run, facts)
        VALIDATOR.validate(made)
        needs = "who takes part is secret" in "; ".join(run.best("release", "example").assumptions)
        open_to_all = made["deployment"]["dp_variant"]["unprotected_quantities"]
        assert needs is not told and ("who took part" in open_to_all) is told
        assert made["deployment"]["administrative"]["tier"] == 2  # without the number of units


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("surprise",), 1),
        (("deployment", "administrative"), None),
        (("deployment", "basic", "publication_date"), "1/1/2026"),
        (("deployment", "basic", "data_curators"), []),
        (("deployment", "basic", "data_product_type"), "Surprise"),
        (("deployment", "administrative", "tier"), 0),
        (("deployment", "privacy_loss", "privacy_parameters", "epsilon"), "1"),
        (("deployment", "privacy_loss", "number_of_privacy_units"), 1.5),
        (("deployment", "implementation", "pre_processing"), "x"),
    ],
)
def test_the_schema_refuses_what_the_registry_refuses(tmp_path, path, value):
    entry = registry.entry(gather([folder(tmp_path / "run", *CDP)])[0], registry.check_facts(tomllib.loads(FACTS)))
    VALIDATOR.validate(entry)
    *above, key = path
    part = entry
    for name in above:
        part = part[name]
    part.pop(key, None)
    if value is not None:
        part[key] = value
    assert not VALIDATOR.is_valid(entry)


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
    given = {"a": {"b": "x: y # 'z' \"q\"\n–ε", "c": [1, 1e-5, "- no"], "d": [{"e": "f", "g": "h"}]}, "t": True}
    assert yaml.safe_load(registry.yaml(given)) == given
