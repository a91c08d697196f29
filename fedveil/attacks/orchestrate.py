"""`fedveil.attack`: a whole attack, from the config to the scored result, for a config, a run or a file of gradients.

The command line, the lab, the demo and the recipes all call `attack`, or `attack_federation` where they have a federation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedveil.accounting import transcript
from fedveil.attacks import games, results, study, verdict
from fedveil.attacks.base import (
    Attack,
    Execution,
    LiveProgress,
    Progress,
    Reconstruction,
    ReconstructionAttack,
    check_tap,
    silent,
)
from fedveil.attacks.games.federations import Target
from fedveil.attacks.games.outcome import Outcome
from fedveil.attacks.inference.base import InferenceAttack
from fedveil.attacks.limit import SECONDS, Limit, limited
from fedveil.attacks.registry import checked
from fedveil.attacks.study import Study
from fedveil.compilation import check_jax_cache
from fedveil.config import (
    AttackConfig,
    Config,
    Settings,
    for_attack,
    from_dict,
    from_settings,
    of_run,
    read,
    resolve,
    to_toml,
)
from fedveil.core.errors import ConfigError, RunError
from fedveil.core.files import SHARED, write_atomic, write_text
from fedveil.core.keys import Draws
from fedveil.data.registry import DATASETS
from fedveil.federation import Arrays, Federation, build_model, in_memory, prepare
from fedveil.models.net import Model
from fedveil.runs import RunFolder, environment

if TYPE_CHECKING:
    from fedveil.simulation.server import ServerState

STORED_STEPS = (1, 5, 20, 100)  # iterations of which pictures are stored beside the result


@dataclass(frozen=True)
class AttackResult:
    """A finished attack. One of `study`, `outcome` and `reconstruction` holds the details."""

    document: dict[str, Any]
    study: Study | None = field(default=None, repr=False)  # a reconstruction with scores
    outcome: Outcome | None = field(default=None, repr=False)  # an inference attack
    reconstruction: Reconstruction | None = field(default=None, repr=False)  # of a caller's own gradients, unscored

    def as_dict(self) -> dict[str, Any]:
        """The JSON document of `fedveil attack --json`."""
        return dict(self.document)


@dataclass(frozen=True)
class _Files:
    """Where results go: a run folder or a folder of attacks, and a folder of pictures."""

    run: Path | None = None
    out: Path | None = None
    pictures: Path | None = None

    @property
    def folder(self) -> Path | None:
        return self.out or self.run


def attack(
    settings: Settings = None,
    *,
    run: str | Path | None = None,
    gradients: str | Path | None = None,
    data: Arrays | None = None,
    model: Model | None = None,
    attack: Attack | None = None,
    out: str | Path | None = None,
    pictures: str | Path | None = None,
    progress: Progress | None = None,
) -> AttackResult:
    """Attacks a federation and scores the result.

    `settings`: nested dicts as in a config file, a `Config`, the path of a TOML file, or a list of `section.key=value`.
    `run`: attack the training of this run folder; settings may then hold `[attack]` alone. `gradients`: attack the
    gradients in this file, of which nobody knows the truth. `data`, `model`: as in `fedveil.train`. `attack`: an attack
    object in place of the one that `[attack]` names. `out`: a folder to store the result in (a run stores it in its own).
    `pictures`: a folder for pictures. `progress`: called with the steps done and their total.
    """
    files = _checked_files(run, gradients, out, pictures)
    held = None if files.folder is None else RunFolder(files.folder)
    with nullcontext() if held is None or (held.path == files.run and not held.config.is_file()) else held.locked():
        return _attack(settings, files, gradients, data, model, attack, progress or silent)


def _attack(
    settings: Settings,
    files: _Files,
    gradients: str | Path | None,
    data: Arrays | None,
    model: Model | None,
    attack: Attack | None,
    report: Progress,
) -> AttackResult:
    """`attack`, in folders that no other process works in."""
    run = files.run
    config = from_settings(settings) if run is None else _config_of_run(run, settings)
    config, chosen = _with_attack(config, attack)
    if run is None and isinstance(chosen, ReconstructionAttack):
        config = for_attack(config)
    if gradients is not None:
        return _on_gradients(config, chosen, Path(gradients), files, model, report)
    dataset = None
    if data is not None:
        dataset, config = in_memory(data, config)
    if run is not None and model is None:
        model = RunFolder.open(run).own_network("run")
    if files.out is not None:
        _check_same(files.out, resolve(config, trainable=False))
    target = Target(config, _draws(config, files), dataset, model)
    if isinstance(chosen, InferenceAttack):
        return _infer(target, chosen, files, report)
    assert isinstance(chosen, ReconstructionAttack)
    return _reconstruct(target, chosen, files, report)


def attack_federation(
    federation: Federation,
    state: ServerState,
    number: int,
    bench: AttackConfig,
    *,
    folder: Path | None = None,
    steps: Sequence[int] = (),
    progress: Progress = silent,
) -> AttackResult:
    """A reconstruction on round `number` of a federation at hand, in the given state, as `[attack]` says.

    `folder`: the run folder to store it in, with pictures of the iterations `steps`.
    """
    chosen = bench.make()
    assert isinstance(chosen, ReconstructionAttack), "an inference attack trains its own federations"
    done = study.run_on(study.Round(federation, state, number), chosen, bench, progress, limited(bench.seconds))
    config = federation.config.model_copy(update={"attack": bench})
    document = _described(done.as_dict(), config, model=config.model.name)
    if folder is not None:
        from fedveil.attacks.gallery import gallery

        shown = gallery(done, config.speed.precision, steps=steps)
        document["stored"] = str(results.save(folder, bench.model_dump(), document, shown))
    return AttackResult(document, study=done)


# --- configs


def _config_of_run(run: Path, settings: Settings) -> Config:
    """The run's own config, with the given keys of `[attack]`."""
    if isinstance(settings, Config | str | Path):
        takes = "a run has its own config: only keys of [attack] can be set"
        raise ConfigError("settings", str(settings) if not isinstance(settings, Config) else "a Config", takes)
    given = [] if settings is None or isinstance(settings, Mapping) else list(settings)
    for item in given:
        if not item.strip().startswith("attack."):
            raise ConfigError("-s", item, "a run has its own config: only attack.key=value can be set")
    folder = RunFolder.open(run)
    config = from_dict({"preset": "paper", **read(folder.config, given)})
    folder.check_config()
    if not isinstance(settings, Mapping):
        return config
    for section, value in settings.items():
        if section != "attack":
            raise ConfigError(section, value, "a run has its own config: only keys of [attack] can be set")
    keys = {**config.attack.model_dump(exclude_unset=True), **settings.get("attack", {})}
    return config.model_copy(update={"attack": from_dict({"attack": keys}).attack})


