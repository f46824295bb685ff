"""Plan blocks in a model's text: `<proposed_plan>` and `</proposed_plan>`, each alone on its line.

A text comes in pieces of any length, and any cut of it gives the same parts. At the beginning of a line
characters are held as long as the line may still become the tag that is looked for; the first one that
disproves it sets all of them free. Blanks around a tag do not matter. An opening tag inside a block is the
plan's own text, and so is a closing tag outside of one the message's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

OPEN, CLOSE = "<proposed_plan>", "</proposed_plan>"
MOST_HELD: Final = 256
"""Characters of a line that may be a tag, blanks counted: what is held stays small."""


@dataclass(slots=True)
class Normal:
    """Text of the message itself. Not frozen: one is made of each piece, and freezing doubles its cost."""

    text: str


@dataclass(frozen=True, slots=True)
class Start:
    """A block begins."""


@dataclass(slots=True)
class Plan:
    """Text of a block. Not frozen, as `Normal` is not."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """A block is over."""


Part: TypeAlias = Normal | Start | Plan | End
_START, _END = Start(), End()


class TagParser:
    """The parts of one message, as its text comes."""

    __slots__ = ("_held", "_inside", "_kind", "_passing")

    def __init__(self) -> None:
        self._inside = False
        self._kind: type[Normal | Plan] = Normal
        """Of the text that comes now."""
        self._held = ""
        """The beginning of a line that may still become a tag."""
        self._passing = False
        """Whether the rest of the line is text, whatever comes."""

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain once `text` has come.

        Most pieces have no tag in them, and no more is done for these than to see that.
        """
        if self._passing:
            if "\n" not in text:
                return [self._kind(text)] if text else []
        elif self._held:
            text, self._held = self._held + text, ""
        if "<" not in text:
            rest = text[text.rfind("\n") + 1 :]
            if not rest.isspace():
                self._passing = bool(rest)
                return [self._kind(text)] if text else []
        return self._lines(text)

    def _lines(self, text: str) -> list[Part]:
        """Reads line by line; the last of them has no end yet."""
        parts: list[Part] = []
        at = text.find("\n") + 1 if self._passing else 0
        self._passing = False
        begun, last = 0, text.rfind("\n") + 1
        while (found := text.find(self._tag, at, last)) >= 0:
            line = max(at, text.rfind("\n", at, found) + 1)
            at = text.find("\n", found) + 1
            if self._is_tag(text[line : at - 1]):
                self._text(parts, text[begun:line])
                self._turn(parts)
                begun = at
        rest = text[last:]
        if self._may_be_tag(rest):
            self._held, rest = rest, ""
        else:
            self._passing = True
        self._text(parts, text[begun:last] + rest)
        return parts

    def finish(self) -> list[Part]:
        """The parts that the end of the message makes certain; an open block ends with it."""
        parts: list[Part] = []
        held, self._held = self._held, ""
        if self._is_tag(held):
            self._turn(parts)
        else:
            self._text(parts, held)
        if self._inside:
            self._turn(parts)
        return parts

    @property
    def _tag(self) -> str:
        return CLOSE if self._inside else OPEN

    def _is_tag(self, line: str) -> bool:
        return len(line) <= MOST_HELD and line.strip() == self._tag

    def _may_be_tag(self, line: str) -> bool:
        return len(line) <= MOST_HELD and (self._tag.startswith(line.lstrip()) or self._is_tag(line))

    def _text(self, parts: list[Part], text: str) -> None:
        if text:
            parts.append(self._kind(text))

    def _turn(self, parts: list[Part]) -> None:
        parts.append(_END if self._inside else _START)
        self._inside = not self._inside
        self._kind = Plan if self._inside else Normal


@dataclass(frozen=True, slots=True)
class Proposal:
    """A finished message: what it says beside its blocks, and the plan in them; None without a block."""

    said: str
    plan: str | None


def proposal(text: str) -> Proposal:
    """Reads a whole message; several blocks are one plan, joined by lines."""
    if OPEN not in text:
        return Proposal(_trimmed(text), None)
    parser = TagParser()
    parts = [*parser.feed(text), *parser.finish()]
    blocks = list(_blocks(parts))
    said = "".join(part.text for part in parts if isinstance(part, Normal))
    return Proposal(_trimmed(said), "\n".join(blocks) if blocks else None)


def _blocks(parts: Iterable[Part]) -> Iterable[str]:
    block = ""
    for part in parts:
        if isinstance(part, Plan):
            block += part.text
        elif isinstance(part, End):
            yield block.removesuffix("\n").removesuffix("\r")
            block = ""


def _trimmed(text: str) -> str:
    """The text without blank lines at its two ends; empty if it has no others."""
    if not text.strip():
        return ""
    begun = text[: len(text) - len(text.lstrip())].rfind("\n") + 1
    return text[begun:].rstrip()
