"""How far a person has read a thread, held against a list of the turns that have ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.ids import SessionId
from orchestrator.views.threads import StaleReadState, mark_read, read_state, read_states
from tests.views.test_thread_log import Line, Logs, event, turn
from tests.views.test_threads import CHILD, ROOT


@dataclass
class Noted(Logs):
    """Logs with the notes that people keep of them."""

    kept: dict[tuple[str, SessionId], bytes] = field(default_factory=dict)
    overtaken: bytes | None = None
    """Another change of the note, which comes between a look at it and the next change."""

    @property
    def broker(self) -> Any:
        broker = super().broker
        broker.requests = self
        broker.logs.heads = self._heads
        return broker

    async def _heads(self, sessions: list[SessionId], damaged: Any) -> list[Any]:
        return [self.heads[session] for session in sessions]

    async def notes(self, name: str, sessions: list[SessionId]) -> list[bytes]:
        return [self.kept.get((name, session), b"") for session in sessions]

    async def note(self, session: SessionId, name: str, value: bytes, expected: bytes) -> bytes:
        if self.overtaken is not None:
            self.kept[name, session], self.overtaken = self.overtaken, None
        if self.kept.get((name, session), b"") == expected:
            self.kept[name, session] = value
        return self.kept.get((name, session), b"")


def grown(
    logs: Noted, turns: int, session: SessionId = ROOT, *, runs: bool = False, noted: bool = False
) -> None:
    """The log with so many turns, of which the last one may go on; its end may be `noted` in the head."""
    lines: list[Line] = [event("session_configured"), *(line for n in range(turns) for line in turn(f"t{n}"))]
    ended_seq = len(lines) - 1 if noted and turns else 0
    logs.add(session, [*lines, event("task_started", "now")] if runs else lines, ended_seq=ended_seq)


ACTS = st.lists(
    st.tuples(st.sampled_from(["grow", "read", "read as of before", "unread", "other"]), st.integers(0, 2)),
    max_size=8,
)


@given(ACTS, st.booleans())
async def test_first_unread_turn_is_the_first_that_ended_behind_what_the_person_has_read(
    acts: list[tuple[str, int]], noted: bool
) -> None:
    logs, turns, read = Noted(), 1, 0
    grown(logs, turns, noted=noted)
    seen = [(await read_state(cast(Any, logs), logs.heads[ROOT], "ann"), turns)]
    for act, more in acts:
        head = logs.heads[ROOT]
        state = await read_state(cast(Any, logs), head, "ann")
        if act == "grow":
            turns += more
            grown(logs, turns, runs=more == 1, noted=noted)
        elif act == "read":
            await mark_read(cast(Any, logs), head, "ann", state.revision, read=True)
            read = turns
        elif act == "read as of before":
            before, ended = seen[-1]
            if before.mark == state.mark:
                await mark_read(cast(Any, logs), head, "ann", before.revision, read=True)
                read = max(read, ended)
        elif act == "unread":
            await mark_read(cast(Any, logs), head, "ann", state.revision, read=False)
            read = turns - 1
        else:
            theirs = await read_state(cast(Any, logs), head, "ben")
            await mark_read(cast(Any, logs), head, "ben", theirs.revision, read=True)
        if act != "grow":
            seen.append((await read_state(cast(Any, logs), logs.heads[ROOT], "ann"), turns))
        found = await read_state(cast(Any, logs), logs.heads[ROOT], "ann")
        assert found.first_unread == (f"t{read}" if read < turns else None)


@pytest.mark.parametrize("read", [True, False])
async def test_state_that_was_changed_meanwhile_is_refused_whichever_side_has_changed_it(read: bool) -> None:
    logs = Noted()
    grown(logs, 2)
    head = logs.heads[ROOT]
    first = await read_state(cast(Any, logs), head, "ann")
    second = await mark_read(cast(Any, logs), head, "ann", first.revision, read=True)
    later = f"{second.mark.changes + 1}.{second.seq}"
    for revision in (first.revision, later):
        with pytest.raises(StaleReadState):
            await mark_read(cast(Any, logs), head, "ann", revision, read=read)
    logs.overtaken = b"9 1"
    with pytest.raises(StaleReadState):
        await mark_read(cast(Any, logs), head, "ann", second.revision, read=read)
    assert (await read_state(cast(Any, logs), head, "ann")).mark.changes == 9


async def test_thread_that_is_read_to_its_last_turns_end_is_known_to_be_read_without_its_log() -> None:
    logs = Noted()
    grown(logs, 3, runs=True, noted=True)
    head = logs.heads[ROOT]
    read = await mark_read(cast(Any, logs), head, "ann", "0.999", read=True)
    assert (read.first_unread, logs.read) == (None, 0)
    unread = await mark_read(cast(Any, logs), head, "ann", read.revision, read=False)
    assert unread.first_unread == "t2"
    assert logs.read <= 3


async def test_place_beyond_the_log_is_its_end() -> None:
    logs = Noted()
    grown(logs, 2)
    state = await mark_read(cast(Any, logs), logs.heads[ROOT], "ann", "0.999999", read=True)
    assert state.mark.seq == logs.heads[ROOT].seq
    grown(logs, 3)
    assert (await read_state(cast(Any, logs), logs.heads[ROOT], "ann")).first_unread == "t2"


@pytest.mark.parametrize("revision", ["", "1", "1.", ".1", "-1.2", "1.2.3", "a.b", "1.2 ", "9" * 16 + ".1"])
async def test_text_that_is_no_revision_is_refused(revision: str) -> None:
    logs = Noted()
    grown(logs, 1)
    with pytest.raises(ValueError, match="revision"):
        await mark_read(cast(Any, logs), logs.heads[ROOT], "ann", revision, read=True)


async def test_states_are_those_of_threads_that_the_person_has_marked() -> None:
    logs = Noted()
    for session in (ROOT, CHILD):
        grown(logs, 2, session)
    assert await read_states(cast(Any, logs), [ROOT, CHILD], "ann") == {}
    await mark_read(cast(Any, logs), logs.heads[CHILD], "ann", "0.1", read=True)
    await mark_read(cast(Any, logs), logs.heads[ROOT], "ben", "0.1", read=True)
    found = await read_states(cast(Any, logs), [ROOT, CHILD], "ann")
    assert {session: state.first_unread for session, state in found.items()} == {CHILD: "t0"}
