"""Results of attacks in a run folder, from which reports are made: `attacks/NAME-TAP-DIGEST.json` and `.npz`.

The JSON is the document that `fedveil attack --json` prints, with the `[attack]` settings beside it. The arrays are a few
pictures (truth, steps, result, with their scores) and the ROC curves. The same attack with the same settings replaces the
earlier one; other settings get another file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.archives import load_npz
from fedveil.core.files import clear_leftovers, digest_of, write_atomic, write_text
from fedveil.core.system import to_json
from fedveil.data.pixels import to_bytes

FOLDER = "attacks"
MOST = 6  # the most pictures of an attack that are stored


@dataclass(frozen=True)
class Pictures:
    """Truth and results of some of the attacked examples."""

    truth: np.ndarray  # [n, ...shape], values in [0, 1]
    found: np.ndarray  # [shown, n, ...shape]
    shown: tuple[str, ...]  # the caption of each row of `found`: "step 5", …, "result"
    ssim: np.ndarray  # [n] of the last row; NaN where there is none
    mse: np.ndarray  # [n]
    labels: np.ndarray  # [n, 2]: true and recovered; −1 where not known
    success: np.ndarray  # [n] bool
    of: str = "truth"  # the caption of the first row


@dataclass(frozen=True)
class Stored:
    """One attack, read back."""

    name: str  # of its file, without the ending
    document: Mapping[str, Any]
    pictures: Pictures | None = None
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # false and true positive rates


def save(
    run: Path,
    settings: Mapping[str, Any],
    document: Mapping[str, Any],
    pictures: Pictures | None = None,
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
) -> Path:
    """Stores an attack in a run folder; returns the path of its JSON."""
    asked = {key: value for key, value in settings.items() if value is not None}
    digest = hashlib.sha256(to_json([asked, document.get("round")]).encode()).hexdigest()[:8]
    folder = run / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for ending in ("json", "npz"):
        clear_leftovers(folder / f"*.{ending}")
    path = folder / f"{document['attack']}-{document.get('tap') or 'none'}-{digest}.json"
    arrays = {**_of_pictures(pictures), **{f"curve/{name}": np.stack(pair) for name, pair in (curves or {}).items()}}
    beside = path.with_suffix(".npz")
    if arrays:
        savez: Callable[..., None] = np.savez_compressed
        write_atomic(beside, lambda file: savez(file, **arrays))
    else:
        beside.unlink(missing_ok=True)
    told = {**document, "settings": asked}
    write_text(path, to_json({**told, "digest": _digest(told, arrays)}, indent=2) + "\n")
    return path


def _digest(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """The digest of a stored attack: of its numbers and its pictures."""
    return hashlib.sha256((to_json(document) + digest_of(arrays)).encode()).hexdigest()


def unscored(rows: Sequence[np.ndarray], captions: Sequence[str]) -> Pictures | None:
    """Pictures without scores, from rows [n, height, width, channels]; the first row is the reference."""
    if not rows:
        return None
    none = np.full(len(rows[0][:MOST]), np.nan)
    return Pictures(
        truth=rows[0][:MOST],
        found=np.stack([row[:MOST] for row in rows[1:]]),
        shown=tuple(captions[1:]),
        ssim=none,
        mse=none,
        labels=np.full((len(none), 2), -1),
        success=np.zeros(len(none), bool),
        of=captions[0],
    )


def read_all(run: Path) -> tuple[list[Stored], list[str]]:
    """All attacks of a run folder in the order of their names, and a line for each file that cannot be read."""
    found, problems = [], []
    for path in sorted((run / FOLDER).glob("*.json")):
        try:
            found.append(_read(path))
        except Exception as error:  # a damaged file must not spoil the rest of the report
            problems.append(f"{FOLDER}/{path.name} cannot be read ({type(error).__name__}: {error})")
    return found, problems


def _read(path: Path) -> Stored:
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or not isinstance(document.get("attack"), str):
        raise ValueError("it does not name its attack")
    arrays: dict[str, np.ndarray] = {}
    if os.path.lexists(path.with_suffix(".npz")):
        arrays = load_npz(path.with_suffix(".npz"))
    digest = document.pop("digest", None)
    if digest is None:
        _check_old(document)
    elif digest != _digest(document, arrays):
        raise ValueError("its digest is wrong: the file or its .npz was changed")
    curves = {name: (value[0], value[1]) for name, value in _below(arrays, "curve").items()}
    return Stored(path.stem, document, _to_pictures(arrays), curves)


def _check_old(document: Mapping[str, Any]) -> None:
    """An attack from before there were digests is taken if its scores can be scores."""
    for key in ("success_rate", "label_success_rate", "auc", "ssim", "mse", "psnr"):
        value = document.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{key} is no number")
        if value is not None and key in ("success_rate", "label_success_rate", "auc") and not 0 <= value <= 1:
            raise ValueError(f"{key} is {value:g}, not a share")
    if not isinstance(document.get("tap"), str | None):
        raise ValueError("its tap is no name")


def _of_pictures(pictures: Pictures | None) -> dict[str, np.ndarray]:
    if pictures is None:
        return {}
    kept = {key: np.asarray(value) for key, value in vars(pictures).items()}
    kept |= {key: to_bytes(kept[key]) for key in ("truth", "found")}
    return {f"pictures/{key}": value for key, value in kept.items()}


def _to_pictures(arrays: Mapping[str, np.ndarray]) -> Pictures | None:
    if "pictures/truth" not in arrays:
        return None
    own = _below(arrays, "pictures")
    shown = tuple(str(text) for text in own["shown"])
    truth, found = own["truth"] / 255.0, own["found"] / 255.0
    if truth.ndim != 4 or found.shape != (len(shown), *truth.shape):
        raise ValueError("its pictures do not fit together")
    scores = own["ssim"], own["mse"], own["labels"], own["success"]
    if any(len(one) != len(truth) for one in scores):
        raise ValueError("its pictures and their scores do not fit together")
    return Pictures(truth, found, shown, *scores, of=str(own["of"]))


def _below(arrays: Mapping[str, np.ndarray], folder: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin with `folder/`, by the rest of their names."""
    return {key.partition("/")[2]: value for key, value in arrays.items() if key.startswith(f"{folder}/")}
