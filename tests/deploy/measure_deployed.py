"""The best row of `beyond/fig-1` on deployed nodes, for docs/secure-aggregation.md: one JSON line for each run.

    python tests/deploy/measure_deployed.py FOLDER >> docs/data/secagg-deployed.jsonl
    python tests/deploy/measure_deployed.py FOLDER --quorum 0.7 --honest 0.9 >> docs/data/secagg-deployed.jsonl
    python tests/deploy/measure_deployed.py FOLDER --nodes 10 --rounds 20 --processes >> docs/data/secagg-deployed.jsonl
    python tests/deploy/measure_deployed.py FOLDER --nodes 10 --rounds 20 --floating >> docs/data/secagg-deployed.jsonl

Nodes and server are those of a deployment: `deploy init` makes the folders, nodes answer by the function of their worker,
each with its ledger, journal and keys on disk. The transport carries messages through memory, between `--workers`
processes. The same command resumes a run that was interrupted. With `--processes` server and nodes run as their own
processes instead, with TLS, over loopback. `--simulated` trains the same config by the simulator, with the same whole
numbers; `--floating` trains it by the simulator with noise in floating point and without a quorum.

Nodes hold the scattering features of their MNIST images. The noise is the least that keeps `--epsilon` at the tap `release`
for one distinct image. `accuracy` is that on the validation part, `test` that on the test part.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from loopback import Loopback

from fedveil.config import Config, from_dict, to_toml
from fedveil.data.dataset import Dataset
from fedveil.data.registry import load
from fedveil.deploy import files, worker
from fedveil.deploy.coordinator import Terms, conduct
from fedveil.deploy.files import Federation, Member, fingerprint
from fedveil.deploy.messages import Introduction, Payload, ReceivedReply, Reply, Request, Secured
from fedveil.deploy.secagg import identity
from fedveil.deploy.wire import Parcel
from fedveil.run_account import calibrate
from fedveil.runs import RunFolder, named_leaves
from fedveil.training import train

PER_CLIENT, DELTA, FIRST = 500, 1e-5, 1000  # FIRST: the number of the first node at the transport


def config_of(given: argparse.Namespace, file: Path) -> Config:
    """The row's config with the features as data; `noise` is found for it."""
    sums = {} if given.floating else {"quorum": given.quorum, "honest": given.honest}
    document: dict[str, Any] = {
        "preset": "paper",
        "data": {"name": "file", "file": str(file), "clients": given.nodes, "partition": "iid", "per_client": PER_CLIENT},
        "model": {"name": "logistic"},
        "train": {
            "rounds": given.rounds, "per_round": given.nodes, "sampling": "fixed", "local_steps": 1, "batch": 100,
            "batching": "poisson", "lr": given.lr, "lr_end": given.lr / 10, "server_momentum": 0.9,
            "secure_aggregation": True, "eval_every": max(1, given.rounds // 20), "seed": given.seed, **sums,
        },
        "defense": {"name": "fed-cdp", "placement": "cohort", "clip": 1.0, "noise": 1.0,
                    "arithmetic": "float" if given.floating else "integer"},
    }  # fmt: skip
    goal = {"epsilon": given.epsilon, "delta": DELTA, "tap": "release", "unit": "image"}
    found = calibrate(from_dict(document), **goal)
    document["defense"]["noise"] = found.found.value
    return from_dict(document)


def write_data(folder: Path) -> Path:
    """The features of all images in a file for `deploy init`, and those of the held-out part in another for the server."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "server.npz").exists():
        found: Dataset = load("mnist", features="scatter")
        held = {"x_test": found.held_out.x, "y_test": found.held_out.y}
        np.savez(folder / "all.npz", x=found.train.x, y=found.train.y, **held)
        np.savez(folder / "test.npz", x=found.test.x, y=found.test.y)
        np.savez(folder / "server.npz", x=found.train.x[:20], y=np.arange(20) % 10, **held)
    return folder / "all.npz"


# --- nodes in a few processes


def serve(pipe: Connection, homes: Mapping[int, Path]) -> None:
    """Answers the messages for some nodes by the function that a node's worker answers with."""
    while (asked := pipe.recv()) is not None:
        began = time.process_time()
        found = {number: worker.answer(homes[number], parcel) for number, parcel in asked.items()}
        pipe.send((found, time.process_time() - began))


class Pool:
    """A transport over nodes that share a few processes."""

    def __init__(self, made: Federation, workers: int) -> None:
        self.homes = {FIRST + number: made.node(number) for number in range(made.nodes)}
        self.keys = identity.read_roster(made.server)
        self.members = {
            number: Member(number - FIRST, fingerprint(home / "key.pub")) for number, home in self.homes.items()
        }
        self.spent, self.largest, self.messages = 0.0, 0, 0  # `messages`: sessions begun
        self.pipes = list[tuple[Connection, set[int]]]()
        spawn = multiprocessing.get_context("spawn")
        for rank in range(workers):
            mine, theirs = spawn.Pipe()
            own = {number: home for number, home in self.homes.items() if number % workers == rank}
            spawn.Process(target=serve, args=(theirs, own), daemon=True).start()
            self.pipes.append((mine, set(own)))

    def _ask(self, asked: Mapping[int, Parcel]) -> dict[int, Parcel]:
        for pipe, own in self.pipes:
            pipe.send({number: parcel for number, parcel in asked.items() if number in own})
        found = dict[int, Parcel]()
        for pipe, _ in self.pipes:
            answers, spent = pipe.recv()
            found, self.spent = found | answers, self.spent + spent
        return found

    def online(self) -> dict[int, Member]:
        return self.members

    def introduce(self, nodes: list[int], timeout: float) -> dict[int, Introduction]:
        found = self._ask({number: Parcel("introduce", {}, {}) for number in nodes})
        return {number: Introduction.read(answer.fields) for number, answer in found.items()}

    def exchange(
        self, asked: Mapping[int, tuple[Mapping[str, Any], Payload]], timeout: float, largest: int
    ) -> dict[int, Secured]:
        found = self._ask({number: Parcel("secagg", dict(fields), parts) for number, (fields, parts) in asked.items()})
        self.messages += sum(bool(fields) for fields, _ in asked.values())
        self.largest = max([self.largest, *(len(part) for one in found.values() for part in one.parts.values())])
        return {number: Secured(one.parts, str(one.fields["refused"])) for number, one in found.items()}

    def send(self, requests: Mapping[int, tuple[Request, Payload]], timeout: float) -> dict[int, ReceivedReply]:
        found = self._ask({number: Parcel("train", r.as_dict(), parts) for number, (r, parts) in requests.items()})
        return {number: ReceivedReply(Reply.read(one.fields), one.parts) for number, one in found.items()}

    def end(self) -> None:
        for pipe, _ in self.pipes:
            pipe.send(None)


# --- runs


def in_memory(given: argparse.Namespace, config: Config, held_out: Path) -> dict[str, Any]:
    name = f"{given.nodes}-{given.rounds}-{given.quorum:g}-{given.honest:g}-{given.epsilon:g}-{given.lr:g}-{given.seed}"
    made = Federation((given.folder / f"federation-{name}").resolve(), "127.0.0.1", 9092, given.nodes)
    if not (made.folder / files.FILE).exists():
        limits = {"epsilon": 8.0, "honest": given.honest, "rounds": given.rounds}
        files.init(made, files.Plan(config, shards=True, limits=limits))
    run = given.folder / f"run-{name}"
    nodes, folder = Pool(made, given.workers), RunFolder(run) if run.exists() else RunFolder.create(run)

    def progress(row: dict[str, Any]) -> None:
        told = {key: row[key] for key in ("round", "seconds", "accuracy") if key in row}
        print(told, f"{nodes.spent:.0f} s of processor time", flush=True, file=given.log)

    served = config.model_copy(update={"data": config.data.model_copy(update={"file": str(held_out)})})
    try:
        result = conduct(served, nodes, folder, Terms(quorum=given.quorum), progress)
    finally:
        nodes.end()
    return {**result, "bytes": nodes.largest, "node_cpu_s": round(nodes.spent / max(1, nodes.messages), 4)}


def in_processes(given: argparse.Namespace, config: Config, held_out: Path) -> dict[str, Any]:
    file = given.folder / "config.toml"
    file.write_text(to_toml(config))
    with Loopback(given.folder / f"federation-{time.time_ns()}", file, nodes=given.nodes) as federation:
        out = given.folder / f"run-{time.time_ns()}"
        options = ("--out", str(out), "--quorum", str(given.quorum), "-s", f"data.file={held_out}")
        code, result, said = federation.run(*options, patience=3600)
        assert code == 0, said
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {**result, "round_s": round(float(np.median([row["seconds"] for row in rows[1:]])), 1)}


def simulated(config: Config, data: Path) -> dict[str, Any]:
    made = train(config)
    leaves = {name: np.asarray(leaf) for name, leaf in named_leaves(made.params).items()}
    return {**made.as_dict(), "test": test_accuracy(leaves, data)}


def test_accuracy(leaves: Mapping[str, np.ndarray], data: Path) -> float:
    """The linear model's accuracy on the test part, which no run has seen."""
    (weights,) = (a for a in leaves.values() if a.ndim == 2)
    (bias,) = (a for a in leaves.values() if a.ndim == 1)
    with np.load(data / "test.npz") as test:
        logits = test["x"].reshape(len(test["y"]), -1) @ weights + bias
        return float((logits.argmax(axis=1) == test["y"]).mean())


def of_run(run: Path, data: Path) -> float:
    with np.load(run / "checkpoint.npz") as stored:
        return test_accuracy({name: stored[name] for name in stored.files if name.startswith("params")}, data)


def summary(given: argparse.Namespace, config: Config, found: dict[str, Any]) -> dict[str, Any]:
    how = "processes" if given.processes else "simulation" if given.simulated else "in memory"
    how = "simulation, float" if given.floating else how
    rows = {
        f"epsilon_{tap}": row["epsilon"] for row in found["ledger"] for tap in ("release", "server")
        if (row["tap"], row["unit"], row["adjacency"], row["accountant"]) == (tap, "example", "zero-out", "pld")
    }  # fmt: skip
    told = {
        "how": how, "nodes": given.nodes, "rounds": found["rounds"], "quorum": given.quorum, "honest": given.honest,
        "seed": given.seed, "lr": given.lr, "noise": config.defense[0].noise_levels()[0], **rows,
        "accuracy": found["accuracy"], "test": found["test"],
    }  # fmt: skip
    for key in ("seconds", "bytes", "node_cpu_s", "round_s", "clients_lost"):
        told |= {key: found[key]} if key in found else {}
    return {**told, "cores": os.cpu_count(), "load_1min": round(os.getloadavg()[0], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, default in (("nodes", 100), ("rounds", 400), ("workers", 2), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, value in (("epsilon", 0.8227), ("lr", 0.6), ("quorum", 1.0), ("honest", 1.0)):
        parser.add_argument(f"--{name}", type=float, default=value)
    parser.add_argument("--processes", action="store_true")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--floating", action="store_true")
    given = parser.parse_args()
    data = write_data(given.folder / "data")
    config = config_of(given, data)
    with (given.folder / "log.txt").open("a") as given.log:
        if given.simulated or given.floating:
            found = simulated(config, data.parent)
        else:
            found = (in_processes if given.processes else in_memory)(given, config, data.parent / "server.npz")
            found["test"] = of_run(Path(found["run"]), data.parent)
    print(json.dumps(summary(given, config, found)), flush=True)


if __name__ == "__main__":
    main()
