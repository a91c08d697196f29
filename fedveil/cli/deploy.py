"""`fedveil deploy`: training on real nodes, with Flower as the transport; each command is a layer over Flower's own."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from fedveil.cli.options import FileArgument, JsonOption, SetOption, with_groups
from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    from fedveil.deploy.coordinator import Terms

deploy_app = typer.Typer(
    help="Train under the same defences on real machines, with Flower.", no_args_is_help=True, rich_markup_mode=None
)
COMMANDS = ("init", "server", "node", "run", "status", "renew")
FolderArgument = Annotated[str, Argument(metavar="[FOLDER]", help="Folder of the federation.")]
DryOption = Annotated[bool, Option("--dry-run", help="Print the commands instead of running them.")]


def _need_flower() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise ConfigError("deploy", "no flwr", "it needs an extra: pip install 'fedveil[flower]'")


# --- init


@dataclass(frozen=True)
class AddressOptions:
    """Where the server of a federation listens, and how many nodes it has."""

    nodes: Annotated[int, Option("--nodes", min=1, max=10_000, help="Number of nodes.")] = 4
    host: Annotated[str, Option("--host", help="Name or address by which nodes reach the server.")] = "127.0.0.1"
    port: Annotated[int, Option("--port", min=1, max=65535, help="Port of the server.")] = 9092
    bind: Annotated[str, Option("--bind", help="Address on which the server listens.")] = "127.0.0.1"


@dataclass(frozen=True)
class LimitOptions:
    """What the nodes of a federation accept, and their budget."""

    epsilon: Annotated[
        float | None, Option("--epsilon", help="Privacy budget of each node over all its runs (default: 8).")
    ] = None
    delta: Annotated[float | None, Option("--delta", help="δ of the budget (default: 1e-5).")] = None
    clip: Annotated[float | None, Option("--clip", help="Largest clip that nodes accept.")] = None
    noise: Annotated[float | None, Option("--noise", help="Smallest noise that nodes accept.")] = None


@deploy_app.command("init")
@with_groups
def init(
    folder: FolderArgument = "federation",
    shards: Annotated[
        str | None,
        Option("--shards", metavar="FILE.toml", help="For trials: give each node its part of this config's dataset."),
    ] = None,
    config: Annotated[
        str | None,
        Option("--config", metavar="FILE.toml", help="Take the nodes' limits from this config (--shards does, too)."),
    ] = None,
    settings: SetOption = None,
    test: Annotated[
        bool, Option("--test", help="Nodes accept runs whose noise the server knows; never for private data.")
    ] = False,
    *,
    limit: LimitOptions,
    address: AddressOptions,
    json: JsonOption = False,
) -> None:
    """Create a federation: certificates, node keys, node configs, systemd units and a compose file."""
    _need_flower()
    from fedveil.cli import show
    from fedveil.config import load
    from fedveil.deploy import files

    limits = {key: value for key, value in asdict(limit).items() if value is not None}
    _check_limits(limits)
    if shards is not None and config is not None:
        raise ConfigError("--config", config, "is the config of --shards already: leave one of the two out")
    named = shards or config
    if settings and named is None:
        raise ConfigError("-s", settings[0], "changes the config of --shards or --config: give one of them too")
    made = files.Federation(Path(folder).resolve(), address.host, address.port, address.nodes, address.bind)
    read = load(named, settings or []) if named is not None else None
    files.init(made, files.Plan(read, shards is not None, test, limits))
    document = {
        "folder": str(made.folder),
        "address": made.address,
        "nodes": address.nodes,
        "shards": shards is not None,
    }
    if json:
        show.print_json(document)
        return
    show.print_table("Federation", ("what", "where"), list(document.items()))
    show.note(f"keep {made.authority} on another machine: its key signs certificates, and no other process needs it")
    show.note(f"next: fedveil deploy server {folder}; then on each node: fedveil deploy node node-N")


def _check_limits(limits: dict[str, float]) -> None:
    from pydantic import ValidationError

    from fedveil.core.validation import one_line
    from fedveil.deploy.limits import Limits

    try:
        Limits.model_validate(limits)
    except ValidationError as error:
        raise one_line(error, prefix="limits") from None


# --- server and node


@deploy_app.command("server")
def server(folder: FolderArgument = "federation", dry: DryOption = False) -> None:
    """Run the server until Ctrl-C, with TLS, node keys and state on disk."""
    from fedveil.cli import show
    from fedveil.deploy import commands, files, processes

    federation = files.read_federation(Path(folder))
    if dry:
        _print(commands.superlink(federation), commands.executor(federation), commands.gate(federation))
        return
    _need_flower()
    processes.serve(federation, show.note)


@deploy_app.command("node")
def node(
    home: Annotated[str, Argument(metavar="NODE", help="Folder of the node.")],
    data: Annotated[
        str | None, Option("--data", help="An .npz file with arrays x and y (default: as in node.toml).")
    ] = None,
    address: Annotated[
        str | None, Option("--server", help="host:port of the server (default: as in node.toml).")
    ] = None,
    dry: DryOption = False,
) -> None:
    """Run a node until Ctrl-C."""
    from fedveil.cli import show
    from fedveil.deploy import commands, processes
    from fedveil.deploy.limits import check_complete, read_node, with_data

    folder = Path(home).resolve()
    found = read_node(folder)
    server_address = address or found.server
    if server_address is None:
        raise ConfigError("--server", None, "takes host:port of the server, here or in node.toml")
    if dry:
        _print(commands.worker(folder), commands.link(found, server_address))
        return
    check_complete(found)
    _need_flower()
    if data is not None:
        found = with_data(folder, Path(data).expanduser().resolve())
    from fedveil.deploy.account import NodeLedger
    from fedveil.deploy.node import read_data

    # Damaged data or a damaged ledger is an error now, not in the first round.
    read_data(folder, found)
    NodeLedger(folder).entries()
    processes.run_node(folder, found, server_address, show.note)


def _print(*argument_lists: list[str]) -> None:
    for arguments in argument_lists:
        print(shlex.join(arguments))


# --- run


@dataclass(frozen=True)
class TermsOptions:
    """How long a run waits for nodes, how many must reply, and where its noise comes from."""

    quorum: Annotated[float, Option("--quorum", min=0.0, max=1.0, help="Share of a round's nodes that must reply.")] = (
        0.5
    )
    timeout: Annotated[float, Option("--timeout", min=1.0, help="Seconds for which a round waits for replies.")] = 300.0
    wait: Annotated[float, Option("--wait", min=1.0, help="Seconds for which the start waits for all nodes.")] = 120.0
    test: Annotated[
        bool, Option("--test", help="Take all noise from the seed, as in simulation; nodes must allow it.")
    ] = False


@deploy_app.command("run")
@with_groups
def run(
    file: FileArgument = None,
    settings: SetOption = None,
    federation: Annotated[str, Option("--federation", help="Folder of the federation.")] = "federation",
    out: Annotated[str | None, Option("--out", help="Run folder to create (default: runs/deploy-NAME-TIME).")] = None,
    resume: Annotated[str | None, Option("--resume", help="Resume the run in this folder.")] = None,
    *,
    terms: TermsOptions,
    json: JsonOption = False,
) -> None:
    """Train on the nodes of a federation. Run this on the server's machine."""
    _need_flower()
    from fedveil.deploy.coordinator import Terms

    if resume == "":
        raise ConfigError("--resume", None, "takes the folder of the run to resume")
    if resume is not None and (file is not None or settings or out is not None):
        raise ConfigError("--resume", resume, "uses the config and folder of the run: leave out FILE, -s and --out")
    result = _run(Path(federation), (file, settings or []), Terms(**asdict(terms)), out, resume)
    if json:
        from fedveil.cli import show

        show.print_json(result)
    else:
        _show_result(result)


