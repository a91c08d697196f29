"""A federation on loopback for tests: the user's commands, each in a separate process."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FEDVEIL = [sys.executable, "-m", "fedveil"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Loopback:
    """`with Loopback(folder, config) as federation:` starts server and nodes, and ends all of them."""

    def __init__(self, folder: Path, config: Path, *options: str, nodes: int = 4) -> None:
        self.folder, self.config, self.nodes = folder, config, nodes
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.call("deploy", "init", str(folder), "--nodes", str(nodes), "--port", str(self.port), "--shards", str(config),
                  *options)  # fmt: skip
        self.control = free_port()
        text = folder / "federation.toml"
        text.write_text(text.read_text().replace(f"control = {self.port + 1} ", f"control = {self.control} "))

    def home(self, number: int) -> Path:
        return self.folder / f"node-{number}"

    def __enter__(self) -> Loopback:
        self.start("server", "deploy", "server", str(self.folder))
        for number in range(self.nodes):
            self.start_node(number)
        try:
            self.until(lambda: self.online() == self.nodes, max(180, 60 * self.nodes))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.out").open("ab")
        self.processes[name] = subprocess.Popen([*FEDVEIL, *arguments], stdout=log, stderr=log, env=self.environment())
        return self.processes[name]

    def start_node(self, number: int) -> None:
        self.start(f"node-{number}", "deploy", "node", str(self.home(number)))

    def process(self, name: str, part: str) -> int:
        """The id of the process that a supervisor started last."""
        found = re.findall(rf"{part} started, process (\d+)", (self.folder / f"{name}.out").read_text())
        return int(found[-1])

    def environment(self) -> dict[str, str]:
        return {**os.environ, "JAX_PLATFORMS": "cpu"}

    def call(self, *arguments: str, patience: float = 120, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([*FEDVEIL, *arguments], capture_output=True, text=True, timeout=patience,
                              env=self.environment())  # fmt: skip
        assert not check or done.returncode == 0, done.stderr + done.stdout
        return done

    def run(self, *options: str, patience: float = 300) -> tuple[int, dict[str, Any], str]:
        """`deploy run`: exit status, the JSON document if any, stderr."""
        done = self.call("deploy", "run", *self._which(options), "--federation", str(self.folder), "--json", *options,
                         patience=patience, check=False)  # fmt: skip
        return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}, done.stderr

    def begin(self, *options: str) -> subprocess.Popen[bytes]:
        return self.start("run", "deploy", "run", *self._which(options), "--federation", str(self.folder), *options)

    def _which(self, options: tuple[str, ...]) -> list[str]:
        return [] if "--resume" in options else [str(self.config)]

    def status(self) -> dict[str, Any]:
        done = self.call("deploy", "status", str(self.folder), "--json", check=False)
        return json.loads(done.stdout) if done.returncode == 0 else {"nodes": [], "up": False, "runs": []}

    def online(self) -> int:
        return sum(node["status"] == "online" for node in self.status()["nodes"])

    @staticmethod
    def until(holds: Any, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"did not happen in {seconds} s"
            time.sleep(1.0)

    def rounds_done(self, run: Path) -> int:
        try:
            return int(json.loads((run / "run.json").read_text()).get("rounds_done", 0))
        except (OSError, ValueError):
            return 0

    def entries(self, number: int) -> list[dict[str, Any]]:
        lines = (self.home(number) / "ledger.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines[1:]]
