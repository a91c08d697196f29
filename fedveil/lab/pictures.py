"""Pictures that come in and go out: uploads are checked and redrawn, arrays become small PNGs.

An upload is decoded in a worker process, never in the server. Its type is what its content says, not its name; its size
in pixels is read before a single pixel is decoded; what is kept is a square redrawn from the pixels, so that nothing of
the file itself (metadata, tricks of its format) is ever stored.
"""

from __future__ import annotations

import io
import re
import secrets
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.core.errors import ConfigError
from fedveil.lab.requests import UPLOAD_NAME

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

MOST_BYTES = 5_000_000
MOST_PIXELS = 25_000_000
LEAST_SIDE = 8
KEPT_SIDE = 128
KEPT_UPLOADS = 100
FORMATS = ("PNG", "JPEG", "WEBP")
TAKES = "takes a PNG, JPEG or WebP picture"


def decode(content: bytes) -> Image:
    """The upload as a square RGB picture; a `ConfigError` says what is wrong with a bad one."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    if len(content) > MOST_BYTES:
        raise ConfigError("upload", f"{len(content):,} bytes", f"takes at most {MOST_BYTES:,} bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
                _check_size(*picture.size)
                picture.draft("RGB", (KEPT_SIDE, KEPT_SIDE))  # JPEG: decode no larger than needed
                turned = ImageOps.exif_transpose(picture)
                whole = turned.convert("RGBA")
    except UnidentifiedImageError:
        raise ConfigError("upload", _looks_like(content), TAKES) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ConfigError("upload", "a picture of too many pixels", f"takes at most {MOST_PIXELS:,} pixels") from None
    except ConfigError:
        raise
    except Exception as error:  # Pillow raises many kinds, by where a file is damaged
        raise ConfigError("upload", f"a damaged picture ({error})", TAKES) from None
    white = Image.new("RGBA", whole.size, "white")
    flat = Image.alpha_composite(white, whole).convert("RGB")
    return ImageOps.fit(flat, (KEPT_SIDE, KEPT_SIDE))


def _check_size(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise ConfigError(
            "upload", f"{width} × {height} pixels", f"takes at most {MOST_PIXELS:,} pixels: scale it down"
        )
    if min(width, height) < LEAST_SIDE:
        takes = f"takes at least {LEAST_SIDE} × {LEAST_SIDE} pixels"
        raise ConfigError("upload", f"{width} × {height} pixels", takes)


def _looks_like(content: bytes) -> str:
    """A word for what was uploaded instead of a picture."""
    head = content[:512].lstrip()
    for start, word in ((b"%PDF", "a PDF"), (b"PK", "a zip archive"), (b"GIF8", "a GIF"), (b"BM", "a BMP")):
        if head.startswith(start):
            return word
    if head[:5].lower() in (b"<svg ", b"<?xml", b"<!doc", b"<html"):
        return "an SVG, XML or HTML file"
    if not content:
        return "an empty file"
    return "text" if all(9 <= byte < 127 for byte in head) else "a file of another kind"


def keep(picture: Image, folder: Path) -> str:
    """Stores a decoded upload under a random name below the lab's folder; the oldest go when there are too many."""
    uploads = folder / "uploads"
    uploads.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = secrets.token_hex(8)
    picture.save(uploads / f"{name}.png")
    stored = sorted(uploads.glob("*.png"), key=lambda path: path.stat().st_mtime)
    for old in stored[: max(0, len(stored) - KEPT_UPLOADS)]:
        old.unlink(missing_ok=True)
    return name


def read_upload(folder: Path, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """An upload [height, width, channels] in bytes, in the size and colours of a dataset."""
    import numpy as np
    from PIL import Image

    path = folder / "uploads" / f"{name}.png"
    if not re.match(UPLOAD_NAME, name) or not path.is_file():
        raise ConfigError("picture.upload", name, "is not here any more: upload the picture again")
    height, width, channels = shape
    with Image.open(path, formats=("PNG",)) as picture:
        sized = picture.convert("RGB" if channels == 3 else "L").resize((width, height), Image.Resampling.LANCZOS)
    return np.asarray(sized, np.uint8).reshape(shape)
