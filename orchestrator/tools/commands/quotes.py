"""Writes words back as one line of shell, quoted the way Codex's `cmd` texts are.

`shlex.join` will not do: it leaves `=`, `,` and `%` bare, where Codex writes
`sed -n '1,20p'`, and clients group and compare by this text. The rule (that of the
protocol of September 2025, whose `cmd` fields it produces):

- letters, digits and `+-./:@]_` stand bare;
- a word with anything else is in single quotes, or in double quotes if it holds `'` or `\\`;
- where neither kind can hold the whole word, it is cut into the longest runs that fit one.

`^` may only follow an opening single quote, and `!` may not stand in double quotes: an
interactive bash, into which a user pastes the line, would take either for history.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_BARE: Final = re.compile(r"[A-Za-z0-9+\-./:@\]_]+")
_SINGLE_RUN: Final = re.compile(r"\^?[^'\\^]*")
_DOUBLE_RUN: Final = re.compile(r"[^`$!^]*")
_ESCAPED_IN_DOUBLE: Final = re.compile(r'(["\\])')


def join(words: Iterable[str]) -> str:
    """The words as one line that a POSIX shell splits into the same words."""
    return " ".join(_quote(word) for word in words)


def _quote(word: str) -> str:
    if not word:
        return "''"
    if _BARE.fullmatch(word):
        return word
    quoted: list[str] = []
    start = 0
    while start < len(word):
        single = _SINGLE_RUN.match(word, start)
        double = _DOUBLE_RUN.match(word, start)
        assert single is not None
        assert double is not None
        if single.end() >= double.end():
            quoted.append(f"'{single[0]}'")
        else:
            quoted.append('"' + _ESCAPED_IN_DOUBLE.sub(r"\\\1", double[0]) + '"')
        start = max(single.end(), double.end())
    return "".join(quoted)
