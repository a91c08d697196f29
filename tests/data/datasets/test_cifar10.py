"""CIFAR-10: the binary batches, and their copies as pictures."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from fedveil.core.errors import DataError
from fedveil.data.datasets.cifar10 import batch_of_picture, parse_batch
from fedveil.data.sources import SourceFailed


def test_batches_and_their_pictures_agree():
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    picture = io.BytesIO()
    Image.fromarray(images.reshape(3, 1024, 3)).save(picture, "PNG")
    part = parse_batch(batch_of_picture(picture.getvalue(), [7, 0, 9]), "t")
    assert np.array_equal(part.x, images) and part.y.tolist() == [7, 0, 9]
    with pytest.raises(DataError, match="multiple"):
        parse_batch(b"12", "t")
    with pytest.raises(SourceFailed, match="3 images for 2 labels"):
        batch_of_picture(picture.getvalue(), [7, 0])
