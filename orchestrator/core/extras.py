"""The parts of a state that only some sessions have.

A snapshot has them among the fields of `session_meta`, each under a name that is there only if it is needed:
snapshots of sessions without them stay what they were before there were such parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, field, fields

from orchestrator.core.forms import LIST, form, reader_of, writer_of
from orchestrator.core.frozen import record
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.wire import JsonMapping, JsonObject, tag_of

MOST_EARLIER = 10_000
"""Turns before compactions that can be gone back to, the newest."""

HISTORY_OPS = frozenset({tag_of(ops.AddToHistory), tag_of(ops.GetHistoryEntryRequest)})


@record
class PendingLookUp:
    """An op whose answer lies outside of the log, in its wire form; `who` sent it."""

    id: SubmissionId
    op: JsonMapping
    client: str | None
    who: str

    @property
    def key(self) -> str:
        """Tells it from all others: two clients may use one id."""
        return f"{self.client or ''}|{self.id}"

    @property
    def turn(self) -> str | None:
        """The response that ended the turn to find, for input that goes on from there."""
        return self.op.get("last_response_id")

    @property
    def of_history(self) -> bool:
        return self.op["type"] in HISTORY_OPS


@record
class PinnedPlan:
    """An approved plan, with the length of the conversation that knows of it."""

    plan: JsonMapping
    length: int


def _read_lookups(wire: Sequence[JsonMapping]) -> tuple[PendingLookUp, ...]:
    return tuple(PendingLookUp(**lookup) for lookup in wire)


def _write_lookups(lookups: Sequence[PendingLookUp]) -> list[JsonObject]:
    return [asdict(lookup) for lookup in lookups]


_read_plan, _write_plan = reader_of(PinnedPlan), writer_of(PinnedPlan)


def _read_pinned(wire: JsonMapping | None) -> PinnedPlan | None:
    return None if wire is None else _read_plan(wire)


@record
class SessionExtras:
    """The parts of one session: each is as it says here where the session has none of it."""

    thread_name: str | None = None
    """The session's name for people."""
    lookups: tuple[PendingLookUp, ...] = field(
        default=(), metadata=form(read=_read_lookups, write=_write_lookups)
    )
    """Look-ups that are not answered yet, oldest first."""
    told_folders: tuple[str, ...] = field(default=(), metadata=LIST)
    """The folders whose instructions were told, if there were others than the one that it began in."""
    pinned_plan: PinnedPlan | None = field(default=None, metadata=form(read=_read_pinned, write=_write_plan))
    """The approved plan that the next task of a person is shown."""
    earlier_turns: tuple[str, ...] = field(default=(), metadata=LIST)
    """The response ids of turns that compactions summed up, oldest first: the log still has what was said."""


NO_EXTRAS = SessionExtras()
read_extras, write_extras = reader_of(SessionExtras), writer_of(SessionExtras)
_NAMES = frozenset(spec.name for spec in fields(SessionExtras))


def without_extras(meta: JsonMapping) -> JsonObject:
    """The fields of a `session_meta` alone; no line of a log brings such parts along."""
    return {name: value for name, value in meta.items() if name not in _NAMES}
