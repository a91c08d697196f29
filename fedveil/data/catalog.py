"""The table of datasets: what each one is, the files it is made of, and the training it is usually given.

Cheap to import (no arrays), so that listings and config checks cost nothing. The training defaults are those of the
Fed-CDP paper's Table I where it has the dataset: rounds T, local steps L, batch B, examples per client N_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class FileInfo:
    """One file of a dataset, as its publisher has it: its digest is of the uncompressed content."""

    name: str
    size: int  # bytes
    algorithm: Literal["md5", "sha256"]
    digest: str
    holds: str = ""  # what is in it, for files that we cannot fetch


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a dataset before it is loaded."""

    name: str
    summary: str
    kind: Literal["image", "attributes"]
    shape: tuple[int, ...]
    classes: int
    model: str
    partition: str
    rounds: int
    local_steps: int
    batch: int
    lr: float
    per_client: int | None = None  # None: the partition decides (all of it for `copies`)
    classes_per_client: int = 2
    files: tuple[FileInfo, ...] = ()
    folders: tuple[str, ...] = ()  # where the files lie below a data folder, the canonical place first
    needs_fetch: bool = False  # the files come by `fedveil data get`
    trainable: bool = True
    keys: tuple[str, ...] = ("split", "dir")  # keys of [data] that say which version of the dataset
    note: str = ""
    train_sizes: tuple[tuple[str, int], ...] = ()  # split, examples in its training part: for accounts without the data

    def train_size(self, split: str) -> int | None:
        """Examples in the training part, where that is known without the files."""
        return dict(self.train_sizes).get(split)


def _idx(train_x: str, train_y: str, test_x: str, test_y: str) -> tuple[FileInfo, ...]:
    """The four idx files of MNIST and of the sets made in its image."""
    return (
        FileInfo("train-images-idx3-ubyte", 47_040_016, "md5", train_x),
        FileInfo("train-labels-idx1-ubyte", 60_008, "md5", train_y),
        FileInfo("t10k-images-idx3-ubyte", 7_840_016, "md5", test_x),
        FileInfo("t10k-labels-idx1-ubyte", 10_008, "md5", test_y),
    )


_CIFAR10 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}

