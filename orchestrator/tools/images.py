"""Image files as data URLs: the form in which a model takes them here.

A person's image that is
larger than a model can use is scaled, if Pillow is installed; the header alone is read before.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from pathlib import Path

from orchestrator.core.images import DATA_URL, MAX_IMAGE_BYTES, kind_of
from orchestrator.sandbox.trusted_files import read_regular

SENT_BYTES = 5 << 20
SENT_EDGE = 2_048
"""Pixels of the longer edge: providers scale what is larger, and count its tokens."""
MOST_PIXELS = 64 << 20
"""Pixels that are unpacked to be scaled: a file of some kilobytes can hold billions."""


def data_url(path: Path, hidden: Iterable[Path] = (), below: Path | None = None) -> str:
    """An image file as a data URL; raises `ValueError` for what is no image or too large.

    Raises `OSError` for what is no regular file or lies below a path hidden from commands, and with `below`
    for what lies anywhere but there.
    """
    content = _content(path, hidden, below)
    return _url(kind_of(content), content)


def fitting_data_url(path: Path, hidden: Iterable[Path] = ()) -> str:
    """The same of an image that a person hands in: scaled to what a model can use."""
    content = _content(path, hidden)
    kind = kind_of(content)
    width, height = dimensions(kind, content)
    if max(width, height) <= SENT_EDGE and len(content) <= SENT_BYTES:
        return _url(kind, content)
    if width * height > MOST_PIXELS:
        raise ValueError(f"it has {width:,} × {height:,} pixels, and at most {MOST_PIXELS:,} can be scaled")
    return _url("jpeg", _scaled(kind, content, f"{width:,} × {height:,} pixels, {len(content):,} bytes"))


def _content(path: Path, hidden: Iterable[Path], below: Path | None = None) -> bytes:
    content = read_regular(path, MAX_IMAGE_BYTES + 1, hidden, below)
    if len(content) > MAX_IMAGE_BYTES:
        raise ValueError(f"it has more than {MAX_IMAGE_BYTES:,} bytes, which is the most that can be sent")
    return content


def _url(kind: str, content: bytes) -> str:
    return f"{DATA_URL}{kind};base64,{base64.b64encode(content).decode()}"


# ── sizes ─────────────────────────────────────────────────────────────────────────────────────


def dimensions(kind: str, content: bytes) -> tuple[int, int]:
    """Width and height by the file's header; raises `ValueError` for a header that is cut off."""
    found = _DIMENSIONS[kind](content)
    if found is None:
        raise ValueError("its header is damaged: it does not say how large the image is")
    return found


def _of_png(content: bytes) -> tuple[int, int] | None:
    if len(content) < 24 or content[12:16] != b"IHDR":
        return None
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def _of_gif(content: bytes) -> tuple[int, int] | None:
    return (_little(content[6:8]), _little(content[8:10])) if len(content) >= 10 else None


def _of_webp(content: bytes) -> tuple[int, int] | None:
    form, body = content[12:16], content[20:30]
    if len(body) < 10:
        return None
    if form == b"VP8X":
        return _little(body[4:7]) + 1, _little(body[7:10]) + 1
    if form == b"VP8L":
        bits = _little(body[1:5])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return (_little(body[6:8]) & 0x3FFF, _little(body[8:10]) & 0x3FFF) if form == b"VP8 " else None


_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of a JPEG that begin a frame, which says how large the image is."""
_MOST_SEGMENTS = 10_000
_BARE = frozenset(range(0xD0, 0xD9)) | {0x01}
"""Markers without a length."""


def _of_jpeg(content: bytes) -> tuple[int, int] | None:
    at = 2
    for _ in range(_MOST_SEGMENTS):
        if at + 9 > len(content) or content[at] != 0xFF:
            break
        marker = content[at + 1]
        if marker in _FRAMES:
            return int.from_bytes(content[at + 7 : at + 9], "big"), int.from_bytes(
                content[at + 5 : at + 7], "big"
            )
        if marker == 0xFF:
            at += 1
        elif marker in _BARE:
            at += 2
        else:
            at += 2 + max(2, int.from_bytes(content[at + 2 : at + 4], "big"))
    return None


def _little(part: bytes) -> int:
    return int.from_bytes(part, "little")


_DIMENSIONS = {"png": _of_png, "gif": _of_gif, "webp": _of_webp, "jpeg": _of_jpeg}


# ── scaling ───────────────────────────────────────────────────────────────────────────────────


def _scaled(kind: str, content: bytes, size: str) -> bytes:
    """The image as a JPEG whose longer edge is `SENT_EDGE` at most; of an animation the first picture."""
    try:
        from PIL import Image
    except ImportError:
        raise ValueError(
            f"it has {size}; at most {SENT_EDGE:,} pixels an edge and {SENT_BYTES:,} bytes are sent. Scale "
            "it, or install Pillow beside the worker (the extra `images`), which does so"
        ) from None
    try:
        # No other format is tried: each is a parser that a hostile file could aim at.
        with Image.open(io.BytesIO(content), formats=[kind.upper()]) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise ValueError("its header is damaged: it names two sizes")
            opened.thumbnail((SENT_EDGE, SENT_EDGE))
            flat = Image.new("RGB", opened.size, "white")
            seen = opened.convert("RGBA")
            flat.paste(seen, mask=seen.getchannel("A"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"it cannot be scaled: {error}") from None
    scaled = io.BytesIO()
    flat.save(scaled, "JPEG", quality=85)
    return scaled.getvalue()
