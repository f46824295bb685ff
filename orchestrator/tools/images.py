"""Image files as data URLs: the only form in which a model takes them here."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Iterable
from pathlib import Path

from orchestrator.sandbox.reading import read_regular

MAX_IMAGE_BYTES = 20 << 20


def data_url(path: Path, hidden: Iterable[Path] = ()) -> str:
    """An image file as a data URL; raises `ValueError` for what is no image or too large.

    Raises `OSError` for what is no regular file or lies below a path hidden from commands.
    """
    kind = mimetypes.guess_type(path.name)[0] or ""
    if not kind.startswith("image/"):
        raise ValueError("its name does not say that it is an image")
    content = read_regular(path, MAX_IMAGE_BYTES + 1, hidden)
    if len(content) > MAX_IMAGE_BYTES:
        raise ValueError(f"it has more than {MAX_IMAGE_BYTES} bytes, which is the most that can be sent")
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
