"""The owner's webhook: each event is told once, signed, to a server that may fail, hang, or redirect."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from orchestrator.broker.open_requests import Opened as OpenedRequest
from orchestrator.broker.records import Labels, OpenApproval
from orchestrator.config_keys import WebhookSettings
from orchestrator.core import entries as e
from orchestrator.core.commit_parts import Approval, TreePart, tree_event
from orchestrator.core.history import user_message
from orchestrator.core.ids import TreeId
from orchestrator.protocol.agents import BudgetReport
from orchestrator.protocol.events import TaskComplete, TurnAborted, WarningEvent
from orchestrator.protocol.scalars import TurnAbortReason
from orchestrator.rollouts.archive import Archive, Storage
from orchestrator.settings import SettingsError, SettingsSources, load_settings
from orchestrator.wiring.deployment import deployment
from orchestrator.wiring.open_deployment import Opened
from tests.receiver import HANGS, SECRET, Receiver, receiver
from tests.servers import RedisServer
from tests.workers.actors import NOON_MS, Author, head_of, some_entries
from tests.workers.test_upkeep_checks import upkeep_over
from tests.workers.upkeep_process import environment_for, settings_of
from workers import webhook as hooks
from workers.upkeep import look
from workers.webhook import Webhook, signature, webhook_of

pytestmark = pytest.mark.realredis

WHERE = "OUTSIDE THE SANDBOX, in /w"


@pytest.fixture
async def found(server: RedisServer, tmp_path: Path) -> AsyncIterator[Opened]:
    settings = settings_of(environment_for(server.url, tmp_path))
    async with deployment(settings, server.url) as opened:
        yield Opened(settings, opened)


def hook(found: Opened, to: Receiver, *, backoff_s: tuple[float, ...] = (0.01, 0.01)) -> Webhook:
    everything = frozenset({"needs_you", "done", "failed"})
    return Webhook(found, to.url, SECRET, everything, backoff_s, answer_s=0.5, poll_s=0.05)


@asynccontextmanager
async def running(*told: Webhook) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each.run()) for each in told]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def asking(found: Opened, *commands: str) -> Author:
    """A session that asks whether it may run commands."""
    storage = Storage(found.broker, found.deployment.blobs, Archive.at(found.settings.upkeep.archive_url))
    author = await Author(storage).is_born()
    opens = tuple(Approval(f"c{n}", _request(author, f"c{n}", text)) for n, text in enumerate(commands))
    return await author.writes(some_entries(1), status="awaiting_approval", approvals_open=opens)


def _request(author: Author, call: str, command: str) -> bytes:
    event = {
        "type": "exec_approval_request",
        "call_id": call,
        "command": ["sh", "-c", command],
        "cwd": "/w",
        "reason": None,
    }
    return orjson.dumps(
        {
            "kind": "exec",
            "turn": "t1",
            "event": event,
            "sandboxed": False,
            "tree": author.session,
            "agent_id": 0,
            "agent_path": "0",
        }
    )


async def test_request_is_told_once_signed_and_bounded_with_where_it_would_run(found: Opened) -> None:
    author = await asking(found, "rm " + "x" * 5_000)
    async with receiver() as server, running(hook(found, server)):
        [call] = await server.got(1)
    data = call.value["data"]
    assert call.is_signed()
    assert call.headers["webhook-id"] == call.value["id"]
    assert (call.value["type"], data["wants"]) == ("needs_you", "command")
    assert (data["session_id"], data["tree_id"], data["agent_id"]) == (author.session, author.session, 0)
    assert data["subject"].startswith("rm xxx")
    assert len(data["subject"]) == 200
    assert data["where"].startswith(WHERE)
    assert len(call.body) < 4_096


async def test_each_event_is_told_by_one_of_several_processes(found: Opened) -> None:
    await asking(found, *(f"make {n}" for n in range(12)))
    async with receiver() as server, running(hook(found, server), hook(found, server), hook(found, server)):
        calls = await server.got(12)
        marker = await asking(found, "the last")
        (*_, last) = await server.got(13)
    assert last.value["data"]["session_id"] == marker.session
    assert len({call.value["id"] for call in calls}) == 12


async def test_event_is_told_again_after_a_failure_and_not_after_it_was_taken(found: Opened) -> None:
    await asking(found, "make")
    async with receiver("500 Oh No") as server:
        async with running(hook(found, server)):
            first, second = await server.got(2)
            assert first.value == second.value
            await asking(found, "make more")
            await server.got(3)
        async with running(hook(found, server)):
            await asking(found, "a third")
            await server.got(4)
    assert len({call.value["id"] for call in server.calls}) == 3


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (HANGS, "the server did not answer within 0.5 s"),
        ("302 Found\r\nLocation: /elsewhere", "the server answers 302, and no redirect is followed"),
        ("503 No", "the server answers 503"),
    ],
)
async def test_server_that_never_takes_an_event_is_given_up_and_others_are_told(
    found: Opened, answer: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    await asking(found, "make")
    with caplog.at_level(logging.WARNING, "dendro.upkeep"):
        async with receiver(answer, answer, answer) as server, running(hook(found, server)):
            await server.got(3)
            await asking(found, "make more")
            *_, last = await server.got(4)
    assert last.value["data"]["subject"] == "make more"
    assert {call.path for call in server.calls} == {"/hook"}
    assert sum("is given up" in line and why in line for line in caplog.messages) == 1
    assert server.url not in caplog.text, "the address may hold a key"


async def test_event_of_a_process_that_died_is_told_by_another_when_its_lease_is_over(
    found: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "LEASE_S", 0.2)
    await asking(found, "make")
    async with receiver(HANGS) as server:
        dying = hook(found, server)
        dying.answer_s = 60.0
        async with running(dying):
            await server.got(1)
        async with running(hook(found, server)):
            first, second = await server.got(2)
    assert first.value["id"] == second.value["id"]


async def test_request_that_is_settled_before_it_could_be_told_is_told_to_nobody(found: Opened) -> None:
    author = await asking(found, "make")
    async with receiver("500 Oh No") as server, running(hook(found, server, backoff_s=(1.0,))):
        await server.got(1)
        await author.writes(some_entries(1), approvals_close=("c0",))
        await asking(found, "more")
        await asking(found, "and more")
        calls = await server.got(3)
    assert [call.value["data"]["subject"] for call in calls].count("make") == 1


async def test_request_that_is_settled_takes_no_other_of_its_name_along(found: Opened) -> None:
    first, second = await asking(found, "make"), await asking(found, "make more")
    webhook, feed = told(found), found.broker.requests.request_feed()
    await webhook._changes(await feed.changes(1.0))
    assert len({each.news.id for each in webhook._waiting.values()}) == 2
    await first.writes(some_entries(1), approvals_close=("c0",))
    await webhook._changes(await feed.changes(1.0))
    [left] = webhook._waiting.values()
    assert left.news.data["session_id"] == second.session
    await feed.aclose()


async def test_requests_of_one_name_have_ids_of_their_own(found: Opened) -> None:
    """Names of calls are the model's: another session has them too, and a later turn may."""
    first, second = await asking(found, "make"), await asking(found, "make")
    asked = await found.broker.requests.approvals_of(range(found.broker.config.shards))
    again = replace(asked[0], opened_ms=asked[0].opened_ms + 1)
    same_moment = [replace(one, opened_ms=1) for one in asked]
    webhook = told(found)
    for one in (*asked, again, *same_moment):
        webhook._add(await hooks.request_news(found, one), None)
    assert {one.session for one in asked} == {first.session, second.session}
    assert len(webhook._waiting) == 5


