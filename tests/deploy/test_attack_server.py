"""A hostile server: hundreds of messages through the node's own entry point. Nothing leaves the node beyond its ledger."""

from __future__ import annotations

import copy
import io
import math
import os
import resource
import socket
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from attacks import Attack, extreme, garbage, huge, less_noise, malformed, other_data, shapes, tally
from deploy_memory import key_of, nodes_of

from fedveil.config import Config, from_dict, resolve, to_toml
from fedveil.deploy import node, refusals, wire, worker
from fedveil.deploy.account import NodeLedger
from fedveil.deploy.messages import Request, pack
from fedveil.deploy.wire import Parcel

HONEST: dict[str, Any] = {
    "data": {"name": "digits", "clients": 1, "per_client": 60},
    "model": {"name": "logistic"},
    "train": {"rounds": 4, "per_round": 1, "sampling": "fixed", "local_steps": 2, "batch": 5},
    "defense": [{"name": "fed-cdp", "clip": 1.0, "noise": 4.0}],
}
LIMITS = """test = false
[limits]
defenses = ["fed-cdp"]
multiplier = 6.0
noise = 4.0
clip = 1.0
clip_min = 1.0
steps = 2
rounds = 4
parameters = 5000
epsilon = 1e3
"""
MIB = 1 << 20


def raw(changes: dict[str, Any]) -> str:
    """The config as TOML, as a hostile server writes it: nothing has been checked."""
    document = copy.deepcopy(HONEST)
    for key, value in changes.items():
        if key == "defense":
            document["defense"] = value
            continue
        section, name = key.split(".", 1)
        document.setdefault(section, {})[name] = value
    lines = []
    for section, keys in document.items():
        for table in keys if isinstance(keys, list) else [keys]:
            lines.append(f"[[{section}]]" if isinstance(keys, list) else f"[{section}]")
            lines += [f"{name} = {_toml(value)}" for name, value in table.items() if value is not None]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


class Victim:
    """A node with limits, and an honest request to it."""

    def __init__(self, below: Path) -> None:
        self.config: Config = resolve(from_dict(HONEST))
        (self.home,) = nodes_of(self.config, below, LIMITS)
        model = node.build_model(self.config, (8, 8, 1), 10)
        self.model = pack(jax.device_get(model.init(jax.random.key(0))))
        text = to_toml(self.config)
        self.fields = Request("run", 0, 0, key_of(0), text, 60, 1.0, 1.0, -1).as_dict()

    def parcel(self, attack: Attack) -> Parcel:
        if attack.only is not None:
            return Parcel(attack.only["kind"], attack.only["fields"], self.model)
        fields = {**self.fields, **attack.fields}
        if attack.config:
            fields["config"] = raw(dict(attack.config))
        return Parcel("train", fields, self.model if attack.payload is None else attack.payload)

    def rounds(self) -> int:
        return len(NodeLedger(self.home).entries())

    def files(self) -> set[str]:
        return {str(p.relative_to(self.home)) for p in self.home.rglob("*") if "compiled" not in p.parts}


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Victim:
    made = Victim(tmp_path_factory.mktemp("victim"))
    answer = worker.answer(made.home, made.parcel(Attack("", "honest")))
    assert answer.kind == "reply" and answer.fields["refused"] == "", answer.fields
    return made


def one_line(reason: str) -> bool:
    return 0 < len(reason) <= refusals.LONGEST and reason.isprintable()


KNOWN_FILES = {
    "data.npz", "key.pub", "node.toml", "ledger.jsonl", "ledger.last", "ledger.lock", "refused.json", "refused.json.lock",
    "errors.log", "errors.log.1", "rounds.jsonl",
}  # fmt: skip


def strike(victim: Victim, attack: Attack) -> None:
    """Sends one message. A refused one costs and reveals nothing; an accepted one is in the ledger."""
    before, counted = victim.rounds(), refusals.read(victim.home)["count"]
    answer = worker.answer(victim.home, victim.parcel(attack))
    spent = victim.rounds() - before
    reason = str(answer.fields.get("refused", answer.fields.get("reason", "")))
    assert victim.files() <= KNOWN_FILES, attack
    if not attack.accepted:
        assert one_line(reason), (attack.name, reason)
        assert not answer.parts and spent == 0, (attack.name, reason)
        assert refusals.read(victim.home)["count"] == counted + 1, attack.name
        return
    assert reason == "" and spent == 1, (attack.name, reason)
    assert math.isnan(answer.fields["loss"])
    sent = {name: np.load(io.BytesIO(data)) for name, data in answer.parts.items()}
    assert all(np.isfinite(a).all() for a in sent.values()), attack.name
    if attack.kind == "chosen extreme parameters":
        # Two steps of the mean of five examples, each with clip 1 and noise 4 for every layer, times the learning rate.
        lr, size = 0.1, sum(a.size for a in sent.values())
        within = lr * 2 * (1.0 + 4.0 * (math.sqrt(size) + 6))
        moved = max(float(np.abs(a).max()) for a in sent.values())
        received = {name: np.load(io.BytesIO(data)) for name, data in victim.parcel(attack).parts.items()}
        rounding = 4 * max(float(np.abs(a).max()) for a in received.values()) * 2.0**-23
        assert moved <= within + rounding, (attack.name, moved)


