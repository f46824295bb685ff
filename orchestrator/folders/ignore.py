"""Rules of `.gitignore` files, as git reads them (gitignore(5), wildmatch.c of git 2.39).

Patterns come from whoever wrote the folder. Each becomes a regular expression in which every part between
two stars is matched once, at its first place, and never again: no pattern takes more than the product of
its length and the path's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

MOST_BYTES = 256 * 1024
"""Bytes of one file of rules. A file with more is refused: what it hides might hold secrets."""
_MOST_LINE = 2048
_MOST_RULES = 5000
_POSIX = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"!-~",
    b"lower": rb"a-z",
    b"print": rb" -~",
    b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb" \t\n\v\f\r",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}
_SLASH, _STAR, _TWO_STARS, _ONE = b"/", b"*", b"**", rb"[^/]"


class TooManyRules(ValueError):
    """A file of rules is beyond a bound."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A line of rules."""

    regex: bytes
    negated: bool
    folders_only: bool
    by_name: bool
    """Whether it is matched with the last name of a path, at any depth."""
    segments: tuple[bytes, ...] = ()
    """Expressions of the folders that lead to it, up to the first `**`; none if it goes by name."""
    reaches: bool = False
    """Whether a `**` follows these folders."""


class Patterns:
    """The lines of one file of rules. A path is relative to the folder of that file."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines

    @cached_property
    def all(self) -> list[Pattern]:
        """The patterns, in their order."""
        found = (_pattern(line) for line in self._lines)
        return [pattern for pattern in found if pattern is not None]

    @cached_property
    def _compiled(self) -> list[tuple[Pattern, re.Pattern[bytes]]]:
        return [(pattern, re.compile(pattern.regex, re.DOTALL)) for pattern in reversed(self.all)]

    @cached_property
    def _any_name(self) -> re.Pattern[bytes] | None:
        return _union(pattern.regex for pattern in self.all if pattern.by_name)

    @cached_property
    def _any_path(self) -> re.Pattern[bytes] | None:
        return _union(pattern.regex for pattern in self.all if not pattern.by_name)

    def judge(self, path: bytes, is_folder: bool) -> bool | None:
        """Whether the last line that matches ignores the path; None if no line matches."""
        name = path[path.rfind(b"/") + 1 :]
        # Most names match nothing: that costs one expression instead of hundreds.
        by_name = self._any_name is not None and self._any_name.fullmatch(name)
        by_path = self._any_path is not None and self._any_path.fullmatch(path)
        if not (by_name or by_path):
            return None
        for pattern, regex in self._compiled:
            if pattern.folders_only and not is_folder:
                continue
            if regex.fullmatch(name if pattern.by_name else path):
                return not pattern.negated
        return None

    def reaches_into(self, folder: bytes) -> bool:
        """Whether a line that names folders may match something below `folder`."""
        parts = folder.split(b"/")
        return any(_leads(pattern, parts) for pattern in self.all if not pattern.by_name)


def _leads(pattern: Pattern, parts: list[bytes]) -> bool:
    for at, part in enumerate(parts):
        if at >= len(pattern.segments):
            return pattern.reaches
        if not re.fullmatch(pattern.segments[at], part, re.DOTALL):
            return False
    return True


class Rules:
    """The rules that hold in a folder: those of its own file, then those of the folders above it."""

    __slots__ = ("_depth", "_patterns", "above", "key")

    def __init__(self, patterns: Patterns, above: Rules | None, depth: int, key: bytes) -> None:
        self._patterns = patterns
        self.above = above
        self._depth = depth
        self.key = key
        """Equal for equal rules: what they ignored once, they ignore again."""

    @classmethod
    def first(cls, lines: Iterable[str], settings: bytes = b"") -> Rules:
        """The rules of the person's own, which every file of the folder outdoes."""
        encoded = [line.encode("utf-8", "surrogateescape") for line in lines]
        return cls(Patterns(encoded), None, 0, hashlib.sha1(b"\n".join((settings, *encoded))).digest())

    def with_file(self, content: bytes, depth: int) -> Rules:
        """The rules in a folder, `depth` names below the root, whose `.gitignore` has this content.

        Raises `TooManyRules` for one beyond a bound.
        """
        return Rules(Patterns(lines_of(content)), self, depth, hashlib.sha1(self.key + content).digest())

    def ignores(self, path: bytes, is_folder: bool) -> bool:
        """Whether the path, from the root, is ignored by its own rules; its folders were asked before."""
        rules: Rules | None = self
        while rules is not None:
            below = path.split(b"/", rules._depth)[-1] if rules._depth else path
            verdict = rules._patterns.judge(below, is_folder)
            if verdict is not None:
                return verdict
            rules = rules.above
        return False


def lines_of(content: bytes) -> list[bytes]:
    """The lines of a file of rules that say something. Raises `TooManyRules` beyond a bound."""
    if len(content) > MOST_BYTES:
        raise TooManyRules(f"it has more than {MOST_BYTES:,} bytes")
    lines: list[bytes] = []
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if line and not line.startswith(b"#"):
            lines.append(line.removesuffix(b"\r"))
            if len(line) > _MOST_LINE:
                raise TooManyRules(f"it has a line of more than {_MOST_LINE:,} bytes")
    if len(lines) > _MOST_RULES:
        raise TooManyRules(f"it has more than {_MOST_RULES:,} rules")
    return lines


def _union(regexes: Iterable[bytes]) -> re.Pattern[bytes] | None:
    joined = b"|".join(regexes)
    return re.compile(joined, re.DOTALL) if joined else None


