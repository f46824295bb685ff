"""Forks of whole sessions: what a new root takes from the log of another session, and what it does not.

It takes the conversation as it was at an entry, and the settings. What runs or waits there, requests that are
open, what was approved for the session, its agents and their accounts stay where they are.
"""

from __future__ import annotations

from collections.abc import Collection

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.compaction import newest_texts, stored_texts
from orchestrator.core.context import context_told, instructions_item, standing_instructions
from orchestrator.core.entries import Entry
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import SessionId
from orchestrator.core.inheritance import inherited_history
from orchestrator.core.lines import given
from orchestrator.core.modes import task_settings
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import State
from orchestrator.protocol.items import InputText, Message
from orchestrator.protocol.wire import JsonObject

ALONE = (
    "This conversation was an agent's in a tree of agents, and goes on as a session of its own: there is no "
    "agent above you any more, and nobody waits for your result but the user."
)
"""The developer message to the fork of an agent below a root."""


@record
class ForkedFrom:
    """A place in a session's log, and the state there."""

    session: SessionId
    seq: int
    head: str
    state: State


def inherited_entries(
    source: ForkedFrom, settings: TurnSettings, user_instructions: str | None
) -> tuple[Entry, ...]:
    """The entries by which a new log takes the conversation over; it needs nothing else of the source."""
    state = source.state
    content, _ = inherited_history(state.history, frozenset())
    parent: JsonObject = {"session": source.session, "seq": source.seq, "chain": source.head}
    texts, instructions = stored_texts(newest_texts(state)), standing_instructions(state.history)
    entries = [e.fact(f.Forked(parent, content, tuple(texts), tuple(instructions)))]
    if state.told_folders != (settings.cwd,):
        entries.append(e.fact(f.FoldersTold(state.told_folders)))
    if user_instructions and user_instructions != given(state.meta.instructions):
        entries.append(e.item(instructions_item(user_instructions, replacing=True)))
    changed = context_told(task_settings(state.in_force), task_settings(settings))
    if changed is not None:
        entries.append(e.item(changed))
    if not state.facts.is_root:
        entries.append(e.item(Message(role="developer", content=(InputText(text=ALONE),))))
    return tuple(entries)


def taken_settings(source: State, own: TurnSettings, named: Collection[str]) -> TurnSettings:
    """The settings of the source, but for those of `own` that are `named`."""
    taken = source.settings.changed({name: getattr(own, name) for name in named})
    mode = taken.collaboration_mode
    if mode is None or not {"model", "effort"}.intersection(named):
        return taken
    # A mode would set its own model again with its next change.
    settings = {**mode["settings"], "model": taken.model, "reasoning_effort": taken.effort}
    return replace(taken, collaboration_mode={**mode, "settings": settings})


def taken_facts(source: SessionFacts, own: SessionFacts, named: Collection[str]) -> SessionFacts:
    """The facts of a new root, `own`, with what the source was made with; `named` stay as they are."""
    taken = {name: getattr(source, name) for name in _TAKEN if name not in named}
    return replace(own, **taken)


_TAKEN = (
    "base_instructions",
    "on_user_input",
    "approval_timeout_ms",
    "agents",
    "web_search",
    "view_image",
    "update_plan",
    "apply_patch",
    "patch_freeform",
)
