"""A client of one namespace sees no session of another, and lists show what a session is at once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.broker.errors import UnknownSession
from orchestrator.broker.open_requests import Opened, Settled
from orchestrator.broker.trees import Listed
from orchestrator.gateways.client import Client
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import Submission
from orchestrator.runtime.runner import Ended
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.open_deployment import new_session
from tests.runtime.harness import Harness, opened
from tests.runtime.players import calls, ends

pytestmark = pytest.mark.realredis
NAMED = Submission(SubmissionId("n"), ops.SetThreadName(name="the parser"))


def of_namespace(harness: Harness, namespace: str | None) -> Client:
    return Client(harness.client._ports, f"client of {namespace}", "bob", namespace)


async def test_session_of_another_namespace_is_unknown_to_a_client(harness: Harness) -> None:
    harness.client = of_namespace(harness, "ours")
    session = await harness.session()
    for namespace in ("theirs", ""):
        other = of_namespace(harness, namespace)
        assert await other.head(session) is None
        with pytest.raises(UnknownSession):
            await other.submit(session, NAMED)
        with pytest.raises(UnknownSession):
            await anext(cast(Any, other.follow(session)))
    for seeing in ("ours", None):
        head = await of_namespace(harness, seeing).head(session)
        assert head is not None
        assert (head.labels.namespace, head.labels.source, head.labels.who) == ("ours", "cli", "bob")


async def test_session_that_nobody_made_is_unknown_to_a_client_of_a_namespace(harness: Harness) -> None:
    session = await harness.session()
    await harness.broker.trees.delete_session(session)
    with pytest.raises(UnknownSession):
        await of_namespace(harness, "").submit(session, NAMED)


async def test_client_is_told_of_the_requests_of_its_namespace_as_they_are_opened_and_settled(
    harness: Harness,
) -> None:
    harness.client = of_namespace(harness, "ours")
    session = await harness.session(policy="untrusted")
    async with aclosing(cast(Any, harness.client.requests())) as changes:
        told = asyncio.create_task(anext(changes))
        harness.models.will([calls("c1", ask=True), ends()])
        await harness.say(session)
        assert await harness.run(session) is Ended.PARKED
        assert isinstance(opened := await told, Opened)
        assert (opened.request.session, opened.request.key) == (session, "c1")
        await harness.approve(session, "c1", "denied")
        assert await harness.run(session) is Ended.PARKED
        assert await anext(changes) == Settled(session, "c1")


async def test_name_is_listed_while_the_session_is_still_at_work(harness: Harness) -> None:
    session = await harness.session()
    await harness.client.submit(session, NAMED)
    assert await harness.run(session) is Ended.PARKED
    ((_, head),) = await harness.broker.trees.listed_heads(Listed())
    assert (head.session, head.name) == (session, "the parser")


async def test_session_that_a_program_began_is_in_the_list_of_its_kind(
    harness: Harness, tmp_path: Path
) -> None:
    settings = load_settings(SettingsSources(tmp_path, {"HOME": str(tmp_path)}))
    async with opened(harness.url, prefix="whole:", shards=settings.redis.shards) as whole:
        ran = await new_session(settings, whole.client, source="exec")
        talked = await new_session(settings, whole.client)
        (of_people,) = await whole.broker.trees.listed(Listed())
        (of_programs,) = await whole.broker.trees.listed(Listed(sources=("exec",)))
    assert (of_people.session, of_programs.session) == (talked, ran)
