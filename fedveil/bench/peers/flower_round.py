"""Flower's simulation on the work of `bench round`: a process for each core, Opacus for one client after another.

Every round sends the parameters to all clients, each of which makes its local steps with clip and noise, and averages what
comes back. The data lie in a file that the processes map, so that no message carries examples.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.system import cores
from fedveil.models.net import Net

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def missing() -> str:
    """What is not installed, or the empty string."""
    try:
        import flwr  # noqa: F401
        import ray  # noqa: F401
    except ImportError as error:
        return str(error.name or error)
    return ""


def in_simulation(
    net: Net,
    x: np.ndarray,
    y: np.ndarray,
    clients: int,
    batch: int,
    steps: int,
    clip: float,
    noise: float,
    lr: float,
    *,
    turns: Callable[[Any], None],
    start: list[np.ndarray] | None = None,
) -> None:
    """Starts a simulation and calls `turns` within, with a function that plays a round and says how many seconds it took.

    Client i has examples i·n to (i+1)·n, n = len(y) // clients, and makes `steps` steps a round. The function's
    `values` are the parameters after it, from `start` on.
    """
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    from flwr.app import ArrayRecord, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    own = len(y) // clients
    failed: list[BaseException] = []
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "x.npy", x)
        np.save(Path(folder) / "y.npy", y)
        client, server = ClientApp(), ServerApp()

        @client.train()  # type: ignore[untyped-decorator]
        def train(message: Any, context: Any) -> Any:
            at = int(context.node_config["partition-id"]) * own
            x_all, y_all = (np.load(Path(folder) / f"{name}.npy", mmap_mode="r") for name in ("x", "y"))
            values = message.content["parameters"].to_numpy_ndarrays()
            values = _trained(
                net, values, x_all[at : at + own], y_all[at : at + own], batch, steps, clip=clip, noise=noise, lr=lr
            )
            return Message(RecordDict({"parameters": ArrayRecord(values)}), reply_to=message)

        @server.main()  # type: ignore[untyped-decorator]
        def serve(grid: Any, context: Any) -> None:
            values = _first(net) if start is None else start

            def play(number: int) -> float:
                nonlocal values
                started = time.perf_counter()
                while len(nodes := list(grid.get_node_ids())) < clients:
                    time.sleep(0.01)
                content = RecordDict({"parameters": ArrayRecord(values)})
                asked = [Message(content, dst_node_id=node, message_type="train") for node in nodes]
                answers = list(grid.send_and_receive(asked))
                bad = [answer.error for answer in answers if answer.has_error()]
                if bad or len(answers) != clients:
                    raise RuntimeError(f"Flower's round ended with {len(answers)} answers of {clients}: {bad[:1]}")
                every = [answer.content["parameters"].to_numpy_ndarrays() for answer in answers]
                values = [np.mean(parts, axis=0) for parts in zip(*every, strict=True)]
                play.values = values  # type: ignore[attr-defined]
                return time.perf_counter() - started

            try:
                turns(play)
            except BaseException as error:  # a thread of Flower's: told to the caller below
                failed.append(error)

        logging.getLogger("flwr").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run_simulation(
                server,
                client,
                num_supernodes=clients,
                backend_config={
                    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                    "init_args": {
                        "num_cpus": cores(),
                        "log_to_driver": False,
                        "include_dashboard": False,
                        "_node_ip_address": "127.0.0.1",
                    },
                },
            )
    if failed:
        raise failed[0]


def _first(net: Net) -> list[np.ndarray]:
    from fedveil.bench.peers.torch_nets import sequential

    return [p.detach().numpy() for p in sequential(net).parameters()]


def _trained(
    net: Net, values: list[np.ndarray], x: np.ndarray, y: np.ndarray, batch: int, steps: int, **how: float
) -> list[np.ndarray]:
    """A client's parameters after its local steps, in the process of an actor."""
    import torch

    from fedveil.bench.peers import opacus

    torch.set_num_threads(1)
    make = opacus.private_steps(net, x, y, batch, device="cpu", **how)
    parameters = list(make.model.parameters())  # type: ignore[attr-defined]
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(torch.tensor(value))
    make(steps)
    return [p.detach().numpy() for p in parameters]
