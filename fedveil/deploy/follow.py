"""`fedveil deploy run`: submits a run to the server and follows it through its run folder until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.config import Config, load, resolve, to_toml
from fedveil.core.errors import ConfigError, FedveilError, Interrupted, RunError
from fedveil.deploy.coordinator import Terms
from fedveil.deploy.files import Federation
from fedveil.deploy.limits import deployable
from fedveil.deploy.processes import listening
from fedveil.runs import RunFolder

if TYPE_CHECKING:
    from fedveil.deploy.control import Control

Row = dict[str, Any]
GRACE = 15.0  # seconds between the end of a run in Flower and its result in the run folder


def checked(federation: Federation, config: Config, *, test: bool = False) -> Config:
    """The resolved config; raises `ConfigError` if it cannot be deployed on this federation."""
    config = deployable(resolve(config), test=test)
    if config.data.clients != federation.nodes:
        takes = f"must equal the number of nodes in the federation, which is {federation.nodes}"
        raise ConfigError("data.clients", config.data.clients, takes)
    return config


def run(
    federation: Federation,
    config: Config | None,
    folder: RunFolder,
    terms: Terms,
    say: Callable[[str], None],
    progress: Callable[[Row], None] | None = None,
) -> dict[str, Any]:
    """Starts a run, or resumes the one in `folder` if `config` is None; returns its result."""
    config = checked(federation, load(folder.config) if config is None else config, test=terms.test)
    if not listening(federation.control):
        raise RunError(f"no server listens on port {federation.control}: start it with 'fedveil deploy server'")
    from fedveil.deploy.control import Control

    with folder.locked():  # ends here: the server's process takes it next
        folder.write_info(status="submitted", error=None)
    values: dict[str, str | float | bool] = {
        "config": to_toml(config), "folder": str(folder.path.resolve()), "test": terms.test,
        "quorum": float(terms.quorum), "timeout": float(terms.timeout), "wait": float(terms.wait),
    }  # fmt: skip
    with Control(federation.control, federation.server / "ca.crt") as control:
        number = control.start(values)
        say(f"run {number} in {folder.path}")
        try:
            return _Follower(folder, number, control, progress).wait()
        except KeyboardInterrupt:
            control.stop(number)
            again = f"fedveil deploy run --federation {federation.folder} --resume {folder.path}"
            raise Interrupted(f"stopped; resume with: {again}") from None


class _Follower:
    """Follows a submitted run."""

    def __init__(
        self, folder: RunFolder, number: int, control: Control, progress: Callable[[Row], None] | None
    ) -> None:
        self.folder, self.number, self.control, self.progress = folder, number, control, progress
        self.shown = 0
        self.over_since: float | None = None

    def wait(self) -> dict[str, Any]:
        """Shows new rounds until the run ends; returns its result."""
        checked_at = time.monotonic()
        while True:
            info = self.folder.read_info()
            self._show()
            if info.get("status") == "done":
                return dict(info["result"])
            if info.get("status") == "failed":
                raise RunError(str(info.get("error")))
            if time.monotonic() - checked_at > 10.0:
                checked_at = time.monotonic()
                self._check_alive()
            time.sleep(0.5)

    def _show(self) -> None:
        rows = self.folder.read_metrics()
        for row in rows[self.shown :]:
            if self.progress:
                self.progress(row)
        self.shown = max(self.shown, len(rows))

    def _check_alive(self) -> None:
        """Raises `RunError` for a run that was killed: it ended in Flower, but its folder has no result."""
        try:
            status = self.control.runs().get(self.number, "unknown")
        except FedveilError:  # an unreachable server may come back
            return
        if not status.startswith("finished"):
            self.over_since = None
            return
        self.over_since = self.over_since or time.monotonic()
        if time.monotonic() - self.over_since > GRACE:
            raise RunError(f"the run ended without a result ({status}); resume it with --resume {self.folder.path}")


def new_folder(out: str | None, config: Config) -> RunFolder:
    from fedveil.runs import default_path

    names = "+".join(d.name for d in config.defense)
    return RunFolder.create(Path(out) if out else default_path(f"deploy-{config.data.name}-{names}"))
