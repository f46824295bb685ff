"""The sender of what an agent was given: where its task begins and where words join it; and who decided."""

from __future__ import annotations

from typing import Any, cast

import pytest

from orchestrator.core import facts as f
from orchestrator.core.entries import event, fact
from orchestrator.core.ids import AgentId
from orchestrator.core.sender import MACHINE, Sender
from orchestrator.core.settings import TurnSettings
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.views.agent_past import everything, page_before
from orchestrator.views.event_text import given_line
from tests.views.test_decided_requests import Logs

SETTINGS = TurnSettings("/work", "never", {"mode": "read-only"}, "gpt-5")
ANN = Sender("ann@vm", scope="submit", via="terminal", token=MACHINE)
BEN = Sender("ben", scope="approve", via="app-server", token="t1", stated_name="An Editor")
SENDERS = {None: None, "ann": ANN, "ben": BEN}


@pytest.mark.parametrize("second", SENDERS)
@pytest.mark.parametrize("first", SENDERS)
async def test_each_task_and_each_word_that_joins_it_has_its_own_sender(
    first: str | None, second: str | None
) -> None:
    logs = Logs()
    root = logs.root(1)
    said = {"type": "message", "role": "user", "content": []}
    logs._add(
        root,
        fact(f.TaskBegun(SubmissionId("u1"), "user", SETTINGS, by=SENDERS[first])),
        event("u1", {"type": "task_started"}),
        fact(f.Steered(SubmissionId("u2"), said, SENDERS[second])),
        event("u1", {"type": "agent_message", "message": "so be it"}),
        fact(f.TaskBegun(SubmissionId("u3"), "user", SETTINGS, by=SENDERS[second])),
    )
    page = await page_before(cast(Any, logs), await logs.head(root), 0, everything)
    told = [(one.id, one.msg["who"]) for one in page.events if one.msg["type"] == "given_by"]
    wanted = [("u1", SENDERS[first]), ("u2", SENDERS[second]), ("u3", SENDERS[second])]
    assert told == [(id, sender.who) for id, sender in wanted if sender is not None]
    lines = [given_line(one.msg) for one in page.events if one.msg["type"] == "given_by"]
    assert all(
        ("this machine's user" in line, "a client that calls itself An Editor" in line)
        == (line.startswith("from ann@vm"), line.startswith("from ben"))
        for line in lines
    )


@pytest.mark.parametrize("agent", [0, 3])
async def test_log_tells_the_decisions_on_what_the_root_itself_has_asked_and_of_none_that_it_sends_on(
    agent: int,
) -> None:
    logs = Logs()
    root = logs.root(1)
    about = AgentId(agent) if agent else None
    for place in range(2):
        answered = f.Answered(CallId("c1"), SubmissionId("u1"), "denied", f"p{place}", place + 1, about)
        logs._add(root, fact(answered))
    page = await page_before(cast(Any, logs), await logs.head(root), 0, everything)
    told = [(one.msg["type"], one.msg["call_id"], one.msg["who"]) for one in page.events]
    assert told == ([] if agent else [("request_resolved", "c1", f"p{place}") for place in range(2)])
