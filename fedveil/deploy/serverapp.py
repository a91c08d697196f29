"""The server's side of one run, in a process that `executor` starts. Imports Flower.

It runs the installed package. The bundle of the run must have the pinned digest, and is never unpacked.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
from flwr.common.constant import SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fedveil.deploy import refusals
from fedveil.deploy.executor import TOKEN
from fedveil.deploy.files import Federation, read_federation


def run(federation: Federation, token: str) -> None:
    """Runs the task of this token, and tells the SuperLink how it ended."""
    grid = HttpGrid(f"127.0.0.1:{federation.control}", root_certificates=(federation.server / "ca.crt").read_bytes(),
                    token=token)  # fmt: skip
    runtime = grid._runtime_client
    beats = HeartbeatSender(make_task_heartbeat_fn_http(runtime))
    beats.start()
    status, details = SubStatus.FAILED, "the run was stopped"
    try:
        given = runtime.PullTaskInput(PullTaskInputRequest())
        told = run_from_proto(given.run)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = (
            given.task_id,
            told.run_id,
            given.context.node_id,
        )
        grid.set_run(told)
        why = refusal(federation.app, told.fab_hash, given.fab.content)
        if why:
            details = refusals.note(federation.server, why)
        else:
            from fedveil.deploy import flower

            flower.conduct_run(grid, federation, dict(told.override_config))
            status, details = SubStatus.COMPLETED, ""
    except Exception as error:
        details = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        print(details, flush=True)
    finally:
        grid._retry_invoker.max_tries = 1
        try:
            runtime.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        except (httpx.HTTPError, RuntimeError) as error:
            print(f"the end of the run was not delivered: {type(error).__name__}", flush=True)
        if beats.is_running:
            beats.stop()
        grid.close()


def refusal(pinned: str, claimed: str, content: bytes) -> str:
    """Why a bundle is refused; empty for the pinned one. Nothing of it is unpacked."""
    found = hashlib.sha256(content).hexdigest()
    if claimed == found == pinned:
        return ""
    return f"this server runs only the app with digest {pinned[:16]}, not {found[:16]}"


def main(arguments: list[str]) -> int:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    run(read_federation(Path(arguments[0])), os.environ.pop(TOKEN))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
