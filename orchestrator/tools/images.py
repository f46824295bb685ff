"""Image files as data URLs: the form in which a model takes them here.

A person's image that is larger than a model can use is scaled by `image_process`, if Pillow is installed.
This process reads the header alone.
"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from orchestrator.core.calls import Call
from orchestrator.core.commands import Assessment, Immediate
from orchestrator.core.history import DATA_URL, MAX_IMAGE_BYTES
from orchestrator.core.state import State
from orchestrator.protocol.events import ViewImageToolCall
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.items import InputImage, image_kind
from orchestrator.protocol.wire import JsonObject
from orchestrator.sandbox.policy_paths import Place
from orchestrator.sandbox.trusted_files import read_regular
from orchestrator.tools.arguments import Arguments, parsed
from orchestrator.tools.tool import Tool, function, string, task_of, unsupported
from orchestrator.tools.tool_context import CallSite, ToolConfig, place_of

SENT_BYTES = 5 << 20
SENT_EDGE = 2_048
"""Pixels of the longer edge: providers scale what is larger, and count its tokens."""
MOST_PIXELS = 64 << 20
"""Pixels that are unpacked to be scaled: a file of some kilobytes can hold billions."""
SCALED_S = 8.0
"""By the clock, for an image, and for the others before it; by the processor's time it has less."""
CPU_S = 5
MOST_AT_ONCE = 2
OUTPUT_BYTES = 32 << 20
_COMPLAINT_BYTES = 16 << 10
_MODULE = "orchestrator.tools.image_process"
_scaling = threading.BoundedSemaphore(MOST_AT_ONCE)


def data_url(path: Path, hidden: Iterable[Path] = (), below: Path | None = None) -> str:
    """An image file as a data URL; raises `ValueError` for what is no image or too large.

    Raises `OSError` for what is no regular file or lies below a path hidden from commands, and with `below`
    for what lies anywhere but there.
    """
    content = _content(path, hidden, below)
    return _url(image_kind(content), content)


def fitting_data_url(image: Path | bytes, hidden: Iterable[Path] = ()) -> str:
    """The same of an image that a person hands in, a file or its content: scaled to what a model can use."""
    content = _content(image, hidden) if isinstance(image, Path) else image
    kind = image_kind(content)
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


# ── sizes ─────────────────────────────────────────────────────────────────────────────────────────


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


# ── scaling ───────────────────────────────────────────────────────────────────────────────────────


def _scaled(kind: str, content: bytes, size: str) -> bytes:
    """The image as a JPEG whose longer edge is `SENT_EDGE` at most, made by a process of its own."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise ValueError(
            f"it has {size}; at most {SENT_EDGE:,} pixels an edge and {SENT_BYTES:,} bytes are sent. Scale "
            "it, or install Pillow beside the worker (the extra `images`), which does so"
        ) from None
    if not _scaling.acquire(timeout=SCALED_S):
        raise ValueError("other images are being scaled, and take long; send it again")
    try:
        return _by_process(kind, content)
    finally:
        _scaling.release()


def _by_process(kind: str, content: bytes) -> bytes:
    # Files in memory, and no pipes: what it writes has a bound, and nobody waits for its end.
    with _memory() as given, _memory() as out, _memory() as complaint:
        given.write(content)
        given.seek(0)
        bounds = SENT_EDGE, MOST_PIXELS, OUTPUT_BYTES, CPU_S
        # An empty environment: a decoder that is made to do another thing finds no key in it.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE, kind, *map(str, bounds)],
            stdin=given,
            stdout=out,
            stderr=complaint,
            env={},
            cwd="/",
            start_new_session=True,
        )
        try:
            code = process.wait(SCALED_S)
        except subprocess.TimeoutExpired:
            code = -signal.SIGXCPU
        finally:
            process.kill()
            process.wait()
        if code == 0:
            return os.pread(out.fileno(), OUTPUT_BYTES, 0)
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            raise ValueError("it cannot be scaled: that takes too long")
        why = os.pread(complaint.fileno(), _COMPLAINT_BYTES, 0).decode("utf-8", "replace").strip()
        raise ValueError(f"it cannot be scaled: {why.rpartition(chr(10))[2] or 'it broke what unpacks it'}")


def _memory() -> IO[bytes]:
    return os.fdopen(os.memfd_create("dendro-image", os.MFD_CLOEXEC), "w+b", buffering=0)


def _forked() -> None:
    global _scaling
    _scaling = threading.BoundedSemaphore(MOST_AT_ONCE)


os.register_at_fork(after_in_child=_forked)


# ── view image ────────────────────────────────────────────────────────────────────────────────────
# The `view_image` tool: an image file of the machine, shown to the model.


VIEW_IMAGE = function(
    "view_image",
    "Lets you see an image file of the machine that you work on.",
    {"path": string("The file, relative to the session's folder.")},
    ["path"],
)


class ImageArguments(Arguments):
    path: str


class ViewImage(Tool):
    """The tool of images; it only reads."""

    names = ("view_image",)
    beside = frozenset({"plan", "review"})
    parallel_safe = True
    repeatable = True

    def __init__(self, config: ToolConfig) -> None:
        self._config = config

    def offered(self, state: State) -> JsonObject | None:
        return VIEW_IMAGE if state.facts.view_image else None

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        if not site.state.facts.view_image:
            return unsupported(call)
        given = parsed(ImageArguments, call.item["arguments"])
        path = Path(task_of(site.state).settings.cwd, given.path)
        try:
            url = await asyncio.to_thread(self._url, path, place_of(site.state.facts))
        except (OSError, ValueError) as error:
            return Immediate(f"the image {path} could not be read: {error}")
        event = ViewImageToolCall(call_id=CallId(call.call_id), path=str(path))
        return Immediate((InputImage(image_url=url),), (event,))

    def _url(self, path: Path, place: Place | None) -> str:
        if place is None:
            return data_url(path, self._config.hidden)
        file = place.followed(path)
        # The copies lie in the data folder, which is hidden from commands but for their own. Where the name
        # leads may have changed by now.
        own = next((it for it in (place.here, place.temporary) if file.is_relative_to(it)), None)
        return data_url(file, self._config.hidden if own is None else (), own)
