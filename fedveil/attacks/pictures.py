"""Reconstructions as pictures: a grid of truth, steps and result, and the same as a short film."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedveil.core.errors import ConfigError
from fedveil.core.files import SHARED, write_atomic
from fedveil.data.pixels import to_bytes

GAP = 2  # white pixels between pictures
LEAST = 64  # pictures are enlarged to at least this many pixels


def write_grid(path: Path, rows: Sequence[np.ndarray]) -> None:
    """Rows [n, height, width, channels] of pictures with values in [0, 1], one below the other."""
    picture = Image.fromarray(_grid(rows))
    write_atomic(path, lambda file: picture.save(file, "PNG"), SHARED)


def write_pairs(path: Path, truth: np.ndarray, found: np.ndarray, width: int = 16) -> None:
    """Truth [n, height, width, channels] above what was found, `width` pairs in a row; white fills the last row."""
    rows = []
    for at in range(0, len(truth), width):
        for values in (truth, found):
            part = values[at : at + width]
            filled = min(width, len(truth)) - len(part)
            rows.append(np.concatenate([part, np.ones((filled, *part.shape[1:]), part.dtype)]))
    write_grid(path, rows)


def write_film(path: Path, truth: np.ndarray, steps: np.ndarray) -> None:
    """Truth [n, ...] above, below it what was found, step by step [shown, n, ...]."""
    frames = [Image.fromarray(_grid([truth, step])) for step in steps]
    more = [*frames[1:], frames[-1], frames[-1]]
    write_atomic(
        path, lambda file: frames[0].save(file, "GIF", save_all=True, append_images=more, duration=400, loop=0), SHARED
    )


def _grid(rows: Sequence[np.ndarray]) -> np.ndarray:
    lines = [np.concatenate([_framed(picture) for picture in row], axis=1) for row in rows]
    return np.concatenate(lines, axis=0)


def _framed(picture: np.ndarray) -> np.ndarray:
    """[height, width, 3] bytes, enlarged without smoothing, with a white edge."""
    if picture.ndim != 3:
        raise ConfigError("--pictures", picture.shape, "is for images: these examples are attributes")
    pixels = to_bytes(picture)
    if pixels.shape[-1] == 1:
        pixels = np.repeat(pixels, 3, axis=-1)
    times = max(1, -(-LEAST // pixels.shape[0]))
    large = np.kron(pixels, np.ones((times, times, 1), np.uint8))
    return np.pad(large, ((0, GAP), (0, GAP), (0, 0)), constant_values=255)
