"""`fedveil deploy`: real nodes with Flower as the engine. Each command is a thin layer over Flower's own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from fedveil.cli.options import FileArgument, JsonOption, SetOption
from fedveil.core.errors import ConfigError

deploy_app = typer.Typer(
    help="Run the same defences on real machines, with Flower.", no_args_is_help=True, rich_markup_mode=None
)
COMMANDS = ("init", "server", "node", "run", "status")
FolderArgument = Annotated[str, typer.Argument(metavar="[FOLDER]", help="Folder of the federation.")]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Print Flower's commands instead of running them.")]


def _need_flower() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise ConfigError("deploy", "no flwr", "it needs an extra: pip install 'fedveil[flower]'")


@deploy_app.command("init")
def init(
    folder: FolderArgument = "federation",
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=10_000, help="Number of nodes.")] = 4,
    host: Annotated[str, typer.Option("--host", help="Name or address by which nodes reach the server.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The server's port.")] = 9092,
    bind: Annotated[str, typer.Option("--bind", help="Address that the server listens on.")] = "127.0.0.1",
    shards: Annotated[
        str | None, typer.Option("--shards", metavar="FILE.toml", help="For trials: hand out this config's dataset.")
    ] = None,
    settings: SetOption = None,
    test: Annotated[bool, typer.Option("--test", help="Nodes take runs whose noise the server knows.")] = False,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Each node's budget over all runs.")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Its δ (1e-5).")] = None,
    clip: Annotated[float | None, typer.Option("--clip", help="The largest clip that nodes take.")] = None,
    noise: Annotated[float | None, typer.Option("--noise", help="The smallest noise that nodes take.")] = None,
    json: JsonOption = False,
) -> None:
    """Write certificates, node keys, node configs, systemd units and a compose file."""
    _need_flower()
    from fedveil.cli import show
    from fedveil.config import load
    from fedveil.deploy import files
    from fedveil.deploy.limits import Limits

    asked = {"epsilon": epsilon, "delta": delta, "clip": clip, "noise": noise}
    limits = {key: value for key, value in asked.items() if value is not None}
    _check_limits(Limits, limits)
    if settings and shards is None:
        raise ConfigError("-s", settings[0], "belongs to the config of --shards: give that too")
    made = files.Federation(Path(folder).resolve(), host, port, nodes, bind)
    files.init(made, load(shards, settings or []) if shards is not None else None, test, limits)
    document = {"folder": str(made.folder), "address": made.address, "nodes": nodes, "shards": shards is not None}
    if json:
        show.print_json(document)
        return
    show.print_table("Federation", ("what", "where"), list(document.items()))
    show.note(f"next: fedveil deploy server {folder}; then on each node: fedveil deploy node node-N")


def _check_limits(kind: Any, limits: dict[str, float]) -> None:
    from pydantic import ValidationError

    from fedveil.core.validation import one_line

    try:
        kind.model_validate(limits)
    except ValidationError as error:
        raise one_line(error, prefix="limits") from None


@deploy_app.command("server")
def server(folder: FolderArgument = "federation", dry: DryOption = False) -> None:
    """Keep the server up: TLS on, node keys on, state on disk; until Ctrl-C."""
    from fedveil.cli import show
    from fedveil.deploy import commands, files, processes

    federation = files.read_federation(Path(folder))
    if dry:
        _print(commands.superlink(federation), commands.superexec(federation))
        return
    _need_flower()
    processes.serve(federation, show.note)


@deploy_app.command("node")
def node(
    home: Annotated[str, typer.Argument(metavar="NODE", help="Folder of the node.")],
    data: Annotated[str | None, typer.Option("--data", help="An .npz with x and y (default: as in node.toml).")] = None,
    address: Annotated[str | None, typer.Option("--server", help="host:port (default: as in node.toml).")] = None,
    dry: DryOption = False,
) -> None:
    """Keep a node up, until Ctrl-C."""
    from fedveil.cli import show
    from fedveil.deploy import commands, processes
    from fedveil.deploy.limits import read_node, with_data

    place = Path(home).resolve()
    told = read_node(place)
    reached = address or told.server
    if reached is None:
        raise ConfigError("--server", None, "takes host:port of the server, here or in node.toml")
    if dry:
        _print(commands.supernode(place, reached, told.port))
        return
    _need_flower()
    if data is not None:
        told = with_data(place, Path(data).expanduser().resolve())
    from fedveil.deploy.account import NodeLedger
    from fedveil.deploy.node import read_data

    read_data(place, told)  # what is wrong with them is said now, not in the first round
    NodeLedger(place).entries()
    processes.run_node(place, told, reached, show.note)


@deploy_app.command("run")
def run(
    file: FileArgument = None,
    settings: SetOption = None,
    federation: Annotated[str, typer.Option("--federation", help="Folder of the federation.")] = "federation",
    quorum: Annotated[
        float, typer.Option("--quorum", min=0.0, max=1.0, help="Share of a round's nodes that must answer.")
    ] = 0.5,
    timeout: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds that a round waits for nodes.")] = 300.0,
    wait: Annotated[float, typer.Option("--wait", min=1.0, help="Seconds that the start waits for all nodes.")] = 120.0,
    test: Annotated[
        bool, typer.Option("--test", help="Noise by the seed, as in simulation; nodes must allow it.")
    ] = False,
    out: Annotated[
        str | None, typer.Option("--out", help="Run folder to make (default: runs/deploy-NAME-TIME).")
    ] = None,
    resume: Annotated[str | None, typer.Option("--resume", help="Go on with the run in this folder.")] = None,
    json: JsonOption = False,
) -> None:
    """Train on the federation's nodes; run this on the server's machine."""
    _need_flower()
    from fedveil.cli.deploying import run_deployed

    if resume == "":
        raise ConfigError("--resume", None, "takes the folder of the run to go on with")
    run_deployed(file, settings or [], federation, (quorum, timeout, wait, test), out=out, resume=resume, json=json)


@deploy_app.command("status")
def status(
    folder: Annotated[
        str, typer.Argument(metavar="[FOLDER]", help="Folder of a federation, or of a node.")
    ] = "federation",
    json: JsonOption = False,
) -> None:
    """Show the server's nodes and runs; or a node's own privacy account."""
    from fedveil.cli.deploying import run_status

    run_status(Path(folder), json)


def _print(*argument_lists: list[str]) -> None:
    for arguments in argument_lists:
        print(shlex.join(arguments))
