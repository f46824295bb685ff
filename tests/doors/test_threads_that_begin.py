"""Every method that makes a thread, or comes back to one: how its client hears it, and what it wished."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.door_ports import Born, NewThread
from orchestrator.gateways.app_server.methods import turns
from orchestrator.gateways.app_server.methods.turns import (
    ThreadFork,
    ThreadParams,
    ThreadResume,
    ThreadStartParams,
)
from tests.doors.test_door_of_several_threads import AGENT, BELOW, OTHER, ROOT, Sent

MADE = SessionId("0199a2b4-0000-7000-8000-000000000009")
REVIEWERS: list[str | None] = [None, "user", "auto_review"]


class Maker:
    """A gateway that makes threads, and what each was to be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, asks: bool) -> None:
        self.wishes: list[NewThread] = []
        self.warnings: tuple[str, ...] = ()
        self.sent = Sent()
        ports = cast(Any, self.sent.door.ports)
        ports.asks_auto_review = asks
        ports.create = lambda client, principal, wish: self._born(wish)
        ports.fork = lambda client, principal, source, wish: self._born(wish)

        async def value(*_: Any) -> Any:
            return cast(Any, SimpleNamespace(session=ROOT, agent_id=0))

        async def told(*_: Any) -> dict[str, Any]:
            return {"id": MADE}

        async def nothing(*_: Any) -> Any:
            return []

        for name in ("head_to_read", "_source", "_seen"):
            monkeypatch.setattr(turns, name, value)
        for name in ("thread_of", "_answer"):
            monkeypatch.setattr(turns, name, told)
        for name in ("all_turns", "_tell_tokens", "_running_below"):
            monkeypatch.setattr(turns, name, nothing)
        monkeypatch.setattr(turns, "thread", lambda head: head)
        monkeypatch.setattr(turns, "thread_json", lambda thread: {"id": MADE})
        monkeypatch.setattr(turns, "session_json", lambda settings: {})
        monkeypatch.setattr(turns, "_cursors", lambda head: {})

    async def _born(self, wish: NewThread) -> Born:
        self.wishes.append(wish)
        return Born(cast(Any, SimpleNamespace(session=MADE)), cast(Any, None), self.warnings)

    async def answer(self, method: str, **given: Any) -> SessionId:
        """Calls a method; the thread that its client hears then."""
        match method:
            case "thread/start":
                await turns.thread_start(self.sent.door, ThreadStartParams.model_validate(given))
            case "thread/fork":
                await turns.thread_fork(
                    self.sent.door, ThreadFork.model_validate({"threadId": ROOT, **given})
                )
            case _:
                params = ThreadResume.model_validate({"threadId": ROOT, **given})
                await turns.thread_resume(self.sent.door, params)
        return ROOT if method == "thread/resume" else MADE