@pytest.mark.parametrize("failures", [0, 4])
async def test_news_are_kept_for_their_process_while_it_waits_for_the_next_attempt(
    found: Opened, failures: int
) -> None:
    webhook, news = told(found), hooks.news_of("done", ("s", 1), 0, {})
    assert await found.broker.requests.take_news(news.id, webhook._owner, 1_000) == "ours"
    await webhook._later(hooks.Waiting(news, 0.0, failures), "the server answers 500")
    left_ms = await found.broker.command("PTTL", found.broker.keys.news(news.id))
    assert isinstance(left_ms, int)
    assert left_ms > (hooks.BACKOFF_S[failures] + hooks.ANSWER_S) * 1_000


async def test_tree_whose_agent_waits_for_budget_is_told_once_though_its_root_waits_for_the_agent(
    found: Opened,
) -> None:
    storage = Storage(found.broker, found.deployment.blobs, Archive.at(found.settings.upkeep.archive_url))
    root = await (await Author(storage).is_born()).writes(some_entries(1), status="waiting")
    report = BudgetReport(kind="tokens", limit=100, used=120, agent_id=1)
    spent = WarningEvent(message="the tree's budget of tokens is spent: it is paused", budget=report)
    told = tree_event("t1", spent, (root.session,), {}, once="tokens:100")
    for _ in range(2):
        agent = await Author(storage).is_born(TreeId(root.session))
        await agent.writes(some_entries(1), status="paused", tree=TreePart(events=(told,)))
    untold = await Author(storage).is_born(labels=Labels(ephemeral=True))
    of_it = tree_event("t1", spent, (untold.session,), {}, once="tokens:100")
    await untold.writes(some_entries(1), status="paused", tree=TreePart(events=(of_it,)))
    async with receiver() as server, running(hook(found, server)):
        [call] = await server.got(1)
        await asking(found, "make")
        (_, last) = await server.got(2)
    data = call.value["data"]
    assert (call.value["type"], data["wants"]) == ("needs_you", "budget")
    assert (data["session_id"], data["tree_id"], data["agent_id"]) == (root.session, root.session, 0)
    assert last.value["data"]["wants"] == "command"