def _with_attack(config: Config, attack: Attack | None) -> tuple[Config, Attack]:
    """The config and the attack object: the caller's own, or the one that `[attack]` names."""
    if attack is None:
        return config, config.attack.make()
    chosen, bench = checked(attack), config.attack
    for key, value in {**bench.own(), **({"tap": bench.tap} if "tap" not in chosen.bench else {})}.items():
        if value is not None:
            raise ConfigError(f"attack.{key}", value, "is set beside an attack object: set it on the object")
    keys = {key: value for key, value in asdict(chosen).items() if value is not None}  # type: ignore[call-overload]
    return config.model_copy(update={"attack": bench.model_copy(update={"name": chosen.name, **keys})}), chosen


def _checked_files(
    run: str | Path | None, gradients: str | Path | None, out: str | Path | None, pictures: str | Path | None
) -> _Files:
    if run is not None and gradients is not None:
        raise ConfigError("gradients", str(gradients), "and run are two things to attack: keep one of them")
    if out == "":
        raise ConfigError("out", out, "takes a folder to keep the attack in")
    if out is not None and (run is not None or gradients is not None):
        other = "an attack on a run is kept in that run" if run is not None else "gradients are kept with pictures"
        raise ConfigError("out", str(out), f"{other}: leave it out")
    if pictures == "":
        raise ConfigError("pictures", pictures, "takes a folder to write to")
    return _Files(*(None if path is None else Path(path) for path in (run, out, pictures)))


def _check_same(out: Path, config: Config) -> None:
    """Several attacks may be stored in one folder if they are on the same federation."""
    own = RunFolder(out).config
    if own.exists() and not _alike(from_dict(of_run(own)), config):
        raise ConfigError("out", str(out), "holds attacks on another config, or a run: give another folder")


def _alike(own: Config, config: Config) -> bool:
    """Whether two resolved configs are the same federation: all keys have values, so the preset does not matter."""
    return own == config.model_copy(update={"attack": AttackConfig(), "preset": own.preset})


def _draws(config: Config, files: _Files) -> Draws:
    """The draws of the run, or of the attacks in the folder; else those of the config."""
    seed = config.train.noise_seed
    if files.run is not None or (files.out is not None and RunFolder(files.out).config.exists()):
        assert files.folder is not None
        return RunFolder(files.folder).draws(seed)
    return Draws.of(seed)


# --- reconstructions


