"""Datasets: counts, shapes, splits and ranges. Those whose files are not here are skipped."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.core.errors import ConfigError, DataError
from fedveil.data import adult, sources
from fedveil.data.arrays import from_arrays
from fedveil.data.catalog import DATASETS
from fedveil.data.cifar import parse_batch
from fedveil.data.idx import parse_idx
from fedveil.data.lfw import halve
from fedveil.data.load import load
from fedveil.data.partition import PARTITIONS


def need(name):
    """Skip where a dataset's files are absent."""
    if any(status.status == "missing" for status in sources.check(name)):
        remedy = f"run 'fedveil data get {name}'" if DATASETS[name].needs_fetch else "put its file into FEDVEIL_DATA"
        pytest.skip(f"{name} is not here: {remedy}")


# name, split -> train, held out, its name, test, public
SPLITS = [
    ("digits", "fed-cdp", 1347, 450, "validation", None, None),
    ("digits", "cpl", 1347, 450, "test", None, None),
    ("digits", "dpfl", 1347, 405, "test", None, 45),
    ("cancer", "fed-cdp", 426, 143, "validation", None, None),
    ("mnist", "fed-cdp", 50_000, 10_000, "validation", 10_000, None),
    ("mnist", "cpl", 60_000, 10_000, "test", None, None),
    ("mnist", "dpfl", 50_000, 9_000, "test", None, 1_000),
    ("fashion-mnist", "fed-cdp", 50_000, 10_000, "validation", 10_000, None),
    ("cifar10", "fed-cdp", 40_000, 10_000, "validation", 10_000, None),
    ("cifar10", "dpfl", 50_000, 7_000, "test", None, 3_000),
    ("cifar100", "fed-cdp", 7_999, 2_000, "validation", None, None),
    ("lfw", "fed-cdp", 2_267, 756, "validation", None, None),
    ("lfw", "cpl", 2_267, 756, "test", None, None),
    ("adult", "fed-cdp", 36_631, 12_211, "validation", None, None),
    ("xray", "fed-cdp", 1, 1, "validation", None, None),
]


@pytest.mark.parametrize(("name", "split", "train", "held_out", "held_out_name", "test", "public"), SPLITS)
def test_counts_and_shapes(name, split, train, held_out, held_out_name, test, public):
    need(name)
    data, info = load(name, split=split), DATASETS[name]
    assert (len(data.train), len(data.held_out), data.held_out_name) == (train, held_out, held_out_name)
    assert (data.test and len(data.test), data.public and len(data.public)) == (test, public)
    assert data.shape == info.shape and data.classes == info.classes and data.note == info.note
    parts = [part for part in (data.train, data.held_out, data.test, data.public) if part is not None]
    for part in parts:
        assert part.y.dtype == np.int32 and len(part.x) == len(part.y)
        assert part.x.dtype in (np.uint8, np.float32)
        assert part.y.min() >= 0 and part.y.max() < data.classes
        low, high = (-5, 15) if name == "cancer" else (0, 1)  # cancer is standardised, all else lies in [0, 1]
        assert part.x.min() * data.scale >= low and part.x.max() * data.scale <= high
    if info.trainable:
        assert set(data.train.y) == set(range(data.classes))
    assert len(data.class_names) in (0, data.classes)


@pytest.mark.parametrize("name", ["digits", "cancer"])
def test_a_split_is_always_the_same_and_overlaps_nowhere(name):
    data, again = load(name, public=0.2), load(name, public=0.2)
    assert np.array_equal(data.held_out.x, again.held_out.x) and np.array_equal(data.public.x, again.public.x)
    total = len(data.train) + len(data.held_out) + len(data.public)
    rows = np.concatenate([part.x.reshape(len(part), -1) for part in (data.train, data.held_out, data.public)])
    whole = load(name)
    assert total == len(whole.train) + len(whole.held_out)
    assert len(np.unique(rows, axis=0)) >= total - 1  # no example twice (one digit may be drawn twice by its writers)


def test_a_public_set_comes_from_the_test_part():
    need("mnist")
    data = load("mnist", public=0.1)
    assert (len(data.held_out), len(data.test), len(data.public)) == (10_000, 9_000, 1_000)


def test_digits_are_exact_and_cancer_is_standardised():
    digits = load("digits")
    assert np.array_equal(digits.train.x * 16, np.round(digits.train.x * 16))
    cancer = load("cancer")
    assert cancer.class_names == ("malignant", "benign") and len(cancer.feature_names) == 30
    whole = np.concatenate([cancer.train.x, cancer.held_out.x])
    assert np.abs(whole.mean(axis=0)).max() < 0.01 and np.abs(whole.std(axis=0) - 1).max() < 0.01


def test_lfw_sizes_and_people():
    need("lfw")
    many = load("lfw", min_images=14)
    assert (len(many.train) + len(many.held_out), many.classes) == (3_735, 106)
    assert len(load("lfw").train) + len(load("lfw").held_out) == 3_023
    for size in (64, 128):
        large = load("lfw", size=size)
        assert large.shape == (size, size, 3) and len(large.train) == large.classes == 62
        assert "attacks" in large.note and np.array_equal(large.train.x, large.held_out.x)
    assert load("lfw", size=64, min_images=14).class_names == many.class_names
    for given in ({"size": 48}, {"min_images": 13}, {"min_images": 1000}):
        with pytest.raises(ConfigError, match="takes"):
            load("lfw", **given)


