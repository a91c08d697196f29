"""Originals: publishers' archives and a user's own picture, converted, stored with a digest, preferred by the loaders."""

from __future__ import annotations

import hashlib
import io
import pickle
from dataclasses import replace

import numpy as np
import pytest
import requests
from PIL import Image

from fedveil.core.errors import ConfigError, DataError
from fedveil.data import files, originals
from fedveil.data.datasets import cifar100, lfw, xray
from fedveil.data.fetch import get
from fedveil.data.info import FileInfo
from fedveil.data.registry import DATASETS, load
from tests.data.originals import (
    NAMES,
    cifar_binary,
    cifar_parts,
    cifar_python,
    lfw_archive,
    lfw_pictures,
    picture,
    python_2,
    tar_of,
)

PEOPLE = {"Ada_Lovelace": 15, "Bob": 13, "Carl_Gauss": 21}


@pytest.fixture(scope="module")
def faces():
    return lfw_pictures(PEOPLE)


@pytest.fixture(scope="module")
def lfw_tgz(faces):
    return lfw_archive(faces)


@pytest.fixture
def published(monkeypatch, no_data):
    """Makes this content the publisher's original of a dataset, by its size and digests."""

    def set_(name, content, index=0, address=None):
        info = DATASETS[name]
        known = info.originals[index]
        digests = (hashlib.sha256(content).hexdigest(), hashlib.md5(content).hexdigest())
        file = FileInfo(known.file.name, len(content), *digests)
        changed = list(info.originals)
        changed[index] = replace(known, file=file, address=known.address if address is None else address)
        monkeypatch.setitem(DATASETS, name, replace(info, originals=tuple(changed)))
        return DATASETS[name]

    return set_


