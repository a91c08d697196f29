"""Fashion-MNIST: articles of clothing, in MNIST's format."""

from __future__ import annotations

from fedveil.data.idx import idx_dataset
from fedveil.data.sources import apt, publisher

CLASSES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag"]

DATASET = idx_dataset(
    "fashion-mnist",
    "articles of clothing 28x28",
    (*CLASSES, "Ankle boot"),
    digests=(  # sha256 and the publisher's md5
        ("c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        ("bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9", "9018921c3c673c538a1fc5bad174d6f9"),
        ("5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b", "8181f5470baa50b63fa0f6fddb340f0a"),
        ("0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34", "15d484375f8d13e6eb1aabb0c3f46965"),
    ),
    folders=("fashion-mnist", "FashionMNIST/raw"),
    sources=(
        apt("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist/{name}.gz"),
        publisher("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}.gz"),
    ),
    position=40,
)
