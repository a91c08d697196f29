"""Labeled Faces in the Wild: people with enough images, 32 pixels wide for training, larger for attacks."""

from __future__ import annotations

import io
import re
import tarfile
from collections import defaultdict

import numpy as np

from fedveil.core.errors import ConfigError, DataError
from fedveil.data.dataset import Part, Raw
from fedveil.data.info import Converted, DatasetInfo, FileInfo, LoadRequest, Original
from fedveil.data.pictures import decoded
from fedveil.data.sources import DAMAGE, reason

SIZES = (32, 64, 128)
_FEWEST = 14  # the prepared files, and what is converted, hold only people with at least this number of images
_SIDE = 250  # pixels of a published picture
_FACE = slice(61, 189)  # rows and columns of the face in it
_PICTURE = re.compile(r"(?:.*/)?([^/]+)/\1_\d{4}\.jpg")  # Name/Name_0001.jpg


def load(request: LoadRequest) -> Raw:
    """Faces of the people with at least `min_images` images: 62 people for 20, 106 for 14.

    At 64 and 128 pixels there is one image per person. Nothing can be held out then: these sizes are for attacks.
    """
    size, min_images = request.size, request.min_images
    if size not in SIZES:
        raise ConfigError("data.size", size, f"takes one of: {', '.join(map(str, SIZES))}")
    converted = request.converted()
    images, labels, names = _arrays(request, converted, 32)
    counts = np.bincount(labels, minlength=len(names))
    kept = np.flatnonzero(counts >= min_images)
    if min_images < _FEWEST or len(kept) < 2:
        second = int(np.sort(counts)[-2])
        raise ConfigError("data.min_images", min_images, f"takes {_FEWEST} to {second} (the papers use 20 and 14)")
    note = "" if converted is None else f"converted from {converted.source}"
    if size > 32:
        images, labels, names = _arrays(request, converted, 128)
        images = images if size == 128 else halve(images)
        once = f"one image per person at {size}x{size}, held out and trained on alike: for attacks, not for accuracy"
        note = f"{note}; {once}" if note else once
    within = np.isin(labels, kept)
    part = Part(images[within], np.searchsorted(kept, labels[within]).astype(np.int32))
    return Raw(
        "lfw",
        part,
        classes=len(kept),
        indivisible=size > 32,
        note=note,
        class_names=tuple(str(name).replace("_", " ") for name in names[kept]),
    )


def halve(images: np.ndarray) -> np.ndarray:
    """Images of half the size: the mean of each 2x2 square, rounded to the nearest level."""
    n, height, width, channels = images.shape
    squares = images.reshape(n, height // 2, 2, width // 2, 2, channels)
    levels: np.ndarray = np.rint(squares.mean(axis=(2, 4))).astype(np.uint8)
    return levels


def _arrays(request: LoadRequest, converted: Converted | None, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images of 32 or 128 pixels, their labels and people's names."""
    if converted is not None:
        arrays = converted.arrays
        return arrays[f"images_{size}"], arrays[f"labels_{size}"], arrays["names"]
    with np.load(io.BytesIO(request.read(f"lfw_{size}.npz")), allow_pickle=False) as found:
        return found["images"], found["labels"], found["names"]


def convert(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of the funneled archive: faces of 32 pixels, and the first of each person at 128 pixels.

    A face is rows and columns 61 to 188 of the published picture; 32 pixels are a bicubic reduction of it.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            people = _people(archive)
            faces = [[_face(archive, member) for member in members] for members in people.values()]
    except DAMAGE as error:
        raise DataError(f"it cannot be unpacked, {reason(error)}") from error
    small = [_reduced(face) for each in faces for face in each]
    return {
        "images_32": np.stack(small),
        "labels_32": np.repeat(np.arange(len(faces)), [len(each) for each in faces]).astype(np.int32),
        "images_128": np.stack([each[0] for each in faces]),
        "labels_128": np.arange(len(faces), dtype=np.int32),
        "names": np.array(list(people)),
    }


def _people(archive: tarfile.TarFile) -> dict[str, list[tarfile.TarInfo]]:
    """The pictures of each person with enough of them, both in the order of names."""
    found: dict[str, list[tarfile.TarInfo]] = defaultdict(list)
    for member in archive.getmembers():
        if member.isreg() and (match := _PICTURE.fullmatch(member.name)):
            found[match[1]].append(member)
    people = {name: sorted(found[name], key=lambda m: m.name) for name in sorted(found) if len(found[name]) >= _FEWEST}
    if len(people) < 2:
        held = f"pictures of {len(found)} people, {len(people)} of them with {_FEWEST} or more"
        raise DataError(f"it holds {held}: two are needed, as Name/Name_0001.jpg")
    return people


def _face(archive: tarfile.TarFile, member: tarfile.TarInfo) -> np.ndarray:
    """The face of one picture [128, 128, 3] uint8."""
    file = archive.extractfile(member)
    pixels = decoded(file.read() if file else b"", "RGB", member.name)
    if pixels.shape[:2] != (_SIDE, _SIDE):
        raise DataError(f"{member.name} has {pixels.shape[1]}x{pixels.shape[0]} pixels instead of {_SIDE}x{_SIDE}")
    return pixels[_FACE, _FACE]


def _reduced(face: np.ndarray) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.fromarray(face).resize((32, 32), Image.Resampling.BICUBIC))


DATASET = DatasetInfo(
    name="lfw",
    summary="faces (Labeled Faces in the Wild, funneled), people with at least 20 or 14 images",
    kind="image",
    shape=(32, 32, 3),
    classes=62,
    load=load,
    model="cnn",
    partition="classes",
    classes_per_client=15,
    per_client=300,
    rounds=60,
    local_steps=100,
    batch=3,
    lr=0.05,
    files=(
        FileInfo(
            "lfw_32.npz",
            11_120_813,
            "49fd3378e0842a5cb71082c8641bed268f3011b921bea143185a46169b697bb1",
            holds="the 106 people with 14 images or more: images [3735, 32, 32, 3] uint8, labels, names",
        ),
        FileInfo(
            "lfw_128.npz",
            4_404_970,
            "ece5ac9052e5f624d190f165fee7a13900eb499ce78f7eab8bf86a25d6fb1f63",
            holds="one image of each of the 106 people: images [106, 128, 128, 3] uint8, labels, names",
        ),
    ),
    folders=("", "lfw"),
    originals=(
        Original(
            "the publisher's lfw-funneled.tgz",
            convert,
            FileInfo(
                "lfw-funneled.tgz",
                243_346_528,
                "b47c8422c8cded889dc5a13418c4bc2abbda121092b3533a83306f90d900100a",
                "1b42dfed7d15c9b2dd63d5e5840c86ad",
            ),
            "https://ndownloader.figshare.com/files/5976015",
        ),
    ),
    keys=("split", "dir", "min_images", "size"),
    position=70,
)
