"""Options that commands share, and groups of options: a dataclass whose fields are options of a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

from typer import Argument, Option

FileArgument = Annotated[str | None, Argument(metavar="[FILE.toml]", help="Config file.", show_default=False)]
SetOption = Annotated[
    list[str] | None,
    Option(
        "-s",
        "--set",
        metavar="KEY=VALUE",
        help="Set section.key=value; repeatable. defense.name=none replaces the defence of the file.",
    ),
]
JsonOption = Annotated[bool, Option("--json", help="One JSON document on stdout.")]
DeltaOption = Annotated[float | None, Option("--delta", help="δ (default: the defence's own).")]


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer takes it: where a parameter is a dataclass, each field of the dataclass is an option."""
    shown: list[Parameter] = []
    groups: dict[str, type[Any]] = {}
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in signature(command).parameters.items():
        if not is_dataclass(hints[name]):
            shown.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        groups[name] = hints[name]
        types = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            default = Parameter.empty if field.default is MISSING else field.default
            shown.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=types[field.name]))

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    vars(run)["__signature__"] = Signature(shown)
    return run


@dataclass(frozen=True)
class GoalOptions:
    """The ε that `fedveil calibrate` keeps: how large, against whom and for whom."""

    epsilon: Annotated[float, Option("--epsilon", help="ε to keep.")]
    delta: DeltaOption = None
    tap: Annotated[str, Option("--tap", help="Against whom.")] = "release"
    unit: Annotated[str, Option("--unit", help="For whom: example, image or client.")] = "example"
    adjacency: Annotated[str | None, Option("--adjacency", help="add-remove, zero-out or replace.")] = None
    noise: Annotated[float | None, Option("--noise", help="Keep this noise, and find the rounds.")] = None


@dataclass(frozen=True)
class AuditOptions:
    """What `fedveil audit` tests, how, and at what size."""

    run: Annotated[str | None, Option("--run", help="Audit the training of this run folder.")] = None
    tap: Annotated[str | None, Option("--tap", help="Where the adversary stands (default: behind each noise).")] = None
    unit: Annotated[str | None, Option("--unit", help="example or client (default: both).")] = None
    method: Annotated[str | None, Option("--method", help="noise, one-run, f-dp or trials (default: all).")] = None
    trials: Annotated[int, Option("--trials", help="Independent trials, with and without the canary.")] = 200_000
    canaries: Annotated[int, Option("--canaries", help="Canaries of a one-run audit.")] = 600
    seeds: Annotated[int, Option("--seeds", help="Times that all bounds are repeated.")] = 1
    confidence: Annotated[float, Option("--confidence", help="Of all bounds and tests together.")] = 0.999
    delta: DeltaOption = None
    rounds: Annotated[int | None, Option("--rounds", help="Rounds that are attacked together (default: two).")] = None
    steps: Annotated[int | None, Option("--steps", help="Local steps in each of them (default: two).")] = None


@dataclass(frozen=True)
class AdviseOptions:
    """The federation that `fedveil advise` is asked about, and the ε to keep."""

    clients: Annotated[int | None, Option("--clients", help="Number of clients.")] = None
    records: Annotated[int | None, Option("--records", help="Records at each client.")] = None
    shape: Annotated[
        str | None, Option("--shape", help="One record: rows,columns,colours of an image, or columns of a table.")
    ] = None
    classes: Annotated[int | None, Option("--classes", help="Number of classes.")] = None
    data: Annotated[str | None, Option("--data", help="A dataset or FILE.npz, instead of shape and classes.")] = None
    epsilon: Annotated[float | None, Option("--epsilon", help="ε to keep.")] = None
    delta: DeltaOption = None
    unit: Annotated[str | None, Option("--unit", help="For whom: example (default) or image.")] = None
    tap: Annotated[str | None, Option("--tap", help="Against whom (default: server).")] = None
    withstand: Annotated[
        str | None, Option("--withstand", help="Instead of --tap: server, clients, release; several with commas.")
    ] = None
    secure_aggregation: Annotated[
        bool, Option("--secure-aggregation", help="The server sees only sums over clients.")
    ] = False
    seconds: Annotated[float | None, Option("--seconds", help="Time for all of it (default: 600).")] = None
    out: Annotated[str | None, Option("--out", help="Also write the config to this file.")] = None


@dataclass(frozen=True)
class LabOptions:
    """Where `fedveil lab` listens, the folders that it uses, and the limits of its jobs."""

    host: Annotated[str, Option("--host", help="Address to listen on. Other than loopback, it requires --token.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Option("--port", min=0, max=65535, help="Port (0: any free port).")] = 8765
    token: Annotated[
        str | None, Option("--token", help="Secret for visitors, or 'auto' for a random one (or FEDVEIL_LAB_TOKEN).")
    ] = None
    folder: Annotated[str, Option("--folder", help="Folder for the lab's own files: uploads, chosen pictures.")] = "lab"
    runs: Annotated[str, Option("--runs", help="Folder of runs, both to browse and for new trainings.")] = "runs"
    workers: Annotated[int, Option("--workers", min=1, max=16, help="Number of jobs in parallel.")] = 1
    minutes: Annotated[float, Option("--minutes", min=0.1, max=10_000, help="Time limit of a job, in minutes.")] = 30.0
    memory: Annotated[float, Option("--memory", min=0.5, max=10_000, help="Memory limit of a worker, in GB.")] = 6.0
    browser: Annotated[bool, Option("--open", help="Open the page in the web browser.")] = False


@dataclass(frozen=True)
class ReportOptions:
    """The files that `fedveil report` writes."""

    out: Annotated[
        str | None, Option("--out", help="Page to write (default: report.html in the run, or beside the runs).")
    ] = None
    svg: Annotated[str | None, Option("--svg", help="Folder for the charts as SVG.")] = None
    png: Annotated[str | None, Option("--png", help="Folder for the charts as PNG.")] = None
    pdf: Annotated[str | None, Option("--pdf", help="Folder for the charts as PDF.")] = None
    pgf: Annotated[str | None, Option("--pgf", help="Folder for the charts as PGF, for LaTeX.")] = None
    tables: Annotated[str | None, Option("--tables", help="Folder for the tables as CSV and LaTeX.")] = None
    registry: Annotated[
        str | None,
        Option("--registry", help="TOML file of facts: also write entries for OpenDP's deployments registry."),
    ] = None
