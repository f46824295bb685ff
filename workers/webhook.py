"""The owner's webhook: a session needs somebody, or a root has ended a task.

Every upkeep process looks, and one of them tells: who tells news is kept in Redis under their id, with a
lease, so that those of a process that died are told by another one. A receiver gets each id once, or again
where a process died in between; news that no attempt could deliver are given up with a warning. The page is
`docs/upkeep.md`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, assert_never

import httpx
import orjson

from orchestrator.broker.errors import BrokerError, Corrupt, Unavailable
from orchestrator.broker.open_requests import Opened as OpenedRequest
from orchestrator.broker.open_requests import RequestChange
from orchestrator.broker.records import OpenApproval, SessionHead, StoredEvent, Summary
from orchestrator.config_keys import WebhookSettings
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.requests import (
    ChoicesRequest,
    ClientToolRequest,
    CommandRequest,
    InputRequest,
    PatchRequest,
    PlanDecisionRequest,
    Request,
    ServerRequest,
    UnknownRequest,
)
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.settings import SettingsError
from orchestrator.views.approvals import Needed, asked_of, needed

log = logging.getLogger("dendro.upkeep")

POLL_S = 5.0
AGAIN_S = 2.0
ANSWER_S = 10.0
"""The time for one attempt, from the connection to the answer's status."""
BACKOFF_S = (1.0, 5.0, 30.0, 120.0, 600.0)
"""The waits between attempts: six of them, over some thirteen minutes."""
LEASE_S = 60.0
AT_ONCE = 4
MOST_WAITING = 1_000
"""News that wait to be told; with so many no more ends are looked for, and more requests are dropped."""
ENDS_SINCE_MS = 3_600_000
"""Ends of tasks before that, as upkeep begins, are told to nobody."""
REQUESTS_SINCE_MS = 86_400_000
OVERLAP_MS = 60_000
"""The time that a look reads again where Redis's clock was put back: what was told is not told twice."""
PAGE, TAIL = 200, 200
SUBJECT_CHARS, WHERE_CHARS = 200, 300
AT_REST = ("idle", "closed")


@dataclass(frozen=True, slots=True)
class News:
    """An event for the owner, under an id that stays the same whoever tells it."""

    id: str
    kind: str
    at_ms: int
    data: Mapping[str, Any]

    def body(self) -> bytes:
        """The JSON that is sent; a lone surrogate is escaped, as it has no other form."""
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
        value = {"id": self.id, "type": self.kind, "timestamp": at, "data": self.data}
        # All that is not ASCII would be three times as large if it were escaped.
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")


def news_of(kind: str, about: Sequence[str | int], at_ms: int, data: Mapping[str, Any]) -> News:
    """News under the id of what they are about; a model chooses names of calls, so it is a digest."""
    digest = hashlib.sha256(json.dumps([kind, *about]).encode()).hexdigest()
    return News(f"evt_{digest[:32]}", kind, at_ms, data)


# ── what happens ──────────────────────────────────────────────────────────────────────────────────


async def request_news(found: LogSource, approval: OpenApproval) -> News | None:
    """The news of an open request; None if its session is gone."""
    about = (approval.session, approval.key, approval.opened_ms)
    asked = await asked_of(found, approval)
    if asked is None:
        return None
    [one] = await needed(found, [asked])
    return news_of("needs_you", about, approval.opened_ms, _asked_for(one))


def _asked_for(one: Needed) -> dict[str, Any]:
    asked = one.asked
    return {
        "tree_id": asked.tree,
        "session_id": asked.session,
        "agent_id": asked.agent_id,
        "wants": _wanted(asked.request),
        "subject": _cut(asked.subject, SUBJECT_CHARS),
        "where": _cut(asked.request.where, WHERE_CHARS) or None,
        "cwd": _cut(one.folder, WHERE_CHARS) or None,
        "title": _cut(one.title, SUBJECT_CHARS) or None,
    }


def _wanted(request: Request) -> str:
    match request:
        case ChoicesRequest() | InputRequest() | ServerRequest():
            return "answer"
        case PlanDecisionRequest():
            return "plan"
        case CommandRequest():
            return "command"
        case PatchRequest():
            return "patch"
        case ClientToolRequest() | UnknownRequest():
            return "client_tool"
        case _:
            assert_never(request)


