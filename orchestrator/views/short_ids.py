"""Abbreviated session ids: how they are shown, and what a person's text may mean.

The first half of a UUIDv7 is its time: all agents of a tree begin alike. Its end is random, so the
end is what is shown; the beginning is taken as well. Knows ids, and nothing of sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.core.frozen import record
from orchestrator.core.ids import SessionId

SHORT = 8
"""Digits shown at least: 32 random bits."""
LEAST = 4
"""Digits that an abbreviation has at least; fewer would soon mean a stranger's session."""
_DIGITS = frozenset("0123456789abcdef")
_LENGTH = 32


def short_ids(sessions: Iterable[SessionId]) -> Mapping[SessionId, str]:
    """The end of each id, long enough to differ from all the others."""
    found = set(sessions)
    length = SHORT
    while len({_digits(session)[-length:] for session in found}) < len(found):
        length += 1
    return {session: _digits(session)[-length:] for session in found}


def short_id(session: SessionId | str) -> str:
    """The end of an id that is shown alone."""
    return _digits(session)[-SHORT:]


@record
class Abbreviation:
    """The beginning or the end of an id."""

    digits: str

    @classmethod
    def of(cls, text: str) -> Abbreviation | None:
        """None if no id begins or ends like this, or if the text is too short to mean one."""
        digits = _digits(text.strip().lower())
        fits = LEAST <= len(digits) <= _LENGTH and _DIGITS.issuperset(digits)
        return cls(digits) if fits else None

    def means(self, session: SessionId) -> bool:
        digits = _digits(session)
        return digits.startswith(self.digits) or digits.endswith(self.digits)


def _digits(text: str) -> str:
    return text.replace("-", "")
