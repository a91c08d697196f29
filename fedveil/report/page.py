"""The report: run folders as one HTML page that needs no network, no script and no other file.

from pathlib import Path
from fedveil.report.page import render
Path("report.html").write_text(render([Path("runs/first")]), encoding="utf-8")
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedveil
from fedveil.accounting.ledger import Row
from fedveil.attacks.results import Stored
from fedveil.report.answer import advice, answer
from fedveil.report.figures import Figure, figures
from fedveil.report.gather import Run, claimed, gather
from fedveil.report.html import Markup, join, picture, table, tag
from fedveil.report.style import CSS
from fedveil.report.tables import number
from fedveil.report.verdict import guessed_text, rate, rebuilt_text
from fedveil.report.words import ADJACENCY, UNIT, WHO, delta_text, percent

SECTIONS = {
    "answer": "What leaks, to whom",
    "set": "What to set",
    "training": "Training",
    "privacy": "Privacy over the rounds",
    "attacks": "Attacks",
    "certificates": "Certificates and what they assume",
    "record": "Config and versions",
}


def render(runs: Sequence[Path]) -> str:
    """One self-contained HTML page of these run folders."""
    return page(gather(runs))


def page(runs: Sequence[Run]) -> str:
    """The page of runs that were gathered."""
    drawn = figures(runs)
    parts = {
        "answer": join(*_warnings(runs), answer(runs)),
        "set": advice(runs),
        "training": _charts(drawn, "training") or tag("p", "No round was made."),
        "privacy": _charts(drawn, "privacy") or tag("p", "Nothing is certified in any run, so there is no ε to draw."),
        "attacks": _attacks(runs, drawn),
        "certificates": _certificates(runs),
        "record": join(*(_record(run) for run in runs)),
    }
    title = "Fedveil report: " + ", ".join(run.label for run in runs)
    links = [tag("a", name, href=f"#{key}") for key, name in SECTIONS.items()]
    sections = [tag("section", tag("h2", SECTIONS[key]), part, id=key) for key, part in parts.items()]
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Markup(CSS)),
    )
    body = tag(
        "body", tag("header", tag("h1", _heading(runs)), _about(runs), tag("nav", *links)), tag("main", *sections)
    )
    return f'<!DOCTYPE html>\n<html lang="en">{tag("head", head)}{body}</html>\n'


def _heading(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return f"What does this training leak? {runs[0].config.data.name}, {runs[0].label}"
    return f"What do these {len(runs)} trainings leak?"


def _about(runs: Sequence[Run]) -> Markup:
    lines = {_described(run) for run in runs}
    folders = ", ".join(str(run.path) for run in runs)
    return tag(
        "p", " ".join(sorted(lines)), " ", f"Made by Fedveil {fedveil.__version__} from {folders}.", class_="soft"
    )


def _described(run: Run) -> str:
    data, train = run.config.data, run.config.train
    steps = f"{train.local_steps} local steps" if train.local_steps != 1 else "one local step"
    if train.local_epochs:
        steps = f"{train.local_epochs} local epochs"
    batch = "1 example" if train.batch == 1 else f"{train.batch} examples"
    return (
        f"{data.clients} clients hold {data.name} ({data.partition}); a round takes about {train.per_round} of them, "
        f"{steps} each on batches of {batch}; model {run.config.model.name}."
    )


def _warnings(runs: Sequence[Run]) -> list[Markup]:
    lines = [f"{run.label}: {problem}." for run in runs for problem in run.problems]
    for run in runs:
        broken = [row["round"] + 1 for row in run.metrics if _not_a_number(row)]
        if broken:
            lines.append(
                f"{run.label}: loss or accuracy is not a number from round {broken[0]} on; charts have gaps there."
            )
        dropped = sum(int(row.get("not_finite") or 0) for row in run.metrics)
        if dropped:
            lines.append(f"{run.label}: {dropped} updates were not finite and left out, and their noise with them.")
    different = _differing(runs)
    if different:
        lines.append(f"These runs differ in more than the defence: {', '.join(different)}. Compare with care.")
    notes = dict.fromkeys(str(run.info["note"]) for run in runs if run.info.get("note"))
    lines += [f"Note: {note}." for note in notes]
    if any(attack.pictures is not None for run in runs for attack in run.attacks):
        lines.append("This page shows training examples: give it to nobody who may not see the data.")
    return [tag("p", line, class_="warn") for line in lines]


def _differing(runs: Sequence[Run]) -> list[str]:
    """Keys of data, model and training that are not the same in all runs."""
    found = []
    for section in ("data", "model", "train"):
        parts = [getattr(run.config, section).model_dump() for run in runs]
        found += [f"{section}.{key}" for key in parts[0] if any(part[key] != parts[0][key] for part in parts)]
    return found


def _not_a_number(row: object) -> bool:
    """JSON has no NaN: what was not finite was written as null."""
    if not isinstance(row, dict):
        return False
    return any(
        key in row and not (isinstance(row[key], int | float) and math.isfinite(row[key]))
        for key in ("train_loss", "accuracy", "loss")
    )


def _charts(drawn: Sequence[Figure], section: str) -> Markup:
    shown = [tag("figure", Markup(one.svg), tag("figcaption", one.note)) for one in drawn if one.section == section]
    return tag("div", *shown, class_="charts") if shown else Markup()


# --- attacks


def _attacks(runs: Sequence[Run], drawn: Sequence[Figure]) -> Markup:
    if not any(run.attacks for run in runs):
        command = f"fedveil attack --run {runs[0].path} -s attack.tap=server"
        return join(
            tag(
                "p",
                "No attack is kept in this folder. That no attack was tried says nothing about what one would find.",
            ),
            tag("p", "To try one: ", tag("code", command)),
        )
    missing = [run.label for run in runs if not run.attacks]
    said = [tag("p", f"Not attacked at all: {', '.join(missing)}.")] if missing else []
    return join(*said, _charts(drawn, "attacks"), _grids(runs), _listed(runs))


def _grids(runs: Sequence[Run]) -> Markup:
    """Pictures by seat, the runs side by side."""
    parts = []
    for tap, who in WHO.items():
        here = [
            (run, a) for run in runs for a in run.attacks if a.document.get("tap") == tap and a.pictures is not None
        ]
        if here:
            grids = [_grid(run, attack) for run, attack in here]
            parts.append(join(tag("h3", f"{who.name}: {who.sees}"), tag("div", *grids, class_="grids")))
    return join(*parts)


def _grid(run: Run, attack: Stored) -> Markup:
    """Truth above, steps on the way, result, and the score of each example."""
    seen, found = attack.pictures, attack.document
    assert seen is not None
    rows = [_line(seen.of, seen.truth, seen.of)]
    rows += [
        _line(name, images, f"{attack.document['attack']}, {name}")
        for name, images in zip(seen.shown, seen.found, strict=True)
    ]
    scored = (seen.labels[:, 0] >= 0).any()
    if scored:
        ssim = [
            tag("td", f"{value:.2f}" if math.isfinite(value) else "–", class_=_hit(bool(hit)))
            for value, hit in zip(seen.ssim, seen.success, strict=True)
        ]
        labels = [tag("td", f"{int(real)}→{int(got)}") for real, got in seen.labels]
        rows += [tag("tr", tag("th", "SSIM"), *ssim), tag("tr", tag("th", "label"), *labels)]
    what = f"{rebuilt_text(found)} by the rule: {found.get('rule')}" if rate(found) is not None else "class by class"
    images = found.get("images")
    part = f" Shown: the first {len(seen.truth)}." if isinstance(images, int) and images > len(seen.truth) else ""
    caption = f"{run.label}: {found['attack']}{_settings(attack)}, round {found.get('round', '–')}: {what}.{part}"
    grid = tag("div", tag("table", tag("tbody", *rows), class_="grid"), class_="wide", tabindex="0")
    side = 36 if seen.truth.shape[1] <= 16 else 64
    return tag("figure", tag("figcaption", caption), grid, style=f"--side: {side}px; max-width: {6 * side + 100}px")


def _line(name: str, images: np.ndarray, says: str) -> Markup:
    cells = [tag("td", picture(one, f"{says}, example {place + 1}")) for place, one in enumerate(images)]
    return tag("tr", tag("th", name), *cells)


def _hit(hit: bool) -> str | None:
    return "hit" if hit else None


def _settings(attack: Stored) -> str:
    """What was set besides name and seat, in brief."""
    given = attack.document.get("settings")
    usual = {"name", "tap", "images", "seeds", "round", "rule"}
    more = [f"{key} {value}" for key, value in given.items() if key not in usual] if isinstance(given, dict) else []
    return f" ({', '.join(more)})" if more else ""


def _listed(runs: Sequence[Run]) -> Markup:
    rows = []
    for run in runs:
        for attack in sorted(run.attacks, key=_place):
            found = attack.document
            result = rebuilt_text(found) if rate(found) is not None else ""
            if "auc" in found and found["auc"] is not None:
                result = guessed_text(found)
            name = f"{found['attack']}{_settings(attack)}"
            after = found.get("round", found.get("rounds"))
            label = found.get("label_success_rate")
            rows.append(
                [run.label, name, found.get("tap"), after, result or "see its document", _share(label), _bounds(found)]
            )
    header = ("run", "attack", "tap", "round", "result", "labels right", "ε shown by it, certified")
    return join(
        table(header, rows, "All attacks that the folders hold"),
        tag(
            "p",
            "Rebuilt means: by the attack's rule of success, on examples of the first clients. Attacks that guess members "
            "train the same federation again, with each record in or out by a coin. An attacker with more time, other "
            "attacks or knowledge of its own may get more.",
            class_="soft",
        ),
    )


def _place(attack: Stored) -> tuple[int, str]:
    """Attacks in the order of the answer: types 0, 1, 2, then models."""
    tap = str(attack.document.get("tap"))
    return (list(WHO).index(tap) if tap in WHO else len(WHO), attack.name)


def _share(value: object) -> str | None:
    return percent(float(value)) if isinstance(value, int | float) else None


def _bounds(found: object) -> str | None:
    """What a membership attack shows of ε from below, beside the certificate from above."""
    if not isinstance(found, dict) or found.get("epsilon_low") is None:
        return None
    above = "no certificate" if found.get("epsilon") is None else f"at most {number(found['epsilon'], 3)}"
    return f"at least {number(found['epsilon_low'], 3)} (95 %); {above}"


# --- certificates and the record


def _certificates(runs: Sequence[Run]) -> Markup:
    return join(*(_certificates_of(run, len(runs) > 1) for run in runs))


def _certificates_of(run: Run, several: bool) -> Markup:
    title = [tag("h3", run.label)] if several else []
    if not run.ledger:
        return join(
            *title, tag("p", "There is no account of this run: no round was made, or it could not be computed.")
        )
    proved = [row for row in run.ledger if row.certified]
    notes = list(dict.fromkeys(line for row in proved for line in row.assumptions))
    claims = [row for row in run.ledger if claimed(row)]
    why = {row.reason: None for row in run.ledger if not row.certified and not claimed(row)}
    parts: list[Markup] = [*title]
    if proved:
        parts.append(_certificates_table(proved, f"Certified, after {run.rounds} rounds"))
        parts.append(tag("p", "Every certificate holds only if:"))
        parts.append(tag("ul", *(tag("li", note, ".") for note in notes)))
    else:
        parts.append(tag("p", f"Nothing is certified after {run.rounds} rounds."))
    if why:
        parts.append(tag("p", "Why there is none elsewhere: " if proved else "Why: ", "; ".join(why), "."))
    if claims:
        parts.append(_certificates_table(claims, "As the papers count it: not certified"))
    return join(*parts)


_CERTIFICATE = ("tap", "for", "adjacency", "ε", "δ", "rule", "why")


def _certificates_table(rows: Sequence[Row], caption: str) -> Markup:
    """Rows that say the same of several taps, adjacencies or units are one."""
    split = [((r.tap,), (r.unit,), (r.adjacency,), (r.epsilon, r.delta, r.rule, r.accountant), r.reason) for r in rows]
    for place in range(3):
        groups: dict[object, list[tuple[Any, ...]]] = {}
        for one in split:
            groups.setdefault((*one[:place], *one[place + 1 : 4]), []).append(one)
        split = [_merged(several, place) for several in groups.values()]
    shown = [
        [
            ", ".join(taps),
            ", ".join(UNIT.get(unit, unit) for unit in units),
            ", or ".join(ADJACENCY.get(one, one) for one in adjacencies),
            epsilon,
            delta_text(delta) if delta is not None else None,
            f"{rule} ({accountant})",
            reason,
        ]
        for taps, units, adjacencies, (epsilon, delta, rule, accountant), reason in split
    ]
    return table(_CERTIFICATE, shown, caption)


def _merged(several: Sequence[tuple[Any, ...]], place: int) -> tuple[Any, ...]:
    """Rows that differ in one place alone, as one; of their reasons, the one that is no reference to another tap."""
    first = list(several[0])
    first[place] = tuple(dict.fromkeys(value for one in several for value in one[place]))
    first[4] = min((one[4] for one in several), key=lambda reason: reason.startswith("post-processing"))
    return tuple(first)


def _record(run: Run) -> Markup:
    versions = run.info.get("versions")
    pairs = dict(versions) if isinstance(versions, dict) else {}
    for key in ("python", "platform", "device", "backend"):
        if run.info.get(key):
            pairs[key] = run.info[key]
    said = ", ".join(f"{name} {version}" for name, version in pairs.items() if version) or "not recorded"
    again = f"fedveil train {run.path}/config.toml"
    return join(
        tag("h3", run.label),
        tag("p", "Versions: ", said, "."),
        tag("p", "To run it again: ", tag("code", again)),
        tag("pre", run.toml),
    )
