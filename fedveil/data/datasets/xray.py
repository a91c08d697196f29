"""One chest X-ray, large and grey: a single medical image to attack."""

from __future__ import annotations

import numpy as np

from fedveil.data.dataset import Part, Raw
from fedveil.data.info import DatasetInfo, FileInfo, LoadRequest, Original
from fedveil.data.pictures import decoded

_SIDE = 512


def load(request: LoadRequest) -> Raw:
    """One image [1, 512, 512, 1] uint8 with label 1 of 2."""
    converted = request.converted()
    if converted is not None:
        pixels, note = converted.arrays["image"], f"converted from {converted.source}; {request.info.note}"
    else:
        pixels, note = decoded(request.read("cxr_512.png"), "L", "cxr_512.png"), request.info.note
    part = Part(pixels[np.newaxis, :, :, np.newaxis], np.ones(1, np.int32))
    return Raw("xray", part, classes=2, indivisible=True, note=note)


def convert(content: bytes) -> dict[str, np.ndarray]:
    """A user's own picture in grey: its central square, resized to 512 pixels."""
    from PIL import Image

    pixels = decoded(content, "L", "the picture")
    height, width = pixels.shape
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = Image.fromarray(pixels[top : top + side, left : left + side])
    return {"image": np.asarray(square.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC))}


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
    originals=(Original("a chest X-ray of your own, PNG or JPEG", convert),),
    trainable=False,
    note="a single image with an assumed label: for attacks, not for accuracy",
    position=90,
)
