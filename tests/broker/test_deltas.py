"""Deltas lead up to an entry: one that comes behind it is of no use to anybody."""

from __future__ import annotations

from orchestrator.broker.broker import Broker
from orchestrator.broker.follow import hash8_of
from orchestrator.broker.records import Committed, Emitted
from orchestrator.core.commit_parts import NewEvent
from tests.broker.actors import step, working


async def test_delta_that_its_sender_gave_up_does_not_follow_the_text_that_it_led_up_to(
    broker: Broker,
) -> None:
    held = await working(broker)
    delta = NewEvent(b"delta", held.seq, hash8_of(held.head))
    shown = await broker.commits.emit(held.claim, [delta])
    assert isinstance(shown, Emitted)
    done = await broker.commits.commit(step(held, held.claim, "k1"))
    assert isinstance(done, Committed)
    late = await broker.commits.emit(held.claim, [delta])
    assert isinstance(late, Emitted)
    assert late.eq_n == done.eq_n
    events = await broker.logs.read_eq(held.claim.session, shown.eq_n - 1)
    assert [event.payload for event in events] == [b"delta", b"event"]