_ALL = (
    DatasetInfo(
        name="digits",
        summary="handwritten digits 8x8, ships with scikit-learn",
        kind="image",
        shape=(8, 8, 1),
        classes=10,
        model="cnn",
        partition="shards",
        per_client=12,
        rounds=60,
        local_steps=20,
        batch=4,
        lr=0.1,
        train_sizes=(("fed-cdp", 1_347), ("cpl", 1_347), ("dpfl", 1_347)),
    ),
    DatasetInfo(
        name="cancer",
        summary="breast cancer Wisconsin (diagnostic), 30 attributes, ships with scikit-learn",
        kind="attributes",
        shape=(30,),
        classes=2,
        model="mlp",
        partition="copies",
        rounds=3,
        local_steps=100,
        batch=4,
        lr=0.1,
        train_sizes=(("fed-cdp", 426), ("cpl", 426), ("dpfl", 426)),
        note="features are standardised by the means and deviations of the 569 published records, taken as public "
        "constants",
    ),
    DatasetInfo(
        name="mnist",
        summary="handwritten digits 28x28",
        kind="image",
        shape=(28, 28, 1),
        classes=10,
        model="cnn",
        partition="shards",
        per_client=500,
        rounds=100,
        local_steps=100,
        batch=5,
        lr=0.05,
        train_sizes=(("fed-cdp", 50_000), ("cpl", 60_000), ("dpfl", 50_000)),
        files=_idx(
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        folders=("mnist", "MNIST/raw"),
        needs_fetch=True,
    ),
    DatasetInfo(
        name="fashion-mnist",
        summary="articles of clothing 28x28",
        kind="image",
        shape=(28, 28, 1),
        classes=10,
        model="cnn",
        partition="shards",
        per_client=500,
        rounds=100,
        local_steps=100,
        batch=5,
        lr=0.05,
        train_sizes=(("fed-cdp", 50_000), ("cpl", 60_000), ("dpfl", 50_000)),
        files=_idx(
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        folders=("fashion-mnist", "FashionMNIST/raw"),
        needs_fetch=True,
    ),
    DatasetInfo(
        name="cifar10",
        summary="photographs 32x32 in colour, 10 kinds",
        kind="image",
        shape=(32, 32, 3),
        classes=10,
        model="cnn",
        partition="shards",
        per_client=400,
        rounds=100,
        local_steps=100,
        batch=4,
        lr=0.05,
        train_sizes=(("fed-cdp", 40_000), ("cpl", 50_000), ("dpfl", 50_000)),
        files=tuple(FileInfo(name, 30_730_000, "md5", digest) for name, digest in _CIFAR10.items()),
        folders=("cifar10", "cifar-10-batches-bin", ""),
        needs_fetch=True,
    ),
    DatasetInfo(
        name="cifar100",
        summary="photographs 32x32 in colour, 100 kinds: the 9,999 test images, re-split",
        kind="image",
        shape=(32, 32, 3),
        classes=100,
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
                "sha256",
                "1ef29cfb7cb561342254ca20bfefd023c3aeaa1e50059a0e059e5b9cf98e84d3",
                "the CIFAR-100 test part: images [9999, 32, 32, 3] uint8, labels, names",
            ),
        ),
        folders=("", "cifar100"),
        note="not the published training set: 9,999 CIFAR-100 test images re-split 4:1 with a fixed seed; accuracy "
        "on it does not compare with published figures",
    ),
    DatasetInfo(
        name="lfw",
        keys=("split", "dir", "min_images", "size"),
        summary="faces (Labeled Faces in the Wild, funneled), people with at least 20 or 14 images",
        kind="image",
        shape=(32, 32, 3),
        classes=62,
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
                "sha256",
                "49fd3378e0842a5cb71082c8641bed268f3011b921bea143185a46169b697bb1",
                "the 106 people with 14 images or more: images [3735, 32, 32, 3] uint8, labels, names",
            ),
            FileInfo(
                "lfw_128.npz",
                4_404_970,
                "sha256",
                "ece5ac9052e5f624d190f165fee7a13900eb499ce78f7eab8bf86a25d6fb1f63",
                "one image of each of the 106 people: images [106, 128, 128, 3] uint8, labels, names",
            ),
        ),
        folders=("", "lfw"),
    ),
    DatasetInfo(
        name="adult",
        summary="census income, 105 attributes of 48,842 people",
        kind="attributes",
        shape=(105,),
        classes=2,
        model="mlp",
        partition="iid",
        per_client=300,
        rounds=10,
        local_steps=100,
        batch=3,
        lr=0.1,
        train_sizes=(("fed-cdp", 36_631), ("cpl", 36_631), ("dpfl", 36_631)),
        files=(
            FileInfo("adult.data", 3_974_305, "md5", "5d7c39d7b8804f071cdd1f2a7c460872"),
            FileInfo("adult.test", 2_003_153, "md5", "35238206dfdf7f1fe215bbb874adecdc"),
        ),
        folders=("adult", ""),
        needs_fetch=True,
        note="numbers are scaled to [0, 1] by assumed public bounds of the census codebook, capital gain and loss on a "
        "logarithmic scale; an unknown value ('?') is all zeros in its one-hot columns",
    ),
    DatasetInfo(
        name="xray",
        summary="one frontal chest X-ray 512x512, for attacks",
        kind="image",
        shape=(512, 512, 1),
        classes=2,
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
                "sha256",
                "316ef5188945b7bfd4a5a9dfc84b39d7d8d5cf49b6a3c73eb07a93b3e855e2ed",
                "one frontal chest X-ray as a grey 512x512 PNG",
            ),
        ),
        folders=("", "xray"),
        trainable=False,
        note="a single image with an assumed label: for attacks, not for accuracy",
    ),
    DatasetInfo(
        name="file",
        keys=("split", "file"),
        summary="your own arrays: data.file names an .npz with x, y and optionally x_test, y_test",
        kind="image",
        shape=(),
        classes=0,
        model="mlp",
        partition="iid",
        rounds=10,
        local_steps=20,
        batch=4,
        lr=0.05,
        note="shape and classes are read from the file",
    ),
)

DATASETS: dict[str, DatasetInfo] = {info.name: info for info in _ALL}
