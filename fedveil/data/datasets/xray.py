"""One chest X-ray, large and grey: a single medical image to attack."""

from __future__ import annotations

import io

import numpy as np

from fedveil.data.dataset import Part, Raw
from fedveil.data.info import DatasetInfo, FileInfo, LoadRequest


def load(request: LoadRequest) -> Raw:
    """One image [1, 512, 512, 1] uint8 with label 1 of 2."""
    from PIL import Image

    with Image.open(io.BytesIO(request.read("cxr_512.png"))) as image:
        pixels = np.array(image.convert("L"))
    part = Part(pixels[np.newaxis, :, :, np.newaxis], np.ones(1, np.int32))
    return Raw("xray", part, classes=2, indivisible=True, note=request.info.note)


DATASET = DatasetInfo(
    name="xray",
    summary="one frontal chest X-ray 512x512, for attacks",
    kind="image",
    shape=(512, 512, 1),
    classes=2,
    load=load,
    model="cnn",
    partition="copies",
    rounds=1,
    local_steps=1,
    batch=1,
    lr=0.05,
    files=(
        FileInfo(
            "cxr_512.png",
            128_098,
            "316ef5188945b7bfd4a5a9dfc84b39d7d8d5cf49b6a3c73eb07a93b3e855e2ed",
            holds="one frontal chest X-ray as a grey 512x512 PNG",
        ),
    ),
    folders=("", "xray"),
    trainable=False,
    note="a single image with an assumed label: for attacks, not for accuracy",
    position=90,
)
