"""The verdict on an attack: one or two sentences that a reader can quote, made from the attack's document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LEVEL = 0.95
SEEN = {
    "example": "the gradient of single examples",
    "batch": "the gradient of a client's batch",
    "client": "the update of a client, before it leaves",
    "server": "the update of a client, as the server receives it",
}


def at_most(victims: int, level: float = LEVEL) -> float:
    """The largest success rate at which no success among `victims` is not yet surprising: exact, one-sided."""
    return 1 - (1 - level) ** (1 / victims)


def of_reconstruction(document: Mapping[str, Any]) -> str:
    """What was rebuilt, from where, against the guess rate; then the labels, and what was not finished."""
    return " ".join(filter(None, (_content(document), _labels(document), _unfinished(document))))


def _content(told: Mapping[str, Any]) -> str:
    where, rebuilt, examples = SEEN.get(told["tap"], f"tap {told['tap']}"), told["rebuilt"], told["examples"]
    if not rebuilt:
        bound = at_most(told["victims"])
        return (
            f"Nothing was rebuilt in {_count(told['attacks']['started'], 'attack')} on {where}: this attack, with this "
            f"time, succeeds on at most {_percent(bound)} of such messages ({_percent(LEVEL)} confidence)."
        )
    rate, chance = rebuilt / examples, told["guess_rate"]
    sentence = f"{rebuilt} of {_count(examples, 'example')} rebuilt from {where} ({told['rule']})"
    if chance is None:
        return f"{sentence}."
    low = (told["interval"] or [rate, rate])[0]
    beside = f"a guess from other data reaches that in {_percent(chance)} of cases"
    return f"{sentence}; {beside}." if low > chance else f"{sentence}: no more than a guess, since {beside}."


def _labels(told: Mapping[str, Any]) -> str:
    rate, chance = told["label_success_rate"], told["label_guess_rate"]
    if rate is None:
        return ""
    if rate <= chance:
        return f"Labels: {_percent(rate)} right, no more than one constant guess ({_percent(chance)})."
    return f"Labels: {_percent(rate)} right; one constant guess gets {_percent(chance)}."


def _unfinished(told: Mapping[str, Any]) -> str:
    counts = told["attacks"]
    parts = []
    if counts["hopeless"]:
        parts.append(
            f"{counts['hopeless']} of {counts['planned']} attacks were given up: their objective no longer fell, "
            "at a match no better than a guess."
        )
    if told["stopped"] == "time limit":
        unfinished = (
            f"{counts['unfinished']} of {counts['planned']} attacks ended in the time limit of {told['limit']:g} s"
        )
        parts.append(f"{unfinished}; {counts['not_started']} not started (attack.seconds sets the limit).")
    return " ".join(parts)


def of_inference(told: Mapping[str, Any]) -> str:
    """What was learned, against what a guess gets; then what was not finished."""
    sentences = [_of_classes(told)] if "auc" not in told else [_of_scores(told), _of_records(told), _of_epsilon(told)]
    if told["not_finished"]:
        counts = [f"{one['made']} of {one['planned']} {what}" for what, one in told["not_finished"].items()]
        sentences.append(f"The time limit of {told['limit']:g} s left {' and '.join(counts)} (attack.seconds sets it).")
    return " ".join(filter(None, sentences))


def _of_scores(told: Mapping[str, Any]) -> str:
    """The main question of a game with a yes and a no."""
    asked = _asked(told)
    (low, high), area = told["interval"] or (None, None), told["auc"]
    if low is None:
        return f"{asked}: AUC {area:.2f}, where a coin gets 0.5; too few answers for an interval."
    between = f"AUC {area:.2f} (95 %: {low:.2f} to {high:.2f}), where a coin gets 0.5"
    if low <= 0.5:
        return f"{asked}: nothing was learned. {between}."
    share = told["tpr_at_fpr"]["0.01"]["tpr"]
    return f"{asked}: the attack tells them apart. {between}; with 1 % false alarms it finds {_percent(share)} of them."


def _asked(told: Mapping[str, Any]) -> str:
    where = f"tap {told['tap']}"
    if told.get("property"):
        return f"Property {told['property']} of the examples behind an update, at {where}"
    if "clients" in told:
        return f"Which of {told['clients']} clients took part, at {where}"
    return f"Which of {told['records']} records were trained on, at {where}"


def _of_records(told: Mapping[str, Any]) -> str:
    """The second question of the property attack."""
    if told.get("record_auc") is None:
        return ""
    low, high = told["record_interval"] or (0.0, 1.0)
    learned = "the attack tells them apart" if low > 0.5 else "nothing was learned"
    return f"Which records are behind it: {learned} (AUC {told['record_auc']:.2f}, 95 %: {low:.2f} to {high:.2f})."


def _of_epsilon(told: Mapping[str, Any]) -> str:
    """The lower bound on ε beside the certificate."""
    if "epsilon_low" not in told:
        return ""
    shown = (
        f"This shows ε of at least {told['epsilon_low']:.2g}" if told["epsilon_low"] > 0 else "This shows no ε above 0"
    )
    unit = f"unit {told['unit']}, {told['adjacency']}, δ = {told['delta']:g}"
    if told["epsilon"] is None:
        return f"{shown}; no ε is certified ({unit})."
    if max((told["beyond"] or {"": 0.0}).values()) > 0:
        return f"{shown}: more than the certified {told['epsilon']:.3g} allows ({unit}). The certificate does not hold."
    return f"{shown}; certified: at most {told['epsilon']:.3g} ({unit})."


def _of_classes(told: Mapping[str, Any]) -> str:
    """What a recovered class looks like, against the same attack on a model that has learned nothing."""
    key, better = ("ssim", max) if told["ssim"] is not None else ("mse", min)
    name = {"ssim": "SSIM", "mse": "mean square error"}[key]
    controls = {what: one[key] for what, one in told["controls"].items() if one[key] is not None}
    own, best = told[key], better(controls.values())
    beside = f"{name} {own:.2f}; the best of the controls ({', '.join(controls)}) has {best:.2f}"
    count = _count(len(told["classes"]), "class", "classes")
    low, high = told["interval"] or (own, own)
    worse = low <= best if key == "ssim" else high >= best
    if worse:
        return f"Nothing was learned of the victim's {count}: {beside}."
    few = "" if told["interval"] else " One federation gives no interval: attack.seeds takes more."
    return f"What was recovered of the victim's {count} is more alike than from an untrained model: {beside}.{few}"


def _count(number: int, noun: str, many: str | None = None) -> str:
    return f"{number} {noun if number == 1 else many or noun + 's'}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share in (0, 1) or 0.01 <= share <= 0.99 else f"{100 * share:.2g} %"
