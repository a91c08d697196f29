"""Scattering features: fixed wavelet features of images. Nothing is learnt, so they cost no privacy.

Every image is filtered by Morlet wavelets of two scales and eight directions, and the modulus is taken. The second scale is
applied again to the moduli of the first. All results are averaged over windows of four pixels: per colour 1 + 16 + 64 = 81
maps of a quarter of the side (Bruna and Mallat, 2013, with J = 2 and L = 8). Tramèr and Boneh (2021) found that under
differential privacy a linear model on these features beats networks trained from scratch.

The maps of each image are then normalised in groups of three to mean 0 and standard deviation 1, so that no statistic of
the dataset is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from fedveil.core.files import write_atomic
from fedveil.core.system import user_cache
from fedveil.data.dataset import Dataset, Part

SCALES, ANGLES = 2, 8
MARGIN = 8  # reflected pixels on each side, so that filters do not wrap around
STRIDE = 2**SCALES
GROUP = 3  # maps that share a mean and a standard deviation
BLOCK = 500  # images at a time
WORTH_KEEPING = 5000  # features of at least this number of images are cached (float16, 8 kB per image of 28 × 28)
VERSION = 1  # changes whenever the features change, so that cached ones are not used


def scattered(dataset: Dataset) -> Dataset:
    """The same dataset with every image replaced by its features [rows/4, columns/4, 81 · colours], float32."""
    parts = {name: getattr(dataset, name) for name in ("train", "held_out", "test", "public")}
    made: dict[str, Any] = {
        name: Part(features(part.x, dataset.scale), part.y, part.client)
        for name, part in parts.items()
        if part is not None
    }
    note = f"{dataset.note} Features: scattering, {math.prod(made['train'].x.shape[1:])} per image.".strip()
    return replace(dataset, note=note, **made)


def features(images: np.ndarray, scale: float) -> np.ndarray:
    """Normalised features of stored images [n, rows, columns, colours]; times `scale` their values are in [0, 1]."""
    if len(images) < WORTH_KEEPING:
        return _computed(images, scale)
    path = user_cache("features") / f"scatter-{_digest(images, scale)}.npy"
    with contextlib.suppress(OSError, ValueError, EOFError):  # missing or damaged: computed again
        found = np.load(path)
        if found.ndim and len(found) == len(images):
            return found.astype(np.float32)
    made = _computed(images, scale)
    with contextlib.suppress(OSError):  # without a writable cache, features are computed again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, lambda file: np.save(file, made.astype(np.float16)))
    return made


def _computed(images: np.ndarray, scale: float) -> np.ndarray:
    blocks = [_block(images[i : i + BLOCK].astype(np.float32) * scale) for i in range(0, len(images), BLOCK)]
    return np.concatenate(blocks).astype(np.float16).astype(np.float32)


def _digest(images: np.ndarray, scale: float) -> str:
    """A name for the features of these images in this version."""
    content = hashlib.sha256(np.ascontiguousarray(images).tobytes())
    content.update(repr((images.shape, str(images.dtype), scale, VERSION)).encode())
    return content.hexdigest()[:24]


def _block(images: np.ndarray) -> np.ndarray:
    n, rows, columns, colours = images.shape
    planes = images.transpose(0, 3, 1, 2).reshape(n * colours, rows, columns)
    maps = scatter(planes)  # [n · colours, 81, r, s]
    maps = maps.reshape(n, -1, *maps.shape[2:])
    return _normalised(maps).transpose(0, 2, 3, 1)


def _normalised(maps: np.ndarray) -> np.ndarray:
    """Maps with mean 0 and standard deviation 1 over each group of each image. A constant group becomes zero."""
    n, count, r, s = maps.shape
    group = GROUP if count % GROUP == 0 else 1
    grouped = maps.reshape(n, count // group, group * r * s)
    middle = grouped - grouped.mean(axis=2, keepdims=True)
    deviation = middle.std(axis=2, keepdims=True)
    return (middle / np.maximum(deviation, 1e-4)).reshape(maps.shape).astype(np.float32)


def scatter(planes: np.ndarray) -> np.ndarray:
    """[n, rows, columns] → [n, 81, rows/4, columns/4]: the averaged image, 16 moduli, 64 moduli of moduli."""
    from scipy import fft

    rows, columns = planes.shape[1:]
    fine, coarse = _bank(rows, columns)
    padded = np.pad(planes, [(0, 0), *_margins(rows, columns)], mode="reflect")
    spectrum = fft.fft2(padded.astype(np.complex64), workers=-1)
    found = [_averaged(padded, 1, rows, columns)[:, None]]
    moduli = np.abs(fft.ifft2(spectrum[:, None] * fine, workers=-1))  # [n, 8, ...], first scale
    found.append(_averaged(moduli, 1, rows, columns))
    found.append(_averaged(_half(spectrum[:, None] * coarse), 2, rows, columns))
    for angle in range(ANGLES):
        again = fft.fft2(moduli[:, angle].astype(np.complex64), workers=-1)
        found.append(_averaged(_half(again[:, None] * coarse), 2, rows, columns))
    return np.concatenate(found, axis=1)


def _margins(rows: int, columns: int) -> list[tuple[int, int]]:
    """Reflected pixels before and after each side. They make odd sides even."""
    return [(MARGIN, MARGIN + side % 2) for side in (rows, columns)]


def _half(spectrum: np.ndarray) -> np.ndarray:
    """The modulus of the image with this spectrum, at every second pixel. Folding the spectrum samples the image."""
    from scipy import fft

    *lead, height, width = spectrum.shape
    folded = spectrum.reshape(*lead, 2, height // 2, 2, width // 2).mean(axis=(-4, -2))
    return np.abs(fft.ifft2(folded, workers=-1))


def _averaged(maps: np.ndarray, step: int, rows: int, columns: int) -> np.ndarray:
    """Maps sampled at every `step` pixels, averaged with a Gaussian window at every fourth pixel of the image."""
    down, across = (_window(maps.shape[-2], step, rows), _window(maps.shape[-1], step, columns))
    return down @ maps.astype(np.float32) @ across.T


@cache
def _window(samples: int, step: int, side: int) -> np.ndarray:
    """[side/4, samples]: weights of a Gaussian of 3.2 pixels around the centre of each window of four."""
    centres = MARGIN + STRIDE * np.arange(side // STRIDE) + (STRIDE - 1) / 2
    distance = step * np.arange(samples)[None, :] - centres[:, None]
    weights = np.exp(-np.square(distance / (0.8 * STRIDE)) / 2)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


@cache
def _bank(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """The spectra of the wavelets of both scales, [8, height, width] each."""
    height, width = (side + sum(pads) for side, pads in zip((rows, columns), _margins(rows, columns), strict=True))
    banks = [
        np.stack([_morlet(height, width, scale, math.pi * angle / ANGLES) for angle in range(ANGLES)])
        for scale in range(SCALES)
    ]
    return banks[0], banks[1]


def _morlet(height: int, width: int, scale: int, angle: float) -> np.ndarray:
    """The spectrum of a Morlet wavelet: a wave times a slanted Gaussian, corrected to mean zero."""
    sigma, frequency, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4 / ANGLES
    y = (np.arange(height) + height // 2) % height - height // 2
    x = (np.arange(width) + width // 2) % width - width // 2
    along = x[None, :] * math.cos(angle) + y[:, None] * math.sin(angle)
    across = -x[None, :] * math.sin(angle) + y[:, None] * math.cos(angle)
    bell = np.exp(-(np.square(along) + np.square(slant * across)) / (2 * sigma**2))
    wave = bell * np.exp(1j * frequency * along)
    wave -= bell * wave.sum() / bell.sum()
    return (np.fft.fft2(wave) * slant / (2 * math.pi * sigma**2)).astype(np.complex64)
