"""Every sentence of a report is true of its run.

`CLAIMS` lists each sentence that a report on one run may have, and the condition under which it may. A sentence that is not
in the list fails, as does one whose condition does not hold. Conditions read the files of the run and its ledger, not the
report's code. The runs are of the kinds that a reader may meet: without attacks, with one, on own data, stopped, leaking,
certified.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from test_page import GUESS, document, folder
from test_signing import CDP, known

import fedveil
from fedveil.attacks import results
from fedveil.report.charts import Allowed
from fedveil.report.gather import gather
from fedveil.report.page import render
from fedveil.report.tables import number

WHO = {
    "server": "the server",
    "client": "an observer who reads a client's update before it leaves",
    "example": "an observer who watches a client train",
    "broadcast": "any other client",
    "release": "a recipient of the final model",
}
UNITS = {"one record": "example", "all of one client": "client"}
SENSES = {"there or not there": "add-remove", "its contribution replaced by nothing": "zero-out",
          "replaced by any other": "replace"}  # fmt: skip
SDP = ("defense.name=fed-sdp", "defense.noise=20", "defense.clip_scope=flat", "train.sampling=poisson")
WEAK = ("defense.name=fed-cdp", "defense.noise=0.3", "defense.clip_scope=flat", "train.per_round=20")
SECURE = (*CDP, "defense.placement=cohort", "train.secure_aggregation=true")


# --- the truth about a run


class Facts:
    """What the files of a run and its ledger say."""

    def __init__(self, path):
        (self.run,) = gather([path])
        self.label, self.config = self.run.label, self.run.config
        self.info = json.loads((path / "run.json").read_text()) if (path / "run.json").exists() else {}
        lines = (path / "metrics.jsonl").read_text().splitlines() if (path / "metrics.jsonl").exists() else []
        self.metrics = [json.loads(line) for line in lines if line.endswith("}")]
        self.rounds, self.status = len(self.metrics), self.info.get("status")
        self.docs = [json.loads(one.read_text()) for one in sorted((path / "attacks").glob("*.json"))]
        scored = [row for row in self.metrics if "accuracy" in row]
        self.accuracy = scored[-1]["accuracy"] if scored else None
        self.after = scored[-1]["round"] + 1 if scored else None
        self.rows = [row for row in self.run.ledger if row.certified and row.epsilon is not None]
        self.lost = self.rounds > 0 and not self.run.ledger
        self.secure = self.config.train.secure_aggregation

    def at(self, tap, unit=None):
        """The certificates that the report names: for presence before replacement, then the smallest ε."""
        units = (unit,) if unit else ("example", "client")
        found = []
        for one in units:
            rows = [row for row in self.rows if (row.tap, row.unit) == (tap, one)]
            found += sorted(rows, key=lambda row: (row.adjacency == "replace", row.epsilon))[:1]
        return found

    def rebuilt(self, tap):
        """The reconstructions at a tap, the best first."""
        found = [one for one in self.docs if one.get("tap") == tap and one.get("success_rate") is not None]
        return sorted(found, key=lambda one: -one["success_rate"])

    def guessed(self, tap):
        found = [one for one in self.docs if one.get("tap") == tap and one.get("auc") is not None]
        return sorted(found, key=lambda one: -one["auc"])

    def leaks(self, tap):
        return any(one["success_rate"] > (one.get("guess_rate") or 0) for one in self.rebuilt(tap)[:1])

    def hints(self, tap):
        return any((one.get("interval") or [0])[0] > 0.5 for one in self.guessed(tap)[:1])

    def tried(self, tap):
        return bool(self.rebuilt(tap) or self.guessed(tap))

    def limited(self, tap):
        return any(not loose(row) for row in self.at(tap))

    def learned(self):
        """Whether the accuracy is far enough above chance to be no accident; None where chance is not known."""
        chance, records = self.info.get("chance"), self.info.get("held_out")
        if chance is None or self.accuracy is None:
            return None
        return self.accuracy > chance + 2.33 * (chance * (1 - chance) / records) ** 0.5


def loose(row):
    return float(Allowed(row.epsilon, row.delta).most(0.01)) > 0.95


def taps(text):
    """The adversaries that a text names; it names nobody else."""
    found = {tap for tap, name in WHO.items() if name in text}
    rest = text
    for name in WHO.values():
        rest = rest.replace(name, "")
    assert re.fullmatch(r"[, ]*((and|or)[, ]*)*", rest), text
    return found


def those(facts, holds):
    return {tap for tap in WHO if holds(facts, tap)}


def share(text, value):
    """Whether a percentage is this share."""
    return abs(float(text.strip(" %")) - 100 * value) <= 0.51


# --- parts of sentences


def got(facts, tap, text):
    """Whether a clause tells what the best attack at a tap got."""
    rebuilt = re.search(r"rebuilt (\d+) of (\d+)(?: examples in (\d+) messages)?", text)
    if rebuilt:
        doc = facts.rebuilt(tap)[0]
        assert (int(rebuilt[1]), int(rebuilt[2])) == (round(doc["success_rate"] * doc["images"]), doc["images"])
        assert rebuilt[3] is None or int(rebuilt[3]) == doc["victims"]
        assert ("no more than a guess gets" in text) == (0 < doc["success_rate"] <= (doc.get("guess_rate") or 0))
        cut = doc.get("attacks") or {}
        lost = cut.get("unfinished", 0) + cut.get("not_started", 0)
        assert (f"{lost} of {cut.get('planned')} attacks not finished" in text) if lost else "not finished" not in text
    guessed = re.search(r"guesses .+? (better than chance|not clearly better than chance): AUC (\S+) ", text)
    if guessed:
        doc = facts.guessed(tap)[0]
        assert guessed[2] == number(doc["auc"], 3) and (guessed[1] == "better than chance") == facts.hints(tap)
    return bool(rebuilt or guessed)


def clauses(facts, text, holds):
    """ "an attack by WHO rebuilt …; an attack by WHO …": every adversary for whom it holds, and what was got there."""
    named = set()
    for one in text.split("; an attack by "):
        who = re.match(r"(?:an attack by )?(.+?) (?=rebuilt |guesses )", one)[1]
        assert all(got(facts, tap, one) for tap in taps(who))
        named |= taps(who)
    return named == those(facts, holds)


def certified(facts, text, loosely):
    """ "ε = X for UNIT against WHO; …": all certificates of one kind, each with the ledger's number."""
    named = set()
    for one in text.split("; ε"):
        value, unit, who = re.fullmatch(
            r"(?:ε)? ?= (\S+) for (one record|all of one client) against (.+)", one
        ).groups()
        for tap in taps(who):
            (row,) = facts.at(tap, UNITS[unit])
            assert number(row.epsilon, 3) == value and loose(row) is loosely
            named.add((tap, UNITS[unit]))
    return named == {(tap, row.unit) for tap in WHO for row in facts.at(tap) if loose(row) is loosely}


