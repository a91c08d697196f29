"""`fedveil attack`: attack what a tap shows of a config's round, of a run, or of gradients from a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedveil.attacks.adversaries import INFERENCE
from fedveil.cli import show
from fedveil.config import Config, for_attack, load, resolve, to_toml
from fedveil.core.errors import ConfigError
from fedveil.core.keys import Draws
from fedveil.data.catalog import DATASETS

KEPT_STEPS = (1, 5, 20, 100)  # iterations of which pictures are kept beside the result


def run_attack(
    file: str | None,
    settings: list[str],
    run: str | None,
    gradients: str | None,
    pictures: str | None,
    json: bool,
    out: str | None = None,
) -> None:
    """One study: printed, kept in the run's folder or in `out`, and drawn where asked."""
    if run is not None and gradients is not None:
        raise ConfigError("--gradients", gradients, "and --run are two things to attack: keep one of them")
    _check_out(out, run, gradients)
    if gradients is not None:
        _own_gradients(for_attack(load(file, settings)), Path(gradients), pictures, json)
        return
    config, number = _config(file, settings, run)
    if out is not None:
        _check_same(out, resolve(config, trainable=False))
    folder = _folder(pictures)
    draws = _draws(config, run, out)
    keeps = _keeper(out or run, draws)
    if config.attack.name in INFERENCE:
        _infer(config, run, draws, folder, keeps, json)
        return
    from fedveil.attacks import study
    from fedveil.federation import prepare

    study.check_tap(config.attack)
    federation = prepare(config, trainable=False, draws=draws)
    state = _state(federation, number, run)
    with show.Counter("attacks") as counter:
        done = study.run(federation, state, number, config.attack, counter)
    document = {**done.as_dict(), "defense": [d.name for d in config.defense], "model": federation.config.model.name}
    if keeps is not None:
        from fedveil.attacks.gallery import gallery

        # Steps cost as many attacks again, so they are kept where pictures are asked for.
        seen = gallery(done, federation.config.speed.precision, steps=KEPT_STEPS if folder is not None else ())
        document["stored"] = keeps(federation.config, document, seen, {})
    if folder is not None:
        document["pictures"] = _draw(done, folder, federation.config.speed.precision)
    if json:
        show.print_json(document)
        return
    _print(document)


def _check_out(out: str | None, run: str | None, gradients: str | None) -> None:
    if out == "":
        raise ConfigError("--out", out, "takes a folder to keep the attack in")
    if out is not None and (run is not None or gradients is not None):
        other = "an attack on --run is kept in that run" if run is not None else "--gradients are kept with --pictures"
        raise ConfigError("--out", out, f"{other}: leave it out")


Keeper = Callable[[Config, dict[str, Any], Any, Any], str]


def _keeper(where: str | None, draws: Draws) -> Keeper | None:
    """Writes an attack into a run folder, or into one that is made to hold attacks alone."""
    if where is None:
        return None
    path = Path(where)

    def keep(config: Config, document: dict[str, Any], pictures: Any, curves: Any) -> str:
        from fedveil.attacks import results
        from fedveil.runs import RunFolder

        run = RunFolder(path)
        with run.writing():
            if not run.config.exists():
                _begin_folder(path, config, draws)
            return str(results.save(path, config.attack.model_dump(), document, pictures, curves))

    return keep


def _begin_folder(path: Path, config: Config, draws: Draws) -> None:
    """A folder of attacks without a training: its secret, its config, and versions for the record."""
    from fedveil.runs import RunFolder, environment, write_text

    run = RunFolder.create(path)
    run.keep(draws)
    default = type(config.attack)()
    write_text(run.config, to_toml(config.model_copy(update={"attack": default})))
    run.write_info(status="attacked", rounds_done=0, **environment())


def _check_same(out: str, config: Config) -> None:
    """Several attacks may go into one folder, where they are on the same federation."""
    own = Path(out) / "config.toml"
    if not own.exists():
        return
    default = type(config.attack)()
    if load(own) != config.model_copy(update={"attack": default}):
        raise ConfigError("--out", out, "holds attacks on another config, or a run: give another folder")


