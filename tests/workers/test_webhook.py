"""The owner's webhook: each event is told once, signed, to a server that may fail, hang, or redirect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import orjson
import pytest

from orchestrator.config_keys import WebhookSettings
from orchestrator.core.commit_parts import Approval, TreePart, tree_event
from orchestrator.core.ids import TreeId
from orchestrator.protocol.agents import BudgetReport
from orchestrator.protocol.events import WarningEvent
from orchestrator.rollouts.archive import Archive, Storage
from orchestrator.settings import SettingsError, SettingsSources, load_settings
from orchestrator.wiring.deployment import deployment
from orchestrator.wiring.open_deployment import Opened
from tests.receiver import HANGS, SECRET, Receiver, receiver
from tests.servers import RedisServer
from tests.workers.actors import Author, some_entries
from tests.workers.upkeep_process import environment_for, settings_of
from workers import webhook as hooks
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
    async with receiver() as server, running(hook(found, server)):
        [call] = await server.got(1)
        await asking(found, "make")
        (_, last) = await server.got(2)
    data = call.value["data"]
    assert (call.value["type"], data["wants"]) == ("needs_you", "budget")
    assert (data["session_id"], data["tree_id"], data["agent_id"]) == (root.session, root.session, 0)
    assert last.value["data"]["wants"] == "command"


async def test_no_more_news_wait_than_may(found: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "MOST_WAITING", 3)
    await asking(found, *(f"make {n}" for n in range(9)))
    async with receiver() as server:
        told = hook(found, server)
        feed = found.broker.requests.request_feed()
        await told._changes(await feed.changes(1.0))
        await feed.aclose()
    assert len(told._waiting) == 3


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
