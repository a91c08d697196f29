"""Scattering features against slow sums, and what they may not depend on."""

import numpy as np
import pytest
from scipy.signal import convolve2d

from fedveil.config import for_attack, load, resolve
from fedveil.core.errors import ConfigError
from fedveil.data import scatter


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (3, 16, 20, 2), np.uint8)


def spatial(spectrum):
    """A filter's values about its middle, from its spectrum."""
    return np.fft.fftshift(np.fft.ifft2(spectrum))


def test_shape_and_normalisation(images):
    made = scatter.features(images, 1 / 255)
    assert made.shape == (3, 4, 5, 162) and made.dtype == np.float32
    groups = made.transpose(0, 3, 1, 2).reshape(3, 54, -1)
    np.testing.assert_allclose(groups.mean(axis=2), 0.0, atol=2e-3)
    np.testing.assert_allclose(groups.std(axis=2), 1.0, atol=2e-3)


def test_an_image_is_described_by_itself_alone(images):
    alone = scatter.features(images[1:2], 1 / 255)
    np.testing.assert_array_equal(alone[0], scatter.features(images, 1 / 255)[1])


def test_moduli_equal_a_plain_convolution(images):
    plane = images[0, :, :, 0].astype(float)
    padded = np.pad(plane, [(8, 8), (8, 8)], mode="reflect")
    fine, coarse = scatter._bank(16, 20)
    maps = scatter.scatter(plane[None].astype(np.float32))[0]
    for bank, first, step in ((fine, 1, 1), (coarse, 9, 2)):
        for angle in (0, 3):
            wave = spatial(bank[angle])
            around = np.pad(padded, [(s // 2, s - s // 2) for s in padded.shape], mode="wrap")
            modulus = np.abs(convolve2d(around, wave, mode="valid")[1:, 1:])
            down, across = scatter._window(32, 1, 16), scatter._window(36, 1, 20)
            if step == 2:
                modulus, down, across = modulus[::2, ::2], scatter._window(16, 2, 16), scatter._window(18, 2, 20)
            np.testing.assert_allclose(maps[first + angle], down @ modulus @ across.T, rtol=1e-3)


def test_wavelets_have_no_mean_and_look_along_their_direction():
    fine, _ = scatter._bank(24, 24)
    assert np.abs(fine[:, 0, 0]).max() < 1e-5
    x = np.arange(24)
    stripes = np.cos(0.75 * np.pi * x)[None, :] * np.ones((24, 1))
    found = scatter.scatter(stripes[None].astype(np.float32))[0, 1:9].mean(axis=(1, 2))
    assert found.argmax() == 0 and found[4] < 0.05 * found[0]


def test_features_are_kept_and_found_again(images, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(scatter, "WORTH_KEEPING", 2)
    first = scatter.features(images, 1 / 255)
    (file,) = (tmp_path / "fedveil" / "features").iterdir()
    monkeypatch.setattr(scatter, "_computed", lambda *_: pytest.fail("computed twice"))
    np.testing.assert_array_equal(scatter.features(images, 1 / 255), first)
    assert file.suffix == ".npy"


def test_where_they_make_no_sense_they_are_refused():
    with pytest.raises(ConfigError, match="data.features.*images of at least"):
        resolve(load(None, ["data.name=adult", "data.features=scatter"]))
    with pytest.raises(ConfigError, match="data.features.*raw"):
        for_attack(load(None, ["data.name=mnist", "data.features=scatter", "attack.name=cpl"]))