def _draws(config: Config, run: str | None, out: str | None) -> Draws:
    """Those of the run, or of the attacks that are in the folder already; by default the config's."""
    from fedveil.runs import RunFolder

    seed = config.train.noise_seed
    if run is not None:
        return RunFolder(Path(run)).draws(seed)
    if out is not None and RunFolder(Path(out)).config.exists():
        return RunFolder(Path(out)).draws(seed)
    return Draws.of(seed)


def _infer(
    config: Config, run: str | None, draws: Draws, folder: Path | None, keeps: Keeper | None, json: bool
) -> None:
    """An inference attack trains what it attacks: of a run, the same federation again, which its keyed draws make equal."""
    from fedveil.attacks.inference.run import run as infer

    with show.Counter("rounds") as counter:
        done = infer(config, counter, draws)
    document = {**done.document, "defense": [d.name for d in config.defense], "run": run}
    if keeps is not None:
        from fedveil.attacks.results import unscored

        seen = unscored(done.pictures, done.captions)
        document["stored"] = keeps(resolve(config), document, seen, done.curves)
    if folder is not None:
        document["pictures"] = _draw_inference(done, folder)
    if json:
        show.print_json(document)
        return
    _print(document)


def _draw_inference(done: Any, folder: Path) -> list[str]:
    from fedveil.attacks.pictures import write_grid
    from fedveil.report.charts import Curve, roc_chart, write_svg

    folder.mkdir(parents=True, exist_ok=True)
    made = []
    if done.pictures:
        write_grid(folder / "grid.png", list(done.pictures))
        made.append(str(folder / "grid.png"))
    if done.curves:
        curves = [Curve(name, *pair) for name, pair in done.curves.items()]
        write_svg(folder / "roc.svg", roc_chart(curves, title="ROC"))
        made.append(str(folder / "roc.svg"))
    return made


def _config(file: str | None, settings: list[str], run: str | None) -> tuple[Config, int]:
    """The config to attack and the round."""
    if run is None:
        config = load(file, settings)
        if config.attack.name in INFERENCE:
            return config, 0
        config = for_attack(config)
        if config.attack.round and not DATASETS[config.data.name].trainable:
            raise ConfigError("attack.round", config.attack.round, "this dataset cannot be trained on: attack round 0")
        return config, config.attack.round or 0
    from fedveil.runs import RunFolder

    if file is not None:
        raise ConfigError(
            "--run", run, "has a config of its own: leave out FILE, and give [attack] by -s attack.key=value"
        )
    others = [item for item in settings if not item.strip().startswith("attack.")]
    if others:
        raise ConfigError("-s", others[0], "a run has its own config: only attack.key=value can be set")
    folder = RunFolder.open(Path(run))
    if folder.read_info().get("own_model"):
        raise ConfigError("--run", run, "was trained with a model of its own: attack it from Python")
    config = load(folder.config, settings)
    if config.attack.name in INFERENCE:
        return config, 0
    done = folder.checkpoint_round()
    number = done if config.attack.round is None else config.attack.round
    if number not in (0, done):
        takes = f"a run keeps its start and its last checkpoint: attack round 0 or {done}"
        raise ConfigError("attack.round", number, takes)
    return config, number


def _state(federation: Any, number: int, run: str | None) -> Any:
    """The server's state before the attacked round: stored, or trained up to it."""
    from fedveil.runs import RunFolder

    state = federation.simulator.start()
    if run is not None and number:
        stored = RunFolder.open(Path(run)).restore(state)
        if stored is None or stored.round != number:
            raise ConfigError("--run", run, "its checkpoint is missing or of another round: go on with it first")
        return federation.simulator.adopt(stored.state)
    for done in range(number):
        state, _ = federation.simulator.round(state, done)
    return state