async def test_budget_that_was_added_before_the_wait_for_it_could_be_told_is_told_to_nobody(
    found: Opened,
) -> None:
    report = BudgetReport(kind="tokens", limit=100, used=120, agent_id=0)
    spent = WarningEvent(message="the tree's budget of tokens is spent: it is paused", budget=report)
    roots, webhook = [await Author(stored(found)).is_born() for _ in range(2)], told(found)
    for root in roots:
        await root.writes([e.event("t1", spent)], status="paused")
    assert len(await looked(webhook)) == 2
    await roots[0].writes(some_entries(1), status="running")
    async with httpx.AsyncClient() as client:
        for waiting in list(webhook._waiting.values()):
            await webhook._tell(client, waiting)
    [left] = webhook._waiting.values()
    assert (left.news.data["session_id"], left.failures) == (roots[1].session, 1)
    await roots[0].writes(some_entries(1), status="paused")
    assert len(await looked(webhook)) == 2, "it waits anew"


async def test_no_more_news_wait_than_may(found: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "MOST_WAITING", 3)
    await asking(found, *(f"make {n}" for n in range(9)))
    async with receiver() as server:
        told = hook(found, server)
        feed = found.broker.requests.request_feed()
        await told._changes(await feed.changes(1.0))
        await feed.aclose()
    assert len(told._waiting) == 3


