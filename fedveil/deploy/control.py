"""A client of Flower's control API, which manages the roster and the runs. Imports Flower.

The API listens on the server's own machine only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from fedveil.core.errors import RunError
from fedveil.deploy.bundle import bundle, digest
from fedveil.deploy.credentials import public_bytes


class Control:
    """A connection to the control API; every failure is a `RunError` of one line."""

    def __init__(self, port: int, authority: Path) -> None:
        self.address = f"127.0.0.1:{port}"
        interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr")]
        self.client = ControlHttpClient.from_server_address(self.address, False, authority.read_bytes(), interceptors)

    def __enter__(self) -> Control:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.client.close()

    def nodes(self) -> dict[int, tuple[str, bytes]]:
        """Status and public key of every registered node, by its id."""
        found = self._call(self.client.ListNodes, ListNodesRequest()).nodes_info
        return {one.node_id: (one.status, one.public_key) for one in found if one.status != "unregistered"}

    def register(self, key: Path) -> int:
        """Registers a public key (OpenSSH format); returns the id of its node."""
        made = self._call(self.client.RegisterNode, RegisterNodeRequest(public_key=public_bytes(key)))
        if not made.node_id:
            raise RunError(f"{key} was not registered: no reason given")
        return int(made.node_id)

    def unregister(self, node: int) -> None:
        self._call(self.client.UnregisterNode, UnregisterNodeRequest(node_id=node))

    def runs(self) -> dict[int, str]:
        """The status of the runs that Flower knows, by number."""
        found = self._call(self.client.ListRuns, ListRunsRequest()).run_dict
        return {
            number: ":".join(filter(None, (run.status.status, run.status.sub_status))) for number, run in found.items()
        }

    def start(self, values: dict[str, str | float | bool]) -> int:
        """Starts a run of our bundle with these values; returns its number."""
        request = StartRunRequest(
            fab=fab_to_proto(Fab(digest(), bundle(), {})), override_config=user_config_to_proto(values)
        )
        number = int(self._call(self.client.StartRun, request).run_id)
        if not number:
            raise RunError("the server did not start the run: no reason given")
        return number

    def stop(self, run: int) -> None:
        self._call(self.client.StopRun, StopRunRequest(run_id=run))

    def _call(self, method: Callable[[Any], Any], request: Any) -> Any:
        try:
            return method(request)
        except httpx.HTTPStatusError as error:
            said = " ".join(error.response.text.split())[:300]
            raise RunError(f"the server refused {type(request).__name__}: {said}") from None
        except (httpx.HTTPError, ValueError) as error:
            raise RunError(f"the server at {self.address} cannot be reached: {type(error).__name__}: {error}") from None
