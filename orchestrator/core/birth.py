"""The first entries of a session: who it is, what it runs under, what its model is told first, what it
inherits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import orjson

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.blobs import REFERENCE, is_reference, references, resolve
from orchestrator.core.compaction import newest_texts, stored_texts
from orchestrator.core.context import context_told, initial_context, instructions_item, standing_instructions
from orchestrator.core.entries import Entry, timestamp
from orchestrator.core.frozen import record, replace
from orchestrator.core.history import CALL_KINDS, INHERITED, OUTPUT_KINDS, Item, for_model
from orchestrator.core.ids import SessionId
from orchestrator.core.lines import MetaLine, given, told_of_git
from orchestrator.core.modes import task_settings
from orchestrator.core.sender import Sender
from orchestrator.core.settings import FORKED_FACTS, NO_HISTORY, HistoryHead, SessionFacts, TurnSettings
from orchestrator.core.state import State
from orchestrator.protocol import events as ev
from orchestrator.protocol.items import InputText, Message
from orchestrator.protocol.wire import UNSET, JsonObject, JsonValue

ORIGINATOR = "dendro"
MOST_NAMED = 10
"""Files that the warning about those that were left out names."""


@record
class Birth:
    """The values that a session is made from; the caller has done every look-up."""

    facts: SessionFacts
    settings: TurnSettings
    version: str
    at_ms: int
    user_instructions: str | None = None
    shell: str = "bash"
    git: Mapping[str, str] | None = None
    """`commit_hash`, `branch`, `repository_url` of the working folder, as far as there are any."""
    history: HistoryHead = NO_HISTORY
    source: ForkedFrom | None = None
    """The place in another session's log whose conversation it begins with."""
    originator: str = ORIGINATOR
    """The program that the session was made for."""
    folder: f.WorkspaceBegun | None = None
    """The first snapshot of a portable folder, where the store has one already."""
    announced_ms: int = 0
    """When its packs were announced; 0 where it begins without any."""
    warnings: tuple[str, ...] = ()
    """Words for people about what the session begins without."""
    by: Sender | None = None


def first_entries(birth: Birth) -> tuple[Entry, ...]:
    """`session_meta`, the settings, `session_configured` (id `""`), and the initial context."""
    facts, settings = birth.facts, birth.settings
    source = birth.source
    parent = UNSET if source is None else source.session
    meta = MetaLine(
        facts.session_id,
        timestamp(birth.at_ms),
        settings.cwd,
        birth.originator,
        birth.version,
        birth.user_instructions,
        git=told_of_git(dict(birth.git)) if birth.git else UNSET,
        forked_from_id=parent,
    )
    if source is not None:
        opening = inherited_entries(source, settings, birth.user_instructions)
    else:
        opening = tuple(
            map(e.item, initial_context(task_settings(settings), birth.user_instructions, birth.shell))
        )
    return (
        e.line(meta),
        e.fact(f.Configured(settings, facts, export_mac=True, by=birth.by)),
        *((e.fact(birth.folder),) if birth.folder is not None else ()),
        session_configured("", facts, settings, history=birth.history, forked_from=given(parent)),
        *_left_out(birth.folder),
        *(e.event("", ev.WarningEvent(message=warning)) for warning in birth.warnings),
        *opening,
    )


def _left_out(folder: f.WorkspaceBegun | None) -> Iterator[Entry]:
    """The warning about files that a portable folder begins without."""
    if folder is not None and folder.omitted:
        named = ", ".join(folder.omitted[:MOST_NAMED])
        more = f" and {len(folder.omitted) - MOST_NAMED} more" if folder.omitted[MOST_NAMED:] else ""
        yield e.event("", ev.WarningEvent(message=f"not in the session's folder: {named}{more}"))


