"""The first entries of a session: who it is, what it runs under, what its model is told first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.birth.session_fork import ForkedFrom, inherited_entries
from orchestrator.core.context import initial_context
from orchestrator.core.entries import Entry, timestamp
from orchestrator.core.frozen import record
from orchestrator.core.lines import MetaLine, given
from orchestrator.core.modes import task_settings
from orchestrator.core.settings import NO_HISTORY, HistoryHead, SessionFacts, TurnSettings
from orchestrator.protocol import events as ev
from orchestrator.protocol.wire import UNSET, JsonObject

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
    warnings: tuple[str, ...] = ()
    """Words for people about what the session begins without."""


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
        git=dict(birth.git) if birth.git else UNSET,
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
        e.fact(f.Configured(settings, facts, export_mac=True)),
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