@pytest.mark.parametrize("method", ["thread/start", "thread/fork", "thread/resume"])
@pytest.mark.parametrize(("reviewer", "asks"), list(product(REVIEWERS, [True, False])))
async def test_client_is_asked_unless_a_model_reviews_for_it(
    method: str, reviewer: str | None, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = Maker(monkeypatch, asks=asks)
    heard = await maker.answer(method, approvalsReviewer=reviewer)
    assert maker.sent.door.subscriptions[heard].asks is (reviewer != "auto_review" or asks)


@pytest.mark.parametrize("method", ["thread/start", "thread/fork"])
@pytest.mark.parametrize("ephemeral", [None, True, False])
async def test_ephemeral_thread_ends_with_its_last_client_however_it_was_made(
    method: str, ephemeral: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = Maker(monkeypatch, asks=False)
    heard = await maker.answer(method, ephemeral=ephemeral)
    assert maker.wishes[0].ephemeral is bool(ephemeral)
    assert maker.sent.door.subscriptions[heard].live.ephemeral is bool(ephemeral)
    assert maker.sent.threads.kept == [heard] * bool(ephemeral)


@pytest.mark.parametrize("method", ["thread/start", "thread/fork"])
@pytest.mark.parametrize("ephemeral", [True, False])
async def test_client_is_told_of_each_setting_that_is_not_acted_on_behind_the_thread_that_it_has_made(
    method: str, ephemeral: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = Maker(monkeypatch, asks=False)
    maker.warnings = ("config: not acted on: pool", "config: not acted on: x")
    await maker.answer(method, ephemeral=ephemeral)
    told = [orjson.loads(line) for line in maker.sent.lines]
    assert told[0]["method"] == "thread/started"
    warned = [] if ephemeral else list(maker.warnings)
    assert [(one["method"], one["params"]["summary"]) for one in told[1:]] == [
        ("configWarning", warning) for warning in warned
    ]


NAMED: dict[str, tuple[Any, str, Any]] = {
    "model": ("m", "model", "m"),
    "modelProvider": ("p", "model_provider", "p"),
    "approvalPolicy": ("never", "approval_policy", "never"),
    "sandbox": ("read-only", "sandbox_mode", "read-only"),
    "baseInstructions": ("b", "base_instructions", "b"),
    "developerInstructions": ("d", "user_instructions", "d"),
    "personality": ("friendly", "personality", "friendly"),
}


@pytest.mark.parametrize("method", ["thread/start", "thread/fork"])
@pytest.mark.parametrize("member", [*NAMED, "cwd", "config"])
async def test_thread_that_is_made_has_each_setting_that_its_client_names(
    method: str, member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = Maker(monkeypatch, asks=False)
    given = {"cwd": "/w", "config": {"a.b": 1}}.get(member) or NAMED[member][0]
    await maker.answer(method, **{member: given})
    (wish,) = maker.wishes
    settings = dict([NAMED[member][1:]]) if member in NAMED else {}
    assert dict(wish.settings) == settings
    assert (wish.cwd, dict(wish.config)) == (
        given if member == "cwd" else None,
        given if member == "config" else {},
    )


@pytest.mark.parametrize("reviewer", REVIEWERS)
async def test_agents_that_work_are_heard_with_the_thread_that_a_client_comes_back_to_and_ask_as_it_does(
    reviewer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    running_below = turns._running_below
    maker = Maker(monkeypatch, asks=False)
    agents = {
        number: SimpleNamespace(session=session, at_work=at_work)
        for number, (session, at_work) in enumerate([(AGENT, True), (OTHER, False), (BELOW, True)], 1)
    }

    async def fields(tree: Any) -> Any:
        return {}

    monkeypatch.setattr(turns, "_running_below", running_below)
    monkeypatch.setattr(turns, "projected", lambda fields: SimpleNamespace(agents=agents))
    ports = cast(Any, maker.sent.door.ports)
    ports.found = SimpleNamespace(broker=SimpleNamespace(trees=SimpleNamespace(agents=fields)))

    async def head_to_read(*_: Any) -> Any:
        return SimpleNamespace(session=ROOT, agent_id=0, tree=ROOT)

    monkeypatch.setattr(turns, "head_to_read", head_to_read)
    maker.sent.hears(BELOW, asks=True)
    await maker.answer("thread/resume", approvalsReviewer=reviewer)
    asks = reviewer != "auto_review"
    heard = {session: one.asks for session, one in maker.sent.door.subscriptions.items()}
    assert heard == {ROOT: asks, AGENT: asks, BELOW: True}


async def test_agent_whose_thread_a_client_has_left_is_not_heard_with_its_root_again() -> None:
    sent = Sent()
    sent.hears(ROOT, AGENT)
    for session, status in ((AGENT, "unsubscribed"), (AGENT, "notSubscribed"), (OTHER, "notSubscribed")):
        params = ThreadParams.model_validate({"threadId": session})
        assert await turns.thread_unsubscribe(sent.door, params) == {"status": status}
    assert [sent.door.takes(session) for session in (AGENT, OTHER, BELOW)] == [False, True, True]
    assert list(sent.door.subscriptions) == [ROOT]
