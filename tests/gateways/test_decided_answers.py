"""Answers that are handed in, and whose decision it was in the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.records import StoredEntry
from orchestrator.core import entries as e
from orchestrator.core.facts import Answered
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.gateways import submit
from orchestrator.protocol import ops
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.requests import request_of
from orchestrator.views.approvals import Asked
from tests.requests.test_answers import ASKS

SESSION = SessionId("0199a2b4-0000-7000-8000-000000000001")
ASKED = Asked(SESSION, TreeId(SESSION), 0, "", "c", 5, request_of(ASKS["command"]), 3)


class Ben:
    """A client of Ben's, who hears nothing but what the log says."""

    who = "ben"

    async def submit(self, session: SessionId, submission: Any) -> None: ...

    async def until(
        self, sessions: object, look: Callable[[], Awaitable[bool]], patience_s: float | None
    ) -> bool:
        return await look()


@pytest.mark.parametrize(("who", "ours"), [("ana", False), ("ben", True)])
async def test_answer_that_says_the_same_as_an_earlier_one_is_that_ones_decision(
    who: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = e.fact(Answered(CallId("c"), SubmissionId("t"), ReviewDecision.APPROVED, who, 9))
    log = [StoredEntry(4, 1, e.encode_entry(answer, 9, {}).line, b"", b"")]

    async def read_rollout(session: SessionId, after: int) -> list[StoredEntry]:
        return [entry for entry in log if entry.seq > after]

    async def ends(sessions: list[SessionId]) -> list[int]:
        return [4]

    async def patience(*_: object) -> float:
        return 0.0

    monkeypatch.setattr(submit, "patience", patience)
    logs = SimpleNamespace(read_rollout=read_rollout, ends=ends)
    found = SimpleNamespace(broker=SimpleNamespace(logs=logs))
    op = ops.ExecApproval(id="c", decision=ReviewDecision.APPROVED)
    decided = await submit.hand_in(cast(Any, Ben()), cast(Any, found), ASKED, op)
    assert (decided.decision, decided.who, decided.ours, decided.at_ms) == ("approved", who, ours, 9)