async def test_ends_are_told_though_redis_s_clock_was_put_back(
    found: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook, now_ms, ahead_ms = told(found), await found.broker.server_ms(), 2 * hooks.ENDS_SINCE_MS
    roots = [await Author(stored(found)).is_born() for _ in range(2)]

    async def ahead(self: Any) -> int:
        return now_ms + ahead_ms

    for root, at_ms in zip(roots, (now_ms + ahead_ms, now_ms), strict=True):
        root.at_ms = at_ms
    with monkeypatch.context() as patched:
        patched.setattr(type(found.broker), "server_ms", ahead)
        await ended(roots[0])
        key = found.broker.keys.sessions(found.broker.keys.shard_of(roots[0].session))
        await found.broker.command("ZADD", key, now_ms + ahead_ms, roots[0].session)
        began_ms = await webhook._look_at_all(None)
    assert len(webhook._waiting) == 1
    await ended(roots[1])
    await webhook._look_at_all(began_ms)
    news = [each.news.data["session_id"] for each in webhook._waiting.values()]
    assert news == [root.session for root in roots]


# ── of what is told ───────────────────────────────────────────────────────────────────────────────

HOUR_MS = 3_600_000
ENDS = {
    "completed": TaskComplete(),
    "failed": TaskComplete(),
    "interrupted": TurnAborted(reason=TurnAbortReason.INTERRUPTED),
}


def stored(found: Opened) -> Storage:
    return Storage(found.broker, found.deployment.blobs, Archive.at(found.settings.upkeep.archive_url))


async def ended(
    author: Author, outcome: str = "completed", status: str = "idle", *, stale: bool = False, **summary: Any
) -> Author:
    """Ends a task; `stale`: what lists show of the session is still that of before."""
    seq = author.position.seq + (0 if stale else 2)
    about = {"outcome": outcome, "seq": seq, **summary}
    entries = [e.item(user_message("go")), e.event("t1", ENDS[outcome])]
    return await author.writes(entries, status=status, summary=about)


def told(found: Opened, *events: str) -> Webhook:
    """A webhook whose news nobody sends."""
    wanted = frozenset(events or ("needs_you", "done", "failed"))
    return Webhook(found, "http://127.0.0.1:1/", SECRET, wanted)


async def looked(webhook: Webhook, *, since_ms: int = 0) -> list[dict[str, Any]]:
    """The bodies that wait when all shards were looked at."""
    for shard in range(webhook.found.broker.config.shards):
        await webhook._look(shard, since_ms)
    return [orjson.loads(each.news.body()) for each in webhook._waiting.values()]


@pytest.mark.parametrize(
    ("outcome", "status", "kind"),
    [
        ("completed", "idle", "done"),
        ("completed", "closed", "done"),
        ("failed", "idle", "failed"),
        ("failed", "closed", "failed"),
        ("interrupted", "idle", None),
        ("completed", "running", None),
        ("failed", "awaiting_approval", None),
    ],
)
async def test_end_of_a_task_is_told_of_each_root_that_rests_and_of_no_agent(
    found: Opened, outcome: str, status: str, kind: str | None
) -> None:
    roots = [await ended(await Author(stored(found)).is_born(), outcome, status, title="t") for _ in range(2)]
    await ended(await Author(stored(found)).is_born(TreeId(roots[0].session)), outcome, status)
    await ended(await Author(stored(found)).is_born(labels=Labels(ephemeral=True)), outcome, status)
    news = await looked(told(found))
    assert sorted((one["type"], one["data"]["session_id"]) for one in news) == sorted(
        (kind, root.session) for root in roots if kind is not None
    )


@pytest.mark.parametrize("damage", [("seq", "many"), ("meta", "words"), ("meta", "[]")])
async def test_session_that_cannot_be_read_hides_no_end_behind_it(
    found: Opened, damage: tuple[str, str]
) -> None:
    roots = [await ended(await Author(stored(found)).is_born()) for _ in range(4)]
    webhook = told(found)
    for at in (0, 2):
        await found.broker.command("HSET", found.broker.keys.session(roots[at].session), *damage)
    news = await looked(webhook)
    assert {one["data"]["session_id"] for one in news} == {roots[1].session, roots[3].session}
    await ended(roots[1])
    assert len(await looked(webhook)) == 3, "it looks on behind them"


async def test_last_of_the_ends_that_follow_one_another_is_told_and_each_end_has_an_id_of_its_own(
    found: Opened,
) -> None:
    root, webhook = await Author(stored(found)).is_born(), told(found)
    await ended(await ended(root, "failed"))
    [last] = await looked(webhook)
    assert last["type"] == "done"
    await root.writes([], summary={"outcome": "completed", "seq": root.position.seq, "title": "named since"})
    assert len(await looked(webhook)) == 1, "it is the same end"
    await ended(root, "failed", stale=True)
    assert len(await looked(webhook)) == 1, "the summary tells of the task before"
    await ended(root)
    news = await looked(webhook)
    assert [one["type"] for one in news] == ["done", "done"]
    assert len({one["id"] for one in news}) == 2


async def test_ends_and_requests_of_long_before_are_told_to_nobody(found: Opened) -> None:
    now_ms = await found.broker.server_ms()
    old, new = await Author(stored(found)).is_born(), await Author(stored(found)).is_born()
    for author, ago_ms in ((old, hooks.ENDS_SINCE_MS + 60_000), (new, hooks.ENDS_SINCE_MS - 60_000)):
        author.at_ms = now_ms - ago_ms
        await ended(author)
    news = await looked(told(found), since_ms=now_ms - hooks.ENDS_SINCE_MS)
    assert [one["data"]["session_id"] for one in news] == [new.session]
    report = BudgetReport(kind="tokens", limit=100, used=120, agent_id=0)
    spent = WarningEvent(message="the tree's budget of tokens is spent: it is paused", budget=report)
    roots = [await Author(stored(found)).is_born() for _ in range(2)]
    for author, ago_ms in zip(roots, (60_000, -60_000), strict=True):
        author.at_ms = now_ms - hooks.REQUESTS_SINCE_MS - ago_ms
        await author.writes([e.event("t1", spent)], status="paused")
    news = await looked(told(found), since_ms=now_ms - hooks.ENDS_SINCE_MS)
    assert [one["data"]["session_id"] for one in news] == [new.session, roots[1].session]
    await asking(found, "make")
    [asked] = await found.broker.requests.approvals_of(range(found.broker.config.shards))
    ages = {"old": hooks.REQUESTS_SINCE_MS + 60_000, "new": hooks.REQUESTS_SINCE_MS - 60_000}
    for age, ago_ms in ages.items():
        webhook = told(found)
        await webhook._changes([OpenedRequest(replace(asked, opened_ms=now_ms - ago_ms))])
        assert bool(webhook._waiting) == (age == "new")


EVENTS: dict[str, list[dict[str, Any]]] = {
    "command": [{"type": "exec_approval_request", "command": ["make"], "cwd": "/w", "reason": None}],
    "patch": [{"type": "apply_patch_approval_request", "changes": {"/w/a": {"add": {"content": "x"}}}}],
    "answer": [
        {"type": "ask_user_question_request", "questions": [{"header": "h", "question": "q"}]},
        {"type": "request_user_input", "questions": [{"header": "h", "question": "q"}]},
        {"type": "elicitation_request", "server_name": "s", "message": "m", "id": "1"},
    ],
    "plan": [{"type": "plan_approval_request", "proposal": {"title": "t", "body": "b"}}],
    "client_tool": [
        {"type": "dynamic_tool_call_request", "tool": "t", "arguments": {}},
        {"type": "a_request_of_a_later_version"},
    ],
}


@pytest.mark.parametrize(
    ("wants", "event"), [(wants, event) for wants, events in EVENTS.items() for event in events]
)
async def test_request_of_each_kind_says_what_is_wanted(
    found: Opened, wants: str, event: dict[str, Any]
) -> None:
    author = await Author(stored(found)).is_born()
    asked = orjson.dumps({"event": {"call_id": "c", **event}, "tree": author.session})
    news = await hooks.request_news(found, OpenApproval(author.session, "c", asked, 1))
    assert news is not None
    assert (news.kind, news.data["wants"]) == ("needs_you", wants)


@pytest.mark.parametrize("character", ["x", "字", "🚀"])
async def test_no_text_is_longer_than_told_and_no_body_than_some_kilobytes(
    found: Opened, character: str
) -> None:
    long = character * 3_000
    author = await Author(stored(found)).is_born()
    await author.writes(some_entries(1), summary={"title": long, "cwd": f"/{long}"})
    event = {"type": "exec_approval_request", "call_id": "c", "command": [long], "cwd": f"/{long}"}
    asked = orjson.dumps({"event": {**event, "reason": None}, "sandboxed": True, "tree": author.session})
    wanted = await hooks.request_news(found, OpenApproval(author.session, "c", asked, 1))
    end = await hooks.rest_news(found, await head_of(stored(found), (await _renamed(author, long)).session))
    for news, where in ((wanted, 300), (end, None)):
        assert news is not None
        assert len(news.body()) < 4_700
        data = orjson.loads(news.body())["data"]
        lengths = {name: data[name] and len(data[name]) for name in ("subject", "title", "where", "cwd")}
        assert lengths == {"subject": 200, "title": 200, "where": where, "cwd": 300}


async def _renamed(author: Author, title: str) -> Author:
    return await ended(author, title=title, cwd=f"/{title}")


async def test_half_a_character_is_told_as_json_that_can_be_read(found: Opened) -> None:
    root = await ended(await Author(stored(found)).is_born(), title="whole")
    news = await hooks.rest_news(found, await head_of(stored(found), root.session))
    assert news is not None
    body = replace(news, data={**news.data, "title": "half \ud83d"}).body()
    assert json.loads(body)["data"]["title"] == "half \ud83d"


@pytest.mark.parametrize("wanted", ["needs_you", "done", "failed"])
async def test_owner_is_told_of_the_types_that_they_want_alone(found: Opened, wanted: str) -> None:
    await asking(found, "make")
    for outcome in ("completed", "failed"):
        root = await ended(await Author(stored(found)).is_born(), outcome)
    webhook = told(found, wanted)
    feed = found.broker.requests.request_feed()
    await webhook._changes(await feed.changes(1.0))
    await feed.aclose()
    webhook.set_aside([replace(await head_of(stored(found), root.session), quarantined=True)], NOON_MS)
    news = await looked(webhook)
    assert [one["type"] for one in news] == [wanted] * (2 if wanted == "failed" else 1)


async def test_each_session_that_is_set_aside_is_told_and_again_when_it_is_set_aside_again(
    found: Opened,
) -> None:
    upkeep, webhook = upkeep_over(stored(found)), told(found)
    upkeep.webhook = webhook
    root = await (await Author(stored(found)).is_born()).writes(some_entries(1))
    agent = await (await Author(stored(found)).is_born(TreeId(root.session))).writes(some_entries(1))
    sound = await (await Author(stored(found)).is_born()).writes(some_entries(1))
    both = {author.session for author in (root, agent)}
    for session in both:
        await found.broker.command("HSET", found.broker.keys.session(session), "quarantined", "1")
    for _ in range(2):
        await look({"redis": None, "upkeep": upkeep})
    news = [each.news for each in webhook._waiting.values()]
    assert sorted((one.data["session_id"], one.kind) for one in news) == sorted((s, "failed") for s in both)
    assert {one.data["agent_id"] for one in news} == {
        0,
        (await head_of(stored(found), agent.session)).agent_id,
    }
    assert sound.session not in str(news)
    head = await head_of(stored(found), root.session)
    webhook.set_aside([replace(head, epoch=head.epoch + 1)], NOON_MS)
    assert len(webhook._waiting) == 3, "a person has readmitted it, and it ended workers again"


@pytest.mark.parametrize("summary", [b"words", b"[]"])
async def test_session_with_a_damaged_summary_keeps_no_other_that_is_set_aside_from_being_told(
    found: Opened, summary: bytes
) -> None:
    roots, webhook = [await Author(stored(found)).is_born() for _ in range(3)], told(found)
    heads = [
        replace(
            await head_of(stored(found), root.session), quarantined=True, meta=summary if at == 1 else b""
        )
        for at, root in enumerate(roots)
    ]
    webhook.set_aside(heads, NOON_MS)
    news = {each.news.data["session_id"] for each in webhook._waiting.values()}
    assert news == {roots[0].session, roots[2].session}


@pytest.mark.parametrize("of", ["requests", "ends", "set aside"])
async def test_news_of_no_kind_wait_beyond_the_bound(
    found: Opened, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    monkeypatch.setattr(hooks, "MOST_WAITING", 2)
    monkeypatch.setattr(hooks, "PAGE", 1)
    roots = [await Author(stored(found)).is_born() for _ in range(4)]
    webhook = told(found)
    match of:
        case "requests":
            await asking(found, *(f"make {n}" for n in range(4)))
            asked = await found.broker.requests.approvals_of(range(found.broker.config.shards))
            await webhook._changes([OpenedRequest(one) for one in asked])
        case "ends":
            for root in roots:
                await ended(root)
            assert len(await looked(webhook)) == 2
            webhook._waiting.clear()
            assert len(await looked(webhook)) == 2, "the others are told when there is room"
        case _:
            heads = [await head_of(stored(found), root.session) for root in roots]
            webhook.set_aside([replace(head, quarantined=True) for head in heads], NOON_MS)
    assert len(webhook._waiting) == 2


async def test_request_that_is_settled_takes_no_other_of_its_session_along(found: Opened) -> None:
    author, webhook = await asking(found, "make", "test"), told(found)
    feed = found.broker.requests.request_feed()
    await webhook._changes(await feed.changes(1.0))
    await author.writes(some_entries(1), approvals_close=("c0",))
    await webhook._changes(await feed.changes(1.0))
    await feed.aclose()
    assert [each.news.data["subject"] for each in webhook._waiting.values()] == ["test"]


async def test_event_that_was_given_up_is_tried_by_no_other_process(found: Opened) -> None:
    await asking(found, "make")
    async with receiver("500 No", "500 No") as server, running(hook(found, server, backoff_s=(0.01,))):
        given_up, _ = await server.got(2)
        await asking(found, "and more")
        await server.got(3)
    assert await found.broker.requests.take_news(given_up.value["id"], "another", 1_000) == "told"


@pytest.mark.parametrize("answer", ["200 OK", "201 Created", "204 No Content", "299 Fine"])
async def test_answer_of_any_success_means_that_the_server_has_it(found: Opened, answer: str) -> None:
    await asking(found, "make")
    async with receiver(answer) as server, running(hook(found, server)):
        await server.got(1)
        await asking(found, "more")
        calls = await server.got(2)
    assert [call.value["data"]["subject"] for call in calls] == ["make", "more"]


def test_secret_of_standard_webhooks_signs_as_their_libraries_do() -> None:
    # The example of the specification's reference libraries.
    secret, id = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert signature(secret, id, 1614265330, b'{"test": 2432232314}') == (
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


def test_webhook_without_a_secret_is_refused_and_one_without_an_address_is_none(found: Opened) -> None:
    assert webhook_of(WebhookSettings(), found) is None
    with pytest.raises(SettingsError, match="DENDRO_WEBHOOK_SECRET"):
        webhook_of(WebhookSettings(url="https://host/hook"), found)


@pytest.mark.parametrize(
    "url",
    [
        "http://host/hook",
        "http://localhost.host/hook",
        "http://127.0.0.1.host/",
        "http://localhost:x@host/",
        "ftp://host",
    ],
)
def test_address_that_is_neither_encrypted_nor_on_loopback_is_refused_and_not_shown(url: str) -> None:
    environ = {"DENDRO_WEBHOOK_URL": url, "DENDRO_WEBHOOK_SECRET": "x" * 16}
    with pytest.raises(SettingsError, match=r"webhook\.url") as refused:
        load_settings(SettingsSources(Path.cwd(), environ))
    assert url not in str(refused.value)


@pytest.mark.parametrize("host", ["localhost.host", "127.0.0.1.host/", "localhost:x@host"])
def test_issuer_that_only_begins_as_loopback_does_is_refused(host: str) -> None:
    environ = {"DENDRO_GATEWAY_TOKEN_ISSUER": f"http://{host}", "DENDRO_GATEWAY_TOKEN_AUDIENCE": "x"}
    with pytest.raises(SettingsError, match=r"gateway\.token_issuer"):
        load_settings(SettingsSources(Path.cwd(), environ))


def test_folder_cannot_set_the_webhook(tmp_path: Path) -> None:
    (tmp_path / "dendro.toml").write_text('[webhook]\nurl = "https://thief.example/"\n')
    settings = load_settings(SettingsSources(tmp_path, {}))
    assert settings.webhook.url is None