async def rest_news(found: LogSource, head: SessionHead) -> News | None:
    """The news of a root that has ended a task, or of a tree that waits for budget; else None."""
    if head.status == "paused":
        return await _budget_news(found, head)
    if head.agent_id or head.labels.ephemeral or head.archived or not head.meta:
        return None
    meta = head.summary
    kind = {"completed": "done", "failed": "failed"}.get(meta.get("outcome") or "")
    if kind is None or head.status not in AT_REST:
        return None
    end = await _last(found, head, lambda msg: msg["type"] in ("task_complete", "turn_aborted"))
    # A summary that is older than the end tells of the task before.
    if end is None or meta.get("seq", 0) < end.seq:
        return None
    return news_of(kind, (head.session, end.n), end.at_ms or head.recency_ms, _of_root(head, meta))


async def _budget_news(found: LogSource, head: SessionHead) -> News | None:
    """The news of the tree of a session that waits for budget: the root is told so, whoever waits."""
    root = await found.broker.logs.head(SessionId(head.tree)) if head.agent_id else head
    if root is None or root.labels.ephemeral or root.archived:
        return None
    spent = await _last(found, root, _is_spent)
    if spent is None:
        return None
    data = {**_of_root(root, root.summary), "wants": "budget", "subject": "more budget for the tree"}
    return news_of("needs_you", (root.session, "budget", spent.n), spent.at_ms or root.recency_ms, data)


def _is_spent(msg: Mapping[str, Any]) -> bool:
    return msg["type"] == "warning" and bool(msg.get("budget")) and "is spent" in msg["message"]


def _of_root(head: SessionHead, meta: Summary) -> dict[str, Any]:
    title = _cut(head.title, SUBJECT_CHARS)
    return {
        "tree_id": head.tree,
        "session_id": head.session,
        "agent_id": 0,
        "subject": title or None,
        "where": None,
        "cwd": _cut(meta.get("cwd") or "", WHERE_CHARS) or None,
        "title": title or None,
    }


async def _last(
    found: LogSource, head: SessionHead, wanted: Callable[[Mapping[str, Any]], bool]
) -> StoredEvent | None:
    """The last event that is wanted among the newest ones of a session."""
    events = await found.broker.logs.read_eq(head.session, max(0, head.eq_n - TAIL), TAIL)
    return next((each for each in reversed(events) if wanted(orjson.loads(each.payload)["msg"])), None)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


# ── telling it ────────────────────────────────────────────────────────────────────────────────────


