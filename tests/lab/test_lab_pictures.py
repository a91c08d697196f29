"""Uploads: pictures are redrawn, bounded and stored in the lab's folder; other files are refused in one line."""

from __future__ import annotations

import base64
import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedveil.core.errors import ConfigError
from fedveil.data import pixels
from fedveil.lab import pictures


def _png(size: tuple[int, int] = (40, 20), mode: str = "RGB", form: str = "PNG", **more: object) -> bytes:
    out = io.BytesIO()
    Image.new(mode, size, 200 if mode == "L" else None).save(out, form, **more)
    return out.getvalue()


def _header(width: int, height: int) -> bytes:
    """A PNG that announces a size and holds next to nothing: what a decompression bomb looks like from outside."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_pictures_are_redrawn(form: str, tmp_path: Path) -> None:
    picture = pictures.decode(_png(form=form))
    assert picture.size == (pictures.STORED_SIDE, pictures.STORED_SIDE) and picture.mode == "RGB"
    name = pictures.keep(picture, tmp_path)
    stored = tmp_path / "uploads" / f"{name}.png"
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [stored]
    assert pictures.read_upload(tmp_path, name, (8, 8, 1)).shape == (8, 8, 1)
    assert pictures.read_upload(tmp_path, name, (32, 32, 3)).dtype == np.uint8


def test_nothing_of_the_file_is_kept(tmp_path: Path) -> None:
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("Comment", "where I live")
    name = pictures.keep(pictures.decode(_png(pnginfo=info)), tmp_path)
    assert b"where I live" not in (tmp_path / "uploads" / f"{name}.png").read_bytes()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "an empty file"),
        (b"hello, lab", "got 'text'; takes a PNG, JPEG or WebP picture"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG, XML or HTML file"),
        (b"%PDF-1.7 ...", "a PDF"),
        (b"GIF89a" + b"\0" * 40, "a GIF"),
        (b"PK\x03\x04" + b"\0" * 40, "a zip archive"),
        (b"\x00\xff" * 300, "a file of an unknown type"),
        (_png()[:60], "a damaged picture"),
        (_png((7, 100)), "takes at least 8 × 8 pixels"),
        (_header(30_000, 30_000), "a picture of too many pixels"),
        (_header(2**31 - 1, 2**31 - 1), "pixels"),
        (_header(5001, 5000), "takes at most 25,000,000 pixels: scale it down"),
        (b"\x89PNG" + b"\0" * pictures.MAX_BYTES, "takes at most 5,000,000 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_uploads(content: bytes, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pictures.decode(content)
    assert says in str(caught.value) and str(caught.value).startswith("upload: got ") and "\n" not in str(caught.value)


def test_transparent_and_grey_pictures() -> None:
    clear = Image.new("RGBA", (20, 20), (0, 0, 0, 0))
    out = io.BytesIO()
    clear.save(out, "PNG")
    assert np.asarray(pictures.decode(out.getvalue())).min() == 255  # on white
    assert np.asarray(pictures.decode(_png(mode="L"))).max() == 200


def test_names_do_not_lead_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "uploads").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.png")
    for name in ("../secret", "..%2fsecret", "/etc/passwd", "0" * 16, "a" * 15 + "\n"):
        with pytest.raises(ConfigError, match="is no longer stored"):
            pictures.read_upload(tmp_path, name, (8, 8, 1))


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "STORED_UPLOADS", 3)
    names = []
    for n in range(5):
        names.append(pictures.keep(Image.new("RGB", (8, 8)), tmp_path))
        os.utime(tmp_path / "uploads" / f"{names[-1]}.png", (n, n))
    left = {path.stem for path in (tmp_path / "uploads").iterdir()}
    assert len(left) == 3 and names[-1] in left and names[0] not in left


@pytest.mark.parametrize("shape", [(8, 8, 1), (4, 4, 3)])
def test_a_data_uri_is_the_picture(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    kind, content = pixels.png_uri(values).split(",")
    assert kind == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(content))) as picture:
        np.testing.assert_array_equal(np.asarray(picture).reshape(shape), values)
    with Image.open(io.BytesIO(base64.b64decode(pixels.png_uri(np.full(shape, np.nan)).split(",")[1]))) as picture:
        assert np.asarray(picture).max() == np.asarray(picture).min()  # a diverged attack is still shown
