"""The topics of the fleet over the window's stream: trees, the agents of one, workers."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from orchestrator.broker.notices import Listener
from orchestrator.broker.records import Committed
from orchestrator.core.commit_parts import Approval
from orchestrator.core.entries import EVENT_MSG, Entry, encode_entry
from orchestrator.gateways.principals import Scope
from orchestrator.gateways.window import feeds
from tests.broker.actors import step
from tests.doors.test_app_server_turns import working
from tests.doors.test_fleet_methods import SAID_MS, agent, does, held, meta, rests, tree
from tests.runtime.players import ends, message
from tests.window.site import Site, Stream, Told

pytestmark = pytest.mark.realredis


def row_of(told: Told, key: str, name: str = "treeId") -> dict[str, Any] | None:
    rows = told.data.get("data", told.data.get("changed", []))
    return next((row for row in rows if row[name] == key), None)


async def row(stream: Stream, key: str, state: str, name: str = "treeId") -> dict[str, Any]:
    """The row of a key, as soon as it has a state."""
    told = await stream.until(lambda told: (row_of(told, key, name) or {}).get("state") == state)
    found = row_of(told, key, name)
    assert found is not None
    return found


async def test_fleet_begins_with_all_trees_and_goes_on_with_what_changes(site: Site) -> None:
    broker, browser = site.harness.broker, await site.signed_in()
    root = await tree(broker)
    async with browser.stream("fleet") as stream:
        first = await stream.next()
        assert first is not None
        assert (first.data["type"], first.data["counts"]) == ("all", {"idle": 1})
        listed = (await browser.call("fleet/list"))["data"]
        assert first.data["data"] == listed
        own = await held(broker, root)
        child, said = agent(own, 1)
        at = await does(broker, own, own, status="running", children=(child,), summary=said)
        told = await stream.until(lambda told: len((row_of(told, root) or {}).get("shape", ())) == 2)
        found = row_of(told, root)
        assert found is not None
        assert found["shape"] == [[0, None, "working"], [1, 0, "idle"]]
        await rests(broker, at, own, ended_seq=at.seq)
        assert (await row(stream, root, "ready"))["unread"]
        seen = (await browser.call("thread/read", {"threadId": root}))["readState"]
        asked = {"threadId": root, "operation": {"type": "read"}, "expectedRevision": seen["revision"]}
        await browser.call("thread/readState/update", asked)
        await row(stream, root, "idle")
        await broker.trees.enlist(root, shelve=True)
        gone = await stream.until(lambda told: bool(told.data.get("gone")))
        assert (gone.data["gone"], gone.data["counts"]) == ([{"treeId": root}], {})


async def test_window_that_comes_later_is_shown_the_counts_as_they_are(site: Site) -> None:
    browser = await site.signed_in()
    async with browser.stream("fleet") as first:
        await first.next()
        await tree(site.harness.broker)
        await first.until(lambda told: told.data.get("counts") == {"idle": 1})
        async with browser.stream("fleet") as later:
            shown = await later.next()
            assert shown is not None
            assert (shown.data["type"], shown.data["counts"]) == ("all", {"idle": 1})


async def test_request_of_a_tree_that_works_on_is_shown_in_the_fleet(site: Site) -> None:
    broker, browser = site.harness.broker, await site.signed_in()
    root = await tree(broker)
    own = await held(broker, root)
    at = await does(broker, own, own, status="running")
    async with browser.stream("fleet") as stream:
        await row(stream, root, "working")
        at = await does(broker, at, own, status="running", approvals_open=(Approval("c1", b"{}"),))
        assert (await row(stream, root, "needs"))["requests"] == 1
        await does(broker, at, own, status="running", approvals_close=("c1",))
        await row(stream, root, "working")


async def test_fleet_of_a_namespace_shows_no_other_tree(site: Site) -> None:
    broker, browser = site.harness.broker, await site.signed_in(namespace="ours")
    await tree(broker)
    async with browser.stream("fleet") as stream:
        first = await stream.next()
        assert first is not None
        assert (first.data["data"], first.data["counts"]) == ([], {})
        ours = await tree(broker, namespace="ours")
        assert (await row(stream, ours, "idle"))["treeId"] == ours


async def test_each_person_has_read_states_of_their_own_in_the_fleet(site: Site) -> None:
    broker = site.harness.broker
    root = await tree(broker)
    own = await held(broker, root)
    await rests(broker, own, own, ended_seq=1)
    ann, ben = await site.signed_in(name="ann"), await site.signed_in(name="ben")
    seen = (await ann.call("thread/read", {"threadId": root}))["readState"]
    asked = {"threadId": root, "operation": {"type": "read"}, "expectedRevision": seen["revision"]}
    await ann.call("thread/readState/update", asked)
    async with ann.stream("fleet") as first, ben.stream("fleet") as second:
        await row(first, root, "idle")
        await row(second, root, "ready")


async def test_tree_tells_what_its_agents_come_to_and_ends_with_it(site: Site) -> None:
    harness, browser = site.harness, await site.signed_in()
    session = await harness.session()
    async with browser.stream(f"tree:{session}") as stream:
        first = await stream.next()
        assert first is not None
        assert (first.data["type"], first.data["treeId"], len(first.data["data"])) == ("all", session, 1)
        harness.models.will([message("it is done"), ends()])
        async with working(harness):
            await harness.say(session)
            told = await stream.until(
                lambda told: (row_of(told, session, "threadId") or {}).get("last") == "it is done"
            )
            assert told.data["type"] == "changed"
        await harness.broker.trees.delete_session(session, owed=True)
        await stream.until(lambda told: told.data["type"] == "gone")


async def test_who_deleted_a_tree_is_told_to_its_namespace_and_to_no_other(site: Site) -> None:
    broker, jo = site.harness.broker, await site.signed_in(name="jo")
    root = await tree(broker)
    before_ms = await broker.server_ms()
    async with jo.stream(f"tree:{root}") as stream:
        await stream.next()
        await jo.call("thread/delete", {"threadId": root})
        told = (await stream.until(lambda told: told.data["type"] == "gone")).data
    assert told == {"type": "gone", "deletedBy": "jo", "deletedAtMs": told["deletedAtMs"]}
    assert before_ms <= told["deletedAtMs"] <= await broker.server_ms()
    later, tenant = await site.signed_in(Scope.READ), await site.signed_in(namespace="ours")
    for topic in (f"tree:{root}", f"thread:{root}"):
        async with later.stream(topic) as stream, tenant.stream(topic) as theirs:
            known, unknown = await stream.next(), await theirs.next()
            assert known is not None
            assert unknown is not None
            assert (known.data, unknown.data) == (told, {"type": "gone"})
    refused = await later.post("tree/read", {"treeId": root})
    assert refused.status_code == 404
    assert "it was deleted by jo at" in refused.text
    theirs_refused = await tenant.post("tree/read", {"treeId": root})
    assert (theirs_refused.status_code, "deleted" in theirs_refused.text) == (404, False)


async def test_ids_of_topics_may_be_in_capitals_as_those_of_calls(site: Site) -> None:
    root = await tree(site.harness.broker)
    browser = await site.signed_in()
    for topic, type_ in ((f"tree:{root.upper()}", "all"), (f"thread:{root.upper()}", "begun")):
        async with browser.stream(topic) as stream:
            told = await stream.next()
            assert told is not None
            assert (told.topic, told.data["type"]) == (topic, type_)


async def test_tree_of_another_namespace_is_no_topic(site: Site) -> None:
    root = await tree(site.harness.broker)
    browser = await site.signed_in(namespace="ours")
    async with browser.stream(f"tree:{root}") as stream:
        told = await stream.next()
        assert told is not None
        assert told.data["type"] == "gone"


async def test_workers_are_told_as_they_come_and_to_no_namespace(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "IDLE_S", 0.05)
    browser, other = await site.signed_in(Scope.READ), await site.signed_in(namespace="ours")
    async with browser.stream("workers") as stream, other.stream("workers") as theirs:
        first, none = await stream.next(), await theirs.next()
        assert first is not None
        assert none is not None
        assert first.data["data"] == none.data["data"] == []
        async with working(site.harness):
            told = await stream.until(lambda told: bool(told.data.get("changed")))
            assert told.data["changed"][0]["status"] == "serving"


# ── several trees ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks are taken where something is told, and not because time has passed."""
    monkeypatch.setattr(feeds, "IDLE_S", 60.0)
    monkeypatch.setattr(feeds, "LOOK_S", 0.0)