REASONS = {
    "it did not finish": lambda f: f.status != "done",
    "its accuracy is not known": lambda f: f.accuracy is None,
    "it learned nothing": lambda f: f.learned() is False,
    "it is not known whether it learned more than chance": lambda f: f.accuracy is not None and f.learned() is None,
    "no attack was made on it": lambda f: not any(f.tried(tap) for tap in WHO),
    "its account is not known": lambda f: f.lost,
    "nothing is certified against those outside of a client": lambda f: (
        not f.lost and not any(f.at(tap) for tap in ("server", "broadcast", "release"))
    ),
    "every ε against those outside of a client is so large that it rules out next to nothing": lambda f: (
        any(f.at(tap) for tap in ("server", "broadcast", "release"))
        and not any(f.limited(tap) for tap in ("server", "broadcast", "release"))
    ),
}


def reasons(facts, text):
    """All reasons against a run, and no other."""
    leak = re.search(r"it leaks to (.+?)(?= and (?:no|nothing|every) |, (?:no|its) |$)", text)
    outside = {
        tap
        for tap in ("server", "broadcast", "release")
        if facts.leaks(tap) or (facts.hints(tap) and not facts.limited(tap))
    }
    assert (taps(leak[1]) if leak else set()) == outside
    rest = text.replace(leak[0], "") if leak else text
    told = {reason for reason in REASONS if reason in rest}
    return told == {reason for reason, holds in REASONS.items() if holds(facts)}


def accuracy(facts, text):
    return facts.accuracy is not None and share(text, facts.accuracy)


def beside(facts, text):
    return text is None if facts.info.get("chance") is None else share(text, facts.info["chance"])


