"""A session that goes on for thousands of turns, under automatic compaction."""

from __future__ import annotations

from orchestrator.core.history import for_model
from orchestrator.core.settings import Rules
from orchestrator.core.snapshot import encode_snapshot
from tests.core.driver import NOON_MS, Session, assistant

LIMIT = 100_000
"""Tokens from which on the session is compacted."""
MOST_BYTES = 2 << 20


def works_for(session: Session, turns: int) -> int:
    """Turns with one command each, whose output has 8 KiB; returns the largest snapshot."""
    largest = used = 0
    for turn in range(turns):
        session.say(f"request {turn}: " + "words " * 50)
        for answer in (False, True):
            session.begin()
            assert session.task.request is not None
            if session.task.request.purpose == "compact":
                largest = max(largest, _snapshot(session))
                session.item(assistant("what was done " * 200))
                session.ends(usage={"input_tokens": used, "total_tokens": 5_000})
                session.begin()
                used = 5_000
            used += 2_500
            tokens = {"input_tokens": used, "output_tokens": 10, "total_tokens": used}
            if answer:
                session.item(assistant("done " * 100))
                session.ends(usage=tokens)
                break
            session.calls(f"c{turn}")
            session.ends(usage=tokens)
            session.runs(f"c{turn}")
            session.finishes(f"c{turn}", "x" * 4_000)
    return max(largest, _snapshot(session))


def _snapshot(session: Session) -> int:
    return len(encode_snapshot(session.state, session.seq, b"", b""))


def test_snapshot_stays_small_however_long_the_session_goes_on() -> None:
    session = Session(rules=Rules(auto_compact_limit=LIMIT), now_ms=NOON_MS)
    early, late = works_for(session, 120), works_for(session, 240)
    assert sum(entry.type == "compacted" for seen in session.seen for entry in seen.entries) > 10
    assert late < MOST_BYTES
    assert late < 1.5 * early
    assert len(for_model(session.state.history)) < 200