def signature(secret: str, id: str, at_s: int, body: bytes) -> str:
    """The header `webhook-signature` of Standard Webhooks."""
    encoded = secret.removeprefix("whsec_")
    key = secret.encode() if encoded == secret else base64.b64decode(encoded)
    digest = hmac.new(key, f"{id}.{at_s}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


@dataclass(slots=True)
class Waiting:
    """News that are to be told."""

    news: News
    due: float
    failures: int = 0
    ours: bool = False
    """Whether this process has taken them."""
    request: tuple[SessionId, str] | None = None
    """The request that they tell of: once it is settled they are dropped."""


@dataclass(slots=True)
class Webhook:
    """The news of a deployment on their way to its owner's server."""

    found: LogSource
    url: str
    secret: str
    events: frozenset[str]
    backoff_s: Sequence[float] = BACKOFF_S
    answer_s: float = ANSWER_S
    poll_s: float = POLL_S
    _owner: str = field(default_factory=lambda: uuid.uuid4().hex)
    _waiting: dict[str, Waiting] = field(default_factory=dict)
    _since: dict[int, tuple[int, frozenset[SessionId]]] = field(default_factory=dict)
    """The time up to which each shard was looked at, and the sessions that were seen to change just then."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Looks and tells until it is cancelled. Redis may go away and come back meanwhile."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._asking())
            tasks.create_task(self._resting())
            tasks.create_task(self._telling())

    async def _asking(self) -> None:
        while True:
            feed = self.found.broker.requests.request_feed()
            try:
                async with _patiently():
                    while True:
                        await self._changes(await feed.changes(self.poll_s))
            finally:
                # A feed tells a change once: whatever was lost with Redis, a new one tells again.
                await feed.aclose()

    async def _changes(self, changes: Sequence[RequestChange]) -> None:
        now_ms = await self.found.broker.server_ms() if changes else 0
        for change in changes:
            if not isinstance(change, OpenedRequest):
                self._settle((change.session, change.key))
            elif change.request.opened_ms >= now_ms - REQUESTS_SINCE_MS:
                await self._open(change.request)

    async def _open(self, request: OpenApproval) -> None:
        if "needs_you" not in self.events:
            return
        if len(self._waiting) >= MOST_WAITING:
            log.warning("webhook: %d news wait: a request of %s is not told", MOST_WAITING, request.session)
            return
        with _tolerant(request.session):
            self._add(await request_news(self.found, request), (request.session, request.key))

    def set_aside(self, heads: Iterable[SessionHead], now_ms: int) -> None:
        """Takes note of sessions that nobody runs any more, until a person readmits them."""
        for head in heads:
            if head.quarantined and len(self._waiting) < MOST_WAITING:
                told = "no worker takes it any more, as it ended several: dendro revoke readmits it"
                with _tolerant(head.session):
                    data = {**_of_root(head, head.summary), "agent_id": head.agent_id}
                    about = (head.session, "set aside", head.epoch)
                    self._add(news_of("failed", about, now_ms, {**data, "subject": told}), None)

    def _settle(self, request: tuple[SessionId, str]) -> None:
        for id in [id for id, each in self._waiting.items() if each.request == request]:
            del self._waiting[id]

    async def _resting(self) -> None:
        began_ms: int | None = None
        while True:
            async with _patiently():
                began_ms = await self._look_at_all(began_ms)
            await asyncio.sleep(self.poll_s)

    async def _look_at_all(self, began_ms: int | None) -> int:
        """Looks at every shard; answers since when ends are told, by Redis's clock as it is now."""
        now_ms = await self.found.broker.server_ms()
        since_ms = now_ms - ENDS_SINCE_MS
        # By a clock that was put back all that is to come would be of before upkeep began, or seen already.
        began_ms = since_ms if began_ms is None else min(began_ms, since_ms)
        for shard, (seen_ms, _) in self._since.items():
            if seen_ms > now_ms:
                self._since[shard] = now_ms - OVERLAP_MS, frozenset()
        for shard in range(self.found.broker.config.shards):
            await self._look(shard, began_ms)
        return began_ms

    async def _look(self, shard: int, began_ms: int) -> None:
        """Looks at the sessions of a shard that have changed since."""
        while len(self._waiting) < MOST_WAITING:
            # Who waits for budget needs somebody, and asks for it as long as a request does.
            asked_ms = began_ms + ENDS_SINCE_MS - REQUESTS_SINCE_MS
            since, seen = self._since.get(shard, (asked_ms, frozenset()))
            page = await self.found.broker.logs.changed_since(shard, since, PAGE + len(seen))
            if not (changed := [session for session, at in page if at > since or session not in seen]):
                return
            damaged: dict[SessionId, Corrupt] = {}
            heads = await self.found.broker.logs.heads(changed, damaged)
            for error in damaged.values():
                log.warning("webhook: a session cannot be told of: %s", error)
            changed_ms = dict(page)
            for head in heads:
                since_ms = asked_ms if head.status == "paused" else began_ms
                if changed_ms[head.session] < since_ms:
                    continue
                with _tolerant(head.session):
                    news = await rest_news(self.found, head)
                    if news is not None and news.at_ms >= since_ms:
                        self._add(news, None)
            newest = page[-1][1]
            there = frozenset(session for session, at in page if at == newest)
            self._since[shard] = (newest, there | seen if newest == since else there)

    def _add(self, news: News | None, request: tuple[SessionId, str] | None) -> None:
        if news is not None and news.kind in self.events and news.id not in self._waiting:
            self._waiting[news.id] = Waiting(news, time.monotonic(), request=request)
            self._changed.set()

    async def _telling(self) -> None:
        timeout = httpx.Timeout(self.answer_s)
        limits = httpx.Limits(max_connections=AT_ONCE)
        async with httpx.AsyncClient(timeout=timeout, limits=limits, follow_redirects=False) as client:
            while True:
                self._changed.clear()
                now = time.monotonic()
                due = [each for each in self._waiting.values() if each.due <= now][:AT_ONCE]
                await asyncio.gather(*(self._tell(client, each) for each in due))
                if not due:
                    await self._until(min((each.due for each in self._waiting.values()), default=now + 60.0))

    async def _until(self, due: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, due - time.monotonic())):
                await self._changed.wait()

    async def _tell(self, client: httpx.AsyncClient, waiting: Waiting) -> None:
        """An attempt, if the news are this process's to tell."""
        broker, id = self.found.broker, waiting.news.id
        try:
            if waiting.news.data.get("wants") == "budget" and not await self._is_paused(waiting.news):
                # Where it waits anew it is found anew.
                self._waiting.pop(id, None)
                return
            taken = (
                "ours"
                if waiting.ours
                else await broker.requests.take_news(id, self._owner, int(LEASE_S * 1000))
            )
            if taken == "theirs":
                waiting.due = time.monotonic() + LEASE_S / 2
                return
            if taken == "told":
                self._waiting.pop(id, None)
                return
            waiting.ours = True
            failure = await self._post(client, waiting.news)
            if failure and waiting.failures < len(self.backoff_s):
                await self._later(waiting, failure)
                return
            if failure:
                log.warning("webhook: %s %s is given up: %s", waiting.news.kind, id, failure)
            await broker.requests.settle_news(id)
            self._waiting.pop(id, None)
        except BrokerError as error:
            waiting.due = time.monotonic() + AGAIN_S
            log.warning("webhook: %s %s waits for Redis: %s", waiting.news.kind, id, error)

    async def _is_paused(self, news: News) -> bool:
        """Whether the tree of some news waits for budget still."""
        with suppress(Corrupt):
            members = await self.found.broker.trees.members(TreeId(news.data["tree_id"]))
            return any(head.status == "paused" for head in members)
        return True

    async def _later(self, waiting: Waiting, failure: str) -> None:
        pause = self.backoff_s[waiting.failures]
        waiting.failures += 1
        waiting.due = time.monotonic() + pause
        log.warning("webhook: %s %s: %s; again in %g s", waiting.news.kind, waiting.news.id, failure, pause)
        await self.found.broker.requests.keep_news(
            waiting.news.id, self._owner, int((pause + LEASE_S) * 1000)
        )

    async def _post(self, client: httpx.AsyncClient, news: News) -> str:
        """The failure of an attempt; empty if the server took it. Of its answer the status alone is read."""
        body, at_s = news.body(), int(time.time())
        headers = {
            "content-type": "application/json",
            "user-agent": "dendro-webhook",
            "webhook-id": news.id,
            "webhook-timestamp": str(at_s),
            "webhook-signature": signature(self.secret, news.id, at_s, body),
        }
        try:
            async with asyncio.timeout(self.answer_s):
                async with client.stream("POST", self.url, content=body, headers=headers) as answer:
                    status = answer.status_code
        except TimeoutError:
            return f"the server did not answer within {self.answer_s:g} s"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # Its words may quote the address, which may hold a key.
            return f"the server cannot be reached ({type(error).__name__})"
        if 200 <= status < 300:
            return ""
        return f"the server answers {status}" + (
            ", and no redirect is followed" if status // 100 == 3 else ""
        )


@asynccontextmanager
async def _patiently() -> AsyncIterator[None]:
    """Waits a little where Redis is away, as whoever looks again finds all of it."""
    try:
        yield
    except Unavailable as error:
        log.warning("webhook: waits for Redis: %s", error)
        await asyncio.sleep(AGAIN_S)


@contextmanager
def _tolerant(session: SessionId) -> Iterator[None]:
    """Passes over what one session alone is to blame for."""
    try:
        yield
    except Unavailable:
        raise
    except (BrokerError, ArchiveUnavailable, AttributeError, LookupError, TypeError, ValueError) as error:
        log.warning("webhook: session %s cannot be told of: %s", session, error)


def webhook_of(settings: WebhookSettings, found: LogSource) -> Webhook | None:
    """The webhook of a deployment; None if its owner wants none. Raises `SettingsError` without a secret."""
    if settings.url is None or not settings.events:
        return None
    if settings.secret is None:
        wanted = "a secret of 16 to 256 characters signs what upkeep sends: set DENDRO_WEBHOOK_SECRET"
        raise SettingsError("webhook.url", "webhook.secret", "none", wanted)
    return Webhook(found, settings.url, settings.secret, frozenset(settings.events))