def test_adult_features():
    need("adult")
    data = load("adult")
    assert data.groups[0][0] == 6 and data.groups[-1][1] == 105 and len(data.feature_names) == 105
    for first, last in data.groups:
        assert set(data.train.x[:, first:last].sum(axis=1)) <= {0.0, 1.0}  # zero: unknown
    everyone = np.concatenate([data.train.y, data.held_out.y])
    assert everyone.sum() == 11_687


def test_adult_rows_that_do_not_fit_are_refused():
    line = b"39, State-gov, 77516, Bachelors, 13, Never-married, ?, Wife, White, Male, 2174, 0, 40, Cuba, >50K.\n"
    part = adult.encode(adult.parse(b"|comment\n" + line + b"\n", "adult.test"))
    assert part.x.shape == (1, 105) and part.y.tolist() == [1]
    assert part.x[0, 6:].sum() == 7  # eight categories, one of them unknown
    assert part.x[0, 3] == pytest.approx(np.log1p(2174) / np.log1p(99_999))
    with pytest.raises(DataError, match="fields"):
        adult.parse(b"39, State-gov\n", "adult.data")
    with pytest.raises(DataError, match="codebook"):
        adult.encode(adult.parse(line.replace(b"Cuba", b"Utopia"), "adult.test"))


def test_idx_parsing():
    good = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 1, 3)) + bytes(range(6))
    assert parse_idx(good, "t").tolist() == [[[0, 1, 2]], [[3, 4, 5]]]
    for bad in (b"", good[:9], good[:-1], good + b"x", b"\0\0\x0d" + good[3:], b"<html>" + good):
        with pytest.raises(DataError, match="fetch it again"):
            parse_idx(bad, "t")


def test_cifar_batches_and_their_pictures_agree():
    import io

    from PIL import Image

    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    picture = io.BytesIO()
    Image.fromarray(images.reshape(3, 1024, 3)).save(picture, "PNG")
    part = parse_batch(sources.cifar_batch(picture.getvalue(), [7, 0, 9]), "t")
    assert np.array_equal(part.x, images) and part.y.tolist() == [7, 0, 9]
    with pytest.raises(DataError, match="multiple"):
        parse_batch(b"12", "t")


def test_halving_is_the_mean_of_squares():
    image = np.array([[10, 20], [30, 41]], np.uint8).reshape(1, 2, 2, 1)
    assert halve(image).tolist() == [[[[25]]]]


def test_own_arrays(tmp_path):
    x, y = np.random.default_rng(0).random((40, 5)), np.arange(40) % 3
    data = from_arrays(x, y)
    assert (len(data.train), len(data.held_out), data.classes, data.held_out_name) == (30, 10, 3, "validation")
    assert data.train.x.dtype == np.float32
    tested = from_arrays(x, y, x[:4], y[:4], classes=5)
    assert (len(tested.train), len(tested.held_out), tested.classes, tested.held_out_name) == (40, 4, 5, "test")
    path = tmp_path / "mine.npz"
    np.savez(path, x=x, y=y, x_test=x[:8], y_test=y[:8])
    loaded = load("file", file=str(path), public=0.25)
    assert (loaded.name, len(loaded.train), len(loaded.held_out), len(loaded.public)) == ("mine", 40, 6, 2)


def test_own_arrays_that_do_not_fit(tmp_path):
    x, y = np.ones((4, 2)), np.array([0, 1, 0, 1])
    for given, words in [
        ((x, y[:3]), "one label for each"),
        ((x * np.nan, y), "NaN"),
        ((x, y - 1), "count from 0"),
        ((x, y, x), "both or neither"),
        ((x, y, np.ones((4, 3)), y), "alike"),
        ((x[:1], y[:1]), "hold out"),
        ((x, y, None, None, 1), "classes is 1"),
    ]:
        with pytest.raises(DataError, match=words):
            from_arrays(*given)
    with pytest.raises(ConfigError, match="data.file"):
        load("file")
    with pytest.raises(DataError, match="there is no file"):
        load("file", file=str(tmp_path / "none.npz"))
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DataError, match="numpy.savez"):
        load("file", file=str(tmp_path / "text.npz"))
    np.savez(tmp_path / "other.npz", a=x)
    with pytest.raises(DataError, match="it takes x, y"):
        load("file", file=str(tmp_path / "other.npz"))
    np.save(tmp_path / "one.npy", x)
    with pytest.raises(DataError, match="one array"):
        load("file", file=str(tmp_path / "one.npy"))


def test_wrong_names_and_shares():
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(ConfigError, match="data.split"):
        load("digits", split="fedcpd")
    with pytest.raises(ConfigError, match="defense.public"):
        load("digits", public=1.0)


def test_the_catalog_is_sound():
    names = "digits cancer mnist fashion-mnist cifar10 cifar100 lfw adult xray file"
    assert list(DATASETS) == names.split()
    for name, info in DATASETS.items():
        assert info.name == name and info.summary
        assert info.partition in PARTITIONS
        assert all(len(file.digest) == {"md5": 32, "sha256": 64}[file.algorithm] for file in info.files)
        assert bool(info.files) == bool(info.folders)
