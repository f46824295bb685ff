"""The sessions that a person's text means: an id, its beginning or its end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from orchestrator.broker.records import SessionHead
from orchestrator.core.counts import counted
from orchestrator.core.ids import InvalidSessionId, SessionId, TreeId, parse_session_id
from orchestrator.rollouts.source import LogSource
from orchestrator.views.errors import ViewError
from orchestrator.views.short_ids import LEAST, Abbreviation

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
    named = ", ".join(head.session for head in found[:CANDIDATES_SHOWN])
    more = f" and {len(found) - CANDIDATES_SHOWN} more" if len(found) > CANDIDATES_SHOWN else ""
    raise ViewError(
        f"{text!r} is part of the ids of {counted(len(found), 'session')}: {named}{more}; give more of the id"
    )


def _what_names_one(text: str) -> str:
    if len(text.strip()) < LEAST:
        return f"give at least {LEAST} digits of its id, from the beginning or the end"
    return "`dendro sessions` lists those that there are"
