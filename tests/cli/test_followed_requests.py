"""`dendro approvals --follow`: each request as it is opened, and each that was shown as it ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.open_requests import Opened, RequestChange, Settled
from orchestrator.broker.records import OpenApproval
from orchestrator.cli import invocation
from orchestrator.cli.approvals import _follow
from orchestrator.cli.invocation import Invocation
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.gateways import submit
from orchestrator.gateways.submit import Over, followed
from orchestrator.requests import request_of
from orchestrator.views import approvals
from orchestrator.views.approvals import Asked, Needed
from orchestrator.views.find import short_id
from tests.views.test_decided_requests import Logs, id_of

ASKED = {"type": "exec_approval_request", "command": ["npm", "test"], "cwd": "/w"}


def opens(session: SessionId, call: str) -> RequestChange:
    payload = orjson.dumps({"event": {**ASKED, "call_id": call}})
    return Opened(OpenApproval(session, call, payload, 1))


@pytest.mark.parametrize("of", [None, 1, 2])
async def test_requests_of_the_tree_are_told_once_as_they_open_and_once_as_they_end(of: int | None) -> None:
    logs = Logs()
    first, second = logs.root(1), logs.root(2)
    agent, gone = logs.agent(3, first), id_of(9)
    changes: Sequence[RequestChange] = (
        opens(first, "c1"), opens(agent, "c1"), opens(second, "c1"), opens(gone, "c1"), opens(first, "c2"),
        Settled(agent, "c1"), Settled(agent, "c1"), Settled(second, "c1"), Settled(gone, "c1"),
        Settled(first, "c9"), opens(agent, "c1"), Settled(agent, "c1"), Settled(first, "c2"),
    )  # fmt: skip

    async def requests() -> AsyncIterator[RequestChange]:
        for change in changes:
            yield change

    tree = None if of is None else TreeId(id_of(of))
    client = cast(Any, SimpleNamespace(requests=requests))
    told = [one async for one in followed(client, cast(Any, logs), tree)]
    trees = {first: first, agent: first, second: second}
    shown, wanted = set[tuple[SessionId, str]](), list[tuple[bool, SessionId, str]]()
    for change in changes:
        session, key = (
            (change.request.session, change.request.key)
            if isinstance(change, Opened)
            else (change.session, change.key)
        )
        if trees.get(session, "") not in ((first, second) if tree is None else (tree,)):
            continue
        if isinstance(change, Opened):
            shown.add((session, key))
            wanted.append((False, session, key))
        elif (session, key) in shown:
            shown.remove((session, key))
            wanted.append((True, session, key))
    found = [(isinstance(one, Over), one.asked if isinstance(one, Over) else one) for one in told]
    assert [(over, asked.session, asked.call_id) for over, asked in found] == wanted


@pytest.mark.parametrize("id", [None, "0123"])
@pytest.mark.parametrize("as_json", [True, False])
async def test_each_change_is_a_line_for_programs_and_a_few_for_people(
    as_json: bool, id: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(agent: int, call: str) -> Asked:
        request = request_of({**ASKED, "call_id": call})
        return Asked(id_of(1), TreeId(id_of(1)), agent, f"0/{agent}", call, 1, request, 9)

    news = (asked(0, "c1"), asked(3, "c1"), Over(asked(3, "c1")), Over(asked(0, "c1")))

    async def changes(*_: Any) -> AsyncIterator[Asked | Over]:
        for one in news:
            yield one

    async def needed(_: Any, some: Sequence[Asked]) -> list[Needed]:
        return [Needed(one, "7c1e95aa", "Fix it", "tests", "/w") for one in some]

    @asynccontextmanager
    async def opened(*_: Any, **__: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(client=lambda: None, find_tree=find_tree)

    async def find_tree(_: str) -> TreeId:
        return TreeId(id_of(1))

    monkeypatch.setattr(submit, "followed", changes)
    monkeypatch.setattr(approvals, "needed", needed)
    monkeypatch.setattr(invocation, "opened", opened)
    monkeypatch.setattr(Invocation, "settings", lambda _: None)
    await _follow(Invocation(), id, json=as_json)
    lines = capsys.readouterr().out.splitlines()
    if as_json:
        told = [(one["news"], one["agent_id"], one["call_id"]) for one in map(json.loads, lines)]
        assert told == [
            ("opened", 0, "c1"), ("opened", 3, "c1"), ("settled", 3, "c1"), ("settled", 0, "c1"),
        ]  # fmt: skip
        assert all(one["request"]["command"] == ["npm", "test"] for one in map(json.loads, lines))
    else:
        of = "" if id is not None else f"  (tree {short_id(id_of(1))})"
        of_calls = [line.strip() for line in lines if line.strip().startswith(("0:", "3:"))]
        assert of_calls == [
            "0:c1  run npm test", "3:c1  run npm test",
            f"3:c1  npm test: waits no longer{of}", f"0:c1  npm test: waits no longer{of}",
        ]  # fmt: skip
