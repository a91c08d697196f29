"""Decode a PNG or JPEG picture to bytes."""

from __future__ import annotations

import io

import numpy as np

from fedveil.core.errors import DataError


def decoded(content: bytes, mode: str, name: str) -> np.ndarray:
    """The pixels of a picture, uint8: [height, width] for mode "L", [height, width, 3] for "RGB".

    Pictures of 16 bits are divided by 257, which keeps black and white.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            if not image.mode.startswith("I"):
                return np.array(image.convert(mode))
            levels = (np.asarray(image).astype(np.float64) / 257.0).round().astype(np.uint8)
            return np.array(Image.fromarray(levels).convert(mode))
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        why = "it is no PNG or JPEG" if isinstance(error, UnidentifiedImageError) else str(error)
        raise DataError(f"{name} cannot be decoded, {why}") from error
