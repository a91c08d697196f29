"""`fedveil demo`: a small study. Trains a federation four times, attacks it at every leakage type, and writes a report.

The setting is the easiest one for an attacker, one local step on about one example, so that undefended training leaks
plainly. Fed-SDP leaves what the server sees without noise: it still leaks. Fed-CDP with noise on each example closes
all taps and pays for it in accuracy. Fed-CDP with noise on the sum needs secure aggregation, which is simulated: the server
sees the sum alone, with a small ε at a good accuracy, and an observer inside a client still sees what it computes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedveil.cli import show
from fedveil.config import AttackConfig, load
from fedveil.core.errors import ConfigError, FedveilError

SETTINGS = {
    "data": ("data.partition=iid", "data.clients=200", "data.per_client=6"),
    "model": ("model.name=mlp", "model.hidden=[32]"),
    "train": (
        "train.rounds=150",
        "train.per_round=100",
        "train.batch=1",
        "train.local_steps=1",
        "train.sampling=poisson",
        "train.batching=poisson",
        "train.lr=0.5",
        "train.lr_end=0.1",
        "train.server_momentum=0",
    ),
}
DEFENSES = {
    "none": ("defense.name=none",),
    "fed-sdp": (
        "preset=paper",
        "defense.name=fed-sdp",
        "defense.placement=server-sum",
        "defense.clip=0.5",
        "defense.noise=4",
        "defense.clip_scope=flat",
    ),
    "each-example": (
        "preset=paper",
        "defense.name=fed-cdp",
        "defense.placement=example",
        "defense.clip=1",
        "defense.noise=1",
        "defense.clip_scope=flat",
    ),
    "secure-sum": (
        "preset=paper",
        "defense.name=fed-cdp",
        "defense.placement=cohort",
        "defense.clip=1",
        "defense.noise=4",
        "defense.clip_scope=flat",
        "train.secure_aggregation=true",
        "train.lr=0.2",
        "train.lr_end=0.02",
        "train.server_momentum=0.9",
    ),
}
TAPS = ("server", "client", "example")  # leakage types 0, 1 and 2
NOTE = (
    "a small study on little data, about one example per step, with noise and clips chosen by hand on the same data: its "
    "figures do not carry over to a training of your own"
)
STEPS = (1, 5, 20)  # iterations that pictures show


def run_demo(settings: list[str], out: str | None, json: bool) -> None:
    """Trains, attacks, reports; `-s` changes the setting of all, and a given defence replaces ours."""
    if out == "":
        raise ConfigError("--out", out, "takes the folder of a run: leave it out for one below runs/")
    studies = {name: load(None, given) for name, given in _studies(settings).items()}
    from fedveil.federation import prepare
    from fedveil.report.write import report
    from fedveil.runs import RunFolder, default_path

    ready = {name: prepare(config) for name, config in studies.items()}  # all of them first, so that errors come early
    study = RunFolder.create(Path(out) if out is not None else default_path("demo")).path
    results = {}
    for number, (name, federation) in enumerate(ready.items(), 1):
        show.note(f"{number} of {len(ready)}: training, {name}")
        results[name] = _trained(federation, RunFolder.create(study / name))
        RunFolder(study / name).write_info(note=NOTE, tuned_on_data=not settings)
        show.note(f"{number} of {len(ready)}: attacking, {name}")
        _attack(federation, study / name)
        _guess(study / name)
    document = report([study / name for name in ready], study / "report.html").as_dict()
    if json:
        show.print_json({**results["none"].as_dict(), "study": str(study), **document})
        return
    _print(document, results["none"].split, results["none"].chance)


def _studies(given: list[str]) -> dict[str, list[str]]:
    """The settings of each federation. Another dataset or model takes its own defaults."""
    keys = [item.partition("=")[0].strip() for item in given]
    base: list[str] = []
    for section, usual in SETTINGS.items():
        replaced = f"{section}.name" in keys or (section == "data" and "data.partition" in keys)
        base += [] if replaced else usual
    own = [item for item, key in zip(given, keys, strict=True) if key.startswith("defense.")]
    shared = [*base, *(item for item in given if item not in own)]
    if not own:
        return {name: [*base, *settings, *given] for name, settings in DEFENSES.items()}
    named = "+".join(d.name for d in load(None, own).defense)
    return {"none": [*shared, *DEFENSES["none"]], **({named: [*shared, *own]} if named != "none" else {})}


def _trained(federation: Any, run: Any) -> Any:
    from fedveil.training import train

    with show.Bar(federation.rounds) as bar:
        return train(federation, run, bar)


def _attack(federation: Any, path: Path) -> None:
    """A reconstruction at types 0, 1 and 2, of the round after the last, with the steps on its way."""
    from fedveil.attacks.orchestrate import attack_federation
    from fedveil.runs import RunFolder

    kept = RunFolder(path).restore(federation.simulator.start())
    assert kept is not None
    state = federation.simulator.adopt(kept.state)
    for tap in TAPS:
        # The cosine compares directions: a clip changes the length of a gradient and not its direction.
        asked = AttackConfig.model_validate({"name": "cpl", "tap": tap, "distance": "cosine", "iterations": 200})
        try:
            with show.Counter(f"attacks at {tap}") as counter:
                attack_federation(federation, state, kept.round, asked, folder=path, steps=STEPS, progress=counter)
        except FedveilError as error:
            show.note(f"not attacked at {tap}: {error}")


def _guess(path: Path) -> None:
    """Membership inference on the final model: a federation of the same kind, with coins for its records."""
    from fedveil.attacks.orchestrate import attack

    asked = {"attack": {"name": "loss-threshold", "records": 1000}}
    try:
        with show.Counter("rounds of the federation whose members are guessed") as counter:
            attack(asked, run=path, progress=counter)
    except FedveilError as error:
        show.note(f"membership not attacked: {error}")


def _print(document: dict[str, Any], split: str, chance: float) -> None:
    rows = []
    for run in document["runs"]:
        rebuilt = [run["seats"][tap]["success_rate"] for tap in TAPS]
        shares = ("not attacked" if value is None else f"{100 * value:.0f} %" for value in rebuilt)
        rows.append((run["label"], run["accuracy"], *shares, _epsilons(run["seats"])))
    columns = (
        "defence",
        f"accuracy ({split}; chance {chance:.2f})",
        "rebuilt at type 0",
        "type 1",
        "type 2",
        "certified ε",
    )
    show.print_table("Fedveil demo", columns, rows)
    print(f"report: {document['report']}")


def _epsilons(seats: dict[str, Any]) -> str:
    """The smallest ε at the server and of the model, or that there is none."""
    named = [(tap, seats[tap]["epsilon"]) for tap in ("example", "server", "release") if seats[tap]["epsilon"]]
    found = [f"{tap}: {min(epsilon.values()):.3g}" for tap, epsilon in named]
    return ", ".join(found) or "nothing is certified at any tap"