def _pattern(line: bytes) -> Pattern | None:
    line = _without_trailing_spaces(line)
    if not line or line.startswith(b"#"):
        return None
    negated = line.startswith(b"!")
    line = line.removeprefix(b"!")
    folders_only = line.endswith(b"/")
    if folders_only:
        line = line[:-1]
    by_name = b"/" not in line
    tokens = _tokens(line.removeprefix(b"/") if not by_name else line)
    if not tokens:
        return None
    segments = _segments(tokens)
    regexes = [_segment(segment) for segment in segments]
    led = regexes[: segments.index([_TWO_STARS])] if [_TWO_STARS] in segments else regexes
    return Pattern(
        _path_regex(segments, regexes),
        negated,
        folders_only,
        by_name,
        () if by_name else tuple(led),
        len(led) < len(regexes),
    )


def _without_trailing_spaces(line: bytes) -> bytes:
    """The line without spaces at its end, but for one behind a backslash."""
    end = at = 0
    while at < len(line):
        if line[at : at + 1] == b"\\":
            at += 2
            end = min(at, len(line))
        else:
            at += 1
            if line[at - 1 : at] != b" ":
                end = at
    return line[:end]


def _tokens(pattern: bytes) -> list[bytes] | None:
    """Expressions for single bytes, stars and slashes; None for a pattern that can match nothing."""
    tokens: list[bytes] = []
    at = 0
    while at < len(pattern):
        char = pattern[at : at + 1]
        if char == b"*":
            end = at
            while pattern[end : end + 1] == b"*":
                end += 1
            tokens.append(_STAR if end - at == 1 else _TWO_STARS)
            at = end
            continue
        if char == b"[":
            found = _bracket(pattern, at + 1)
            if found is None:
                return None
            token, at = found
            tokens.append(token)
            continue
        if char == b"\\":
            at += 1
            char = pattern[at : at + 1]
            if not char:
                return None
            tokens.append(_SLASH if char == b"/" else re.escape(char))
        elif char == b"/":
            tokens.append(_SLASH)
        else:
            tokens.append(_ONE if char == b"?" else re.escape(char))
        at += 1
    return tokens


def _bracket(pattern: bytes, at: int) -> tuple[bytes, int] | None:
    """The expression of a bracket whose content begins at `at`, and where the pattern goes on."""
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    first, parts = True, []
    previous: int | None = None
    while True:
        char = pattern[at : at + 1]
        if not char:
            return None
        if char == b"]" and not first:
            at += 1
            break
        first = False
        after = pattern[at + 1 : at + 2]
        if char == b"-" and previous is not None and after not in (b"", b"]"):
            last, at = _character(pattern, at + 1)
            if not last:
                return None
            if previous <= last[0]:
                parts.append(_byte(previous) + b"-" + _byte(last[0]))
            previous = None
        elif char == b"[" and after == b":" and (end := _end_of_class(pattern, at)) != at:
            named = _POSIX.get(pattern[at + 2 : end - 1]) if end >= 0 else None
            if named is None:
                return None
            parts.append(named)
            previous, at = None, end
        else:
            char, at = _character(pattern, at)
            if not char:
                return None
            parts.append(_byte(char[0]))
            previous = char[0]
        at += 1
    inside = b"".join(parts)
    if negated:
        return b"[^/" + inside + b"]", at
    return (b"(?!/)[" + inside + b"]" if inside else b"(?!)"), at


def _character(pattern: bytes, at: int) -> tuple[bytes, int]:
    """The character at a place, or behind a backslash there, and its place; empty where the pattern ends."""
    at += pattern[at : at + 1] == b"\\"
    return pattern[at : at + 1], at


def _end_of_class(pattern: bytes, at: int) -> int:
    """The place of the bracket that ends a class as `[:digit:]`, which begins at `at`.

    `at` itself where the bracket there is a character of the set, and -1 where the pattern ends before.
    """
    end = pattern.find(b"]", at + 2)
    if end >= 0 and (pattern[end - 1 : end] != b":" or end - 1 < at + 2):
        return at
    return end


def _byte(value: int) -> bytes:
    return b"\\x%02x" % value


def _segments(tokens: list[bytes]) -> list[list[bytes]]:
    """The tokens between slashes; two stars that are not alone there count as a single one."""
    segments: list[list[bytes]] = [[]]
    for token in tokens:
        if token == _SLASH:
            segments.append([])
        else:
            segments[-1].append(token)
    return [
        segment if segment == [_TWO_STARS] else [_STAR if t == _TWO_STARS else t for t in segment]
        for segment in segments
    ]


def _segment(tokens: list[bytes]) -> bytes:
    """The expression of one name. All stars but the last take the first place that fits, for good."""
    runs: list[bytes] = [b""]
    for token in tokens:
        if token in (_STAR, _TWO_STARS):
            runs.append(b"")
        else:
            runs[-1] += token
    if len(runs) == 1:
        return runs[0]
    inner = b"".join(b"(?>[^/]*?" + run + b")" for run in runs[1:-1] if run)
    return runs[0] + inner + b"[^/]*" + runs[-1]


def _path_regex(segments: list[list[bytes]], regexes: list[bytes]) -> bytes:
    """The expression of a path: `**` stands for any number of folders, at the end for all that is below."""
    groups: list[list[bytes]] = [[]]
    for segment, regex in zip(segments, regexes, strict=True):
        if segment == [_TWO_STARS]:
            groups.append([])
        else:
            groups[-1].append(regex)
    first, *rest = groups
    if not rest:
        return b"/".join(first)
    out = b"".join(regex + b"/" for regex in first)
    for group in rest[:-1]:
        if group:
            out += b"(?>(?:[^/]+/)*?" + b"".join(regex + b"/" for regex in group) + b")"
    last = rest[-1]
    return out + (b"(?:[^/]+/)*" + b"/".join(last) if last else b".+")