def spoke(text: str) -> bytes:
    event = {"type": "agent_message", "message": text}
    return encode_entry(Entry(EVENT_MSG, event), SAID_MS, {}).line


@pytest.mark.usefixtures("untimed")
async def test_each_tree_tells_of_its_own_agents_as_soon_as_each_says_something(site: Site) -> None:
    """Of those that are made later, too, each time: what an agent says changes nothing of its tree."""
    broker, browser = site.harness.broker, await site.signed_in()
    roots = [await tree(broker), await tree(broker)]
    owns = [await held(broker, root) for root in roots]
    at = [await does(broker, own, own, status="running") for own in owns]
    async with browser.stream(*(f"tree:{root}" for root in roots)) as stream:
        for root in roots:
            first = await stream.next()
            assert first is not None
            assert [row["threadId"] for row in first.data["data"]] == [first.data["treeId"]]
            assert first.topic in {f"tree:{root}" for root in roots}
        for number in (1, 2):
            for place, root in enumerate(roots):
                child, said = agent(owns[place], number)
                at[place] = await does(
                    broker, at[place], owns[place], status="running", children=(child,), summary=said
                )
                told = await stream.until(lambda told: row_of(told, child.session, "threadId") is not None)  # noqa: B023
                assert (told.topic, told.data["treeId"]) == (f"tree:{root}", root)
                own = await held(broker, child.session)
                text = f"{number} of {place}"
                done = await broker.commits.commit(
                    step(own, own.claim, uuid.uuid4().hex, [spoke(text)], status="running")
                )
                assert isinstance(done, Committed)
                told = await stream.until(
                    lambda told: (row_of(told, child.session, "threadId") or {}).get("last") == text  # noqa: B023
                )
                assert (told.topic, told.data["type"]) == (f"tree:{root}", "changed")


