"""Uploaded pictures: checked, redrawn and stored.

A worker process decodes an upload, never the server. The content decides its type, not its name. Its size is read before
any pixel is decoded. Only a square that is redrawn from the pixels is stored, so no metadata or malicious content of the
file survives.
"""

from __future__ import annotations

import io
import re
import secrets
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.core.errors import ConfigError
from fedveil.core.files import write_atomic
from fedveil.lab.requests import UPLOAD_NAME

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

MAX_BYTES = 5_000_000
MAX_PIXELS = 25_000_000
MIN_SIDE = 8
STORED_SIDE = 128
STORED_UPLOADS = 100
FORMATS = ("PNG", "JPEG", "WEBP")
TAKES = "takes a PNG, JPEG or WebP picture"


def decode(content: bytes) -> Image:
    """The upload as a square RGB picture; raises `ConfigError` if it is not a valid picture."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    if len(content) > MAX_BYTES:
        raise ConfigError("upload", f"{len(content):,} bytes", f"takes at most {MAX_BYTES:,} bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
                _check_size(*picture.size)
                picture.draft("RGB", (STORED_SIDE, STORED_SIDE))  # JPEG: decode no larger than needed
                turned = ImageOps.exif_transpose(picture)
                whole = turned.convert("RGBA")
    except UnidentifiedImageError:
        raise ConfigError("upload", _looks_like(content), TAKES) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ConfigError("upload", "a picture of too many pixels", f"takes at most {MAX_PIXELS:,} pixels") from None
    except ConfigError:
        raise
    except Exception as error:  # Pillow raises many kinds of errors, depending on the damage
        raise ConfigError("upload", f"a damaged picture ({error})", TAKES) from None
    white = Image.new("RGBA", whole.size, "white")
    flat = Image.alpha_composite(white, whole).convert("RGB")
    return ImageOps.fit(flat, (STORED_SIDE, STORED_SIDE))


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ConfigError("upload", f"{width} × {height} pixels", f"takes at most {MAX_PIXELS:,} pixels: scale it down")
    if min(width, height) < MIN_SIDE:
        takes = f"takes at least {MIN_SIDE} × {MIN_SIDE} pixels"
        raise ConfigError("upload", f"{width} × {height} pixels", takes)


def _looks_like(content: bytes) -> str:
    """A name for the kind of file that was uploaded instead of a picture."""
    head = content[:512].lstrip()
    for start, word in ((b"%PDF", "a PDF"), (b"PK", "a zip archive"), (b"GIF8", "a GIF"), (b"BM", "a BMP")):
        if head.startswith(start):
            return word
    if head[:5].lower() in (b"<svg ", b"<?xml", b"<!doc", b"<html"):
        return "an SVG, XML or HTML file"
    if not content:
        return "an empty file"
    return "text" if all(9 <= byte < 127 for byte in head) else "a file of an unknown type"


def keep(picture: Image, folder: Path) -> str:
    """Stores a decoded upload under a random name in the lab's folder; deletes the oldest beyond `STORED_UPLOADS`."""
    uploads = folder / "uploads"
    uploads.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = secrets.token_hex(8)
    write_atomic(uploads / f"{name}.png", lambda file: picture.save(file, "PNG"))
    stored = sorted(uploads.glob("*.png"), key=lambda path: path.stat().st_mtime)
    for old in stored[: max(0, len(stored) - STORED_UPLOADS)]:
        old.unlink(missing_ok=True)
    return name


def read_upload(folder: Path, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A stored upload as bytes [height, width, channels], in the size and colours of a dataset."""
    import numpy as np
    from PIL import Image

    path = folder / "uploads" / f"{name}.png"
    if not re.match(UPLOAD_NAME, name) or not path.is_file():
        raise ConfigError("picture.upload", name, "is no longer stored: upload the picture again")
    height, width, channels = shape
    with Image.open(path, formats=("PNG",)) as picture:
        sized = picture.convert("RGB" if channels == 3 else "L").resize((width, height), Image.Resampling.LANCZOS)
    return np.asarray(sized, np.uint8).reshape(shape)
