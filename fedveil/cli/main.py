"""The `fedveil` command. Each command's work is imported only when it is called, so that `--help` answers at once."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fedveil import __version__
from fedveil.cli.options import FileArgument, JsonOption, SetOption
from fedveil.errors import FedveilError, Interrupted, did_you_mean, printable, show

HELP = "Federated learning under differential privacy: train it, attack it, account for it."
app = typer.Typer(name="fedveil", help=HELP, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
data_app = typer.Typer(help="List, fetch and check datasets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")

KINDS = ("datasets", "defenses", "models", "partitions", "taps")

OutOption = Annotated[str | None, typer.Option("--out", help="Run folder to make (default: runs/NAME-TIME).")]
ResumeOption = Annotated[str | None, typer.Option("--resume", help="Go on with the run in this folder.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fedveil {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
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
    from fedveil.cli.train import run_train

    run_train(file, settings or [], out, resume, json)


@app.command("demo")
def demo(settings: SetOption = None, out: OutOption = None, json: JsonOption = False) -> None:
    """Train on the embedded dataset (digits, 100 clients of two classes each) and show the result."""
    from fedveil.cli.train import run_demo

    run_demo(settings or [], out, json)


@app.command("list")
def list_names(
    kind: Annotated[str | None, typer.Argument(help=", ".join(KINDS))] = None, json: JsonOption = False
) -> None:
    """List the names that configs take."""
    from fedveil.cli.listing import run_list

    run_list(kind, json)


@app.command("bench")
def bench(
    suite: Annotated[str, typer.Argument(help="round: the cost of privacy per local iteration.")] = "round",
    repeats: Annotated[int, typer.Option("--repeats", min=3, max=1000, help="Turns of each side.")] = 7,
    json: JsonOption = False,
) -> None:
    """Measure speed, side by side in one run."""
    from fedveil.cli.bench import run_bench

    run_bench(suite, repeats, json)


@data_app.command("list")
def data_list(json: JsonOption = False) -> None:
    """List the datasets and whether they are here."""
    from fedveil.cli.data import run_list

    run_list(json)


@data_app.command("get")
def data_get(
    names: Annotated[list[str] | None, typer.Argument(help="Datasets to fetch (default: all that can be).")] = None,
    dir: Annotated[str | None, typer.Option("--data-dir", help="Folder to put them in.")] = None,
    json: JsonOption = False,
) -> None:
    """Fetch datasets and check them."""
    from fedveil.cli.data import run_get

    run_get(names or [], dir, json)


@data_app.command("check")
def data_check(
    names: Annotated[list[str] | None, typer.Argument(help="Datasets to check (default: all).")] = None,
    dir: Annotated[str | None, typer.Option("--data-dir", help="Folders to look in first.")] = None,
    json: JsonOption = False,
) -> None:
    """Check the files of datasets against their digests."""
    from fedveil.cli.data import run_check

    run_check(names or [], dir, json)


def _optional_resume(arguments: list[str]) -> list[str]:
    """`--resume` may stand alone: then it means the run in --out, or the newest unfinished one below runs/."""
    arguments = list(arguments)
    for place, argument in enumerate(arguments):
        if argument == "--resume":
            following = arguments[place + 1] if place + 1 < len(arguments) else "-"
            if following.startswith("-"):
                arguments[place] = "--resume="
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
        inside = arguments[:1] == ["data"]
        name = arguments[1] if inside and len(arguments) > 1 else arguments[0]
        known = ("list", "get", "check") if inside else _commands()
        return f"command: got {show(name)}; {did_you_mean(name, known)}"
    return printable(text)


def _commands() -> list[str]:
    named = [command.name for command in app.registered_commands] + [group.name for group in app.registered_groups]
    return [name for name in named if name]


def entry() -> None:
    """The console script."""
    code = main()
    if code == INTERRUPTED:
        # Leaving in the usual way would wait for what the device still computes, or crash in the midst of a compilation.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    entry()