def _own_gradients(config: Config, path: Path, pictures: str | None, json: bool) -> None:
    """Nobody knows the truth here: what was found is written, with the distance it reached."""
    folder = _folder(pictures) or Path("reconstructed")
    from fedveil.attacks.catalog import settings as make_settings
    from fedveil.attacks.files import read_gradients
    from fedveil.attacks.observe import of_gradients
    from fedveil.attacks.pictures import write_grid
    from fedveil.attacks.run import attack
    from fedveil.federation import build_model

    info = DATASETS[config.data.name]
    for key in sorted({"tap", "images", "round", "rule"} & config.attack.model_fields_set):
        takes = (
            "is not read with --gradients, where all that the file holds is attacked and nothing scored: leave it out"
        )
        raise ConfigError(f"attack.{key}", getattr(config.attack, key), takes)
    names = [d.name for d in config.defense]
    if names != ["none"]:
        raise ConfigError("defense", names, "the gradients of a file are as they were seen: leave it out")
    if config.attack.label == "given":
        raise ConfigError("attack.label", "given", "a file of gradients holds no labels: take 'infer' or 'joint'")
    config = resolve(config, trainable=False)
    model = build_model(config, info.shape, info.classes)
    params, gradients = read_gradients(path, model)
    batch = config.train.batch or 1
    span = (0.0, 1.0) if info.kind == "image" else None
    observation = of_gradients(model, params, gradients, info.shape, info.classes, examples=batch, span=span)
    settings = make_settings(config.attack.name, **config.attack.given())
    with show.Counter("attacks") as counter:
        found = attack(
            observation,
            settings,
            seeds=range(config.attack.seeds),
            precision=config.speed.precision,
            progress=counter,
        )
    folder.mkdir(parents=True, exist_ok=True)
    import numpy as np

    np.savez(folder / "found.npz", inputs=found.inputs, labels=found.labels, distance=found.distance)
    if info.kind == "image":
        write_grid(folder / "found.png", list(found.inputs[:16]))
    document = {
        "attack": settings.name,
        "success_rate": None,
        "label_success_rate": None,
        "labels": found.labels.tolist(),
        "distance": found.distance.tolist(),
        "iterations": found.iterations.tolist(),
        "ending": found.ending.tolist(),
        "seconds": found.seconds,
        "images": len(found),
        "rule": "none: the truth is not known",
        "found": str(folder / "found.npz"),
    }
    if json:
        show.print_json(document)
        return
    _print(document)


def _folder(pictures: str | None) -> Path | None:
    if pictures == "":
        raise ConfigError("--pictures", pictures, "takes a folder to write to")
    return None if pictures is None else Path(pictures)


def _draw(done: Any, folder: Path, precision: str) -> list[str]:
    from fedveil.attacks import study
    from fedveil.attacks.pictures import write_film, write_grid

    folder.mkdir(parents=True, exist_ok=True)
    _, truth, found = study.steps(done, 8, precision)
    write_grid(folder / "grid.png", [truth, *found])
    write_film(folder / "steps.gif", truth, found)
    return [str(folder / "grid.png"), str(folder / "steps.gif")]


def _print(document: dict[str, Any]) -> None:
    """What is one number stands in one table; what is a list of things, such as classes, in a table of its own."""
    lists = {key: value for key, value in document.items() if isinstance(value, list) and value and _is_table(value)}
    lines = [line for key, value in document.items() if key not in lists for line in _lines(key, value)]
    show.print_table("Attack", ("what", "result"), lines)
    for key, rows in lists.items():
        columns = list(rows[0])
        show.print_table(key.replace("_", " "), columns, [[row[column] for column in columns] for row in rows])


def _is_table(rows: list[Any]) -> bool:
    return all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows)


def _lines(name: str, value: Any) -> list[tuple[str, Any]]:
    """The lines of one entry; a nested one has a line for each of its numbers."""
    if isinstance(value, dict):
        return [line for key, inner in value.items() for line in _lines(f"{name} {key}", inner)]
    return [] if value is None else [(name.replace("_", " "), value)]
