"""Images by URL: which of them a model can be shown.

The content decides what an image is, and neither its name nor what its URL says.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

MAX_IMAGE_BYTES: Final = 20 << 20
DATA_URL, HTTPS_URL = "data:image/", "https://"
_MAGIC = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF87a", "gif"), (b"GIF89a", "gif"))
_LONGEST_MAGIC = 12
_NO_IMAGE = "it is no PNG, JPEG, GIF or WebP image"


def check_image_url(url: str) -> None:
    """Raises `ValueError` for a URL under which no image can be sent to a model."""
    if url.startswith(HTTPS_URL):
        return
    head, comma, encoded = url.partition(",")
    if not (head.startswith(DATA_URL) and head.endswith(";base64") and comma):
        raise ValueError("an image is a URL `https://…` or `data:image/…;base64,…`")
    if len(encoded) * 3 // 4 > MAX_IMAGE_BYTES:
        raise ValueError(f"it has more than {MAX_IMAGE_BYTES:,} bytes, which is the most that can be sent")
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("what follows `;base64,` is not base64") from None
    kind_of(content)


def kind_of(content: bytes) -> str:
    """The format of an image by its first bytes; raises `ValueError` for what is none."""
    for magic, kind in _MAGIC:
        if content.startswith(magic):
            return kind
    if content[:4] == b"RIFF" and content[8:_LONGEST_MAGIC] == b"WEBP":
        return "webp"
    raise ValueError(_NO_IMAGE)
