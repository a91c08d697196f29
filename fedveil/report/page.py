"""The report: run folders as one HTML page that needs no network, no script and no other file.

    from pathlib import Path
    from fedveil.report.page import render
    Path("report.html").write_text(render([Path("runs/first")]), encoding="utf-8")

Python code collects the facts; the texts around them are in `templates/`, where jinja2 escapes every value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import fedveil
from fedveil.accounting.ledger import Row
from fedveil.attacks.results import Stored
from fedveil.data.pixels import png_uri
from fedveil.report import choice, signing, summary
from fedveil.report.figures import Figure, figures
from fedveil.report.gather import Run, claimed, gather
from fedveil.report.glossary import ADJACENCY, ADVERSARIES, SHOWN, UNIT, Adversary, delta_text, percent, sees
from fedveil.report.hazards import Hazard, hazards
from fedveil.report.summary import joined
from fedveil.report.tables import FORBIDDEN, finite, number
from fedveil.report.verdict import (
    CLASSES,
    GUESSES,
    MEANS,
    area,
    guess_text,
    guessed_text,
    rate,
    rebuilt_cell,
    rebuilt_text,
    verdict,
    verdicts,
)

SECTIONS = {
    "answer": "What leaks, to whom",
    "protected": "Who is protected, against whom",
    "set": "What was tried, and what to take",
    "seen": "What an attack saw",
    "sign": "Signature",
    "appendix": "Appendix",
    "detail": "In sentences",
    "hazards": "Hazards, and who has to answer for them",
    "training": "Training",
    "privacy": "Privacy over the rounds",
    "attacks": "Attacks",
    "certificates": "Certificates and what they assume",
    "record": "Config and versions",
}
CERTIFICATE = ("tap", "for", "adjacency", "ε", "δ", "rule", "why", "holds if")


def render(runs: Sequence[Path]) -> str:
    """One self-contained HTML page of these run folders."""
    return page(gather(runs))


def page(runs: Sequence[Run], drawn: Sequence[Figure] | None = None) -> str:
    """The HTML page for the gathered runs. `drawn`: their figures, if the caller has drawn them already."""
    drawn = figures(runs) if drawn is None else drawn
    taken = choice.choice(runs)
    shown = choice.front(runs, taken.run)
    found = [(run, hazards(run)) for run in runs]
    return templates().get_template("page.html").render(
        runs=runs,
        shown_runs=shown,
        heading=_heading(runs),
        about=_about(runs),
        warnings=_warnings(runs),
        figures={key: [one for one in drawn if one.section == key] for key in ("set", "training", "privacy", "attacks")},
        choice=taken,
        tried=choice.tried(shown),
        protected=[[run.label, *row] for run in shown for row in signing.protected(run)],
        protected_header=("run", *signing.PROTECTED),
        hazards=found,
        answered=_answered(found),
        date=signing.today(),
        sums=_sums(runs),
        kinds=_kinds(runs),
        front_grids=_front_grids(shown, taken.run),
        picture_grids=_grids(runs),
        attack_rows=[_attack_row(run, one) for run in runs for one in sorted(run.attacks, key=_order)],
        certificates=[_certificates(run) for run in runs],
    )  # fmt: skip


def _answered(found: Sequence[tuple[Run, Sequence[Hazard]]]) -> list[str]:
    """How many hazards are held, not held and not known, for each run."""
    states = ("held", "not held", "not known by this run")
    return [
        f"{run.label}: {joined([f'{sum(one.state == state for one in list_)} {state}' for state in states])}"
        for run, list_ in found
    ]


def _kinds(runs: Sequence[Run]) -> dict[str, bool]:
    """Which kinds of attacks were made: some that rebuild examples, some that guess who was a member."""
    found = [one.document for run in runs for one in run.attacks]
    members = [one for one in found if area(one) is not None and str(one["attack"]) not in GUESSES]
    return {"rebuilt": any(rate(one) is not None for one in found), "guessed": bool(members)}


def _sums(runs: Sequence[Run]) -> str:
    """Whether the server sees sums alone: all, some or none of the runs."""
    secure = [run.config.train.secure_aggregation for run in runs]
    return "all" if all(secure) else "some" if any(secure) else "none"


@lru_cache(maxsize=1)
def templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("fedveil.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_printable,
    )
    made.filters |= {"number": number, "delta": delta_text, "rebuilt": rebuilt_text, "cell": rebuilt_cell}
    made.filters |= {"guessed": guessed_text, "guess": guess_text}
    made.globals |= {"sections": SECTIONS, "classes": CLASSES, "means": MEANS, "unit": UNIT, "adjacency": ADJACENCY}
    made.globals |= {"shown": SHOWN, "adversaries": ADVERSARIES, "verdict": verdict, "verdicts": verdicts}
    made.globals |= {"certificate_header": CERTIFICATE, "tried_header": choice.TRIED, "versions": _versions}
    made.globals |= {"headline": signing.headline, "digests": signing.digests, "seal": signing.seal, "sees": sees}
    made.globals["svg"] = lambda chart: Markup(chart.svg())
    for function in (
        summary.points, summary.measured, summary.costs, summary.used_words, summary.record_exceeds_client,
        summary.holder_too,
    ):  # fmt: skip
        made.globals[function.__name__] = function
    return made


def _printable(value: object) -> object:
    """Text without control characters, whose percentages are not broken across lines; markup as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return FORBIDDEN.sub("\ufffd", value).replace(" %", "\u00a0%")


