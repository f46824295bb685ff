"""Names and links of a folder: which may be in a snapshot, and how paths are shown.

The same checks hold when a snapshot is taken and when a folder is made from one: a snapshot may be
another machine's, or nobody's that we know.
"""

from __future__ import annotations

import stat

FILE, PROGRAM, LINK, FOLDER, COMMIT = 0o100644, 0o100755, 0o120000, 0o040000, 0o160000
"""Modes of git's trees."""

MOST_DEPTH = 100
"""Folders below each other. Whoever walks them goes down by calls, and keeps a descriptor of each."""
MOST_PATH = 4000
"""Bytes of a path: no program can name what lies beyond."""
MOST_LINK = 4000

_IGNORABLE = dict.fromkeys(
    [*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF], None
)
"""Characters that a Mac's file system does not see: with one of them in it, `.git` is still `.git`."""
_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}


def refused_name(name: bytes) -> str | None:
    """The reason why no snapshot may have the name; None for all others.

    A name that any file system takes for `.git` is a repository's on that machine, and a repository
    is code that the next `git` in the folder runs.
    """
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
        return "not a name"
    if b"git" not in name.lower() and name.isascii():
        return None
    plain = name.decode("utf-8", "surrogateescape").translate(_IGNORABLE).casefold()
    if plain.partition(":")[0].rstrip(" .") in (".git", "git~1"):
        return "a repository's own folder"
    return None


def refused_link(target: bytes, depth: int) -> str | None:
    """The reason why no snapshot may have a link with this target, `depth` folders below the root.

    `..` is allowed at the beginning alone: behind a name it may pass another link, and lead out.
    """
    if not target or b"\0" in target or len(target) > MOST_LINK:
        return "a link without a usable target"
    if target.startswith(b"/"):
        return "a link to an absolute path"
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    up = 0
    while up < len(parts) and parts[up] == b"..":
        up += 1
    if up > depth or b".." in parts[up:]:
        return "a link that leads out of the folder"
    return None


def mode_of(st_mode: int) -> int:
    """Git's mode of a regular file."""
    return PROGRAM if st_mode & stat.S_IXUSR else FILE


def quoted(path: bytes) -> str:
    """A path as git quotes it, but for letters beyond ASCII, which are shown where they can be seen."""
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if text and text.isprintable() and '"' not in text and "\\" not in text:
        return text
    return '"' + "".join(map(_escaped, path)) + '"'


def _escaped(byte: int) -> str:
    if byte in _ESCAPES:
        return "\\" + _ESCAPES[byte]
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"
