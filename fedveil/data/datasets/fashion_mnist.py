"""Fashion-MNIST: articles of clothing, in MNIST's format."""

from __future__ import annotations

from fedveil.data.idx import idx_dataset
from fedveil.data.sources import apt, publisher

CLASSES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag"]

DATASET = idx_dataset(
    "fashion-mnist",
    "articles of clothing 28x28",
    (*CLASSES, "Ankle boot"),
    digests=(
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
    folders=("fashion-mnist", "FashionMNIST/raw"),
    sources=(
        apt("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist/{name}.gz"),
        publisher("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}.gz"),
    ),
    position=40,
)
