"""Plays of calm runs alone: clients of gateways that do, one after the other, all that clients may do.

In the simulator's own workloads clients speak, answer and leave, since every rule must know what a client
was told. Nobody judges these: they are told in stories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any

import orjson

from orchestrator.core.settings import TreeRules
from orchestrator.gateways.principals import Principal, Scope
from sim.door_clients import WINDOW
from sim.fixture import Fixture
from sim.gateways import SimWire
from sim.loop import Lane
from sim.model_script import CLIENT_TOOL
from sim.workloads import Workload
from sim.workloads_doors import Street, _watched

PATIENCE_S = 30.0
ACCEPTS = ("accept", "accept", "acceptForSession", "decline", "cancel")
OLD_ACCEPTS = ("approved", "approved", "approved_for_session", "denied", "abort")
POLICIES = ("never", "untrusted", "on-request")


class Desk:
    """A client that acts at moments of its own, and answers what it is asked."""

    def __init__(
        self, fixture: Fixture, street: Street, name: str, shared: list[str], principal: Principal
    ) -> None:
        self.name, self.principal = name, principal
        self._fixture, self._street, self._shared = fixture, street, shared
        self._rng = Random(f"{name}:{fixture.rng.getrandbits(64)}")
        self._lane = Lane(name)
        self._sent = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._wire: SimWire | None = None
        self._turns: dict[str, str] = {}
        """The last turn that began, by thread."""
        self._ended: dict[str, list[str]] = {}
        self._items: dict[str, list[str]] = {}
        self._threads: dict[str, None] = {}
        street.tokens.give(principal)

    def works(self, acts: int) -> asyncio.Task[Any]:
        return self._fixture.site.loop.start(self._lane, self._works(acts), f"{self.name}:works")

    async def _works(self, acts: int) -> None:
        rng = self._rng
        await self._comes()
        for _ in range(acts):
            await asyncio.sleep(rng.choice((0.5, 2.0, 6.0)) * rng.uniform(0.2, 1.0))
            if self._wire is None or self._wire.closed:
                await self._comes()
            await self._acts()
        await asyncio.sleep(2.0)
        if self._wire is not None:
            self._wire.leave()

    async def _comes(self) -> None:
        """To a gateway that lives; what it heard before it resumes."""
        while True:
            if living := self._street.living():
                break
            await asyncio.sleep(0.5)
        wire = self._wire = self._rng.choice(living).connect(self.principal, self._lane, WINDOW, 1 << 24)
        wire.noted = partial(self._fixture.site.trace.heard, self.name)
        self._fixture.site.loop.create_task(self._reads(wire), name=f"{self.name}:reads")
        about: dict[str, Any] = {"clientInfo": {"name": self.name, "version": "0"}}
        await self._calls("initialize", {**about, "capabilities": {"experimentalApi": True}})
        for thread in tuple(self._threads):
            await self._resumes(thread)

    async def _resumes(self, thread: str) -> None:
        await self._calls("thread/resume", {"threadId": thread})

    async def _reads(self, wire: SimWire) -> None:
        while (data := await wire.read()) is not None:
            message = orjson.loads(data)
            id, method = message.get("id"), message.get("method")
            if method is None:
                if (answer := self._answers.pop(id, None)) is not None and not answer.done():
                    answer.set_result(message.get("result"))
            elif id is None:
                self._told(method, message["params"])
            else:
                self._asked(wire, id, method, message["params"])
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(None)
        self._answers.clear()

    async def _calls(self, method: str, params: Mapping[str, Any]) -> Any:
        """The result; None for an error, and where nobody answers."""
        if self._wire is None or self._wire.closed:
            return None
        self._sent += 1
        answer = self._answers[self._sent] = asyncio.get_running_loop().create_future()
        self._wire.write(orjson.dumps({"id": self._sent, "method": method, "params": params}))
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await answer
        except TimeoutError:
            return None

    def _told(self, method: str, params: Mapping[str, Any]) -> None:
        thread = str(params.get("threadId", ""))
        if method == "thread/started":
            self._threads[params["thread"]["id"]] = None
        elif method == "turn/started":
            self._turns[thread] = params["turn"]["id"]
        elif method == "turn/completed":
            self._turns.pop(thread, None)
            self._ended.setdefault(thread, []).append(params["turn"]["id"])
        elif method == "item/completed":
            self._items.setdefault(thread, []).append(params["item"]["id"])

    def _asked(self, wire: SimWire, id: Any, method: str, params: Mapping[str, Any]) -> None:
        rng = self._rng
        for _ in range(rng.choice((0, 1, 1, 1))):
            answer = self._answer_to(method, params)
            after = rng.choice((0.3, 2.0, 9.0)) * rng.uniform(0.2, 1.0)
            self._fixture.site.loop.on(self._lane, self._says, wire, id, answer, after=after)

    def _answer_to(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        rng = self._rng
        if method == "item/tool/requestUserInput":
            if any(one.get("isSecret") for one in params.get("questions", ())):
                return {"answers": {}}
            told = {one["id"]: {"answers": [f"A-{one['id']}"]} for one in params.get("questions", ())}
            return {"answers": told}
        if method == "item/tool/call":
            content = [{"type": "inputText", "text": "found"}]
            return {"success": rng.random() < 0.7, "contentItems": content}
        if method == "mcpServer/elicitation/request":
            return {"action": rng.choice(("accept", "decline", "cancel")), "content": {}}
        if method in ("execCommandApproval", "applyPatchApproval"):
            return {"decision": rng.choice(OLD_ACCEPTS)}
        return {"decision": rng.choice(ACCEPTS)}

    def _says(self, wire: SimWire, id: Any, answer: dict[str, Any]) -> None:
        if not wire.closed:
            wire.write(orjson.dumps({"id": id, "result": answer}))

    def _words(self) -> list[dict[str, Any]]:
        return [{"type": "text", "text": f"words {self.name}.{self._sent}"}]

    async def _acts(self) -> None:
        """Makes a thread, or does one of the things that are done to threads."""
        rng = self._rng
        if not self._shared or rng.random() < 0.12:
            await self._makes()
            return
        thread = rng.choice(self._shared)
        if thread not in self._threads and rng.random() < 0.7:
            self._threads[thread] = None
            await self._resumes(thread)
            return
        acts = ACTS if self.principal.may(Scope.APPROVE) else ACTS[:6]
        name = rng.choice(acts)
        await getattr(self, f"_{name}")(thread)

    async def _makes(self) -> None:
        rng = self._rng
        params: dict[str, Any] = {"cwd": "/sim"}
        if rng.random() < 0.3:
            namespace, _, name = CLIENT_TOOL.partition("__")
            tool = {"name": name, "namespace": namespace, "description": "looks", "inputSchema": {}}
            params |= {"dynamicTools": [tool]}
        self._makes_known(await self._calls("thread/start", params))

    def _makes_known(self, made: Any) -> None:
        if made is not None:
            self._threads[made["thread"]["id"]] = None
            self._shared.append(made["thread"]["id"])

    # ── acts ──────────────────────────────────────────────────────────────────────────────────

    async def _says_to(self, thread: str) -> None:
        rng = self._rng
        params: dict[str, Any] = {"threadId": thread, "input": self._words()}
        if rng.random() < 0.3:
            params |= {"effort": rng.choice(("low", "high")), "model": "gpt-5"}
        if rng.random() < 0.2:
            params |= {"approvalPolicy": rng.choice(POLICIES)}
        if rng.random() < 0.2:
            params |= {"collaborationMode": {"mode": "plan", "settings": {"model": "gpt-5"}}}
        if rng.random() < 0.2:
            params |= {"clientUserMessageId": f"m{self.name}.{self._sent}"}
        await self._calls("turn/start", params)

    async def _steers(self, thread: str) -> None:
        turn = self._turns.get(thread, "none")
        await self._calls("turn/steer", {"threadId": thread, "expectedTurnId": turn, "input": self._words()})

    async def _stops(self, thread: str) -> None:
        turn = self._turns.get(thread, "none")
        await self._calls("turn/interrupt", {"threadId": thread, "turnId": turn})

    async def _queues(self, thread: str) -> None:
        rng = self._rng
        ids = []
        for _ in range(rng.choice((1, 2, 3))):
            given = {"threadId": thread, "input": self._words(), "clientUserMessageId": f"q{self._sent}"}
            if (added := await self._calls("thread/queue/add", given)) is not None:
                ids.append(str((added.get("queuedSubmission") or added).get("id", "")))
        await self._calls("thread/queue/list", {"threadId": thread})
        if not ids:
            return
        one = {"threadId": thread, "queuedSubmissionId": rng.choice(ids)}
        match rng.choice(("delete", "update", "reorder", "start")):
            case "delete":
                await self._calls("thread/queue/delete", one)
            case "update":
                await self._calls("thread/queue/update", {**one, "input": self._words()})
            case "reorder":
                await self._calls(
                    "thread/queue/reorder", {"threadId": thread, "queuedSubmissionIds": ids[::-1]}
                )
            case _:
                await self._calls("thread/queue/start", one)
        await self._calls("thread/queue/list", {"threadId": thread})

    async def _names(self, thread: str) -> None:
        await self._calls("thread/name/set", {"threadId": thread, "name": f"the {self._sent}"})

    async def _marks(self, thread: str) -> None:
        read = await self._calls("thread/read", {"threadId": thread})
        state = (read or {}).get("readState") or {}
        operation = {"type": self._rng.choice(("read", "read", "unread"))}
        given = {"threadId": thread, "operation": operation, "expectedRevision": state.get("revision", "x")}
        await self._calls("thread/readState/update", given)
        await self._calls("thread/list", {})

    async def _reverts(self, thread: str) -> None:
        turns = self._ended.get(thread) or ["none"]
        await self._calls("thread/revert", {"threadId": thread, "beforeTurnId": self._rng.choice(turns)})

    async def _forks(self, thread: str) -> None:
        turns = self._ended.get(thread)
        params: dict[str, Any] = {"threadId": thread}
        if turns and self._rng.random() < 0.5:
            params |= {"lastTurnId": self._rng.choice(turns)}
        self._makes_known(await self._calls("thread/fork", params))

    async def _puts_away(self, thread: str) -> None:
        await self._calls("thread/archive", {"threadId": thread})
        await self._calls("thread/list", {"archived": True})
        if self._rng.random() < 0.6:
            await self._calls("thread/unarchive", {"threadId": thread})

    async def _deletes(self, thread: str) -> None:
        if len(self._shared) < 2:
            return
        if await self._calls("thread/delete", {"threadId": thread}) is not None:
            self._shared.remove(thread)
            self._threads.pop(thread, None)

    async def _settles(self, thread: str) -> None:
        params: dict[str, Any] = {"threadId": thread}
        params |= self._rng.choice(
            (
                {"approvalPolicy": self._rng.choice(POLICIES)},
                {"effort": "high"},
                {"sandboxPolicy": {"type": "workspaceWrite", "writableRoots": [], "networkAccess": False}},
                {"model": "gpt-5", "summary": "detailed"},
            )
        )
        await self._calls("thread/settings/update", params)

    async def _notes(self, thread: str) -> None:
        part = {"type": "input_text", "text": f"note {self.name}.{self._sent}"}
        item = {"type": "message", "role": "user", "content": [part]}
        await self._calls("thread/inject_items", {"threadId": thread, "items": [item]})

    async def _runs(self, thread: str) -> None:
        await self._calls("thread/shellCommand", {"threadId": thread, "command": f"do {self._sent}"})

    async def _compacts(self, thread: str) -> None:
        await self._calls("thread/compact/start", {"threadId": thread})

    async def _reviews(self, thread: str) -> None:
        target = self._rng.choice(
            ({"type": "uncommittedChanges"}, {"type": "custom", "instructions": f"look {self._sent}"})
        )
        await self._calls("review/start", {"threadId": thread, "target": target})

    async def _cleans(self, thread: str) -> None:
        await self._calls("thread/backgroundTerminals/clean", {"threadId": thread})

    async def _adds(self, thread: str) -> None:
        given = {"treeId": thread, "requestId": f"{self.name}.{self._sent}"}
        await self._calls("budget/add", {**given, self._rng.choice(("tokens", "requests")): 500})

    async def _cancels(self, thread: str) -> None:
        read = await self._calls("tree/read", {"treeId": thread})
        agents = [one["agentId"] for one in (read or {}).get("agents", ()) if one["agentId"]]
        if agents:
            one = self._rng.choice(agents)
            await self._calls("agent/cancel", {"treeId": thread, "agentId": one, "reason": "no"})

    async def _decides(self, thread: str) -> None:
        asked = await self._calls("approval/list", {})
        given = [
            {
                "threadId": one["threadId"],
                "callId": one["callId"],
                "answer": {"decision": self._rng.choice(("accept", "decline"))},
            }
            for one in (asked or {}).get("data", ())
        ]
        if given:
            await self._calls("approval/answer", {"requests": given[: self._rng.choice((1, 2, 5))]})
        await self._calls("approval/history", {"treeId": thread})

    async def _describes(self, thread: str) -> None:
        about = {"branch": f"b{self._sent}", "sha": None}
        await self._calls("thread/metadata/update", {"threadId": thread, "gitInfo": about})

    async def _goes(self, thread: str) -> None:
        if self._rng.random() < 0.5:
            self._threads.pop(thread, None)
            await self._calls("thread/unsubscribe", {"threadId": thread})
        elif self._wire is not None:
            self._wire.leave()
            self._wire = None


ACTS = (
    *("says_to", "says_to", "says_to", "steers", "stops", "queues"),
    *("says_to", "says_to", "names", "marks", "reverts", "forks", "puts_away", "deletes", "settles"),
    *("notes", "runs", "compacts", "reviews", "cleans", "adds", "cancels", "decides", "decides"),
    *("describes", "goes"),
)


OLD_ACTS = ("say", "say", "say", "turn", "stop", "resume", "listen", "summary", "list", "leave")


class OldDesk(Desk):
    """The same by version 1: conversations."""

    async def _comes(self) -> None:
        self._listens: dict[str, str] = {}
        await super()._comes()

    async def _resumes(self, thread: str) -> None:
        heard = await self._calls("addConversationListener", {"conversationId": thread})
        if heard is not None:
            self._listens[thread] = heard["subscriptionId"]

    async def _makes(self) -> None:
        made = await self._calls("newConversation", {"cwd": "/sim"})
        if made is not None:
            self._threads[made["conversationId"]] = None
            self._shared.append(made["conversationId"])
            await self._resumes(made["conversationId"])

    async def _acts(self) -> None:
        rng = self._rng
        if not self._shared or rng.random() < 0.15:
            await self._makes()
            return
        thread = rng.choice(self._shared)
        of: dict[str, Any] = {"conversationId": thread}
        said: list[Any] = [{"type": "text", "data": {"text": f"words {self.name}.{self._sent}"}}]
        match rng.choice(
            ("say", "say", "say", "turn", "stop", "resume", "listen", "summary", "list", "leave")
        ):
            case "say":
                await self._calls("sendUserMessage", {**of, "items": said})
            case "turn":
                policy = {"mode": "danger-full-access"}
                given = {"cwd": "/sim", "approvalPolicy": rng.choice(POLICIES), "sandboxPolicy": policy}
                given |= {"model": "gpt-5", "summary": "auto", "items": said}
                await self._calls("sendUserTurn", {**of, **given})
            case "stop":
                await self._calls("interruptConversation", of)
            case "resume":
                await self._calls("resumeConversation", of)
            case "listen":
                if (subscription := self._listens.pop(thread, None)) is not None:
                    await self._calls("removeConversationListener", {"subscriptionId": subscription})
                else:
                    await self._resumes(thread)
            case "summary":
                await self._calls("getConversationSummary", of)
            case "list":
                await self._calls("listConversations", {"pageSize": 2})
            case _ if self._wire is not None:
                self._wire.leave()
                self._wire = None


class Guest(Desk):
    """A client that comes to the sessions of another play, and makes none."""

    async def _works(self, acts: int) -> None:
        await asyncio.sleep(self._rng.uniform(0.5, 3.0))
        await super()._works(acts)

    async def _acts(self) -> None:
        sessions = self._fixture.site.watch.sessions
        self._shared += [one for one in sessions if sessions[one].tree == one and one not in self._shared]
        if self._shared:
            await super()._acts()


class OldGuest(Guest, OldDesk):
    """The same by version 1."""


async def _at_desks(fixture: Fixture, namespaces: tuple[str, ...], old: bool) -> None:
    rng, odds = fixture.rng, fixture.site.model.odds
    odds.calls, odds.asks, odds.patches, odds.plans = 0.7, rng.choice((0.2, 0.7)), 0.2, 0.1
    odds.agents, odds.questions = 0.3, rng.choice((0.0, 0.3))
    odds.verbs = {**odds.verbs, "subagent_spawn": 20}
    odds.brought, odds.proposes = 0.2, rng.choice((0.0, 0.2))
    odds.tools, odds.elicits = rng.choice((0.0, 0.3)), 0.5
    rules = TreeRules(
        slots=3,
        spawned=4,
        depth=2,
        await_floor_s=1.0,
        await_cap_s=20.0,
        budgets={"tokens": 3_000} if rng.random() < 0.3 else {},
    )
    facts: dict[str, Any] = {"agents": True, "tree_rules": rules} if rng.random() < 0.7 else {}
    if rng.random() < 0.3:
        odds.processes, facts["unified_exec"] = 0.5, True
    watched = _watched(fixture)
    street = Street(fixture, facts, rng.choice(("untrusted", "on-request", "never")))
    for _ in range(rng.choice((1, 2))):
        street.opens()
    watched.revoked_s = street.tokens.revoked_s
    working = []
    for space in namespaces:
        shared: list[str] = []
        for number in range(rng.choice((1, 2, 3))):
            scope = Scope.ADMIN if not number else rng.choice((Scope.ADMIN, Scope.APPROVE, Scope.SUBMIT))
            name = f"{'t' if space else 'd'}{number}"
            principal = Principal(f"u{name}", space, scope, f"token of {name}")
            watched.principals[principal.name] = principal
            kind = OldDesk if old and number % 2 == 0 else Desk
            working.append(kind(fixture, street, name, shared, principal).works(rng.choice((8, 14))))
    if rng.random() < 0.4:
        await asyncio.sleep(rng.uniform(4.0, 20.0))
        for gateway in street.living()[:1]:
            gateway.kill()
        await asyncio.sleep(0.5)
        street.opens()
    await asyncio.wait(working)


async def desks(fixture: Fixture) -> None:
    """Clients of version 2 that do all that clients may do, with threads that they share."""
    await _at_desks(fixture, ("",), old=False)


async def old_desks(fixture: Fixture) -> None:
    """Clients of both versions, with threads that they share."""
    await _at_desks(fixture, ("",), old=True)


async def spaces(fixture: Fixture) -> None:
    """Clients of two namespaces."""
    await _at_desks(fixture, ("", "one"), old=False)


PLAYS = {play.__name__: Workload(play.__name__, play) for play in (desks, old_desks, spaces)}
