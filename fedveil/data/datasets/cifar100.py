"""CIFAR-100: photographs of a hundred kinds of things, from the published archive or a prepared copy of the test images."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedveil.core.errors import DataError
from fedveil.data.dataset import Part, Raw
from fedveil.data.info import Converted, DatasetInfo, FileInfo, LoadRequest, Original
from fedveil.data.sources import DAMAGE, reason

_PIXELS = 3 * 32 * 32  # the red, green and blue planes of an image
_TRAINED = 0.8  # share of the published training part that split `fed-cdp` trains on, as for CIFAR-10


def load(request: LoadRequest) -> Raw:
    """The published training and test parts, or 9,999 of the test images, to be split 4:1 (see the note)."""
    converted = request.converted()
    return _prepared(request) if converted is None else _published(converted)


def _published(converted: Converted) -> Raw:
    arrays = converted.arrays
    train, test = (Part(arrays[f"{name}_images"], arrays[f"{name}_labels"]) for name in ("train", "test"))
    return Raw(
        "cifar100",
        train,
        classes=len(arrays["names"]),
        test=test,
        fed_cdp_train=int(_TRAINED * len(train)),
        dpfl_train=len(train),
        dpfl_public=0.3,
        class_names=tuple(map(str, arrays["names"])),
        note=f"converted from {converted.source}",
    )


def _prepared(request: LoadRequest) -> Raw:
    with np.load(io.BytesIO(request.read("cifar100_test.npz")), allow_pickle=False) as arrays:
        part = Part(arrays["images"], arrays["labels"].astype(np.int32))
        names = tuple(map(str, arrays["names"]))
    return Raw("cifar100", part, classes=100, share=0.8, class_names=names, note=request.info.note)


# --- the published archives


def convert_python(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of the archive "python version": pickled dictionaries."""
    files = _members(content, ("train", "test", "meta"))
    found = {name: _unpickled(content, name) for name, content in files.items()}
    parts = {name: _part(found[name].get(b"data"), found[name].get(b"fine_labels"), name) for name in ("train", "test")}
    return _arrays(parts, [name.decode("ascii", "replace") for name in found["meta"].get(b"fine_label_names", [])])


def convert_binary(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of the archive "binary version": a coarse and a fine label byte before each image."""
    files = _members(content, ("train.bin", "test.bin", "fine_label_names.txt"))
    parts = {}
    for name in ("train", "test"):
        if len(files[f"{name}.bin"]) % (2 + _PIXELS):
            raise DataError(f"{name}.bin has {len(files[f'{name}.bin'])} bytes, not a multiple of {2 + _PIXELS}")
        records = np.frombuffer(files[f"{name}.bin"], np.uint8).reshape(-1, 2 + _PIXELS)
        parts[name] = _part(records[:, 2:], records[:, 1], name)
    return _arrays(parts, files["fine_label_names.txt"].decode("ascii", "replace").split())


def _members(content: bytes, names: tuple[str, ...]) -> dict[str, bytes]:
    """These files of a tar archive, by their last name."""
    found = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for member in archive.getmembers():
                name = member.name.rpartition("/")[2]
                if name in names and member.isreg() and (file := archive.extractfile(member)):
                    found[name] = file.read()
    except DAMAGE as error:
        raise DataError(f"it cannot be unpacked, {reason(error)}") from error
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(f"it has no {missing[0]}")
    return found


_REBUILD = np.empty(0).__reduce__()[0]  # the function of NumPy that rebuilds a pickled array


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that builds NumPy arrays and plain values, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if name == "_reconstruct" and module in {"numpy.core.multiarray", "numpy._core.multiarray"}:  # NumPy 1 and 2
            return _REBUILD
        if (module, name) == ("_codecs", "encode"):  # bytes, in archives that Python 3 wrote
            return _latin
        raise DataError(f"it holds an object of {module}.{name}, which is not read")


def _latin(text: str, encoding: str) -> bytes:
    return text.encode("latin1")


def _unpickled(content: bytes, name: str) -> Mapping[Any, Any]:
    try:
        found = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle raises many kinds of errors
        raise DataError(f"{name} cannot be read, {reason(error)}") from error
    if not isinstance(found, dict):
        raise DataError(f"{name} holds no dictionary")
    return {key.encode() if isinstance(key, str) else key: value for key, value in found.items()}


def _part(planes: Any, labels: Any, name: str) -> Part:
    """Images [n, 32, 32, 3] uint8 and labels from planes [n, 3072]."""
    planes, labels = np.asarray(planes), np.asarray(labels)
    if planes.dtype != np.uint8 or planes.ndim != 2 or planes.shape[1] != _PIXELS or labels.shape != (len(planes),):
        raise DataError(f"{name} holds {planes.dtype} {list(planes.shape)} and {labels.size} labels instead of images")
    images = planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Part(np.ascontiguousarray(images), labels.astype(np.int32))


def _arrays(parts: Mapping[str, Part], names: list[str]) -> dict[str, np.ndarray]:
    """The arrays to store. Raises an error if a label has no name."""
    largest = max(int(part.y.max(initial=-1)) for part in parts.values())
    if min(map(len, parts.values())) == 0 or largest >= len(names):
        raise DataError(f"it holds {len(parts['train'])} images, labels up to {largest} and {len(names)} names")
    stored = {f"{name}_images": part.x for name, part in parts.items()}
    return stored | {f"{name}_labels": part.y for name, part in parts.items()} | {"names": np.array(names)}


DATASET = DatasetInfo(
    name="cifar100",
    summary="photographs 32x32 in colour, 100 kinds: the published parts, or 9,999 test images re-split",
    kind="image",
    shape=(32, 32, 3),
    classes=100,
    load=load,
    model="cnn",
    partition="shards",
    per_client=60,
    rounds=100,
    local_steps=100,
    batch=4,
    lr=0.05,
    files=(
        FileInfo(
            "cifar100_test.npz",
            28_070_699,
            "1ef29cfb7cb561342254ca20bfefd023c3aeaa1e50059a0e059e5b9cf98e84d3",
            holds="the CIFAR-100 test part: images [9999, 32, 32, 3] uint8, labels, names",
        ),
    ),
    folders=("", "cifar100"),
    originals=(
        Original(
            "the publisher's cifar-100-python.tar.gz",
            convert_python,
            FileInfo(
                "cifar-100-python.tar.gz",
                169_001_437,
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                "eb9058c3a382ffc7106e4002c42a8d85",
            ),
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        ),
        Original(
            "cifar-100-binary.tar.gz",
            convert_binary,
            FileInfo(
                "cifar-100-binary.tar.gz",
                168_513_733,
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                "03b5dce01913d631647c71ecec9e9cb8",
            ),
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        ),
    ),
    note="not the published training set: 9,999 CIFAR-100 test images re-split 4:1 with a fixed seed; accuracy "
    "on it does not compare with published figures",
    position=60,
)