def one_limit(facts, value, unit, sense, who):
    for tap in taps(who):
        (row,) = facts.at(tap, UNITS[unit])
        assert number(row.epsilon, 3) == value and row.adjacency == SENSES[sense]
    return True


GUESSED = {"who was there": "add-remove", "whose contribution was counted": "zero-out",
           "which of two candidates was there": "replace"}  # fmt: skip

# --- the table: a sentence (its groups are arguments), and when it may stand

CLAIMS = {
    # what leaks
    r"No attack was made on this run\.": lambda f: not f.docs,
    r"The attacks that were made got nothing, which proves nothing: (.+)\.": lambda f, t: (
        not any(f.leaks(tap) or f.hints(tap) for tap in WHO) and clauses(f, t, Facts.tried)
    ),
    r"Training examples leak: (.+)\.": lambda f, t: clauses(f, t, Facts.leaks),
    r"Hints leak: (.+)\.": lambda f, t: (
        not any(map(f.leaks, WHO)) and clauses(f, t, lambda f, tap: f.hints(tap) and not f.leaks(tap))
    ),
    r"Hints leak too: (.+)\.": lambda f, t: (
        any(map(f.leaks, WHO)) and clauses(f, t, lambda f, tap: f.hints(tap) and not f.leaks(tap))
    ),
    r"The training did not finish: (\d+) of (\d+) rounds were made, and all that is said here is about them\.": (
        lambda f, made, of: f.status in ("stopped", "running") and (int(made), int(of)) == (f.rounds, f.config.train.rounds)
    ),
    # what is certified
    r"Its account cannot be computed here, so no ε is known\.": lambda f: f.lost,
    r"No ε is certified against anyone\.": lambda f: f.rounds > 0 and not f.lost and not f.rows,
    r"No round was made, so there is no ε\.": lambda f: f.rounds == 0,
    r"Certified: (.+)\.": lambda f, t: certified(f, t, False),
    r"Certified, but so large that it rules out next to nothing: (.+)\.": lambda f, t: certified(f, t, True),
    r"The ε at the server needs secure aggregation, which this run simulates\.": lambda f: f.secure and f.at("server"),
    r"A certified ε bounds what leaks and does not exclude it\.": lambda f: any(
        f.at(tap) and (f.leaks(tap) or f.hints(tap)) for tap in WHO
    ),
    r"Nothing is (?:certified|proved) against (.+)\.": lambda f, who: (
        not f.lost and f.rounds and taps(who) == those(f, lambda f, tap: not f.at(tap))
    ),
    # what was learned
    r"What the model learned is not known\.": lambda f: f.accuracy is None,
    r"The model learned nothing: accuracy (\S+ %) is no better than chance\.": lambda f, a: (
        f.learned() is False and accuracy(f, a)
    ),
    r"Accuracy (\S+ %)(?: \(chance (\S+ %)\))?\.": lambda f, a, c: (
        f.learned() is not False and accuracy(f, a) and beside(f, c)
    ),
    r"Its loss diverged\.": lambda f: "loss diverged" in f.info["result"]["diagnosis"],
    # the head
    r"(\d+) clients hold (\S+) \(\w+\); a round takes about (\d+) of them, .+; model \S+\.": lambda f, n, name, k: (
        (int(n), int(k)) == (f.config.data.clients, f.config.train.per_round)
        and (f.config.data.file or f.config.data.name).endswith(name)
    ),
    r"Made by Fedveil \S+ from (\S+)\.": lambda f, path: path == str(f.run.path),
    r"Page of 20\d\d-\d\d-\d\d\.": lambda f: True,
    r"Recommended: (.+)\.": lambda f, label: reasons(f, "") and label == f.label,
    r"(.+): there is no run\.json: status and versions are not known\.": lambda f, _: not f.info,
    r"(.+): metrics\.jsonl is cut after (\d+) of \d+ lines\.": lambda f, _, n: int(n) == f.rounds,
    r"(.+): the run used data or a model from outside and stored no account: ε is not known\.": lambda f, _: f.lost,
    r"(.+): the account cannot be computed here \(.+\)\.": lambda f, _: f.lost,
    r"This page shows training examples: give it to nobody who may not see the data\.": lambda f: any(
        (f.run.path / "attacks").glob("*.npz")
    ),
    # who is protected
    r"The largest ε is that of the adjacency with the weakest certificate; an adjacency without a certificate has no ε\.": (
        lambda f: f.rows
    ),
    r"Who is not in the table has to be trusted\.": lambda f: f.rows,
    r"(.+): nobody is protected by a certificate\.": lambda f, _: f.rounds and not f.lost and not f.rows,
    r"(.+): no round was made, so there is nothing to certify\.": lambda f, _: f.rounds == 0,
    r"(.+): the account cannot be computed here, so who is protected is not known\.": lambda f, _: f.lost,
    # what to take
    r"This run is not recommended\. .+?: (.+)\.": reasons,
    r"Take: (.+), as it was run: accuracy (\S+ %)(?: \(chance (\S+ %)\))?\.": lambda f, label, a, c: (
        reasons(f, "") and accuracy(f, a) and beside(f, c)
    ),
    r"It has a limit that rules something out against (.+)\.": lambda f, who: taps(who) == those(f, Facts.limited),
    r"That needs secure aggregation: without it, the server sees single messages\.": lambda f: f.secure,
    r"It is no answer to (.+), who must be trusted or kept out\.": lambda f, who: (
        taps(who) == those(f, lambda f, tap: not f.limited(tap))
    ),
    r"No attack by (.+) was made\.": lambda f, who: taps(who) == those(f, lambda f, tap: not f.tried(tap)),
    r"What it costs is not known: no training without a defence is on this page\.": lambda f: (
        f.config.defense[0].name != "none"
    ),
    r"To run it again(?:, with all its settings)?: fedveil train (\S+)/config\.toml": lambda f, at: at == str(f.run.path),
    r"To look for a setting: fedveil advise --clients (\d+) --records (\d+) --data (\S+) --epsilon 3"
    r"( --secure-aggregation)? trains and attacks settings for data of this size before it names one\.": (
        lambda f, n, k, name, secure: (
            (int(n), int(k)) == (f.config.data.clients, f.config.data.per_client)
            and name == (f.config.data.file or f.config.data.name)
            and bool(secure) == f.secure
        )
    ),
    r"Put the ε that you have to keep in the place of 3\.": lambda f: True,
    # signature and appendix
    r"I have read this page of \S+ and answered the hazards in its appendix that are not known \(.+: (\d+) held, "
    r"(\d+) not held and (\d+) not known by this run\)\.": lambda f, *counts: sum(map(int, counts)) == 13,
    r"SHA-256 of .+": lambda f: True,
    r"leaks an attack rebuilt training examples here, .+": lambda f: any(map(f.leaks, WHO)),
    r"hints no attack rebuilt an example here, but one guesses .+": lambda f: any(map(f.hints, WHO)),
    r"weak limit a limit is proved, but .+": lambda f: any(f.at(tap) and not f.limited(tap) for tap in WHO),
    r"limited a limit is proved that rules something out; .+": lambda f: any(map(f.limited, WHO)),
    r"no limit the attacks tried here failed, which proves nothing: .+": lambda f: any(
        f.tried(tap) and not f.at(tap) for tap in WHO
    ),
    r"not known nobody tried an attack here, and no limit is known: this is not safety\.": lambda f: any(
        not f.tried(tap) and not f.at(tap) for tap in WHO
    ),
    r"ε bounds what anyone can learn of one record or one client, .+": lambda f: f.rows,
    r"δ is a small probability that the bound leaves out\.": lambda f: f.rows,
    r"Both hold only under the assumptions that stand below each table of certificates\.": lambda f: f.rows,
    r"Where ε for one record is larger than for all of one client, .+": lambda f: any(
        a.epsilon > b.epsilon for tap in WHO for a in f.at(tap, "example") for b in f.at(tap, "client")
    ),
    r"The server holds the final model too, .+": lambda f: f.leaks("release") or f.hints("release"),
    # in sentences
    r"(No better than chance: a|A)ccuracy (\S+ %) of held-out records right(?: \(95 % interval \d+ to \d+ %\))? "
    r"\(\S+ part\), after (\d+) rounds(?:; naming the most common class always gets (\S+ %))?\.": lambda f, no, a, n, c: (
        (no != "A") == (f.learned() is False) and accuracy(f, a) and int(n) == f.after and beside(f, c)
    ),
    r"Accuracy was never measured\.": lambda f: f.accuracy is None,
    r"The training: (?:(\d+) of \d+ rounds made; )?(.+)\.": lambda f, made, status: (
        int(made or 0) == f.rounds
        and status == {"done": "finished", "stopped": "stopped before its end",
                       "running": "not finished: still running, or its process was killed",
                       "attacked": "no training: attacks alone"}.get(f.status, "unknown")
    ),
    r"The accuracy is no better than that of naming the most common class \(.+": lambda f: f.learned() is False,
    r"The loss diverged \(.+\)\.": lambda f: "loss diverged" in f.info["result"]["diagnosis"],
    r"Likely cause: .+|Remedy: .+": lambda f: f.info["result"]["diagnosis"],
    r"Leaks to (.+)\.": lambda f, who: all(map(f.leaks, taps(who))),
    r"Gives hints to (.+)\.": lambda f, who: all(map(f.hints, taps(who))),
    r"An attack (.+)\.": lambda f, t: any(f.tried(tap) and (f.leaks(tap) or f.hints(tap)) for tap in WHO),
    r"Proved against (.+), for (one record|all of one client): ε = (\S+) \(δ = \S+; (?:one record|all of one client) "
    r"(.+)\)\.": (
        lambda f, who, unit, value, sense: one_limit(f, value, unit, sense, who)
    ),
    r"So large an ε rules out next to nothing: .+": lambda f: any(loose(row) for tap in WHO for row in f.at(tap)),
    r"Guessing (.+) with 1 false alarm in 100, nobody can find more than (\S+) in 100\.": lambda f, what, most: any(
        row.adjacency == GUESSED[what] and number(100 * float(Allowed(row.epsilon, row.delta).most(0.01)), 2) == most
        for tap in WHO for row in f.at(tap)
    ),
    r"Attacks by (.+) failed\.": lambda f, who: taps(who) == {
        tap for tap in WHO if f.tried(tap) and not f.leaks(tap) and not f.hints(tap)
    },
    r"Results: (.+)\.": lambda f, t: any(got(f, tap, t) for tap in WHO if f.tried(tap) and not f.leaks(tap)),
    r"That proves nothing by itself: another attack may succeed\.": lambda f: f.docs,
    r"Attacks by (.+) were not tried\.": lambda f, who: taps(who) == those(f, lambda f, tap: not f.tried(tap)),
    r"Nothing is shown, either way\.": lambda f: any(not f.tried(tap) for tap in WHO),
    r"No account\.": lambda f: f.rounds == 0 or f.lost,
    r"It cannot be computed here, so no ε is known\.": lambda f: f.lost,
    # the rest of the appendix
    r"The hazards that NIST SP 800-226 names, and what the files of the run show of each\.": lambda f: True,
    r"The folder has no measurement to draw\.": lambda f: not f.metrics,
    r"There is no certified ε to draw\.": lambda f: not f.rows,
    r"No attack was made that the folder keeps\.|That says nothing about what one would find\.": lambda f: not f.docs,
    r"To try one: fedveil attack --run \S+ -s attack\.(tap=server|name=loss-threshold)": lambda f, how: (
        not f.docs and f.rounds and (how == "name=loss-threshold") == f.secure
    ),
    r"Rebuilt means: .+": lambda f: any(f.rebuilt(tap) for tap in WHO),
    r"Attacks that guess members train .+": lambda f: any(f.guessed(tap) for tap in WHO),
    r"An attacker with more time, .+": lambda f: f.docs,
    r"There is no account of this run: it cannot be computed here\.": lambda f: f.lost,
    r"There is no account of this run: no round was made\.": lambda f: f.rounds == 0,
    r"Each certificate holds only if what its last column numbers is true:": lambda f: f.rows,
    r"Nothing is certified after (\d+) rounds\.": lambda f, n: not f.rows and int(n) == f.rounds > 0,
    r"Why(?: there is none elsewhere)?: (.+)\.": lambda f, why: (
        {part for row in f.run.ledger for part in row.reason.split("; ")} >= set(why.split("; "))
    ),
    r"Versions: .+": lambda f: True,
    r".+, to (.+): \S+ (rebuilt .+)": lambda f, who, t: all(got(f, tap, t) for tap in taps(who)),
    r"[^:]+: \S+ \(.+\), round \d+: (rebuilt .+) by the rule: .+\.": lambda f, t: any(
        got(f, tap, t) for tap in WHO if f.rebuilt(tap)
    ),
    # notes of charts
    r"Of records that nobody trained on\.|(High|Low|Small)er is better\.|The axis is logarithmic\.": lambda f, _: f.metrics,
    r"The loss on clients' own data has no noise: it stays with the server and is not shown here\.": lambda f: f.rows,
    r"At δ = .+": lambda f: f.rows,
    r"Adversaries that are not named here have no certificate\.": lambda f: f.rows,
    r"Mean over the round's clients of the update that each sends, .+": lambda f: not f.rows,
    r"It is taken after clip and noise of the client: .+": lambda f: f.config.defense[0].name != "none",
    r"The best of the attacks that were tried at each tap\.|0 is no proof: another attack may do better\.": lambda f: any(
        f.rebuilt(tap) for tap in WHO
    ),
    r"Along the line of chance an attack learns nothing\.": lambda f: any(f.guessed(tap) for tap in WHO),
    r"Nothing is certified here\.": lambda f: not f.at("release"),
    r"No attack may rise above the dashed line of its run\.": lambda f: f.at("release"),
}  # fmt: skip


