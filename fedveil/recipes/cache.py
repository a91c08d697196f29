"""The results of measured cells, stored by digest: a stopped reproduction resumes, and only changed cells are repeated.

`cells.jsonl` has one line per result. A line is appended and synced as soon as it is known, so a killed process loses
at most the current cell. Of two lines with the same digest the later one counts.

**The digest** is a hash of everything that decides a result. It is computed from the resolved config: all sections
that the job reads, every key with the value that is used, whether set or a default. A changed default therefore gives
a new digest to every cell that relied on it, and the cell is measured again; a cell that sets the key keeps its
digest. Rules for keys:

- A key without a value (None) is left out. A new key that is unset by default changes no digest.
- A new key with a default value would change all digests. It is left out while it has its value in `NEUTRAL`: the
  value with which a result is the same as before the key existed. The change that adds such a key adds a line there; a
  test that finds all measured cells fails until then. A neutral value is not a default: if the default changes,
  digests change.
- Equal numbers look the same: 4 and 4.0.

The digest also covers the job's kind and options, the version of the package, and the version of the kind.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.attacks.inference.base import InferenceAttack
from fedveil.config import Config, for_attack, load, resolve
from fedveil.core.errors import RunError
from fedveil.core.files import append_lines, locked
from fedveil.core.system import to_json, user_cache
from fedveil.data.registry import DATASETS
from fedveil.defenses.catalog import resolved

if TYPE_CHECKING:
    from fedveil.recipes.cell import Job

Document = dict[str, Any]

RECONSTRUCTIONS = ("attack", "attack-steps", "attack-layers", "compare-attacks")  # kinds that read [attack]
INFERENCES = ("infer",)  # kinds that read [attack] of an inference attack

# section.key, or name-of-defence.key → the value with which a result is the same as before the key existed.
NEUTRAL: dict[str, Any] = {"dpfl.clip_norm": "l1", "nbafl.stop": False, "attack.form": "plain", "attack.limits": []}


# --- results


def default_folder() -> Path:
    """The folder of results unless the user names one."""
    return user_cache("cells")


class Cache:
    """The results in one folder."""

    def __init__(self, folder: Path):
        self.path = folder / "cells.jsonl"
        self.rows: dict[str, dict[str, Any]] = {}
        self.read()

    def read(self) -> None:
        """Reads what the file holds now."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace") if os.path.lexists(self.path) else ""
        except OSError as error:
            raise self._unusable(error) from None
        for line in text.splitlines():
            self._read(line)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes this process the only one that adds results."""
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path.parent))
            except OSError as error:
                raise self._unusable(error) from None
            self.read()
            yield

    def _unusable(self, error: OSError) -> RunError:
        takes = "free some space, or name another folder with --cells"
        return RunError(f"{self.path} cannot be used ({error.strerror or error}): {takes}")

    def _read(self, line: str) -> None:
        """Reads a line. One that is cut or damaged is skipped: its cell is measured again."""
        try:
            row = json.loads(line)
            if isinstance(row["result"], dict):
                self.rows[str(row["digest"])] = row
        except (ValueError, TypeError, KeyError, RecursionError):
            return

    def get(self, job: Job) -> dict[str, Any] | None:
        return self.rows.get(job.digest)

    def put(
        self, job: Job, result: dict[str, Any], seconds: float, environment: dict[str, object], *, workers: int = 1
    ) -> dict[str, Any]:
        """Stores a result with its settings and environment; `workers`: the number of cells measured in parallel."""
        row: dict[str, Any] = {
            "digest": job.digest,
            "kind": job.kind,
            "settings": list(job.settings),
            "options": dict(job.options),
            "result": result,
            "seconds": round(seconds, 3),
            "workers": workers,
            "device": environment.get("device"),
            "versions": environment.get("versions"),
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_lines(self.path, to_json(row) + "\n")
        except OSError as error:
            raise self._unusable(error) from None
        self.rows[row["digest"]] = row
        return row


# --- digests


def digest(kind: str, given: tuple[str, ...], options: Mapping[str, Any], versions: list[Any]) -> str:
    """The digest of a job."""
    rest = json.dumps([kind, _plain(dict(options)), versions], sort_keys=True)
    return hashlib.sha256((_text(kind, given) + rest).encode()).hexdigest()[:24]


@lru_cache(maxsize=1 << 14)
def _text(kind: str, given: tuple[str, ...]) -> str:
    """The document as text; cached, because a page of tables needs it several times."""
    return json.dumps(document(kind, given), sort_keys=True)


def document(kind: str, given: tuple[str, ...]) -> Document:
    """The resolved config of a job as plain data: the sections that its kind reads."""
    config = load(None, list(given))
    if kind in RECONSTRUCTIONS:
        config = for_attack(config)
    config = resolve(config, trainable=False)
    made: Document = {
        name: getattr(config, name).model_dump(mode="json") for name in ("data", "model", "train", "speed")
    }
    if kind in RECONSTRUCTIONS:
        made["attack"] = _reconstruction(config)
    elif kind in INFERENCES:
        made["attack"] = _inference(config)
    kept = {name: _used(name, section) for name, section in made.items()}
    return _plain({**kept, "defense": [_used(one.name, resolved(one)) for one in config.defense]})


# Digests of measured cells hold the keys of all attacks of a family, at these values where an attack has no such key.
RECONSTRUCTION_KEYS: Document = {
    "init": "patterned-2x2",
    "distance": "l2",
    "optimizer": "lbfgs",
    "lr": 1.0,
    "iterations": 300,
    "label": "infer",
    "alpha": 0.0,
    "tv": 0.0,
    "signed": False,
    "decay": False,
    "box": False,
    "restarts": 0,
    "reading": "simple",
}
INFERENCE_KEYS: Document = {
    "method": "ascent",
    "iterations": 300,
    "lr": 0.1,
    "tv": 0.0,
    "records": 1000,
    "shadows": 16,
}
FORMER_NAMES = {"adversary": "seat", "property": "trait"}  # by which the digests know these keys


def _reconstruction(config: Config) -> Document:
    asked = config.attack
    rule = asked.rule or ("ssim" if DATASETS[config.data.name].kind == "image" else "mse")
    bench = {"tap": asked.at, "images": asked.images, "seeds": asked.seeds, "round": asked.round or 0, "rule": rule}
    bench["limits"] = list(asked.limits or ())
    return {**bench, "name": asked.name, **RECONSTRUCTION_KEYS, **asdict(asked.make())}  # type: ignore[call-overload]


def _inference(config: Config) -> Document:
    asked, attack = config.attack, config.attack.make()
    assert isinstance(attack, InferenceAttack)
    own = {FORMER_NAMES.get(key, key): value for key, value in asdict(attack).items()}
    bench = {"name": asked.name, "seeds": asked.seeds, "round": asked.round}
    where = attack.position
    clients = {"tap": where.tap, "attacker": where.attacker, "victim": where.victim}
    return {**bench, **INFERENCE_KEYS, **own, **clients}


def _used(name: str, section: Mapping[str, Any]) -> Document:
    """The keys of a section that can change a result: those with a value that is not neutral."""
    found = {key: value for key, value in section.items() if value is not None}
    return {key: value for key, value in found.items() if NEUTRAL.get(f"{name}.{key}") != value}


def _plain(value: Any) -> Any:
    """Plain data in which equal numbers look the same."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
