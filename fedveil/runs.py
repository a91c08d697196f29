"""A run is a folder. Ledgers, reports and attacks read everything from it.

| file | what |
|---|---|
| `config.toml` | the resolved config: reading it back gives the same run |
| `run.json` | versions, device, dataset note, status, result |
| `metrics.jsonl` | one line per round |
| `checkpoint.npz` | parameters, server state, round, and a digest of all of them; replaced atomically |
| `model.safetensors` | the final parameters by name, `layer/w`, written when the run ends |
| `network.safetensors` | a caller's own network: its structure and initial arrays, if a file can hold it |
| `secret.key` | the secret that cohorts, batches and noise come from, readable by its owner alone; never to be published |

One process at a time writes to a run: `RunFolder.locked` refuses all others.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import platform
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedveil.core import files
from fedveil.core.archives import load_npz
from fedveil.core.errors import ConfigError, FedveilError, RunError
from fedveil.core.files import write_atomic, write_text
from fedveil.core.keys import Draws
from fedveil.core.system import Lazy, to_json

if TYPE_CHECKING:
    import jax

    from fedveil.models.net import Model
else:
    jax = Lazy("jax")

Tree = Any
MOST_ROUNDS = 10_000_000  # that a run can have
DIGEST = "#digest"  # of everything else in a checkpoint


def named_leaves(tree: Tree) -> dict[str, Any]:
    """The leaves of a tree by path: a checkpoint can be read without this program."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def parameters_as_bytes(params: Tree) -> bytes:
    """The content of a `.safetensors` file with these parameters."""
    from safetensors.numpy import save

    named = named_leaves(jax.device_get(params))
    return save({name: np.ascontiguousarray(leaf) for name, leaf in named.items()})


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds: the state as numpy arrays, rounds done, seconds spent."""

    state: Tree
    round: int
    seconds: float


@dataclass(frozen=True)
class RunFolder:
    """Reads and writes the files of one run."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """A new folder; an existing run is never overwritten."""
        if (path / "config.toml").exists():
            raise ConfigError(
                "--out", str(path), "holds a run already: use --resume to go on with it, or another folder"
            )
        try:
            str(path).encode()  # run.json will name it
            path.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path that no folder can have
            reason = getattr(error, "strerror", None) or error
            raise ConfigError("--out", str(path), f"cannot be made ({reason}): give a folder you can write") from None
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of an earlier run."""
        if not (path / "config.toml").is_file():
            raise ConfigError("--resume", str(path), "holds no run (no config.toml): give the folder of a run")
        return cls(path)

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def info(self) -> Path:
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.npz"

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def network(self) -> Path:
        return self.path / "network.safetensors"

    @property
    def secret(self) -> Path:
        return self.path / "secret.key"

    @property
    def how_to_go_on(self) -> str:
        """The message for the user of an unfinished run."""
        return f"go on with: fedveil train --resume {shlex.quote(str(self.path))}"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Wraps writes during training: a full disk becomes a one-line error that says how to resume."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            remedy = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable"
            then = self.how_to_go_on if self.config.exists() else "start again"
            raise RunError(f"{self.path} cannot be written ({reason}): {remedy}, then {then}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes this process the only one that works on the run."""
        with ExitStack() as stack:
            with self.writing():
                stack.enter_context(files.locked(self.path))
            yield

    def clear_leftovers(self) -> None:
        """Removes the temporary files of a killed process."""
        for path in (self.config, self.info, self.metrics, self.checkpoint, self.model, self.network, self.secret):
            files.clear_leftovers(path)

    def read_info(self) -> dict[str, Any]:
        """The content of `run.json`; empty where there is none."""
        try:
            found = json.loads(self.info.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or not isinstance(found.get("result", {}), dict):
                raise ValueError("not a table")
            if not isinstance(found.get("status", ""), str):
                raise ValueError("no status")
            return found
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError):
            raise RunError(f"{self.info} is damaged: delete it and use --resume again") from None

    def check_config(self) -> None:
        """Raises an error if `config.toml` changed after the run began. Runs of older versions stored no digest."""
        began = self.read_info().get("config_sha256")
        if began is not None and began != self.config_digest():
            raise RunError(f"{self.config} was changed after the run began: undo that, or train anew with it")
        self._check_own()

    def _check_own(self) -> None:
        """Refuses a model file or model code that is not what the run began with."""
        from fedveil.models.catalog import digest_of_own

        own = self.read_info().get("own")
        if isinstance(own, dict) and own.get("sha256") != digest_of_own(str(own.get("name"))):
            raise RunError(f"{own.get('name')} was changed after the run began: undo that, or train anew with it")

    def keep_network(self, model: Model) -> None:
        """Writes a caller's own model, if a file can hold it."""
        from fedveil.models import kept

        if kept.can_keep(model):
            content = kept.as_bytes(model)
            write_atomic(self.network, lambda file: file.write(content))
            self.write_info(network_sha256=hashlib.sha256(content).hexdigest())

    def own_network(self, key: str) -> Model | None:
        """The caller's own model that the run was trained with; None if the config describes its model.

        `key`: the argument that gave the run's path, for errors.
        """
        from fedveil.models import kept

        info = self.read_info()
        if not info.get("own_model"):
            return None
        if info.get("network_sha256") is None:
            takes = "was trained with a model of Python code, which no file holds: give the model, from Python"
            raise ConfigError(key, str(self.path), takes)
        if not self.network.is_file():
            raise RunError(
                f"{self.network} is missing: without the network the run can be neither resumed nor attacked"
            )
        if hashlib.sha256(self.network.read_bytes()).hexdigest() != info["network_sha256"]:
            raise RunError(f"{self.network} was changed after the run began: undo that, or train anew")
        return kept.read_network(self.network)

    def config_digest(self) -> str:
        return hashlib.sha256(self.config.read_bytes()).hexdigest()

    def write_info(self, **changes: object) -> None:
        """Updates `run.json`."""
        write_text(self.info, to_json({**self.read_info(), **changes}, indent=2) + "\n")

    def keep(self, draws: Draws) -> None:
        """Writes the secret of the run's draws, readable only by its owner. Draws by a seed have no secret."""
        if draws.secret is not None:
            text = draws.secret.hex() + "\n"
            write_atomic(self.secret, lambda file: file.write(text.encode()))  # mode 0600, as `mkstemp` makes it

    def draws(self, noise_seed: int | None) -> Draws:
        """The source of the run's draws: `train.noise_seed` of its config, or the secret in its folder."""
        if noise_seed is not None:
            return Draws(noise_seed)
        try:
            return Draws(secret=bytes.fromhex(self.secret.read_text(encoding="ascii")))
        except FileNotFoundError:
            raise RunError(
                f"{self.secret} is missing: without it the draws of this run cannot be made again, so it can be neither "
                "resumed nor attacked. A run from before secret draws: set train.noise_seed in its config.toml to its "
                "train.seed"
            ) from None
        except OSError as error:
            raise RunError(f"{self.secret} cannot be read ({error.strerror}): only its owner may read it") from None
        except ValueError:
            raise RunError(f"{self.secret} is damaged: the draws of this run cannot be made again") from None

    def save(self, state: Tree, round_: int, seconds: float) -> None:
        """Replaces the checkpoint: waits for the device, writes, syncs, renames."""
        arrays = {name: np.asarray(leaf) for name, leaf in named_leaves(jax.device_get(state)).items()}
        arrays |= {"#round": np.asarray(round_), "#seconds": np.asarray(seconds)}
        arrays[DIGEST] = np.asarray(files.digest_of(arrays))
        savez: Callable[..., None] = np.savez
        write_atomic(self.checkpoint, lambda file: savez(file, **arrays))

    def checkpoint_round(self) -> int:
        """The number of rounds in the checkpoint; 0 without one. `run.json` may be older after a kill."""
        found = self._read_checkpoint()
        return 0 if found is None else int(found["#round"])

    def restore(self, like: Tree) -> Checkpoint | None:
        """The checkpoint, its state in the shape of `like`; None where there is none yet."""
        arrays = self._read_checkpoint()
        if arrays is None:
            return None
        wanted = named_leaves(like)
        wanted_names = {*wanted, "#round", "#seconds"}
        if set(arrays) != wanted_names:
            odd = sorted(wanted_names.symmetric_difference(arrays))[0]
            raise RunError(f"{self.checkpoint} does not fit the config: '{odd}' differs; was config.toml edited?")
        for name, leaf in wanted.items():
            if arrays[name].shape != leaf.shape or arrays[name].dtype != leaf.dtype:
                raise RunError(f"{self.checkpoint} does not fit the config: '{name}' differs; was config.toml edited?")
        restored = [arrays[name] for name in wanted]
        state = jax.tree.unflatten(jax.tree.structure(like), restored)
        return Checkpoint(state, int(arrays["#round"]), float(arrays["#seconds"]))

    def _read_checkpoint(self) -> dict[str, np.ndarray] | None:
        """The arrays of the checkpoint, checked, without their digest; None where there is no checkpoint."""
        try:
            if not os.path.lexists(self.checkpoint):
                return None
            arrays = load_npz(self.checkpoint)
            digest = arrays.pop(DIGEST, None)
            if digest is None:
                _check_old(arrays)
            elif str(digest) != files.digest_of(arrays):
                raise ValueError("its digest is wrong")
            if not 0 <= int(arrays["#round"]) <= MOST_ROUNDS:
                raise ValueError(f"round {arrays['#round']}")
        except KeyError as error:
            raise RunError(
                f"{self.checkpoint} does not fit the config: {error} differs; was it written here?"
            ) from None
        except FedveilError:
            raise
        except Exception as error:  # zipfile, zlib and numpy raise many kinds of errors for a damaged archive
            raise RunError(f"{self.checkpoint} is damaged ({error}): delete it to start this run anew") from None
        return arrays

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Adds lines to the metrics."""
        files.append_lines(self.metrics, "".join(to_json(row) + "\n" for row in rows))

    def read_metrics(self) -> list[dict[str, Any]]:
        """All complete lines; a last line that a crash cut short is dropped."""
        rows, damage = metrics_of(self.metrics)
        if damage:
            raise RunError(f"{self.metrics} is damaged ({damage}): delete it; the ledger and --resume do not need it")
        return rows

    def rewind(self, round_: int) -> None:
        """Drops metrics of rounds that the checkpoint does not hold: they will be computed again."""
        kept = [row for row in self.read_metrics() if row["round"] < round_]
        write_text(self.metrics, "".join(to_json(row) + "\n" for row in kept))


def metrics_of(file: Path) -> tuple[list[dict[str, Any]], str]:
    """The rows of a `metrics.jsonl` up to the first damaged line, and what is wrong with that one.

    A last line without an end is not damaged: it is being written, or a crash cut it short.
    """
    rows: list[dict[str, Any]] = []
    try:
        *lines, last = file.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return [], ""
    except (OSError, ValueError) as error:
        return [], getattr(error, "strerror", None) or "it is no text"
    for line in lines:
        try:
            row = json.loads(line, parse_constant=_refused)
            sound = all(value is None or type(value) in (int, float, dict) for value in row.values())
            if not sound or type(row["round"]) is not int or row["round"] != len(rows):
                raise ValueError
        except (ValueError, KeyError, AttributeError, RecursionError):
            return rows, f"line {len(rows) + 1} is no row of round {len(rows)}"
        rows.append(row)
    return rows, "its last line is no row" if last and not last.startswith("{") else ""


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not in JSON")


def _check_old(arrays: Mapping[str, np.ndarray]) -> None:
    """Accepts a checkpoint of an older version, which has no digest, if a training can have produced its values."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and name.startswith("params/") and not np.isfinite(array).all():
            raise ValueError(f"'{name}' holds values that are not finite")
    if arrays["#round"].dtype.kind not in "iu" or not math.isfinite(arrays["#seconds"]):
        raise ValueError("its round or its seconds are no numbers")


def default_path(name: str) -> Path:
    """`runs/NAME-TIME`, with a number appended if it exists."""
    base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = base, 1
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def newest_unfinished(below: Path = Path("runs")) -> Path:
    """The run that `--resume` without a folder means: the newest unfinished one below `runs/`."""
    found = [p.parent for p in below.glob("*/config.toml")]
    open_runs = [p for p in found if RunFolder(p).read_info().get("status") != "done"]
    if not open_runs:
        raise ConfigError("--resume", None, f"finds no unfinished run below {below}/: give the folder of a run")
    return max(open_runs, key=lambda p: (p / "config.toml").stat().st_mtime)


def environment() -> dict[str, object]:
    """Versions and device, for the record."""
    packages = ("fedveil", "jax", "jaxlib", "numpy", "optax", "scikit-learn", "dp-accounting")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(jax.devices()[0].device_kind),
        "backend": jax.default_backend(),
        "versions": {name: _version(name) for name in packages},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
