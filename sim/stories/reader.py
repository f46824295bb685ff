"""A client that looks at whatever a window, a terminal or a program may look at, and changes nothing."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import orjson

from orchestrator.gateways.principals import Principal, Scope
from sim.door_clients import WINDOW
from sim.gateways import SimGateway, SimWire, Tokens
from sim.loop import Lane

if TYPE_CHECKING:
    from sim.stories.calm import CalmWorld

SOURCES = [
    "cli",
    "vscode",
    "exec",
    "appServer",
    "subAgent",
    "subAgentThreadSpawn",
    "subAgentOther",
    "unknown",
]
OF_FLEET: tuple[tuple[str, dict[str, Any]], ...] = (
    ("thread/list", {}),
    ("thread/list", {"sortKey": "updated_at", "sortDirection": "asc", "limit": 2, "sourceKinds": SOURCES}),
    ("thread/list", {"archived": True}),
    ("thread/list", {"searchTerm": "words p1", "cwd": "/sim"}),
    ("thread/search", {"searchTerm": "words"}),
    ("thread/loaded/list", {}),
    ("fleet/list", {}),
    ("fleet/list", {"sort": "cost", "text": "words", "limit": 1}),
    ("fleet/stats", {}),
    ("approval/list", {}),
    ("approval/history", {}),
    ("worker/list", {}),
    ("listConversations", {}),
)
ALIKE = tuple(asked for asked in OF_FLEET if asked[0] not in ("worker/list", "fleet/stats"))
"""Questions that several workers answer as one does."""
GLANCE = ("fleet/list", "fleet/stats", "approval/list")
"""Questions of a person in the middle of things."""
OF_TREE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("tree/read", {}),
    ("tree/log", {"limit": 20}),
    ("tree/timeline", {"buckets": 12}),
    ("approval/history", {}),
    ("approval/list", {}),
)
OF_THREAD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("thread/read", {"includeTurns": True}),
    ("thread/turns/list", {"limit": 2, "itemsView": "full"}),
    ("thread/items/list", {"limit": 3, "sortDirection": "desc"}),
    ("thread/queue/list", {}),
    ("thread/backgroundTerminals/list", {}),
    ("workspace/changes", {}),
)
ONCE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("window/state", {}),
    ("model/list", {}),
    ("account/rateLimits/read", {}),
    ("account/usage/read", {}),
    ("config/read", {}),
)
MOST_THREADS = 5
_STANDS = {"initialize", "window/state", "model/list", "config/read"}


class Reader:
    """A client of one gateway, of whoever may read."""

    def __init__(self, world: CalmWorld, name: str, namespace: str = "") -> None:
        self._world, self._name = world, name
        self._principal = Principal(name, namespace, Scope.ADMIN, f"token of {name}")
        self._sent = 0

    async def looks(self, *, whole: bool) -> None:
        """Asks for everything, or for what a person looks at in the middle of things."""
        world = self._world
        tokens = Tokens(world.loop)
        tokens.give(self._principal)
        gateway = SimGateway(world.site, f"g-{self._name}", world.drawn(self._name), {}, "untrusted", tokens)
        lane = Lane(self._name)
        wire = gateway.connect(self._principal, lane, WINDOW, 1 << 24)
        wire.noted = partial(self._noted, world.trace.heard)
        asking = world.loop.start(lane, self._asks(wire, whole), f"{self._name}:looks")
        await asyncio.wait([asking])
        wire.leave()
        await asyncio.sleep(0.1)
        world.loop.kill(gateway.lane)

    def _noted(self, heard: Any, way: str, message: bytes) -> None:
        if way == ">":
            asked = orjson.loads(message)
            asked.pop("id", None)
            message = orjson.dumps(asked)
        heard(self._name, way, message)

    async def _asks(self, wire: SimWire, whole: bool) -> None:
        about = {"clientInfo": {"name": self._name, "version": "0"}}
        about["capabilities"] = {"experimentalApi": True}  # type: ignore[dict-item]
        await self._calls(wire, "initialize", about)
        # Which of several workers has a session is chance.
        fleet = OF_FLEET if self._world.nemesis.plan.workers == 1 else ALIKE
        for method, params in fleet if whole else [one for one in fleet if one[0] in GLANCE]:
            await self._calls(wire, method, params)
        if whole and self._principal.namespace == "" and self._world.seed % 8 == 0:
            for method, params in ONCE:
                await self._calls(wire, method, params)
        threads = list(self._world.site.watch.sessions)
        roots = [one for one in threads if self._world.site.watch.sessions[one].tree == one]
        for root in roots[:2]:
            for method, params in OF_TREE if whole else OF_TREE[:1]:
                await self._calls(wire, method, {**params, "treeId": root})
        if self._principal.namespace:
            threads = threads[:1]
        for thread in threads[:MOST_THREADS]:
            for method, params in OF_THREAD if whole else OF_THREAD[:1]:
                await self._calls(wire, method, {**params, "threadId": thread})
        for root in roots[:1] if whole else ():
            await self._calls(wire, "resumeConversation", {"conversationId": root})
            await self._calls(wire, "thread/resume", {"threadId": root})

    async def _calls(self, wire: SimWire, method: str, params: dict[str, Any]) -> None:
        self._sent += 1
        wire.write(orjson.dumps({"id": self._sent, "method": method, "params": params}))
        while (data := await wire.read()) is not None:
            if orjson.loads(data).get("id") == self._sent:
                return


def drawn(seed: int) -> Random:
    return Random(f"reader:{seed}")