# --- the head of the page


def _heading(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return f"What does this training leak? {named(runs[0])}, {runs[0].label}"
    return f"What do these {len(runs)} trainings leak?"


def _about(runs: Sequence[Run]) -> str:
    folders = ", ".join(str(run.path) for run in runs)
    settings = " ".join(sorted({_described(run) for run in runs}))
    return f"{settings} Made by Fedveil {fedveil.__version__} from {folders}."


def named(run: Run) -> str:
    """The data of a run: a name, or the file or arrays that the user gave."""
    data = run.config.data
    return Path(data.file).name if data.name == "file" and data.file else data.name


def _described(run: Run) -> str:
    data, train = run.config.data, run.config.train
    steps = f"{train.local_steps} local steps" if train.local_steps != 1 else "one local step"
    if train.local_epochs:
        steps = f"{train.local_epochs} local epochs"
    batch = "1 example" if train.batch == 1 else f"{train.batch} examples"
    return (
        f"{data.clients} clients hold {named(run)} ({data.partition}); a round takes about {train.per_round} of them, "
        f"{steps} each on batches of {batch}; model {run.config.model.name}."
    )


def _warnings(runs: Sequence[Run]) -> list[str]:
    lines = [f"{run.label}: {problem}." for run in runs for problem in run.problems]
    for run in runs:
        scores = ("train_loss", "accuracy", "loss")  # JSON has no NaN: null stands for it
        broken = [row["round"] + 1 for row in run.metrics if any(k in row and finite(row[k]) is None for k in scores)]
        if broken:
            what = f"loss or accuracy is not a number from round {broken[0]} on"
            lines.append(f"{run.label}: {what}; charts have gaps there.")
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
    return lines


def _differing(runs: Sequence[Run]) -> list[str]:
    """Keys of data, model and training that are not the same in all runs."""
    found = []
    for section in ("data", "model", "train"):
        parts = [getattr(run.config, section).model_dump() for run in runs]
        found += [f"{section}.{key}" for key in parts[0] if any(part[key] != parts[0][key] for part in parts)]
    return found


def _versions(run: Run) -> str:
    found = run.info.get("versions")
    pairs = dict(found) if isinstance(found, dict) else {}
    pairs |= {key: run.info[key] for key in ("python", "platform", "device", "backend") if run.info.get(key)}
    return ", ".join(f"{name} {version}" for name, version in pairs.items() if version) or "not recorded"


# --- attacks


@dataclass(frozen=True)
class _Grid:
    """Pictures of one attack: truth, steps on the way, result, and the score of each example."""

    caption: str
    side: int  # pixels of a picture on the page
    rows: Sequence[tuple[str, str, Sequence[str]]]  # name, words for those who cannot see them, pictures
    scores: Sequence[tuple[str, bool]]  # SSIM, and whether the attack succeeded
    labels: Sequence[str]


def _grids(runs: Sequence[Run]) -> list[tuple[Adversary, list[_Grid]]]:
    """The pictures at each tap, those of different runs side by side."""
    made = []
    for tap, adversary in ADVERSARIES.items():
        pairs = [(run, one) for run in runs for one in run.attacks if one.document.get("tap") == tap]
        grids = [_grid(run, one) for run, one in pairs if one.pictures is not None]
        made += [(adversary, grids)] if grids else []
    return made


def _front_grids(runs: Sequence[Run], taken: Run | None) -> list[tuple[str, _Grid]]:
    """Truth and result of the attack that rebuilt most, and of the best on the recommended run, six pictures each."""
    known = [
        (rate(one.document) or 0.0, run, one)
        for run in runs
        for one in run.attacks
        if one.pictures is not None and rate(one.document) is not None
    ]
    known.sort(key=lambda found: -found[0])
    chosen = known[:1] + [found for found in known[1:] if found[1] is taken][:1]
    made = []
    for _, run, one in chosen:
        whole = _grid(run, one)
        tap = str(one.document.get("tap"))
        who = f"to {ADVERSARIES[tap].inside}" if tap in ADVERSARIES else f"at the tap {tap}"
        rows = [(name, words, pictures[:FRONT_PICTURES]) for name, words, pictures in (whole.rows[0], whole.rows[-1])]
        caption = f"{run.label}, {who}: {one.document['attack']} {rebuilt_text(one.document)}"
        made.append((caption, replace(whole, rows=rows, scores=whole.scores[:FRONT_PICTURES], labels=())))
    return made


FRONT_PICTURES = 6  # in a row of the first pages


def _grid(run: Run, attack: Stored) -> _Grid:
    seen, found = attack.pictures, attack.document
    assert seen is not None
    named = [(seen.of, seen.of, seen.truth)]
    named += [(name, f"{found['attack']}, {name}", own) for name, own in zip(seen.shown, seen.found, strict=True)]
    rows = [(name, words, [png_uri(one, small=True) for one in images]) for name, words, images in named]
    scores, labels = [], []
    if (seen.labels[:, 0] >= 0).any():
        pairs = zip(seen.ssim, seen.success, strict=True)
        scores = [(f"{v:.2f}" if math.isfinite(v) else "–", bool(s)) for v, s in pairs]
        labels = [f"{int(real)}→{int(got)}" for real, got in seen.labels]
    what = f"{rebuilt_text(found)} by the rule: {found.get('rule')}" if rate(found) is not None else "class by class"
    images = found.get("images")
    part = f" Shown: the first {len(seen.truth)}." if isinstance(images, int) and images > len(seen.truth) else ""
    caption = f"{run.label}: {found['attack']}{_settings(attack)}, round {found.get('round', '–')}: {what}.{part}"
    return _Grid(caption, 72 if seen.truth.shape[1] <= 16 else 96, rows, scores, labels)


def _settings(attack: Stored) -> str:
    """The attack's settings except name and tap, in brief."""
    given = attack.document.get("settings")
    usual = {"name", "tap", "images", "seeds", "round", "rule"}
    more = [f"{key} {value}" for key, value in given.items() if key not in usual] if isinstance(given, dict) else []
    return f" ({', '.join(more)})" if more else ""


def _order(attack: Stored) -> tuple[int, str]:
    """Attacks in the order of the summary: types 0, 1, 2, then models."""
    tap = str(attack.document.get("tap"))
    return (list(ADVERSARIES).index(tap) if tap in ADVERSARIES else len(ADVERSARIES), attack.name)


def _attack_row(run: Run, attack: Stored) -> list[object]:
    found = attack.document
    result = rebuilt_text(found) if rate(found) is not None else "see its document"
    if found.get("auc") is not None:
        result = guessed_text(found)
    label = found.get("label_success_rate")
    right = percent(float(label)) if isinstance(label, int | float) else None
    after = found.get("round", found.get("rounds"))
    return [run.label, f"{found['attack']}{_settings(attack)}", found.get("tap"), after, result, right, _bounds(found)]


def _bounds(found: Mapping[str, Any]) -> str | None:
    """The ε that a membership attack shows from below, beside the certificate from above."""
    if found.get("epsilon_low") is None:
        return None
    above = "no certificate" if found.get("epsilon") is None else f"at most {number(found['epsilon'], 3)}"
    return f"at least {number(found['epsilon_low'], 3)} (95 %); {above}"


# --- certificates


@dataclass(frozen=True)
class _Certificate:
    """Rows of the ledger that say the same of several taps, units or adjacencies."""

    tap: tuple[str, ...]
    unit: tuple[str, ...]
    adjacency: tuple[str, ...]
    value: tuple[float | None, float | None, str, str]  # ε, δ, rule, accountant
    reason: str
    assumptions: tuple[str, ...] = ()


def _certificates(run: Run) -> dict[str, Any]:
    proved = [row for row in run.ledger if row.certified]
    claims = [row for row in run.ledger if claimed(row)]
    numbers = {line: n for n, line in enumerate(dict.fromkeys(a for row in proved for a in row.assumptions), 1)}
    return {
        "label": run.label,
        "rounds": run.rounds,
        "known": bool(run.ledger),
        "proved": _certificate_rows(proved, numbers),
        "claimed": [row[:-1] for row in _certificate_rows(claims, {})],
        "assumptions": list(numbers),
        "why": list(dict.fromkeys(row.reason for row in run.ledger if not row.certified and not claimed(row))),
    }


def _certificate_rows(rows: Sequence[Row], numbers: Mapping[str, int]) -> list[list[object]]:
    """Table rows; ledger rows that differ in tap, unit or adjacency alone are merged. `numbers`: of the assumptions."""
    values = [(r.epsilon, r.delta, r.rule, r.accountant) for r in rows]
    pairs = zip(rows, values, strict=True)
    made = [
        _Certificate((r.tap,), (r.unit,), (r.adjacency,), value, r.reason, r.assumptions if numbers else ())
        for r, value in pairs
    ]
    for key in ("tap", "unit", "adjacency"):
        groups: dict[_Certificate, list[_Certificate]] = {}
        for one in made:
            alike: Any = {key: (), "reason": ""}
            groups.setdefault(replace(one, **alike), []).append(one)
        made = [_merged(several, key) for several in groups.values()]
    return [
        [
            ", ".join(one.tap),
            ", ".join(UNIT.get(unit, unit) for unit in one.unit),
            ", or ".join(ADJACENCY.get(name, name) for name in one.adjacency),
            one.value[0],
            delta_text(one.value[1]) if one.value[1] is not None else None,
            f"{one.value[2]} ({one.value[3]})",
            one.reason,
            _ranges(sorted(numbers[line] for line in one.assumptions)),
        ]
        for one in made
    ]


def _ranges(numbers: Sequence[int]) -> str:
    """ "1–3, 5"."""
    parts: list[list[int]] = []
    for number_ in numbers:
        if parts and number_ == parts[-1][-1] + 1:
            parts[-1].append(number_)
        else:
            parts.append([number_])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts)


def _merged(several: Sequence[_Certificate], key: str) -> _Certificate:
    """Merges rows that differ in one key only. Of their reasons it keeps one that does not refer to another tap."""
    values = tuple(dict.fromkeys(value for one in several for value in getattr(one, key)))
    reason = min((one.reason for one in several), key=lambda text: text.startswith("post-processing"))
    return replace(several[0], **{key: values}, reason=reason)