def session_configured(
    id: str,
    facts: SessionFacts,
    settings: TurnSettings,
    name: str = "",
    initial_messages: Iterable[JsonObject] | None = None,
    history: HistoryHead = NO_HISTORY,
    forked_from: str | None = None,
) -> Entry:
    """The event that tells a client what it is connected to; on resume with the events so far."""
    said = None if initial_messages is None else tuple(map(ev.UnknownEvent, initial_messages))
    return e.event(
        id,
        ev.SessionConfigured(
            session_id=facts.session_id,
            model=settings.model,
            thread_name=name or None,
            reasoning_effort=settings.effort,
            history_log_id=history.log_id,
            history_entry_count=history.count,
            initial_messages=said,
            forked_from_id=forked_from,
            rollout_path=facts.rollout_path or "",
        ),
    )


# ── session fork ──────────────────────────────────────────────────────────────────────────────────
# Forks of whole sessions: what a new root takes from the log of another session, and what it does not.
#
# It takes the conversation as it was at an entry, and the settings. What runs or waits there, requests
# that are open, what was approved for the session, its agents and their accounts stay where they are.


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
    parent = f.ForkedAt(session=source.session, seq=source.seq, chain=source.head)
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
    taken = {name: getattr(source, name) for name in FORKED_FACTS if name not in named}
    return replace(own, **taken)


# ── inheritance ───────────────────────────────────────────────────────────────────────────────────
# Inherited conversations: a fork begins with its parent's as one text, opened only for a model.
#
# The text is the same for every fork from one place of one conversation, so a hundred forks share one
# stored copy. A log that begins with it needs nothing else of the parent's.


TextOf = Callable[[str], str | None]
_ELSEWHERE = (f'"{REFERENCE}"'.encode(), f'"{INHERITED}"'.encode())


def inherited_history(history: Iterable[Item], without: frozenset[str]) -> tuple[str, int]:
    """The conversation as a child inherits it, but for the calls (and their outputs) named in `without`.

    With the number of its items; what this session has inherited itself is one of them.
    """
    kept = [_plain(item) for item in for_model(item for item in history if not _is_of(item, without))]
    return orjson.dumps(kept, default=dict).decode(), len(kept)


def _plain(item: Item) -> Item:
    """An inherited conversation without what its own log notes beside it."""
    return {name: item[name] for name in ("type", "content")} if item.get("type") == INHERITED else item


def _is_of(item: Item, calls: frozenset[str]) -> bool:
    return item.get("type") in CALL_KINDS | OUTPUT_KINDS and item.get("call_id") in calls


def whole(history: Sequence[Item]) -> bool:
    """Whether nothing of a conversation stands elsewhere: then a model reads it as it is.

    Every model request asks this of all that was said, so the encoder looks and no loop does. It may
    be told no by a text that only speaks of such things.
    """
    try:
        text = orjson.dumps(history, default=dict)
    except orjson.JSONEncodeError:
        # Whoever sends it will find out, too, and says so in words of its own.
        return False
    return not refers(text)


def refers(data: bytes) -> bool:
    """Whether JSON of a conversation may name what stands elsewhere: a stored text, an inherited one."""
    return any(word in data for word in _ELSEWHERE)


def opened(history: Iterable[Item], text_of: TextOf) -> Iterator[Item]:
    """The conversation with inherited ones in their place, at any depth, and large texts put back."""
    for item in history:
        if item.get("type") != INHERITED:
            # Only an item that has a reference is copied.
            yield resolve(item, text_of)
            continue
        items = _content(item, text_of)
        if items is not None:
            yield from opened(items, text_of)


def needed(history: Iterable[Item], text_of: TextOf) -> set[str]:
    """The texts to fetch next. What an inherited conversation needs is known only when it is there."""
    found: set[str] = set()
    for item in history:
        found.update(digest for digest in references(item) if text_of(digest) is None)
        if item.get("type") == INHERITED:
            found |= needed(_content(item, text_of) or (), text_of)
    return found


def _content(item: Item, text_of: TextOf) -> list[Item] | None:
    content: JsonValue = item["content"]
    if is_reference(content):
        content = text_of(content["$blob"])
    return orjson.loads(content) if content is not None else None
