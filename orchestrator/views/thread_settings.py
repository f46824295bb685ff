"""The settings of a thread's next turn, read from the end of its log: no fold of a long one is needed."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.core import facts as f
from orchestrator.core.entries.stored import decode_entry, stored_kind
from orchestrator.core.lines import ContextLine, read_context
from orchestrator.core.settings import SettingsChanges, TurnSettings
from orchestrator.rollouts.source import LogSource
from orchestrator.views.past import MOST, STRETCH

FAR = 4_096
"""Entries from the end among which the begin of a turn is looked for; behind them a request's settings do."""
_FACTS = frozenset({f.Configured, f.SettingsChanged, f.TaskBegun})


async def settings_of(found: LogSource, head: SessionHead) -> TurnSettings:
    """The settings in force, large texts left out."""
    search = _Search(head.summary.get("model_provider"))
    last, stretch = head.seq, STRETCH
    while last > 0 and search.base is None:
        after = max(0, last - stretch)
        entries = [stored async for stored in found.log(head.session, last, after)]
        search.read(reversed(entries), far=head.seq - last >= FAR)
        last, stretch = after, min(2 * stretch, MOST)
    settings = search.base or TurnSettings("/", "on-request", {"mode": "read-only"}, "")
    for changes in reversed(search.changes):
        settings = settings.changed(changes)
    return settings


class _Search:
    """The way back: changes of settings, up to settings that are whole."""

    def __init__(self, provider: str | None) -> None:
        """`provider`: that of settings which a request told of: it does not name its own."""
        self._provider = {"model_provider": provider} if provider else {}
        self.base: TurnSettings | None = None
        self.changes: list[SettingsChanges] = []
        """The newest first."""

    def read(self, entries: Iterator[StoredEntry], *, far: bool) -> None:
        for stored in entries:
            kind = stored_kind(stored.payload)
            if kind in _FACTS:
                self._fact(stored)
            elif far and kind is ContextLine:
                context = read_context(decode_entry(stored.payload).payload)
                self.base = TurnSettings.of({**self._provider, **context.changes()})
            if self.base is not None:
                return

    def _fact(self, stored: StoredEntry) -> None:
        match f.decode(decode_entry(stored.payload).payload):
            case f.SettingsChanged(changes):
                self.changes.append(changes)
            case f.Configured(settings=settings):
                self.base = settings
            case f.TaskBegun(task="user", settings=settings):
                self.base = settings
