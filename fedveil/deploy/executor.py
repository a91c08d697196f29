"""The process that starts the server's side of runs. Imports Flower.

It replaces Flower's SuperExec, which installs and executes the app bundle of a run. This process takes tasks of one kind,
the server's side of a run. For each it starts `serverapp`, which runs the installed package and refuses unknown bundles.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from fedveil.deploy.files import Federation, read_federation

POLL = 0.5  # seconds between two questions for tasks
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
TOKEN = "FEDVEIL_TASK_TOKEN"  # in the environment: other users of this machine can read command lines


def serve(federation: Federation) -> None:
    """Starts a process for each task, until this process is ended."""
    secret = (federation.server / "superexec.secret").read_bytes()
    client = RuntimeHttpClient.from_server_address(
        f"127.0.0.1:{federation.control}",
        False,
        (federation.server / "ca.crt").read_bytes(),
        [
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE}),
        ],
    )
    started: list[subprocess.Popen[bytes]] = []
    while True:
        started = [one for one in started if one.poll() is None]
        try:
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
        except httpx.HTTPError as error:
            print(f"the SuperLink does not answer: {type(error).__name__}", flush=True)
            time.sleep(5.0)
            continue
        if found.HasField("task") and found.token:
            command = [sys.executable, "-m", "fedveil.deploy.serverapp", str(federation.folder)]
            started.append(subprocess.Popen(command, env={**os.environ, TOKEN: found.token}))
        time.sleep(POLL)


if __name__ == "__main__":
    serve(read_federation(Path(sys.argv[1])))