def _reconstruct(target: Target, chosen: ReconstructionAttack, files: _Files, progress: Progress) -> AttackResult:
    bench = target.config.attack
    number = _round(target.config, files.run)
    check_tap(chosen, bench.at)
    federation = prepare(target.config, dataset=target.dataset, model=target.model, trainable=False, draws=target.draws)
    if files.run is not None:
        _check_begun(federation, files.run)
    state = _state(federation, number, files.run)
    limit = _limit(bench)
    done = study.run_on(study.Round(federation, state, number), chosen, bench, progress, limit)
    document = _described(done.as_dict(), target.config, model=federation.config.model.name)
    precision = federation.config.speed.precision
    again = limited(limit.seconds and limit.seconds / 2)  # for the steps in pictures, which are attacks again
    if files.folder is not None:
        from fedveil.attacks.gallery import gallery

        # Each step costs as much as the attacks again, so they are stored only where pictures are asked for.
        shown = gallery(done, precision, steps=STORED_STEPS if files.pictures is not None else (), limit=again)
        document["stored"] = _store(files.folder, federation.config, target.draws, document, shown)
    if files.pictures is not None:
        document["pictures"] = _draw(done, files.pictures, precision, again)
    return AttackResult(document, study=done)


def _limit(bench: AttackConfig) -> Limit:
    """The time limit, which begins now: of the config, else the default."""
    return limited(SECONDS if bench.seconds is None else bench.seconds)


def _round(config: Config, run: Path | None) -> int:
    """The round that is attacked."""
    asked = config.attack.round
    if run is None:
        if asked and not DATASETS[config.data.name].trainable:
            raise ConfigError("attack.round", asked, "this dataset cannot be trained on: attack round 0")
        return asked or 0
    done = RunFolder.open(run).checkpoint_round()
    number = done if asked is None else asked
    if number not in (0, done):
        takes = f"a run keeps its start and its last checkpoint: attack round 0 or {done}"
        raise ConfigError("attack.round", number, takes)
    return number


def _state(federation: Federation, number: int, run: Path | None) -> ServerState:
    """The server's state before the attacked round: from the run's checkpoint, or trained up to it."""
    if run is None or not number:
        return study.state_before(federation, number)
    kept = RunFolder.open(run).restore(federation.simulator.start())
    if kept is None or kept.round != number:
        raise ConfigError("run", str(run), "its checkpoint is missing or of another round: resume it first")
    return federation.simulator.adopt(kept.state)


def _check_begun(federation: Federation, run: Path) -> None:
    """Refuses a run whose config no longer is the one that its transcript begins with."""
    file, task = run / transcript.FILE, federation.simulator.task
    if not os.path.lexists(file):
        return
    planned = transcript.start(task.defenses, task.setting, federation.simulator.draws.fingerprint)
    if transcript.read(file, at_least=RunFolder(run).checkpoint_round()).digest != planned.digest:
        changed = f"{RunFolder(run).config} and secret.key: one of the three was changed after the run began"
        raise RunError(f"{file} does not fit {changed}")


def _draw(done: Study, folder: Path, precision: str, limit: Limit) -> list[str]:
    from fedveil.attacks.pictures import write_film, write_grid, write_pairs

    folder.mkdir(parents=True, exist_ok=True)
    truth, found = study.steps(done, 8, precision, limit)
    write_grid(folder / "grid.png", [truth, *found])
    write_film(folder / "steps.gif", truth, found)
    write_pairs(folder / "victims.png", *study.victims(done))
    return [str(folder / name) for name in ("victims.png", "grid.png", "steps.gif")]


# --- inference attacks


def _infer(target: Target, chosen: InferenceAttack, files: _Files, progress: Progress) -> AttackResult:
    """An inference attack trains what it attacks: of a run, the same federation again, because its draws are keyed."""
    limit = _limit(target.config.attack)
    if isinstance(progress, LiveProgress):
        progress.limit(limit.deadline)
    done = games.play(replace(target, limit=limit), chosen, progress)
    told = {
        **done.document,
        "stopped": "time limit" if done.cut else "done",
        "not_finished": {what: {"made": made, "planned": planned} for what, (made, planned) in done.cut.items()},
        "limit": limit.seconds,
    }
    document = _described(
        {**told, "verdict": verdict.of_inference(told)},
        target.config,
        run=None if files.run is None else str(files.run),
    )
    if files.folder is not None:
        shown = results.unscored(done.pictures, done.captions)
        document["stored"] = _store(files.folder, resolve(target.config), target.draws, document, shown, done.curves)
    if files.pictures is not None:
        document["pictures"] = _draw_outcome(done, files.pictures)
    return AttackResult(document, outcome=done)


