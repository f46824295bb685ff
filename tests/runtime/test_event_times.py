"""When an event happened, and where it stands in the log: the same live and read from the log."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, cast

import pytest

from orchestrator.broker.follow import BEGINNING
from orchestrator.core.ids import SessionId
from orchestrator.runtime.runner import Ended
from orchestrator.views.event import Event
from tests.runtime.harness import Harness

pytestmark = pytest.mark.realredis


async def followed(harness: Harness, session: SessionId) -> list[Event]:
    """All events from the beginning to the task's end."""
    found: list[Event] = []
    async with aclosing(cast(Any, harness.client.follow(session, BEGINNING))) as events:
        async for event in events:
            found.append(event)
            if event.type == "task_complete":
                break
    return found


async def test_event_has_one_time_and_one_place_live_and_in_the_log(harness: Harness) -> None:
    session = await harness.session()
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    live = await followed(harness, session)
    # What the queue no longer has is read from the log.
    await harness.broker.command("DEL", harness.broker.keys.eq(session))
    gap, *logged = await followed(harness, session)
    assert (gap.type, gap.at_ms, gap.seq) == ("warning", 0, 0)
    assert all(event.at_ms and event.seq for event in live)
    known = [(event.id, event.type, event.at_ms, event.seq) for event in live]
    assert [(event.id, event.type, event.at_ms, event.seq) for event in logged] == [
        event for event in known if not event[1].endswith("_delta")
    ]
