"""The process that scales an image for another one: `python -m orchestrator.tools.image_process KIND`.

Decoders are C, and a hostile file can corrupt them or keep them busy: a JPEG of some megabytes has a hundred
thousand scans over the whole picture. So this process has no environment, some memory and some seconds, and
it cannot write, connect or start anything where the kernel has Landlock. The image comes on standard input;
the JPEG goes to standard output, or the reason why there is none to standard error.
"""

from __future__ import annotations

import io
import os
import resource
import sys
from typing import Final

from orchestrator.sandbox.landlock import confine_decoder

MEMORY_BYTES: Final = 2 << 30
"""A picture of `MOST_PIXELS` as a progressive JPEG or a WebP needs half of it."""


def main(kind: str, edge: int, most_pixels: int, output_bytes: int, cpu_s: int) -> None:
    """Scales the image on standard input to an edge of so many pixels at most.

    Behind `cpu_s` seconds of the processor's time the kernel ends the process, whatever it does.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    confine_decoder(MEMORY_BYTES, output_bytes)
    from PIL import Image

    try:
        with open(0, "rb", closefd=False) as given:
            os.write(1, _scaled(kind, given.read(), edge, most_pixels))
    except (OSError, SyntaxError, ValueError, MemoryError, Image.DecompressionBombError) as error:
        sys.exit(str(error) or type(error).__name__)


def _scaled(kind: str, content: bytes, edge: int, most_pixels: int) -> bytes:
    """The image as a JPEG; of an animation the first picture."""
    from PIL import Image

    # No other format is tried: each is a parser that a hostile file could aim at.
    with Image.open(io.BytesIO(content), formats=[kind.upper()]) as opened:
        if opened.width * opened.height > most_pixels:
            raise ValueError("its header is damaged: it names two sizes")
        opened.thumbnail((edge, edge))
        flat = Image.new("RGB", opened.size, "white")
        seen = opened.convert("RGBA")
        flat.paste(seen, mask=seen.getchannel("A"))
    scaled = io.BytesIO()
    flat.save(scaled, "JPEG", quality=85)
    return scaled.getvalue()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
