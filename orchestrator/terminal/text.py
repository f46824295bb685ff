"""Foreign text as a terminal may have it.

Text of a model or a command must not steer the terminal: an escape sequence in a command could
hide half of it from the person who approves it; a bidirectional override could show it in another
order. Both are made visible instead.
"""

from __future__ import annotations

import re
import sys
import unicodedata

from rich.text import Text

_KEPT = frozenset("\n\t")
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2028\u2029\u3164\uffa0\U000e0100-\U000e01ef]"
)
"""Letters, marks and separators that terminals show nothing of: with one in it a name looks like another."""
_CONTROL_PICTURES = 0x2400
"""Unicode's pictures of the C0 controls stand in the controls' own order."""


def plain(text: str) -> str:
    """The text with nothing in it that a terminal would obey."""
    if text.isprintable() and (text.isascii() or _UNSEEN.search(text) is None):
        return text
    return "".join(_visible(char) for char in text.replace("\r\n", "\n"))


def _visible(char: str) -> str:
    if char in _KEPT:
        return char
    code = ord(char)
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    return f"\\u{code:04x}" if _steers(char) or _UNSEEN.match(char) else char


def _steers(char: str) -> bool:
    """Whether a terminal may obey it."""
    # Cc: controls, C1 too; Cf: bidirectional overrides and the like; Cs: lone surrogates.
    return char not in _KEPT and unicodedata.category(char) in ("Cc", "Cf", "Cs")


def plain_json(text: str) -> str:
    """JSON text of the same value, in whose strings a terminal finds nothing to obey."""
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(_escaped(char) if _steers(char) else char for char in text)


def _escaped(char: str) -> str:
    """The character in the notation of JSON: two escapes for one outside of the basic plane (RFC 8259, 7)."""
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def json_for_stdout(data: bytes) -> bytes:
    """JSON as it is printed: unchanged for a program, without what steers a terminal for a person."""
    return plain_json(data.decode()).encode() if sys.stdout.isatty() else data


def shown(text: str, style: str = "") -> Text:
    """The same for rich, which reads no markup in it."""
    return Text(plain(text), style=style)


def one_line(text: str) -> str:
    """The text on a single line: its line breaks and tabs are shown as what they are."""
    return plain(text).replace("\n", "␊").replace("\t", "␉")
