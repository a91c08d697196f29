"""Pixels as numbers in [0, 1] and as bytes."""

from __future__ import annotations

import base64
import io

import numpy as np


def to_bytes(values: np.ndarray) -> np.ndarray:
    """Values in [0, 1] as bytes. NaN becomes 0."""
    return (np.nan_to_num(np.clip(values, 0.0, 1.0)) * 255).round().astype(np.uint8)


def png_uri(values: np.ndarray, *, small: bool = False) -> str:
    """A data URI with a PNG of an array [height, width, channels] of bytes or of values in [0, 1].

    `small` compresses better and takes longer.
    """
    from PIL import Image

    pixels = values if values.dtype == np.uint8 else to_bytes(values)
    if pixels.ndim == 3:  # grey, or three colours
        pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels[..., :3]
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", optimize=small)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