class Blocks(HTMLParser):
    """The text of each paragraph, item and caption, outside of pictures."""

    def __init__(self, text):
        super().__init__()
        self.depth, self.now, self.found = 0, [], []
        self.feed(text.split("<main>")[0].split("<header>")[1] + text.split("<main>")[1])

    def handle_starttag(self, tag, attributes):
        self.depth += tag in ("p", "li", "figcaption")

    def handle_endtag(self, tag):
        if tag in ("p", "li", "figcaption"):
            self.depth -= 1
            self.found.append(" ".join("".join(self.now).split()))
            self.now = []

    def handle_data(self, data):
        if self.depth:
            self.now.append(data)


def sentences(page, assumptions):
    """The sentences of a page. The assumptions of certificates are the ledger's, word by word."""
    for block in Blocks(page).found:
        if block in assumptions or not block:
            continue
        whole = re.match(r"This run is not recommended\. ", block)
        yield from [block] if whole else re.split(r"(?<=[.])\s+(?!Recommended:$)", block)


def check(facts, page):
    """Every sentence of a page is in the list, and its condition holds."""
    seen = 0
    assumptions = {f"{line}." for row in facts.rows for line in row.assumptions}
    for sentence in sentences(page, assumptions):
        found = [(re.fullmatch(claim, sentence), holds) for claim, holds in CLAIMS.items()]
        found = [(match, holds) for match, holds in found if match]
        assert found, f"no claim covers: {sentence}"
        assert any(holds(facts, *match.groups()) for match, holds in found), f"not true of this run: {sentence}"
        seen += 1
    return seen


