"""Answers that are handed in, and whose decision it was in the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.records import StoredEntry
from orchestrator.core import entries as e
from orchestrator.core.commit_parts import WITHDRAWN
from orchestrator.core.facts import Answered, TaskEnded
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.gateways import submit
from orchestrator.gateways.app_server.methods import approvals
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

    def __init__(self, *, quarantined: bool = False) -> None:
        self._submitted = SimpleNamespace(quarantined=quarantined)

    async def submit(self, session: SessionId, submission: Any) -> Any:
        return self._submitted

    async def until(
        self, sessions: object, look: Callable[[], Awaitable[bool]], patience_s: float | None
    ) -> bool:
        return await look()


def logged(monkeypatch: pytest.MonkeyPatch, *facts: e.Entry) -> Any:
    """A deployment in which the session's log has these behind the entry at which its request was seen."""
    log = [StoredEntry(n, 1, e.encode_entry(fact, 9, {}).line, b"", b"") for n, fact in enumerate(facts, 4)]

    async def read_rollout(session: SessionId, after: int) -> list[StoredEntry]:
        return [entry for entry in log if entry.seq > after]

    async def ends(sessions: list[SessionId]) -> list[int]:
        return [3 + len(log)]

    async def patience(*_: object) -> float:
        return 0.0

    monkeypatch.setattr(submit, "patience", patience)
    logs = SimpleNamespace(read_rollout=read_rollout, ends=ends)
    return cast(Any, SimpleNamespace(broker=SimpleNamespace(logs=logs)))


@pytest.mark.parametrize("first", ["ana", "ben", "timer", ""])
@pytest.mark.parametrize("before", ReviewDecision)
@pytest.mark.parametrize("said", ReviewDecision)
async def test_answer_is_ones_own_decision_where_the_first_one_was_ones_own_and_says_the_same(
    first: str, before: ReviewDecision, said: ReviewDecision, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = logged(monkeypatch, e.fact(Answered(CallId("c"), SubmissionId("t"), before, first, 9)))
    op = ops.ExecApproval(id="c", decision=said)
    decided = await submit.hand_in(cast(Any, Ben()), found, ASKED, op)
    ours = first == "ben" and before == said
    assert (decided.decision, decided.who, decided.ours, decided.at_ms) == (before, first, ours, 9)


@pytest.mark.parametrize("answered", [True, False])
async def test_of_what_the_log_says_since_the_request_was_seen_the_first_that_is_about_it_counts(
    answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = e.fact(TaskEnded("completed"))
    other = e.fact(Answered(CallId("d"), SubmissionId("t"), ReviewDecision.DENIED, "ana", 8))
    own = e.fact(Answered(CallId("c"), SubmissionId("t"), ReviewDecision.APPROVED, "ana", 9))
    # Sent on to an agent that has a call of the same name.
    sent_on = e.fact(Answered(CallId("c"), SubmissionId("t"), ReviewDecision.ABORT, "eve", 7, AgentId(3)))
    found = logged(monkeypatch, other, sent_on, *([own, end] if answered else [end, own]))
    op = ops.ExecApproval(id="c", decision=ReviewDecision.APPROVED)
    decided = await submit.hand_in(cast(Any, Ben()), found, ASKED, op)
    assert decided.decision == ("approved" if answered else WITHDRAWN)


@pytest.mark.parametrize("quarantined", [True, False])
async def test_answer_that_is_kept_names_the_remedy_that_its_session_needs(
    quarantined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, op = logged(monkeypatch), ops.ExecApproval(id="c", decision=ReviewDecision.APPROVED)
    decided = await submit.hand_in(cast(Any, Ben(quarantined=quarantined)), found, ASKED, op)
    for told in (decided.line(), approvals._outcome(decided, decided.ours)["text"]):
        assert "handed in, and kept" in str(told)
        assert (f"dendro revoke {SESSION}" in str(told)) is quarantined
        assert ("no worker" in str(told)) is not quarantined
