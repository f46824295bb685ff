"""The sessions that a person's text means: an id, its beginning or its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from orchestrator.broker.records import SessionHead
from orchestrator.core.counts import counted
from orchestrator.core.frozen import record
from orchestrator.core.ids import InvalidSessionId, SessionId, TreeId, parse_session_id
from orchestrator.rollouts.log_source import LogSource
from orchestrator.views import ViewError

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead
    from orchestrator.core.ids import SessionId, TreeId
    from orchestrator.rollouts.log_source import LogSource

# ── short ids ─────────────────────────────────────────────────────────────────────────────────────
# Abbreviated session ids: how they are shown, and what a person's text may mean.
#
# The first half of a UUIDv7 is its time: all agents of a tree begin alike. Its end is random, so the end
# is what is shown; the beginning is taken as well. Knows ids, and nothing of sessions.


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


def whole_id(text: str, sessions: Iterable[str]) -> str | None:
    """The one of these ids that a text is, or is a part of; None for none.

    Raises `ViewError`, which names the candidates, for a part of several.
    """
    known = dict.fromkeys(sessions)
    if text in known:
        return text
    part = Abbreviation.of(text)
    found = [] if part is None else sorted(id for id in known if part.means(SessionId(id)))
    if len(found) > 1:
        raise several(text, found)
    return found[0] if found else None


def several(text: str, found: Sequence[str]) -> ViewError:
    """The error about a part of several ids, which names some of them."""
    named = ", ".join(found[:CANDIDATES_SHOWN])
    more = f" and {len(found) - CANDIDATES_SHOWN} more" if len(found) > CANDIDATES_SHOWN else ""
    return ViewError(
        f"{text!r} is part of the ids of {counted(len(found), 'session')}: {named}{more}; give more of the id"
    )


def _digits(text: str) -> str:
    return text.replace("-", "")


# ── find ──────────────────────────────────────────────────────────────────────────────────────────


MOST_MEANT = 1_000
"""Sessions that one abbreviation is compared for: of a tree with more, any of them leads to it."""
CANDIDATES_SHOWN = 5


async def find(source: LogSource, text: str) -> SessionHead:
    """The session that an id, or a part of one, names; raises `ViewError`.

    A part that fits a tree's root and agents of it means the root: ids of one minute begin alike.
    """
    found = await _found(source, text)
    root = next((head for head in found if str(head.session) == str(head.tree)), None)
    if root is not None and all(head.tree == root.tree for head in found):
        return root
    return chosen(text, found)


async def find_tree(source: LogSource, text: str) -> TreeId:
    """The tree of the sessions that an id, or a part of one, names; raises `ViewError`."""
    found = await _found(source, text)
    trees = {head.tree for head in found}
    return trees.pop() if len(trees) == 1 else chosen(text, found).tree


async def find_one(source: LogSource, text: str) -> SessionHead:
    """The only session that an id, or a part of one, names, for what cannot be undone; raises `ViewError`."""
    return chosen(text, await _found(source, text))


async def _found(source: LogSource, text: str) -> tuple[SessionHead, ...]:
    """The sessions that `text` may mean, of very many only some."""
    with suppress(InvalidSessionId):
        return await source.broker.logs.heads([parse_session_id(text)])
    part = Abbreviation.of(text)
    found: list[SessionId] = []
    if part is not None:
        async for sessions in source.broker.logs.session_ids():
            found += filter(part.means, sessions)
    # A root is older than its agents, and so are its digits lower.
    return await source.broker.logs.heads(sorted(found)[:MOST_MEANT])


def chosen(text: str, found: Sequence[SessionHead]) -> SessionHead:
    """The one that `text` means; raises `ViewError`, which names the candidates."""
    if len(found) == 1:
        return found[0]
    if not found:
        raise ViewError(f"no session {text!r}; {_what_names_one(text)}")
    raise several(text, [head.session for head in found])


def _what_names_one(text: str) -> str:
    if len(text.strip()) < LEAST:
        return f"give at least {LEAST} digits of its id, from the beginning or the end"
    return "`dendro sessions` lists those that there are"


# ── agents ────────────────────────────────────────────────────────────────────────────────────────
# Naming an agent on the command line: by its tree and its number, or by its own session.


@record
class Addressed:
    """An agent that a command is about."""

    head: SessionHead

    @property
    def session(self) -> SessionId:
        return self.head.session

    @property
    def agent_id(self) -> int:
        return int(self.head.agent_id)

    @property
    def tree(self) -> TreeId:
        return self.head.tree

    @property
    def root(self) -> SessionId:
        """The root's session, whose id is the tree's."""
        from orchestrator.core.ids import SessionId

        return SessionId(self.head.tree)

    @property
    def name(self) -> str:
        """As a person speaks of it."""
        return f"agent {self.agent_id}" if self.agent_id else "the root"


async def addressed(found: LogSource, text: str, agent: int | None, *, certain: bool = False) -> Addressed:
    """The agent `agent` of the tree that `text` belongs to, else the session itself; raises `ViewError`.

    `certain`, for what cannot be undone: a text that fits several sessions does not mean their root.
    """
    from orchestrator.core.ids import SessionId

    if agent is None:
        return Addressed(await (find_one(found, text) if certain else find(found, text)))
    tree = await find_tree(found, text)
    if agent == 0:
        return Addressed(await _known(found, SessionId(tree)))
    fields = await found.broker.trees.agents(tree)
    session = fields.get(f"s:{agent}")
    if session is None:
        raise ViewError(f"there is no agent {agent} in the tree {tree}; {_there_are(fields)}")
    return Addressed(await _known(found, SessionId(session.decode())))


async def labels(found: LogSource, tree: TreeId) -> Mapping[int, str]:
    """The labels of a tree's agents; empty for one that has none."""
    from orchestrator.core.registry import projected

    agents = projected(await found.broker.trees.agents(tree)).agents.values()
    return {agent.agent_id: str(agent.record.get("label") or "") for agent in agents}


async def _known(found: LogSource, session: SessionId) -> SessionHead:
    head = await found.broker.logs.head(session)
    if head is None:
        raise ViewError(f"the session {session} of this agent is gone: its tree was deleted")
    return head


def _there_are(fields: Mapping[str, bytes]) -> str:
    numbers = sorted(int(name[2:]) for name in fields if name.startswith("s:") and name != "s:0")
    if not numbers:
        return "its root has made none"
    shown = ", ".join(map(str, numbers[:20])) + (" …" if len(numbers) > 20 else "")
    return f"there are {shown}; `dendro tree` shows them"
