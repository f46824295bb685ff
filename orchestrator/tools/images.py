"""Image files as data URLs: the only form in which a model takes them here."""

from __future__ import annotations

import base64
import mimetypes
from pathlib import Path

MAX_IMAGE_BYTES = 20 << 20


def data_url(path: Path) -> str:
    """An image file as a data URL; raises `ValueError` for what is no image or too large."""
    kind = mimetypes.guess_type(path.name)[0] or ""
    if not kind.startswith("image/"):
        raise ValueError("its name does not say that it is an image")
    size = path.stat().st_size
    if size > MAX_IMAGE_BYTES:
        raise ValueError(f"it has {size} bytes, at most {MAX_IMAGE_BYTES} can be sent")
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