def written(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# --- what the archives become


def test_faces_are_cut_out_of_the_funneled_archive(published, faces, lfw_tgz, tmp_path):
    info = published("lfw", lfw_tgz)
    originals.convert_file(info, written(tmp_path / "renamed.tgz", lfw_tgz), tmp_path / "data")
    fourteen = load("lfw", dir=str(tmp_path / "data"), min_images=14)
    assert fourteen.class_names == ("Ada Lovelace", "Carl Gauss") and "renamed.tgz" in fourteen.note
    assert len(fourteen.train) + len(fourteen.held_out) == 15 + 21  # Bob has too few
    with pytest.raises(ConfigError, match="takes 14 to 15"):
        load("lfw", dir=str(tmp_path / "data"), min_images=20)
    large = load("lfw", dir=str(tmp_path / "data"), size=128, min_images=14)
    first = np.stack([faces[name][0, 61:189, 61:189] for name in ("Ada_Lovelace", "Carl_Gauss")]).astype(int)
    assert np.abs(large.train.x - first).max() <= 12  # JPEG
    arrays = originals.read(info, str(tmp_path / "data")).arrays
    reduced = np.asarray(Image.fromarray(large.train.x[1]).resize((32, 32), Image.Resampling.BICUBIC))
    assert np.array_equal(arrays["images_32"][15], reduced)  # the first of Carl Gauss, in the order of numbers
    assert load("lfw", dir=str(tmp_path / "data"), size=64, min_images=14).shape == (64, 64, 3)


def test_reduction_agrees_with_the_prepared_files(need):
    """The prepared files were made from the real archive: the same reduction of their faces gives the same small ones."""
    need("lfw")
    with np.load(io.BytesIO(files.read(DATASETS["lfw"], "lfw_32.npz"))) as small:
        first = [np.flatnonzero(small["labels"] == person)[0] for person in range(106)]
        expected = small["images"][first]
    with np.load(io.BytesIO(files.read(DATASETS["lfw"], "lfw_128.npz"))) as large:
        assert np.array_equal(np.stack([lfw._reduced(face) for face in large["images"]]), expected)


@pytest.mark.parametrize("index", [0, 1])
def test_cifar100_has_its_training_part(published, tmp_path, index):
    parts = cifar_parts()
    content = cifar_binary(parts) if index else cifar_python(parts, dump=python_2)
    info = published("cifar100", content, index)
    originals.convert_file(info, written(tmp_path / "a.tgz", content), tmp_path)
    data = load("cifar100", dir=str(tmp_path), split="cpl")
    assert data.class_names == tuple(NAMES) and data.held_out_name == "test"
    for part, (images, labels) in zip((data.train, data.held_out), parts.values(), strict=True):
        assert np.array_equal(part.x, images) and np.array_equal(part.y, labels)
    assert len(load("cifar100", dir=str(tmp_path)).train) == 16  # `fed-cdp` keeps a fifth for validation


def test_pickles_of_python_2_and_3_are_read_alike():
    parts = cifar_parts()
    old, new = (cifar100.convert_python(cifar_python(parts, dump=dump)) for dump in (python_2, pickle.dumps))
    assert old.keys() == new.keys() and all(np.array_equal(old[key], new[key]) for key in old)


class _Evil:
    def __reduce__(self):
        return print, ("this must not run",)


def test_a_pickle_calls_nothing(capsys):
    for value in (_Evil(), {b"data": _Evil()}):
        content = tar_of({f"c/{name}": pickle.dumps(value) for name in ("train", "test", "meta")})
        with pytest.raises(DataError, match=r"builtins.print, which is not read"):
            cifar100.convert_python(content)
    assert capsys.readouterr().out == ""


def test_a_picture_of_the_users_own(no_data, tmp_path):
    wide = np.zeros((600, 900), np.uint8)
    wide[:, 150:750] = np.linspace(0, 255, 600).astype(np.uint8)
    path = written(tmp_path / "mine.png", picture(wide, "PNG"))
    made = originals.convert_file(DATASETS["xray"], path, tmp_path)
    assert made.stat().st_mode & 0o077 == 0  # a medical picture: for its owner alone
    data = load("xray", dir=str(tmp_path))
    assert data.shape == (512, 512, 1) and "mine.png" in data.note
    row = data.train.x[0, 256, :, 0].astype(int)
    assert row[0] <= 2 and row[-1] >= 253 and np.diff(row).min() >= -1
    deep = picture((wide.astype(np.uint16) * 257), "PNG")
    assert np.array_equal(xray.convert(deep)["image"], data.train.x[0, :, :, 0])


# --- digests


def test_an_archive_of_another_digest_is_refused_unless_unchecked(no_data, lfw_tgz, tmp_path):
    path = written(tmp_path / "lfw-funneled.tgz", lfw_tgz)
    with pytest.raises(
        DataError, match=r"not the publisher's file \(cut short: .* instead of 243346528\).*--unchecked"
    ):
        originals.convert_file(DATASETS["lfw"], path, tmp_path / "data")
    assert not (tmp_path / "data").exists()
    originals.convert_file(DATASETS["lfw"], path, tmp_path / "data", unchecked=True)
    assert "not the publisher's" in load("lfw", dir=str(tmp_path / "data"), min_images=14).note


def test_unchecked_takes_either_format_of_cifar100(no_data, tmp_path):
    path = written(tmp_path / "some.tgz", cifar_binary(cifar_parts()))
    originals.convert_file(DATASETS["cifar100"], path, tmp_path, unchecked=True)
    assert len(originals.read(DATASETS["cifar100"], str(tmp_path)).arrays["train_images"]) == 20


def test_converted_arrays_that_changed_are_never_used(no_data, lfw_tgz, tmp_path):
    path = written(tmp_path / "a.tgz", lfw_tgz)
    made = originals.convert_file(DATASETS["lfw"], path, tmp_path, unchecked=True)
    with np.load(made) as arrays:
        changed = dict(arrays)
    changed["images_32"][0, 0, 0, 0] ^= 1
    np.savez(made, **changed)
    with pytest.raises(
        DataError, match="damaged .its digest is wrong.; delete it and run 'fedveil data get lfw --from FILE'"
    ):
        load("lfw", dir=str(tmp_path))
    assert [one.status for one in originals.check(DATASETS["lfw"], str(tmp_path))] == ["damaged"]
    made.write_bytes(made.read_bytes()[:1000])
    with pytest.raises(DataError, match="cannot be read"):
        load("lfw", dir=str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("lfw", b"no archive", "cannot be unpacked"),
        ("lfw", tar_of({"lfw_funneled/A/A_0001.jpg": b"x"}), "pictures of 1 people, 0 of them with 14 or more"),
        ("lfw", lfw_archive(lfw_pictures({"A": 14, "B": 14}, side=64)), "has 64x64 pixels instead of 250x250"),
        ("cifar100", tar_of({"c/train": b"x"}), "has no test"),
        ("cifar100", tar_of(dict.fromkeys(("c/train", "c/test", "c/meta"), b"x")), "train cannot be read"),
        ("cifar100", tar_of(dict.fromkeys(("train.bin", "test.bin", "fine_label_names.txt"), b"x")), "not a multiple"),
        ("cifar100", cifar_binary(cifar_parts(), NAMES[:2]), "labels up to 2 and 2 names"),
        ("xray", b"no picture", "no PNG or JPEG"),
        ("xray", picture(np.zeros((64, 64), np.uint8), "PNG")[:60], "cannot be decoded"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,  # archives hold the time at which they were made
)
def test_what_cannot_be_converted(no_data, tmp_path, one_line, name, content, words):
    path = written(tmp_path / "file", content)
    with pytest.raises(DataError, match=words) as caught:
        originals.convert_file(DATASETS[name], path, tmp_path / "data", unchecked=True)
    assert one_line(caught).startswith(f"{name}: ") and not (tmp_path / "data").exists()


# --- `fedveil data get`


def test_an_archive_in_a_data_folder_is_found(published, lfw_tgz, tmp_path, monkeypatch):
    info = published("lfw", lfw_tgz)
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path / "mine"))
    written(tmp_path / "mine/lfw-funneled.tgz", lfw_tgz)
    made = get(info)
    assert made == [files.cache_folder() / "lfw/converted.npz"]
    (tmp_path / "mine/lfw-funneled.tgz").unlink()
    lines = []
    assert get(info, log=lines.append) == made and "already converted" in lines[-1]