def _draw_outcome(done: Outcome, folder: Path) -> list[str]:
    from fedveil.attacks.pictures import write_grid
    from fedveil.report.charts import Curve, roc_chart, write

    folder.mkdir(parents=True, exist_ok=True)
    grid, chart = folder / "grid.png", folder / "roc.svg"
    if done.pictures:
        write_grid(grid, list(done.pictures))
    if done.curves:
        write(chart, roc_chart([Curve(name, *pair) for name, pair in done.curves.items()], "ROC"))
    return [str(path) for path, held in ((grid, done.pictures), (chart, done.curves)) if held]


# --- gradients from a file


def _on_gradients(
    config: Config, chosen: Attack, path: Path, files: _Files, model: Model | None, progress: Progress
) -> AttackResult:
    """Attacks the gradients in a file. Nobody knows the truth, so the result is written with its gradient distance."""
    from fedveil.attacks.files import read_gradients
    from fedveil.attacks.observation import of_gradients
    from fedveil.attacks.pictures import write_grid

    check_jax_cache()
    attack = _check_gradients(config, chosen)
    rate = config.train.lr  # None if unset: the default of the dataset is nobody's rate here
    config = resolve(config, trainable=False)
    info, folder = DATASETS[config.data.name], files.pictures or Path("reconstructed")
    network = model if model is not None else build_model(config, info.shape, info.classes)
    steps, batch = config.train.local_steps or 1, config.train.batch or 1
    params, gradients = read_gradients(path, network, rate, steps)
    known = {"examples": batch, "lr": rate, "local_steps": steps}
    span = (0.0, 1.0) if info.kind == "image" else None
    seen = of_gradients(network, params, gradients, info.shape, info.classes, span=span, **known)
    seeds = tuple(range(config.attack.seeds))
    limit = _limit(config.attack)
    if isinstance(progress, LiveProgress):
        progress.limit(limit.deadline)
    found = attack.run(seen, Execution(seeds, config.speed.precision, progress, deadline=limit.deadline))
    folder.mkdir(parents=True, exist_ok=True)
    savez: Callable[..., None] = np.savez
    arrays = {"inputs": found.inputs, "labels": found.labels, "distance": found.distance}
    write_atomic(folder / "found.npz", lambda file: savez(file, **arrays), SHARED)
    if info.kind == "image":
        write_grid(folder / "found.png", list(found.inputs[:16]))
    document = {
        **{"attack": attack.name, "success_rate": None, "label_success_rate": None},
        **{key: getattr(found, key).tolist() for key in ("labels", "distance", "iterations", "ending")},
        "seconds": found.seconds,
        "images": len(found),
        "not_started": found.not_started,
        "stopped": "time limit" if found.not_started or (found.ending == "time limit").any() else "done",
        "limit": limit.seconds,
        "rule": "none: the truth is not known",
        "found": str(folder / "found.npz"),
    }
    return AttackResult(document, reconstruction=found)


def _check_gradients(config: Config, chosen: Attack) -> ReconstructionAttack:
    """Raises `ConfigError` for a key that an attack on a file of gradients does not read."""
    if not isinstance(chosen, ReconstructionAttack):
        takes = "infers and does not reconstruct: gradients of a file take one of the reconstructions, such as cpl"
        raise ConfigError("attack.name", chosen.name, takes)
    for key in sorted({"tap", "images", "round", "rule"} & config.attack.model_fields_set):
        takes = (
            "is not read with --gradients, where all that the file holds is attacked and nothing scored: leave it out"
        )
        raise ConfigError(f"attack.{key}", getattr(config.attack, key), takes)
    names = [d.name for d in config.defense]
    if names != ["none"]:
        raise ConfigError("defense", names, "the gradients of a file are as they were seen: leave it out")
    if "labels" in chosen.capabilities():
        raise ConfigError("attack.label", "given", "a file of gradients holds no labels: take 'infer' or 'joint'")
    return chosen


# --- documents and folders


def _described(document: dict[str, Any], config: Config, **more: Any) -> dict[str, Any]:
    return {**document, "defense": [d.name for d in config.defense], **more}


def _store(
    path: Path,
    config: Config,
    draws: Draws,
    document: dict[str, Any],
    shown: results.Pictures | None,
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
) -> str:
    """Writes an attack into a run folder, or into one that is made to hold attacks alone; returns the path."""
    run = RunFolder(path)
    with run.writing():
        if not run.config.exists():  # a folder of attacks without a training
            run = RunFolder.create(path)
            run.keep(draws)
            write_text(run.config, to_toml(config.model_copy(update={"attack": AttackConfig()})))
            run.write_info(status="attacked", rounds_done=0, **environment())
        return str(results.save(path, config.attack.model_dump(), document, shown, curves))
