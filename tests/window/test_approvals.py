"""The queue of requests over HTTP: listed, answered by the first, and told by whom."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.core.ids import SessionId
from orchestrator.gateways.principals import Scope
from orchestrator.protocol import ops
from tests.doors.test_app_server_turns import answer_facts, working
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends
from tests.window.site import Browser, Site, Stream, Told

pytestmark = pytest.mark.realredis


async def asking(harness: Harness, call: str = "c1") -> SessionId:
    """A session that is about to ask for a command."""
    harness.models.will([calls(call, ask=True), ends()])
    session = await harness.session("untrusted")
    await harness.say(session)
    return session


async def opened(stream: Stream, session: SessionId, call: str = "c1") -> dict[str, Any]:
    """The request of a call, as soon as a stream tells it."""

    def asks(told: Told) -> bool:
        return any((row.get("threadId"), row.get("callId")) == (session, call) for row in rows(told))

    told = await stream.until(asks)
    return next(row for row in rows(told) if row["threadId"] == session)


def rows(told: Told) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = told.data.get("data", told.data.get("changed", []))
    return found


def answer(session: str, call: str = "c1", **said: Any) -> dict[str, Any]:
    return {"requests": [{"threadId": session, "callId": call, "answer": said}]}


async def answered(browser: Browser, session: str, call: str = "c1", **said: Any) -> dict[str, Any]:
    (row,) = (await browser.call("approval/answer", answer(session, call, **said)))["data"]
    return dict(row)


async def test_request_is_listed_with_all_that_a_person_has_to_know(site: Site) -> None:
    browser = await site.signed_in()
    session = await asking(site.harness)
    async with working(site.harness), browser.stream("needs") as stream:
        row = await opened(stream, session)
        (listed,) = (await browser.call("approval/list"))["data"]
        assert listed == row
        (of_tree,) = (await browser.call("approval/list", {"treeId": session}))["data"]
        assert of_tree == row
        await answered(browser, session, decision="decline")
    assert row["requestId"] == f"{session}:c1"
    assert (row["treeId"], row["agentId"], row["kind"], row["mayAnswer"]) == (session, 0, "command", True)
    assert row["where"].startswith("OUTSIDE THE SANDBOX")
    assert row["outside"] is True
    assert row["command"] == row["commandLine"].split()
    assert row["openedAtMs"] > 1_600_000_000_000
    assert (await browser.call("approval/list"))["data"] == []


async def test_a_new_name_stands_in_the_queue_and_in_the_fleet_before_the_session_rests(site: Site) -> None:
    browser = await site.signed_in()
    session = await asking(site.harness)
    async with working(site.harness), browser.stream("needs", "fleet") as stream:
        await opened(stream, session)
        await browser.call("thread/name/set", {"threadId": session, "name": "Renamed while it asks"})
        await stream.until(
            lambda told: (
                told.topic == "fleet" and any(row["title"] == "Renamed while it asks" for row in rows(told))
            )
        )
        (listed,) = (await browser.call("approval/list"))["data"]
        assert listed["title"] == "Renamed while it asks"
        await answered(browser, session, decision="decline")


async def test_first_answer_counts_and_the_second_learns_whose_it_was(site: Site) -> None:
    ana, jo = await site.signed_in(name="ana"), await site.signed_in(name="jo")
    session = await asking(site.harness)
    async with working(site.harness), ana.stream("needs") as stream:
        await opened(stream, session)
        first = await answered(jo, session, decision="accept")
        second = await answered(ana, session, decision="decline")
        gone = await stream.until(lambda told: bool(told.data.get("gone")))
    assert (first["outcome"], first["decision"], first["who"]) == ("decided", "accept", "jo")
    assert (second["outcome"], second["decision"], second["who"]) == ("already", "accept", "jo")
    assert first["atMs"] == second["atMs"] > 0
    (ended,) = gone.data["gone"]
    assert ended == {
        "requestId": f"{session}:c1",
        "threadId": session,
        "callId": "c1",
        "decision": "accept",
        "text": "allowed",
        "who": "jo",
        "atMs": first["atMs"],
    }
    (fact,) = await answer_facts(site.harness, session)
    assert (fact["who"], fact["surface"]) == ("jo", "window")
    assert fact["shown"].startswith("OUTSIDE THE SANDBOX")


async def test_several_requests_are_answered_at_once_and_each_says_what_became_of_it(site: Site) -> None:
    browser = await site.signed_in()
    async with working(site.harness), browser.stream("needs") as stream:
        sessions = []
        for _ in range(3):
            sessions.append(await asking(site.harness))
            await opened(stream, sessions[-1])
        given = [answer(each, decision="decline")["requests"][0] for each in sessions]
        given[1]["answer"] = {"decision": "acceptForSession"}
        told = (await browser.call("approval/answer", {"requests": given}))["data"]
    assert [row["threadId"] for row in told] == sessions
    assert [row["outcome"] for row in told] == ["decided"] * 3
    assert [row["decision"] for row in told] == ["decline", "acceptForSession", "decline"]


async def test_answer_that_the_request_does_not_take_is_refused_before_any_counts(site: Site) -> None:
    browser = await site.signed_in()
    async with working(site.harness), browser.stream("needs") as stream:
        one, two = await asking(site.harness), None
        await opened(stream, one)
        two = await asking(site.harness)
        await opened(stream, two)
        for said, why in (
            ({"feedback": "x"}, "takes a decision"),
            ({"answers": {"a": ["b"]}}, "takes a decision"),
            ({"decision": "acceptWithExecpolicyAmendment"}, "proposes no prefix"),
            ({"decision": "accept", "feedback": "x"}, "one of decision, answers and feedback"),
            ({}, "one of decision, answers and feedback"),
            ({"decision": "yes"}, "decision"),
        ):
            given = [answer(one, decision="accept")["requests"][0], answer(two, **said)["requests"][0]]
            status, code, text = await browser.refused("approval/answer", {"requests": given})
            assert (status, code) == (400, -32602), said
            assert "requests.1" in text
            assert why in text
        twice = [answer(one, decision="accept")["requests"][0]] * 2
        assert (await browser.refused("approval/answer", {"requests": twice}))[0] == 400
        many = [answer(one, f"c{n}", decision="accept")["requests"][0] for n in range(101)]
        assert (await browser.refused("approval/answer", {"requests": many}))[0] == 400
        assert len((await browser.call("approval/list"))["data"]) == 2
        assert await answer_facts(site.harness, one) == []


async def test_answer_under_a_name_that_nothing_asks_under_decides_nothing(site: Site) -> None:
    browser = await site.signed_in()
    session = await asking(site.harness)
    async with working(site.harness), browser.stream("needs") as stream:
        await opened(stream, session)
        told = await answered(browser, session, "c2", decision="accept")
        assert (told["outcome"], told["decision"], told["who"]) == ("withdrawn", None, None)
        assert len((await browser.call("approval/list"))["data"]) == 1


async def test_answer_is_kept_while_no_worker_is_there(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.gateways.submit.PATIENCE_S", 0.05)
    browser = await site.signed_in()
    session = await asking(site.harness)
    async with working(site.harness), browser.stream("needs") as stream:
        await opened(stream, session)
    told = await answered(browser, session, decision="accept")
    assert (told["outcome"], told["decision"]) == ("kept", None)


async def test_request_that_ends_with_its_turn_is_told_as_withdrawn(site: Site) -> None:
    browser = await site.signed_in()
    session = await asking(site.harness)
    async with working(site.harness), browser.stream("needs") as stream:
        await opened(stream, session)
        await site.harness.submit(session, ops.Interrupt())
        gone = await stream.until(lambda told: bool(told.data.get("gone")))
        (ended,) = gone.data["gone"]
        assert (ended["callId"], ended["decision"], ended["who"]) == ("c1", None, None)


async def test_reader_sees_the_queue_and_may_not_answer(site: Site) -> None:
    reader = await site.signed_in(Scope.READ)
    session = await asking(site.harness)
    async with working(site.harness), reader.stream("needs") as stream:
        assert (await opened(stream, session))["mayAnswer"] is False
        assert (await reader.call("approval/list"))["data"][0]["mayAnswer"] is False
        status, _, text = await reader.refused("approval/answer", answer(session, decision="accept"))
        assert status == 403
        assert "needs the scope approve" in text
        writer = await site.signed_in(Scope.SUBMIT)
        assert (await writer.refused("approval/answer", answer(session, decision="accept")))[0] == 403


async def test_namespace_sees_its_own_queue_alone(site: Site) -> None:
    ours, tenant = await site.signed_in(), await site.signed_in(namespace="acme")
    session = await asking(site.harness)
    async with (
        working(site.harness),
        tenant.stream("needs") as theirs,
        ours.stream("needs") as stream,
    ):
        await opened(stream, session)
        first = await theirs.next()
        assert first is not None
        assert (first.topic, first.data) == ("needs", {"type": "all", "data": []})
        assert (await tenant.call("approval/list"))["data"] == []
        assert (await tenant.call("approval/history"))["data"] == []
        for name in ("approval/list", "approval/history"):
            assert (await tenant.refused(name, {"treeId": session}))[0] == 404
        assert (await tenant.refused("approval/answer", answer(session, decision="accept")))[0] == 404
        assert len((await ours.call("approval/list"))["data"]) == 1


async def test_history_has_the_last_decisions_first_with_who_and_goes_on_behind_its_cursor(
    site: Site,
) -> None:
    ana, jo = await site.signed_in(name="ana"), await site.signed_in(name="jo")
    async with working(site.harness), ana.stream("needs") as stream:
        sessions = []
        for number, (who, word) in enumerate(((ana, "accept"), (jo, "decline"), (ana, "acceptForSession"))):
            sessions.append(await asking(site.harness, f"c{number}"))
            await opened(stream, sessions[-1], f"c{number}")
            await answered(who, sessions[-1], f"c{number}", decision=word)
            # Its next request must not take what the next session's model is to say.
            await site.harness.until(sessions[-1], "task_complete")
    page = await jo.call("approval/history", {"limit": 2})
    told = [(row["threadId"], row["decision"], row["who"], row["kind"]) for row in page["data"]]
    assert told == [
        (sessions[2], "acceptForSession", "ana", "command"),
        (sessions[1], "decline", "jo", "command"),
    ]
    rest = await jo.call("approval/history", {"limit": 2, "cursor": page["nextCursor"]})
    assert [row["threadId"] for row in rest["data"]] == [sessions[0]]
    assert rest["nextCursor"] is None
    (of_tree,) = (await jo.call("approval/history", {"treeId": sessions[1]}))["data"]
    assert (of_tree["who"], of_tree["mayAnswer"]) == ("jo", False)
    assert (await jo.refused("approval/history", {"cursor": "x"}))[0] == 400


async def test_waiting_for_a_decision_reads_the_log_when_something_happens_and_not_on_a_clock(
    site: Site,
) -> None:
    browser = await site.signed_in()
    session = await asking(site.harness)
    async with working(site.harness), browser.stream("needs") as stream:
        await opened(stream, session)
    # Nobody takes the answer: the log is looked at a few times, and not each 50 ms.
    looks = 0
    read = site.harness.client._ports.broker.logs.read_rollout

    async def counted(*given: Any, **more: Any) -> Any:
        nonlocal looks
        looks += 1
        return await read(*given, **more)

    site.harness.client._ports.broker.logs.read_rollout = counted  # type: ignore[method-assign]
    asking_for = asyncio.create_task(answered(browser, session, decision="accept"))
    async with working(site.harness):
        assert (await asking_for)["outcome"] == "decided"
    assert 1 <= looks <= 12
