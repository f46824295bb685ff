"""The agents that a client is told of as it attaches: each that is listed, and each inbox with mail."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.gateways import resume
from orchestrator.protocol.agents import SubagentSummary

SESSIONS = [SessionId(f"0199a2b4-0000-7000-8000-{number:012}") for number in range(5)]
PARENTS = {1: 0, 2: 0, 3: 1, 4: 3}
MAIL = list(product((0, 2), (0, 3)))
"""Messages, and interrupts."""


def summary(agent: int, mail: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    return {
        "agent_id": agent,
        "session_id": SESSIONS[agent],
        "origin": "spawn",
        "status": "running",
        "started_at_ms": 1,
        "pending_messages": mail[0],
        "pending_interrupts": mail[1],
    }


@pytest.mark.parametrize("reader", [0, 1, 3])
@pytest.mark.parametrize("own", MAIL)
@pytest.mark.parametrize("first", range(len(MAIL)))
async def test_client_that_attaches_is_told_of_each_agent_that_its_session_tells_of_and_of_all_mail(
    reader: int, own: tuple[int, int], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail = {agent: MAIL[(first + agent) % len(MAIL)] for agent in PARENTS}
    agents = {
        agent: SimpleNamespace(
            record={"parent_agent_id": parent}, summary=lambda agent=agent: summary(agent, mail[agent])
        )
        for agent, parent in PARENTS.items()
    }
    fields = {f"{lane}:{reader}": b"%d" % count for lane, count in zip("mi", own, strict=True) if count}

    async def fields_of(tree: str) -> dict[str, bytes]:
        return {**fields, **{f"a:{agent}": b"{}" for agent in PARENTS}}

    monkeypatch.setattr(resume, "projected", lambda fields: SimpleNamespace(agents=agents))
    found = SimpleNamespace(broker=SimpleNamespace(trees=SimpleNamespace(agents=fields_of)))
    head = SimpleNamespace(tree=SESSIONS[0], agent_id=reader, session=SESSIONS[reader])
    elsewhere = [SubagentSummary.model_validate(summary(agent)) for agent in (4,)] if not reader else []
    told = await resume._agents_told(cast(Any, found), cast(Any, head), elsewhere)
    listed = [agent for agent, parent in PARENTS.items() if not reader or parent == reader]
    lives = [one["subagent"]["agent_id"] for one in told if one["type"] == "subagent_lifecycle"]
    inboxes = {
        one["agent_id"]: (one["pending_messages"], one["pending_interrupts"])
        for one in told
        if one["type"] == "agent_inbox"
    }
    assert lives == listed
    wanted = {**{agent: mail[agent] for agent in listed}, reader: own}
    assert inboxes == {agent: counts for agent, counts in wanted.items() if any(counts)}
