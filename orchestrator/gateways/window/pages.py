"""The page and its files: read once, served under the hash of all of them, within a policy.

A file's address changes whenever any file does, so a browser may keep it for a year, and no page ever runs
with the modules of another version.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from orchestrator.core.frozen import record

FOLDER: Final = Path(__file__).parent
ASSETS, VENDOR = FOLDER / "assets", FOLDER / "vendor"
INDEX: Final = "index.html"
PLACE: Final = "{{assets}}"
"""Where the page names the address of its files."""
PREFIX: Final = "/assets/"
PAGES: Final = frozenset({"/", "/fleet", "/workers", "/spend"})
BELOW: Final = "/tree/"
KEPT: Final = "public, max-age=31536000, immutable"
_IMPORT_MAP: Final = re.compile(r'<script type="importmap">(.*?)</script>', re.S)
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
_SMALL_ALREADY: Final = frozenset({".woff2", ".png", ".ico"})


@record
class File:
    """A file as it is sent."""

    content: bytes
    type: str
    packed: bytes | None = None
    """The same by gzip, where that is shorter."""


@record
class Pages:
    """The page, and its files by their addresses."""

    index: File
    files: Mapping[str, File]
    headers: list[tuple[bytes, bytes]]
    """Those of every answer of the window."""

    def found(self, path: str) -> File | None:
        """The file at an address; None where there is none."""
        return self.files.get(path)

    def is_page(self, path: str) -> bool:
        """Whether the page is served there: it reads the rest from the address."""
        return path in PAGES or path.startswith(BELOW)


def read_pages(assets: Path = ASSETS, vendor: Path = VENDOR) -> Pages:
    """Reads all files."""
    contents = {name: file.read_bytes() for name, file in _files(assets, vendor)}
    whole = hashlib.sha256()
    for name, content in sorted(contents.items()):
        whole.update(f"{name}\0{len(content)}\0".encode() + content)
    place = f"{PREFIX}{whole.hexdigest()[:24]}"
    page = contents.pop(INDEX).decode().replace(PLACE, place)
    files = {f"{place}/{name}": _file(name, content) for name, content in contents.items()}
    return Pages(_file(INDEX, page.encode()), files, _headers(page))


def _files(assets: Path, vendor: Path) -> Iterator[tuple[str, Path]]:
    for folder, below in ((assets, ""), (vendor, "vendor/")):
        for file in sorted(folder.rglob("*")):
            if file.is_file() and not file.name.startswith("."):
                yield below + file.relative_to(folder).as_posix(), file


def _file(name: str, content: bytes) -> File:
    ending = Path(name).suffix
    type = _TYPES.get(ending) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    packed = None if ending in _SMALL_ALREADY else gzip.compress(content, 9, mtime=0)
    return File(content, type, packed if packed is not None and len(packed) < len(content) else None)


def _headers(page: str) -> list[tuple[bytes, bytes]]:
    maps = [_source(text) for text in _IMPORT_MAP.findall(page)]
    policy = "; ".join(
        (
            "default-src 'none'",
            " ".join(("script-src 'self'", *maps)),
            "style-src 'self'",
            "font-src 'self'",
            "img-src 'self' data:",
            "connect-src 'self'",
            "manifest-src 'self'",
            "form-action 'none'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    named = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }
    return [(name.encode(), value.encode()) for name, value in named.items()]


def _source(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