def _run(
    folder: Path, config_of: tuple[str | None, list[str]], terms: Terms, out: str | None, resume: str | None
) -> dict[str, Any]:
    """Starts a run, or resumes one, and shows a progress bar until it ends."""
    from fedveil.cli import show
    from fedveil.config import load
    from fedveil.deploy import files, follow
    from fedveil.runs import RunFolder

    federation = files.read_federation(folder)
    if resume is not None:
        config, run_folder = None, RunFolder.open(Path(resume))
        rounds = load(run_folder.config).train.rounds
    else:
        config = follow.checked(federation, load(*config_of), test=terms.test)
        run_folder, rounds = follow.new_folder(out, config), config.train.rounds
    with show.Bar(rounds or 1) as bar:
        return follow.run(federation, config, run_folder, terms, show.note, bar)


def _show_result(result: dict[str, Any]) -> None:
    from fedveil.cli import show

    rows = [(key, value) for key, value in result.items() if key != "ledger" and value is not None]
    show.print_table("Deployed run", ("what", "result"), rows)
    if result["test"]:
        show.note("test mode: all noise follows from the seed, so nothing is protected")
    for row in result["ledger"]:
        if row["certified"] and row["tap"] in ("server", "release"):
            found = f"ε = {row['epsilon']:.4g}, δ = {row['delta']:g}, {row['adjacency']}"
            show.note(f"{row['tap']}, one {row['unit']}: {found}")


