"""One chest X-ray, large and grey: what a single example of a hospital looks like to an attack."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from fedveil.data import sources
from fedveil.data.catalog import DATASETS
from fedveil.data.dataset import Part
from fedveil.data.split import Raw


def load_xray(dir: str | None = None) -> Raw:
    """One image [1, 512, 512, 1] uint8 with label 1 of 2."""
    with Image.open(io.BytesIO(sources.read("xray", "cxr_512.png", dir))) as image:
        pixels = np.array(image.convert("L"))
    part = Part(pixels[np.newaxis, :, :, np.newaxis], np.ones(1, np.int32))
    return Raw("xray", part, classes=2, indivisible=True, note=DATASETS["xray"].note)
