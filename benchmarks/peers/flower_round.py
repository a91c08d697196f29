"""Flower's simulation on the work of `bench round`: one process per core, and Opacus for one client after another.

Every round sends the parameters to all clients, each of which makes its local steps with clip and noise, and averages what
comes back. The processes map the examples from a file, so that no message carries them.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.private_step import PrivateStep
from fedveil.core.system import cores
from fedveil.models.net import Net

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

Values = list[np.ndarray]  # the parameters in torch's order


@dataclass(frozen=True)
class ClientWork:
    """What every client does in a round. It holds no examples, because Flower sends it to every process."""

    net: Net
    step: PrivateStep
    steps: int  # local steps in a round


def missing() -> str:
    """The name of the first package that is not installed, or the empty string."""
    try:
        import flwr  # noqa: F401
        import ray  # noqa: F401
    except ImportError as error:
        return str(error.name or error)
    return ""


def in_simulation(
    work: ClientWork,
    x: np.ndarray,
    y: np.ndarray,
    clients: int,
    turns: Callable[[FlowerRounds], None],
    start: Values | None = None,
) -> None:
    """Starts a simulation and calls `turns` inside it, with a function that plays a round and returns its seconds.

    Client i has examples i·n to (i+1)·n, n = len(y) // clients. Training starts from the parameters `start`, or from
    fresh ones.
    """
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    failed: list[BaseException] = []
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "x.npy", x)
        np.save(Path(folder) / "y.npy", y)
        client = _client_app(work, Path(folder), len(y) // clients)
        server = _server_app(_first(work.net) if start is None else start, clients, turns, failed)
        _run(server, client, clients)
    if failed:
        raise failed[0]


class FlowerRounds:
    """Plays rounds on Flower's grid; `values` are the parameters after the last one."""

    def __init__(self, grid: Any, clients: int, values: Values) -> None:
        self.grid, self.clients, self.values = grid, clients, values

    def __call__(self, number: int) -> float:
        """Plays one round and returns the seconds it took."""
        from flwr.app import ArrayRecord, Message, RecordDict

        started = time.perf_counter()
        while len(nodes := list(self.grid.get_node_ids())) < self.clients:
            time.sleep(0.01)
        content = RecordDict({"parameters": ArrayRecord(self.values)})
        sent = [Message(content, dst_node_id=node, message_type="train") for node in nodes]
        answers = list(self.grid.send_and_receive(sent))
        bad = [answer.error for answer in answers if answer.has_error()]
        if bad or len(answers) != self.clients:
            raise RuntimeError(f"a round of Flower got {len(answers)} answers from {self.clients} clients: {bad[:1]}")
        every = [answer.content["parameters"].to_numpy_ndarrays() for answer in answers]
        self.values = [np.mean(parts, axis=0) for parts in zip(*every, strict=True)]
        return time.perf_counter() - started


def _client_app(work: ClientWork, folder: Path, own: int) -> Any:
    """Flower's client: trains on the `own` examples of its partition."""
    from flwr.app import ArrayRecord, Message, RecordDict
    from flwr.clientapp import ClientApp

    client = ClientApp()

    @client.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        at = int(context.node_config["partition-id"]) * own
        x, y = (np.load(folder / f"{name}.npy", mmap_mode="r")[at : at + own] for name in ("x", "y"))
        values = _trained(work, message.content["parameters"].to_numpy_ndarrays(), x, y)
        return Message(RecordDict({"parameters": ArrayRecord(values)}), reply_to=message)

    return client


def _server_app(start: Values, clients: int, turns: Callable[[FlowerRounds], None], failed: list[BaseException]) -> Any:
    """Flower's server: calls `turns` with its rounds, and appends to `failed` what that raised."""
    from flwr.serverapp import ServerApp

    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator]
    def serve(grid: Any, context: Any) -> None:
        try:
            turns(FlowerRounds(grid, clients, start))
        except BaseException as error:  # this is a thread of Flower: `in_simulation` raises the error in its own thread
            failed.append(error)

    return server


def _run(server: Any, client: Any, clients: int) -> None:
    from flwr.simulation import run_simulation

    ray = {"num_cpus": cores(), "log_to_driver": False, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": ray}
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_simulation(server, client, num_supernodes=clients, backend_config=backend)


def _first(net: Net) -> Values:
    """Fresh parameters."""
    from benchmarks.peers.torch_nets import sequential

    return [p.detach().numpy() for p in sequential(net).parameters()]


def _trained(work: ClientWork, values: Values, x: np.ndarray, y: np.ndarray) -> Values:
    """A client's parameters after its local steps, in a process of Ray."""
    import torch

    from benchmarks.peers.opacus import OpacusSteps

    torch.set_num_threads(1)
    make = OpacusSteps(work.net, x, y, work.step)
    parameters = list(make.model.parameters())
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(torch.tensor(value))
    make(work.steps)
    return [p.detach().numpy() for p in parameters]
