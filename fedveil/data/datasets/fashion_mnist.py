"""Fashion-MNIST: articles of clothing, in MNIST's format."""

from __future__ import annotations

from fedveil.data.dataset import Raw
from fedveil.data.idx import idx_files, load_idx
from fedveil.data.info import DatasetInfo, LoadRequest
from fedveil.data.sources import apt, publisher

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def load(request: LoadRequest) -> Raw:
    """60,000 training and 10,000 test images."""
    return load_idx(request, CLASSES)


DATASET = DatasetInfo(
    name="fashion-mnist",
    summary="articles of clothing 28x28",
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
        train_x="f4a8712d7a061bf5bd6d2ca38dc4d50a",
        train_y="9018921c3c673c538a1fc5bad174d6f9",
        test_x="8181f5470baa50b63fa0f6fddb340f0a",
        test_y="15d484375f8d13e6eb1aabb0c3f46965",
    ),
    folders=("fashion-mnist", "FashionMNIST/raw"),
    sources=(
        apt("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist/{name}.gz"),
        publisher("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}.gz"),
    ),
    position=40,
)