@pytest.mark.usefixtures("untimed")
async def test_limits_of_a_tree_are_told_beside_its_agents_and_to_no_other_tree(site: Site) -> None:
    broker, browser = site.harness.broker, await site.signed_in()
    roots = [await tree(broker), await tree(broker)]
    async with browser.stream(*(f"tree:{root}" for root in roots)) as stream:
        for _ in roots:
            assert (await stream.next()) is not None
        for number, root in enumerate((*roots, *roots), 1):
            added = {"treeId": root, "requestId": f"r{number}", "add": {"tokens": number}}
            limits = (await browser.call("budget/add", added))["limits"]
            told = await stream.until(lambda told: told.data["limits"] == limits)  # noqa: B023
            assert (told.topic, told.data["type"], told.data["treeId"]) == (f"tree:{root}", "changed", root)


@pytest.mark.usefixtures("untimed")
async def test_name_that_a_tree_gets_while_its_topic_begins_is_shown(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, browser = site.harness.broker, await site.signed_in()
    root = await tree(broker)
    own = await held(broker, root)
    tips, named = Listener.tips, asyncio.Event()

    async def named_before(self: Listener, streams: list[str]) -> dict[str, str]:
        if broker.keys.eq(root) in streams and not named.is_set():
            named.set()
            await does(broker, own, own, status="running", meta=meta(name="another", title="another"))
        return await tips(self, streams)

    monkeypatch.setattr(Listener, "tips", named_before)
    async with browser.stream(f"tree:{root}") as stream:
        told = await stream.next()
        assert told is not None
        assert (named.is_set(), told.data["title"]) == (True, "another")
