"""Every end of a turn, as who waits for one is told: its answer, its reason and its last error."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.core.decide.ops import REMOVED
from orchestrator.core.ids import SessionId
from orchestrator.gateways import turn_follower
from orchestrator.gateways.turn_follower import MOST_ERRORS, Turn, TurnFollower, run_turn
from orchestrator.protocol.scalars import Delivery
from orchestrator.views import SetAside
from orchestrator.views.event import Event

SESSION = SessionId("0199a2b4-0000-7000-8000-000000000001")
OTHER, OWN = "other", "own"
ENDS: dict[str, dict[str, Any]] = {
    "completed": {"type": "task_complete", "last_agent_message": "done"},
    "without an answer": {"type": "task_complete", "last_agent_message": None},
    "interrupted": {"type": "turn_aborted", "reason": "interrupted"},
    "later reason": {"type": "turn_aborted", "reason": "of_a_newer_version"},
}


class Client:
    """A client of a session that tells what a test gives."""

    def __init__(self, events: list[Event], *, quarantined: bool = False) -> None:
        self.events = events
        self.head_of = SimpleNamespace(quarantined=False, session=SESSION, eq_n=0, seq=0, head=b"\0" * 32)
        self.quarantined = quarantined

    async def head(self, session: SessionId) -> Any:
        return self.head_of

    async def submit(self, session: SessionId, submission: Any) -> None:
        self.head_of.quarantined = self.quarantined

    async def follow(self, session: SessionId, cursor: Any) -> AsyncIterator[Event]:
        for event in self.events:
            yield event


async def turn_of(
    monkeypatch: pytest.MonkeyPatch, *events: tuple[str, dict[str, Any]], quarantined: bool = False
) -> Turn:
    monkeypatch.setattr(turn_follower, "new_submission_id", lambda: OWN)
    client = cast(Any, Client([Event(id, message) for id, message in events], quarantined=quarantined))
    return await run_turn(client, SESSION, "go", delivery=Delivery.STEER)


@pytest.mark.parametrize(("end", "errors", "joins"), list(product(ENDS, range(3), [True, False])))
async def test_turn_is_told_with_its_end_and_the_last_of_its_own_errors(
    end: str, errors: int, joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = OTHER if joins else OWN
    begins = (
        {"type": "input_accepted", "turn_id": OTHER, "delivery": "steered"}
        if joins
        else {"type": "task_started"}
    )
    faults = [(turn, {"type": "error", "message": f"fault {number}"}) for number in range(errors)]
    elsewhere = [("third", {"type": "error", "message": "x"}), ("third", ENDS["completed"])]
    told = await turn_of(monkeypatch, (OWN, begins), *faults, *elsewhere, (turn, ENDS[end]))
    reason = str(ENDS[end].get("reason", ""))
    assert told == Turn(
        turn,
        ENDS[end].get("last_agent_message"),
        reason,
        f"fault {errors - 1}" if errors else "",
        "aborted" if reason else "completed",
    )


async def test_who_waits_for_whatever_turn_ends_keeps_the_errors_of_the_newest_ids_alone() -> None:
    follower = TurnFollower(cast(Any, Client([])), SESSION, None)
    for number in range(MOST_ERRORS + 1):
        refused = Event(f"s{number}", {"type": "error", "message": f"fault {number}"})
        assert await follower.receive(refused) is None
        assert await follower.receive(Event("s1", {"type": "error", "message": f"again {number}"})) is None
    assert len(follower._errors) == MOST_ERRORS
    await follower.receive(Event("s1", ENDS["completed"]))
    assert follower.error == f"again {MOST_ERRORS}"


@pytest.mark.parametrize("joined", [True, False])
async def test_input_that_begins_no_turn_is_told_as_refused_with_the_reason(
    joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [("third", {"type": "error", "message": "of another"})] if joined else []
    for message, why in (
        ({"type": "error", "message": "the queue is full"}, "the queue is full"),
        ({"type": "warning", "message": REMOVED}, REMOVED),
    ):
        told = await turn_of(monkeypatch, *before, (OWN, message))
        assert told == Turn(OWN, None, error=why, status="refused")


async def test_session_that_is_set_aside_meanwhile_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SetAside):
        await turn_of(monkeypatch, ("", {"type": "error", "message": "quarantined"}), quarantined=True)
