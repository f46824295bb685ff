"""The summary of a session in its hash, for lists: a projection, rewritten whenever the session rests.

And whenever a list would show something else before that: a name, the first words, the tokens of the first
turn, the end of a turn behind which a process lives.
"""

from __future__ import annotations

from typing import Any

import orjson

from orchestrator.core.agent_views import one_line
from orchestrator.core.compaction import is_bridge_text, nothing_said, was_compacted
from orchestrator.core.frozen import record
from orchestrator.core.history import message_text
from orchestrator.core.lines import given
from orchestrator.core.modes import goal_in
from orchestrator.core.packs import FolderChange
from orchestrator.core.review import asked_in
from orchestrator.core.snapshot import digest
from orchestrator.core.state import State
from orchestrator.core.tokens import context_left

# ── position ──────────────────────────────────────────────────────────────────────────────────────
# A place in a session's log, with all that was folded up to it.


@record
class Position:
    """A session's state and where in the log it was folded up to."""

    state: State
    seq: int
    head: bytes


# ── summary ───────────────────────────────────────────────────────────────────────────────────────


TITLE_CHARS = 80
PREVIEW_CHARS = 200
"""More of the same words, for lists that have room for them."""


def session_meta(position: Position, at_ms: int, *, rests: bool = True) -> bytes:
    """JSON: name, title, cwd, git, model, tokens, share of context left, the state's digest at its `seq`.

    Without the digest if the session does not rest: it costs more than all else here, and the next summary
    has another one.

    `children` counts those that its log tells of: an imported session has them, and its tree has not.
    """
    state = position.state
    settings, tokens, words = state.settings, state.tokens, _first_words(state)
    return orjson.dumps(
        {
            "name": state.name or None,
            "title": one_line(words, TITLE_CHARS) or "",
            "preview": one_line(words, PREVIEW_CHARS) or "",
            "cwd": settings.cwd,
            "model": settings.model,
            "model_provider": settings.model_provider,
            "effort": settings.effort,
            "git": given(state.meta.git),
            "status": state.status,
            "outcome": state.outcome or "",
            "blended_total": tokens.total.blended_total if tokens else 0,
            "context_left": context_left(tokens, settings.context_window),
            "updated_ms": at_ms,
            "forked_from": state.forked_from,
            "rollout_path": state.facts.rollout_path or "",
            **({"imported_from": source} if (source := state.facts.imported_from) else {}),
            "seq": position.seq,
            **({"state_sha256": digest(state)} if rests else {}),
            **_change(state.workspace.change),
            **({"children": len(state.tree.children)} if state.tree.children else {}),
            **({"processes": len(living)} if (living := state.processes.living) else {}),
            **({"unspoken": True} if _unspoken(state) else {}),
        }
    )


def shown_anew(before: State, after: State) -> bool:
    """Whether lists are to show another summary of a session that does not rest."""
    if before.name != after.name or _titled_anew(before, after):
        return True
    if len(before.processes.living) != len(after.processes.living) and after.task is None:
        return True
    if before.task is not None and after.task is None and after.processes.living:
        return True
    # Behind its first turn there are the figures of the last one until it rests.
    return not before.bookmarks and before.tokens != after.tokens


def _titled_anew(before: State, after: State) -> bool:
    """Whether the first words are others. They stay while a conversation that has some only grows."""
    if before.kept_user_texts is after.kept_user_texts:
        if before.history is after.history:
            return False
        grown = len(after.history) - len(before.history)
        if grown > 0 and next(iter(before.history), 0) is next(iter(after.history)):
            new = after.history.tail[-grown:] if grown <= len(after.history.tail) else after.history
            said = any(map(_user_text, new)) and not _first_words(before)
            return said and title(before) != title(after)
    return title(before) != title(after)


def _unspoken(state: State) -> bool:
    """Whether nobody has said or begun anything yet: a client has opened the session, and that is all."""
    began = state.task is not None or state.outcome is not None or bool(state.queue or state.name)
    return not began and nothing_said(state.history) and not was_compacted(state.history)


def _change(change: FolderChange | None) -> dict[str, Any]:
    """The size of what was changed in a portable folder; nothing for a session that has none."""
    if change is None:
        return {}
    found = {"files": change.files, "insertions": change.insertions, "deletions": change.deletions}
    return {"change": found}


def title(state: State) -> str:
    """The first thing that the user said, or had reviewed or planned, on one line."""
    return one_line(_first_words(state), TITLE_CHARS) or ""


def _first_words(state: State) -> str:
    # A compaction has made one message of what was said before it.
    before = (text for text in state.kept_user_texts if isinstance(text, str))
    return next(before, "") or next(filter(None, map(_user_text, state.history)), "")


def _user_text(item: Any) -> str:
    if item.get("type") != "message" or item.get("role") != "user":
        return ""
    text = message_text(item)
    if is_bridge_text(text):
        return ""
    return asked_in(text) if text.startswith("<") else goal_in(text) or text