# --- runs of all kinds


def attacked(path, *documents):
    for index, one in enumerate(documents):
        results.save(path, {"index": index}, one)
    return path


def changed(path, **info):
    told = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**told, **info}))
    return path


FAILED = document("client", 0.0, images=299, victims=4)
DIVERGED = {
    "split": "validation",
    "diagnosis": "The loss diverged (99; equal guesses have 2.3). Likely cause: the learning rate. Remedy: lower train.lr.",
}
KINDS = {
    "no attack": lambda at: folder(at),
    "no attack, chance known": lambda at: known(folder(at)),
    "one attack that failed": lambda at: attacked(folder(at), document("server", 0.0)),
    "one attack that got through": lambda at: attacked(folder(at), document("server")),
    "two adversaries, other shares": lambda at: attacked(folder(at), document("server", 0.5), document("example", 1.0)),
    "no more than a guess": lambda at: attacked(folder(at), document("server", 0.25, guess_rate=0.3)),
    "hints": lambda at: attacked(folder(at), GUESS, FAILED),
    "certified, not attacked": lambda at: known(folder(at, *CDP)),
    "certified, attacked in vain": lambda at: known(attacked(folder(at, *CDP), document("server", 0.0))),
    "certified, and leaking inside": lambda at: known(attacked(folder(at, *CDP), document("example", 0.5))),
    "certified, and leaking": lambda at: known(attacked(folder(at, *CDP), document("server", 0.5), GUESS)),
    "secure aggregation": lambda at: known(attacked(folder(at, *SECURE), FAILED)),
    "secure aggregation, not attacked": lambda at: folder(at, *SECURE),
    "noise at the server": lambda at: known(attacked(folder(at, *SDP), document("server", 0.6))),
    "a limit that is too weak": lambda at: known(attacked(folder(at, *WEAK), document("server", 0.0))),
    "stopped": lambda at: folder(at, *CDP, rounds=7, status="stopped"),
    "killed": lambda at: folder(at, rounds=5, status="running"),
    "no round": lambda at: folder(at, *CDP, rounds=0, status="running"),
    "account lost": lambda at: changed(known(folder(at, *CDP)), own_model=True),
    "at chance": lambda at: known(folder(at, *CDP), chance=0.93),
    "diverged": lambda at: changed(known(folder(at)), result=DIVERGED),
    "time over": lambda at: attacked(
        folder(at), document("server", 0.0, attacks={"planned": 8, "unfinished": 2, "not_started": 3})
    ),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Facts and page of a kind of run, made once."""
    base, made = tmp_path_factory.mktemp("kinds"), {}

    def of(kind):
        if kind not in made:
            path = KINDS[kind](base / str(len(made)))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("fedveil.report.gather.POINTS", 2)  # fewer accounts on the way
                made[kind] = Facts(path), render([path])
        return made[kind]

    return of


@pytest.mark.parametrize("kind", KINDS)
def test_every_sentence_of_a_report_is_true(kind, told):
    facts, page = told(kind)
    assert check(facts, page) > 20
    assert all(f'id="{link}"' in page for link in re.findall(r'href="#([^"]+)"', page))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Real runs, trained once: undefended and attacked; private, on the user's own file."""
    base = tmp_path_factory.mktemp("trained")
    rng = np.random.default_rng(0)
    x = rng.random((120, 8, 8, 1), np.float32)
    np.savez(base / "wards.npz", x=x, y=(4 * x.mean((1, 2, 3)) * 4 % 4).astype(np.int32))
    small = {"model": {"name": "logistic"}, "train": {"rounds": 2, "local_steps": 1, "batch": 2}}
    mine = {"name": "file", "file": str(base / "wards.npz"), "clients": 6, "per_client": 10, "partition": "iid"}
    fedveil.train({**small, "data": {"clients": 6, "per_client": 10}}, out=base / "open")
    asked = {"name": "idlg", "tap": "server", "images": 2, "iterations": 5, "seconds": 20}
    fedveil.attack({"attack": asked}, run=base / "open")
    fedveil.train({**small, "data": mine, "defense": {"name": "fed-cdp"}}, out=base / "own")
    return base


@pytest.mark.parametrize("name", ["open", "own"])
def test_every_sentence_on_a_trained_run_is_true(trained, name):
    page = render([trained / name])
    assert check(Facts(trained / name), page) > 20
    assert ("wards.npz" in page.split("<main>")[0]) is (name == "own")


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("no attack", "one attack that failed"),
        ("one attack that failed", "one attack that got through"),
        ("two adversaries, other shares", "one attack that got through"),
        ("certified, not attacked", "no attack"),
        ("certified, not attacked", "at chance"),
        ("secure aggregation", "certified, attacked in vain"),
        ("stopped", "certified, not attacked"),
        ("account lost", "certified, not attacked"),
        ("a limit that is too weak", "certified, attacked in vain"),
        ("diverged", "no attack, chance known"),
    ],
)
def test_a_page_of_another_run_is_found_to_be_untrue(kind, other, told):
    """The check itself: what a page says of one kind of run is not true of another."""
    (mine, page), (wrong, _) = told(kind), told(other)
    with pytest.raises((AssertionError, ValueError, KeyError, IndexError)):
        check(wrong, page.replace(str(mine.run.path), str(wrong.run.path)))


def test_a_sentence_that_nobody_has_thought_about_is_found(told):
    facts, page = told("no attack")
    with pytest.raises(AssertionError, match="no claim covers: This run is safe"):
        check(facts, page.replace("</main>", "<p>This run is safe.</p></main>"))


def test_every_claim_is_made_by_some_kind_of_run(told):
    """A line of the list that no report has is a line that nothing checks."""
    made = set()
    for kind in KINDS:
        facts, page = told(kind)
        made |= set(sentences(page, {f"{line}." for row in facts.rows for line in row.assumptions}))
    rare = {claim for claim in CLAIMS if not any(re.fullmatch(claim, one) for one in made)}
    assert len(rare) <= 9, rare  # files that are missing or cut, pictures and curves of real attacks
