"""Foreign text on a terminal: what a model or a command wrote must not steer what a person sees.

An escape sequence in a command could hide half of it from whoever is asked to approve it; a
bidirectional override could show it in another order. Both are made visible instead.
"""

from __future__ import annotations

import unicodedata

from rich.text import Text

_KEPT = frozenset("\n\t")
_CONTROL_PICTURES = 0x2400
"""Unicode's pictures of the C0 controls stand in the controls' own order."""


def plain(text: str) -> str:
    """The text with nothing in it that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(_visible(char) for char in text.replace("\r\n", "\n"))


def _visible(char: str) -> str:
    if char in _KEPT:
        return char
    code = ord(char)
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    # Cc: DEL and the C1 controls; Cf: bidirectional overrides and the like; Cs: lone surrogates.
    if unicodedata.category(char) in ("Cc", "Cf", "Cs"):
        return f"\\u{code:04x}"
    return char


def shown(text: str, style: str = "") -> Text:
    """The same for rich, which reads no markup in it."""
    return Text(plain(text), style=style)


def one_line(text: str) -> str:
    """The text on a single line: its line breaks and tabs are shown as what they are."""
    return plain(text).replace("\n", "␊").replace("\t", "␉")
