"""The Flower ServerApp of a deployed run: hands Flower's grid to `coordinator`, writes how it ended into the run folder."""

from __future__ import annotations

import tomllib
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator, unused-ignore]
def main(grid: Grid, context: Context) -> None:
    """One run. Its config and terms are in the app's own config, which `fedveil deploy run` wrote."""
    from fedveil.config import from_dict
    from fedveil.core.errors import FedveilError
    from fedveil.deploy.carry import FlowerExchange
    from fedveil.deploy.coordinator import Terms, conduct
    from fedveil.runs import RunFolder

    told = context.run_config
    folder = RunFolder(Path(str(told["folder"])))
    terms = Terms(float(told["quorum"]), float(told["timeout"]), float(told["wait"]), bool(told["test"]))
    try:
        conduct(from_dict(tomllib.loads(str(told["config"]))), FlowerExchange(grid), folder, terms)
    except FedveilError as error:
        folder.write_info(status="failed", error=str(error))
        raise
    except Exception as error:
        words = f"{type(error).__name__}: {error}; the run can go on from its last round: --resume {folder.path}"
        folder.write_info(status="failed", error=words)
        raise
