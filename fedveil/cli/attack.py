"""`fedveil attack`: attack what a tap shows of a config's round, of a run, or of gradients from a file."""

from __future__ import annotations

from typing import Any

from fedveil.attacks.inference.base import InferenceAttack
from fedveil.attacks.registry import ATTACKS, attack_kind
from fedveil.cli import show
from fedveil.config import Config, load
from fedveil.core.errors import ConfigError

FLAGS = ("run", "gradients", "out", "pictures")  # arguments of `fedveil.attack` that are options here


def run_attack(
    file: str | None,
    settings: list[str],
    run: str | None,
    gradients: str | None,
    pictures: str | None,
    json: bool,
    out: str | None = None,
) -> None:
    """Runs one attack and prints its result."""
    if run is not None and file is not None:
        takes = "already has a config: leave out FILE, and give [attack] by -s attack.key=value"
        raise ConfigError("--run", run, takes)
    chosen: Config | list[str] = settings if run is not None else load(file, settings)
    from fedveil.attacks.orchestrate import attack

    with show.as_options(*FLAGS), show.Live(_counted(chosen)) as live:
        done = attack(chosen, run=run, gradients=gradients, out=out, pictures=pictures, progress=live)
    (show.print_json if json else _print)(done.as_dict())


def _counted(chosen: Config | list[str]) -> str:
    """What the progress counts: attacks, or the rounds that an inference attack trains."""
    if isinstance(chosen, list):  # of a run, whose own config is read later
        named = [item.partition("=")[2].strip() for item in chosen if item.partition("=")[0].strip() == "attack.name"]
        name = named[-1] if named else "cpl"
    else:
        name = chosen.attack.name
    return "rounds" if name in ATTACKS and issubclass(attack_kind(name), InferenceAttack) else "attacks"


def _print(document: dict[str, Any]) -> None:
    """Prints the verdict and a short table; all fields are in the JSON."""
    if document.get("verdict"):
        show.print_text(document["verdict"])
    show.print_table("Attack", ("what", "result"), _lines(document))
    show.note("--json prints all fields")


def _lines(told: dict[str, Any]) -> list[tuple[str, Any]]:
    """The lines of the table; those without a value are left out."""
    seen = f"{told['attack']} at tap {told.get('tap')}" if told.get("tap") else told["attack"]
    adversary = f" by the adversary {told['adversary']}" if told.get("adversary") else ""
    number = told.get("round", told.get("rounds"))
    lines = [
        ("attack", seen + adversary),
        ("defence", ", ".join(told.get("defense", ()))),
        ("round" if "round" in told else "rounds observed", number),
        *(_rebuilt(told) if "rebuilt" in told else _of_gradients(told) if "found" in told else _inferred(told)),
        ("seconds", told.get("seconds")),
        ("stopped", told.get("stopped")),
        ("pictures", ", ".join(told.get("pictures", ()))),
        ("stored", told.get("stored") or told.get("found")),
    ]
    return [(name, value) for name, value in lines if value not in (None, "")]


def _rebuilt(told: dict[str, Any]) -> list[tuple[str, Any]]:
    """The lines of a reconstruction."""
    rate = f"{told['rebuilt']} of {told['examples']} ({told['rule']})"
    guess = f"; a guess: {told['guess_rate']:.2g}" if told["guess_rate"] is not None else ""
    return [
        ("rebuilt", rate + guess),
        ("rate, 95 % interval", _within(told["success_rate"], told["interval"])),
        ("labels right", f"{told['label_success_rate']:.2g}; a constant guess: {told['label_guess_rate']:.2g}"),
        ("mean SSIM", told["ssim"]),
        ("mean square error", told["mse"]),
        ("iterations", told["iterations"]),
    ]


def _of_gradients(told: dict[str, Any]) -> list[tuple[str, Any]]:
    """The lines of an attack on gradients whose truth nobody knows."""
    return [
        ("rebuilt", "not scored: the truth is not known"),
        ("labels", told["labels"]),
        ("gradient distance", told["distance"]),
        ("ending", told["ending"]),
    ]


def _inferred(told: dict[str, Any]) -> list[tuple[str, Any]]:
    """The lines of an inference attack."""
    lines: list[tuple[str, Any]]
    if "auc" not in told:
        controls = [
            f"{name} {_short(one['ssim'] if told['ssim'] is not None else one['mse'])}"
            for name, one in told["controls"].items()
        ]
        mean = ("SSIM", told["ssim"]) if told["ssim"] is not None else ("mean square error", told["mse"])
        lines = [mean, (f"{mean[0]}, controls", ", ".join(controls)), ("recognised", told["recognised_rate"])]
        return [*lines, ("accuracy of the model", _learned(told))]
    lines = [("AUC, 95 % interval", f"{_within(told['auc'], told['interval'])}; a coin: 0.5")]
    found = [f"{_short(one['tpr'])} at {fpr}" for fpr, one in told["tpr_at_fpr"].items()]
    lines.append(("true positives at false", ", ".join(found)))
    if "epsilon_low" in told:
        certified = "none certified" if told["epsilon"] is None else f"certified {told['epsilon']:.4g}"
        lines.append(("ε", f"at least {told['epsilon_low']:.4g}; {certified}"))
        lines.append(("ε is for", f"unit {told['unit']}, {told['adjacency']}, δ = {told['delta']:g}"))
    for key in ("records", "shadows", "clients", "federations", "record_auc", "round_auc"):
        lines.append((key.replace("_auc", " AUC"), told.get(key)))
    return [*lines, ("accuracy of the model", _learned(told))]


def _learned(told: dict[str, Any]) -> str:
    """The accuracy of the attacked models beside chance; empty where the attack does not measure it."""
    if told.get("accuracy") is None:
        return ""
    at_chance = "" if told["learned"] else ": it learned nothing, so there is little to find"
    return f"{_short(told['accuracy'])}; chance: {_short(told['chance'])}{at_chance}"


def _within(value: float, interval: list[float] | None) -> str:
    return _short(value) if interval is None else f"{_short(value)} ({_short(interval[0])} to {_short(interval[1])})"


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"
