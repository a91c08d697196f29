"""Small archives in the format of the publishers' ones."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile

import numpy as np
from PIL import Image


def tar_of(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def picture(pixels, kind="JPEG", **options):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


# --- LFW


def lfw_pictures(counts, seed=0, side=250):
    """Pictures of people: name -> [count, side, side, 3] uint8, smooth, so that JPEG changes them little."""
    draw = np.random.default_rng(seed)
    coarse = {name: draw.integers(0, 256, (n, 5, 5, 3), dtype=np.uint8) for name, n in counts.items()}
    smooth = Image.Resampling.BILINEAR
    return {
        name: np.stack([np.asarray(Image.fromarray(one).resize((side, side), smooth)) for one in each])
        for name, each in coarse.items()
    }


def lfw_archive(people):
    """lfw-funneled.tgz: lfw_funneled/Name/Name_0001.jpg, in an order that is not that of the names."""
    members = {"lfw_funneled/pairs_01.txt": b"10 300\n"}
    for name in sorted(people, reverse=True):
        for number in range(len(people[name]), 0, -1):
            content = picture(people[name][number - 1], quality=95)
            members[f"lfw_funneled/{name}/{name}_{number:04d}.jpg"] = content
    return tar_of(members)


# --- CIFAR-100

NAMES = ["apple", "bear", "cup"]


def cifar_parts(seed=0):
    """(images [n, 32, 32, 3], fine labels) of a training and a test part."""
    draw = np.random.default_rng(seed)
    images = [draw.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for n in (20, 6)]
    return {"train": (images[0], np.arange(20) % 3), "test": (images[1], np.arange(6) % 3)}


def planes(images):
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)


def cifar_binary(parts, names=NAMES):
    members = {"cifar-100-binary/fine_label_names.txt": ("\n".join(names) + "\n").encode()}
    for part, (images, labels) in parts.items():
        coarse = np.zeros((len(labels), 1), np.uint8)
        records = np.concatenate([coarse, labels[:, np.newaxis].astype(np.uint8), planes(images)], axis=1)
        members[f"cifar-100-binary/{part}.bin"] = records.tobytes()
    return tar_of(members)


def cifar_python(parts, names=NAMES, dump=lambda value: pickle.dumps(value, protocol=2)):
    members = {"cifar-100-python/meta": dump({b"fine_label_names": [name.encode() for name in names]})}
    for part, (images, labels) in parts.items():
        content = {b"data": planes(images), b"fine_labels": labels.tolist()}
        members[f"cifar-100-python/{part}"] = dump(content)
    return tar_of(members)


def python_2(value):
    """The pickle that Python 2 writes, as in the published archive: its texts are bytes, its arrays of NumPy 1."""
    return b"\x80\x02" + _python_2(value) + b"."


def _python_2(value):
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(_python_2, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(_python_2(part) for item in value.items() for part in item) + b"u"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"".join(map(_python_2, value.shape)) + b"\x86"
    return empty + b"(K\x01" + shape + kind + b"\x89" + _python_2(value.tobytes()) + b"tb"
