"""Answers that this version does not know, as scripts of a newer one may give them: each is named."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.claims import ProviderLimits
from orchestrator.broker.connection import Connection, ScriptCall
from orchestrator.broker.errors import BrokerError
from orchestrator.broker.records import BrokerConfig, LimitChange
from orchestrator.broker.trees import RestingTree
from orchestrator.core.commit_parts import NewEvent
from orchestrator.core.ids import TreeId
from tests.broker.actors import POOL, created, session_id, step, working
from tests.stated import StatedRedis


class Newer(Connection):
    """A server with one script of a newer version."""

    def __init__(self, script: str) -> None:
        client = StatedRedis()
        super().__init__(client, client)
        self._script = script

    async def run(self, call: ScriptCall) -> list[Any]:
        reply = await super().run(call)
        return [b"HOLOGRAM", *reply[1:]] if call.script.name == self._script else reply

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[list[Any]]:
        return [await self.run(call) for call in calls]


LIMITS = ProviderLimits(requests_per_minute=10, tokens_per_minute=1_000)
Act = Callable[[Broker], Awaitable[Any]]


async def _offered(broker: Broker) -> None:
    await broker.jobs.offer_job(POOL, "j", b"look", 1_000)
    await broker.jobs.take_job(POOL, "j", "w1")


async def _commits(broker: Broker) -> None:
    held = await working(broker)
    await broker.commits.commit(step(held, held.claim, "k"))


async def _emits(broker: Broker) -> None:
    held = await working(broker)
    await broker.commits.emit(held.claim, [NewEvent(b"shown", held.seq, "")])


async def _renews(broker: Broker) -> None:
    held = await working(broker)
    (answer,) = await broker.claims.renew([held.claim])
    if isinstance(answer, BrokerError):
        raise answer


async def _releases(broker: Broker) -> None:
    await broker.claims.release((await working(broker)).claim)


async def _buries(broker: Broker) -> None:
    await broker.claims.bury([(await working(broker)).claim])


async def _forgets(broker: Broker) -> None:
    await broker.requests.add_to_history("ann", "k", (session_id(), "hi"), b"12345678")
    await broker.requests.forget_prompts("ann", bool)


async def _seals(broker: Broker) -> None:
    await broker.commits.seal((await working(broker)).claim, 1, b"{}")


async def _raises(broker: Broker) -> None:
    await broker.trees.raise_limits(TreeId(await created(broker)), LimitChange("c1", {"slots": 1}))


async def _looks_again(broker: Broker) -> None:
    await broker.trees.look_again(RestingTree(TreeId(session_id()), 1, broker.keys.to_archive(3)), 2)


async def _drops_texts(broker: Broker) -> None:
    await broker.trees.drop_texts(RestingTree(TreeId(session_id()), 1, broker.keys.to_archive(3)), ["0" * 64])


ACTS: dict[str, Act] = {
    "create": created,
    "submit": working,
    "claim": working,
    "commit": _commits,
    "emit": _emits,
    "renew": _renews,
    "release": _releases,
    "bury": _buries,
    "seal": _seals,
    "raise_limits": _raises,
    "admit": lambda broker: broker.claims.admit("openai", "t", 10, LIMITS),
    "settle": lambda broker: broker.claims.settle("openai", 10, 20, LIMITS),
    "announce": lambda broker: broker.commits.announce(session_id()),
    "give_up": lambda broker: broker.commits.give_up(session_id()),
    "offer_job": _offered,
    "take_job": _offered,
    "add_to_history": lambda broker: broker.requests.add_to_history(
        "ann", "k", (session_id(), "hi"), b"12345678"
    ),
    "forget_prompts": _forgets,
    "reserve_ids": lambda broker: _of_tree(broker, lambda tree: broker.trees.reserve(tree, 1)),
    "revoke": lambda broker: _of_session(broker, broker.trees.revoke),
    "delete": lambda broker: _of_session(broker, broker.trees.delete_session),
    "enlist": lambda broker: _of_session(broker, broker.trees.enlist),
    "look_again": _looks_again,
    "drop_texts": _drops_texts,
    "note": lambda broker: _of_session(
        broker, lambda session: broker.requests.note(session, "git", b"x", b"")
    ),
}


async def _of_session(broker: Broker, act: Callable[[Any], Awaitable[Any]]) -> None:
    await act(await created(broker))


async def _of_tree(broker: Broker, act: Callable[[TreeId], Awaitable[Any]]) -> None:
    await act(TreeId(await created(broker)))


@pytest.mark.parametrize("script", ACTS)
async def test_answer_of_a_newer_script_is_named_and_taken_for_nothing_else(script: str) -> None:
    broker = Broker(Newer(script), BrokerConfig(lease_s=60.0), time.monotonic)
    await broker.open()
    try:
        with pytest.raises(BrokerError, match=f"script {script} answered HOLOGRAM"):
            await ACTS[script](broker)
    finally:
        await broker.aclose()
