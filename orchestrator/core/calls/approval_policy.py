"""The verdict on what a call asks for: it runs, is asked about, or is refused.

The four policies (the September 2025 specification, `AskForApproval`), with the dangerous-command rule of
January 2026. Each kind of call judges by them for itself; nothing is executed or read for it.
"""

from __future__ import annotations

from typing import Self

from orchestrator.core.frozen import record


@record
class Run:
    """The call may run now; `sandboxed` is False where confinement was given up knowingly."""

    sandboxed: bool


@record
class Ask:
    """An approval must come first; `sandboxed` says how the call runs if approved."""

    reason: str | None
    """Dendro's own reason for asking."""
    sandboxed: bool
    proposed: tuple[str, ...] = ()
    """The prefix of the command that the approval may allow from now on."""
    says: str = ""
    """The model's justification."""
    outside: tuple[str, ...] = ()
    """The paths outside of the writable roots that it would write."""


@record
class Refuse:
    """The call will not run; the text is its output."""

    text: str


Verdict = Run | Ask | Refuse


@record
class Remembered:
    """An approval for the session: the keys of what is not asked about again, and granted folders."""

    keys: tuple[str, ...]
    roots: tuple[str, ...] = ()


def short_keys(keys: tuple[object, ...]) -> tuple[str, ...]:
    """The keys that stand in the entry itself; what one of the others names is asked about again."""
    return tuple(key for key in keys if isinstance(key, str))


class Runs:
    """The answers that kinds of work which run have in common; a kind that differs gives its own."""

    __slots__ = ()

    def confined(self, asked: Ask) -> bool:
        """Whether it stays within what the sandbox permits if it is approved."""
        return not asked.outside

    def by_link(self, asked: Ask) -> bool:
        """Whether a link leads from a path of it to another one, outside of the sandbox's folders."""
        return False

    def proposing(self, prefix: tuple[str, ...]) -> Self:
        """The same work, whose approval may allow a prefix of its command from now on."""
        return self