# --- status


@deploy_app.command("status")
def status(
    folder: Annotated[str, Argument(metavar="[FOLDER]", help="Folder of a federation, or of a node.")] = "federation",
    expect: Annotated[
        str | None,
        Option("--expect", metavar="DIGEST", help="Fail unless the node's ledger contains this digest."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the nodes and runs of a federation, or the privacy ledger of a node."""
    from fedveil.cli import show
    from fedveil.deploy import files, limits
    from fedveil.deploy import status as statuses

    path = Path(folder)
    of_node = (path / limits.FILE).is_file()
    if expect is not None:
        statuses.check_contains(path, expect)
    found = statuses.of_node(path) if of_node else statuses.of_federation(files.read_federation(path))
    if json:
        show.print_json(found)
    elif of_node:
        _show_node(found)
    else:
        _show_federation(found)


def _show_node(found: dict[str, Any]) -> None:
    from fedveil.cli import show

    columns = ("tap", "unit", "adjacency", "epsilon", "delta", "reason")
    rows = [tuple(row[column] for column in columns) for row in found["accounts"]]
    show.print_table(f"Client {found['client']}: {found['rounds']} rounds of {found['runs']} runs", columns, rows)
    show.note(f"budget: {found['budget'] or 'none'}")
    show.note(f"last digest of the ledger: {found['digest']}; keep it, and check later with --expect")
    _show_secure(found["secure_aggregation"])
    _show_refused(found["refused"])


def _show_refused(refused: dict[str, Any]) -> None:
    from fedveil.cli import show

    if refused["count"]:
        last = refused["last"][-1] if refused["last"] else {"time": "", "reason": ""}
        show.note(f"refused: {refused['count']}, last {last['time']}: {last['reason']}")


def _show_secure(found: dict[str, Any] | None) -> None:
    from fedveil.cli import show

    if found is None:
        return
    show.note(
        f"roster of secure aggregation: {found['roster']}; compare it with the other owners' before the first run"
    )
    last = found["last"]
    if last is not None:
        survivors = f"{last['survivors']} of {last['cohort']} nodes survived, quorum {last['quorum']}"
        share = f"noise of the sum: {last['noise_share']:.2f} times that of the quorum"
        show.note(f"last sum: round {last['round']} of run {last['run']}, {survivors}; {share}")


def _show_federation(found: dict[str, Any]) -> None:
    from fedveil.cli import show

    rows = [(node["client"], node["node"], node["status"], _spent(node.get("account"))) for node in found["nodes"]]
    title = f"{found['address']}: {'up' if found['up'] else 'down'}"
    show.print_table(title, ("client", "node", "status", "ledger (if on this machine)"), rows)
    show.print_table("Runs", ("run", "status"), [(run["run"], run["status"]) for run in found["runs"]])
    _show_secure(found["secure_aggregation"])
    _show_refused(found["refused"])


def _spent(account: dict[str, Any] | None) -> str:
    if account is None:
        return ""
    if "error" in account:
        return str(account["error"])
    known = [f"one {a['unit']}: ε = {a['epsilon']:.4g}" for a in account["accounts"] if a["epsilon"] is not None]
    return f"{account['rounds']} rounds; " + (", ".join(known) or "no certificate")


# --- renew


@deploy_app.command("renew")
def renew(
    folder: Annotated[str, Argument(metavar="FOLDER", help="Folder of a federation, or of a node.")],
) -> None:
    """Renew the server's certificate, or the key pair of a node."""
    _need_flower()
    from fedveil.cli import show
    from fedveil.deploy import credentials, files, limits

    path = Path(folder).resolve()
    if (path / limits.FILE).is_file():
        client = limits.read_node(path).client
        credentials.make_node_key(path)
        show.note(f"give {path / 'key.pub'} to the server as server/nodes/{client}.pub, then restart the node")
        return
    federation = files.read_federation(path)
    credentials.make_server_certificate(federation.authority, federation.server, files.hosts(federation))
    show.note("the server has a new key and certificate: restart it; nodes need nothing")