def attacks(victim: Victim) -> Iterator[Attack]:
    yield from less_noise()
    yield from other_data()
    yield from huge()
    yield from shapes(victim.model)
    yield from malformed(victim.fields)


def test_messages_of_a_hostile_server_are_refused_in_one_line_and_cost_nothing(victim: Victim) -> None:
    before, tried, survived, failures = _memory(), Counter[str](), Counter[str](), []
    for attack in attacks(victim):
        tried[attack.kind] += 1
        try:
            strike(victim, attack)
            survived[attack.kind] += 1
        except AssertionError as error:
            failures.append(str(error).splitlines()[0])
    assert not failures, "\n".join(failures)
    assert tried.total() >= 200 and _memory() - before < 1500 * MIB
    for kind, times in tried.items():
        tally(kind, times, survived[kind])


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_parameters_that_a_server_chooses_reveal_no_more_than_the_ledger_says(victim: Victim) -> None:
    tried = list(extreme(victim.model))
    for attack in tried:
        strike(victim, attack)
    tally("chosen extreme parameters", len(tried), len(tried))


def test_replays_get_fresh_noise_cost_again_and_end_with_the_budget(tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    toml = victim.home / "node.toml"
    toml.write_text(toml.read_text().replace("epsilon = 1e3", "epsilon = 0.2"))
    asked, sent = victim.parcel(Attack("", "replay")), list[dict[str, bytes]]()
    for _ in range(20):
        answer = worker.answer(victim.home, asked)
        if answer.fields["refused"]:
            break
        sent.append(dict(answer.parts))
    assert len(sent) == victim.rounds() >= 3 and "over budget" in answer.fields["refused"]
    assert len({tuple(parts.values()) for parts in sent}) == len(sent)
    for _ in range(5):
        answer = worker.answer(victim.home, asked)
        assert "over budget" in answer.fields["refused"] and not answer.parts
    assert victim.rounds() == len(sent)
    tally("replays up to the budget and beyond", len(sent) + 6, len(sent) + 6)


def test_a_node_without_limits_answers_nothing(tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    toml = victim.home / "node.toml"
    toml.write_text(toml.read_text().split("[limits]")[0])
    answer = worker.answer(victim.home, victim.parcel(Attack("", "honest")))
    assert "has no limits for steps, rounds, epsilon" in answer.fields["refused"] and victim.rounds() == 0


def test_bytes_that_are_no_message_end_the_connection_and_nothing_else(victim: Victim) -> None:
    for name, data in garbage().items():
        ours, theirs = socket.socketpair()
        served = threading.Thread(target=worker._converse, args=(victim.home, theirs), daemon=True)
        served.start()
        ours.settimeout(20)
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        served.join(20)
        theirs.close()
        assert not served.is_alive(), name
        with ours, suppress(ConnectionResetError):
            assert ours.recv(10) == b"", name
    tally("bytes on the worker's socket", len(garbage()), len(garbage()))


def test_the_worker_is_reached_by_its_own_user_only_and_ends_rounds_that_take_too_long(tmp_path: Path) -> None:
    """The real process: socket of mode 0600; a round beyond `seconds` ends it, with one line and a line in the ledger."""
    victim = Victim(tmp_path)
    toml = victim.home / "node.toml"
    toml.write_text(toml.read_text() + "seconds = 0.01\n")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "fedveil.deploy.worker", str(victim.home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None and b"listens" in process.stdout.readline()
            path = victim.home / wire.SOCKET
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            before = os.getcwd()
            os.chdir(victim.home)  # the path of a Unix socket is short
            try:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(wire.SOCKET)
                    wire.send(connection, victim.parcel(Attack("", "slow")))
                    with pytest.raises((wire.Broken, OSError)):
                        if wire.receive(connection, MIB) is None:
                            raise wire.Broken("ended")
            finally:
                os.chdir(before)
            assert process.wait(60) == worker.TOO_LONG
        finally:
            process.kill()
    assert "dropped after 0.01 s" in refusals.read(victim.home)["last"][-1]["reason"]