def test_an_archive_is_downloaded_and_a_damaged_one_is_not_used(published, tmp_path, monkeypatch):
    content = cifar_python(cifar_parts())
    answers = [content[:-1], content]
    monkeypatch.setattr(originals, "http_content", lambda address: answers.pop(0))
    info = published("cifar100", content)
    info = replace(info, originals=info.originals[:1])
    with pytest.raises(DataError, match="cut short.*put cifar100_test.npz"):
        get(info, tmp_path)
    assert not (tmp_path / "cifar100/converted.npz").exists()
    assert get(info, tmp_path) == [tmp_path / "cifar100/converted.npz"]


def test_without_a_network_the_message_names_both_ways(no_data, tmp_path, monkeypatch, fedveil_cli):
    def offline(*_, **__):
        raise requests.exceptions.ConnectionError("Name or service not known")

    monkeypatch.setattr("requests.get", offline)
    answer = fedveil_cli("data", "get", "cifar100", cwd=tmp_path)
    last = answer.err.splitlines()[-1]
    assert answer.code == 2 and "cannot be reached" in last and "put cifar100_test.npz" in last
    assert "run 'fedveil data get cifar100 --from FILE' with the publisher's cifar-100-python.tar.gz" in last


def test_commands(published, lfw_tgz, tmp_path, fedveil_cli):
    published("lfw", lfw_tgz)
    path, folder = written(tmp_path / "faces.tgz", lfw_tgz), tmp_path / "data"
    answer = fedveil_cli("data", "get", "lfw", "--from", path, "--data-dir", folder, "--json", cwd=tmp_path)
    assert answer.code == 0 and str(folder / "lfw/converted.npz") in answer.out
    checked = fedveil_cli("data", "check", "lfw", "--data-dir", folder, "--json", cwd=tmp_path)
    assert '"status": "ok"' in checked.out and "made from faces.tgz" in checked.out
    for arguments, words in [
        (["lfw", "--from", "nowhere.tgz"], "--from: got 'nowhere.tgz'; there is no such file; takes the publisher's"),
        (["lfw", "--from", "."], "that is a folder"),
        (["lfw", "cifar100", "--from", path], "takes one dataset beside it; got 2"),
        (["mnist", "--from", path], "mnist is not made from a file; run 'fedveil data get mnist'"),
        (["lfw", "--unchecked"], "takes a file to convert beside it"),
    ]:
        refused = fedveil_cli("data", "get", *arguments, cwd=tmp_path)
        assert refused.code == 2 and words in refused.err and refused.err.count("\n") == 1
