"""A second answer learns of the first: by its call however long ago, by a pattern of the last it means."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.errors import Corrupt, DamagedEntry
from orchestrator.broker.records import OpenApproval, StoredEntry, TreeEntry
from orchestrator.core import facts as f
from orchestrator.core.entries import encode_entry, event, fact
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.gateways import submit
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.requests import request_of
from orchestrator.rollouts import ArchiveUnavailable, BrokenArchive
from orchestrator.views import readable
from orchestrator.views.approvals import Asked, open_requests_of
from orchestrator.views.decided_requests import (
    LOOK_AT,
    NEWEST,
    SHOWN,
    decided_before,
    decided_call,
    decided_of,
    decided_of_trees,
)
from tests.views.test_threads import head

DECISIONS = ("approved", "denied", "approved_for_session", "abort")
WORDS = ("allowed", "denied", "allowed for the session", "denied, and its turn aborted")


def id_of(number: int) -> SessionId:
    return SessionId(f"01a1f8a1-c5d0-7001-97bc-c80be6{number:06}")


class Logs:
    """Roots and agents by the requests that they had, each decided in turn; the oldest first."""

    def __init__(self) -> None:
        self.logs: dict[SessionId, list[bytes]] = {}
        self.trees: dict[SessionId, SessionId] = {}
        self.told: dict[SessionId, list[dict[str, Any]]] = {}
        self.broker: Any = SimpleNamespace(logs=self, trees=self, requests=self)

    def root(self, number: int) -> SessionId:
        self.logs[id_of(number)], self.told[id_of(number)] = [], []
        self.trees[id_of(number)] = id_of(number)
        return id_of(number)

    def agent(self, number: int, root: SessionId) -> SessionId:
        self.logs[id_of(number)], self.trees[id_of(number)] = [], root
        return id_of(number)

    def decides(self, session: SessionId, call: str, command: str, place: int, agent: int = 0) -> None:
        """A request of a session, and its decision by a person who is named after its place."""
        root = self.trees[session]
        asked = {"type": "exec_approval_request", "call_id": call, "command": command.split(), "cwd": "/w"}
        who, decision = f"p{place}", DECISIONS[place % len(DECISIONS)]
        answered = f.Answered(CallId(call), SubmissionId("t"), decision, who, place)
        self._add(session, event("t", asked), fact(answered))
        if agent:
            # A person has answered at the root, which sent it on: its log says so, too.
            self._add(root, fact(replace(answered, agent_id=AgentId(agent))))
            known = {"agent_id": agent, "session_id": session, "agent_path": f"0/{agent}"}
            resolved = {
                "type": "request_resolved",
                "call_id": call,
                "turn_id": "t",
                "decision": decision,
                "who": who,
            }
            self.told[root] += [{**asked, **known}, {**resolved, "resolved_at_ms": place, **known}]

    def sends_on(self, root: SessionId, call: str, place: int) -> None:
        """An answer at the root for a call of an agent."""
        who, decision = f"p{place}", DECISIONS[place % len(DECISIONS)]
        sent = f.Answered(CallId(call), SubmissionId("t"), decision, who, place, AgentId(3))
        self._add(root, fact(sent))

    def works(self, session: SessionId, entries: int) -> None:
        self._add(session, *[event("t", {"type": "agent_message", "message": "on it"})] * entries)

    def _add(self, session: SessionId, *entries: Any) -> None:
        log = self.logs[session]
        log += [encode_entry(one, 1_000 + len(log) + n, {}).line for n, one in enumerate(entries)]

    # ── as a source of logs ───────────────────────────────────────────────────────────────────

    async def head(self, session: SessionId) -> Any:
        if session not in self.logs:
            return None
        return head(session=session, tree=TreeId(self.trees[session]), seq=len(self.logs[session]))

    async def heads(self, sessions: Sequence[SessionId], damaged: Any) -> tuple[Any, ...]:
        return tuple([await self.head(one) for one in sessions if one in self.logs])

    async def newest(self, most: int) -> list[SessionId]:
        return sorted(self.logs, reverse=True)[:most]

    async def agents(self, tree: TreeId) -> dict[str, bytes]:
        of_tree = sorted(one for one, root in self.trees.items() if str(root) == tree and one != root)
        return {f"s:{number}": one.encode() for number, one in enumerate(of_tree, 1)}

    async def log(self, session: SessionId, last: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        for seq in range(after + 1, last + 1):
            yield StoredEntry(seq, 1, self.logs[session][seq - 1], b"", b"")

    async def ends(self, sessions: Sequence[SessionId]) -> list[int]:
        return [len(self.logs[one]) for one in sessions]

    async def read_rollout(self, session: SessionId, after: int) -> list[StoredEntry]:
        return [one async for one in self.log(session, len(self.logs[session]), after)]

    async def read_tree_back(self, tree: TreeId, before: int | None, count: int) -> tuple[TreeEntry, ...]:
        told = self.told[SessionId(tree)]
        last = len(told) if before is None else before - 1
        return tuple(
            TreeEntry(n, orjson.dumps({"id": "t", "msg": told[n - 1]}), SessionId(tree), 1, b"", (), n)
            for n in range(last, max(0, last - count), -1)
        )

    async def large_texts(self, tree: TreeId, digests: Any) -> dict[str, str]:
        return {}

    async def before(
        self, pattern: str, tree: SessionId | None, allows: bool = True
    ) -> tuple[str, Sequence[str]]:
        """The line for a call that the pattern names, and those for the requests that it means."""
        wishes = {ReviewDecision.APPROVED if allows else ReviewDecision.DENIED: [pattern]}
        of = None if tree is None else TreeId(tree)
        found = await decided_before(cast(Any, self), of, (), wishes)
        return found.calls.get(pattern, ""), found.similar.get(pattern, ())


@pytest.mark.parametrize("first", [1, 2])
async def test_decision_is_of_the_agent_that_asked_though_another_has_a_call_of_that_name(first: int) -> None:
    logs = Logs()
    root = logs.root(0)
    for number, command in ((1, "make"), (2, "deploy")):
        logs.decides(logs.agent(number, root), "c1", command, number, agent=number)
    one, decided_one, two, decided_two = logs.told[root]
    logs.told[root] = [one, two, *((decided_one, decided_two) if first == 1 else (decided_two, decided_one))]
    found = await decided_of(cast(Any, logs), await logs.head(root))
    assert {(each.asked.agent_id, each.asked.subject, each.who) for each in found} == {
        (1, "make", "p1"),
        (2, "deploy", "p2"),
    }


@pytest.mark.parametrize("allows", [True, False])
@pytest.mark.parametrize("behind", [0, LOOK_AT + 1])
@pytest.mark.parametrize("agent", [0, 1])
@pytest.mark.parametrize("number", range(6))
async def test_pattern_is_told_the_last_requests_that_it_means_the_newest_first_however_long_ago(
    number: int, agent: int, behind: int, allows: bool
) -> None:
    logs = Logs()
    root = logs.root(1)
    session = logs.agent(2, root) if agent else root
    for place in range(number):
        logs.decides(session, f"c{place}", f"npm test {place}", place, agent)
        logs.decides(session, f"d{place}", f"git push {place}", place, agent)
    logs.works(root, behind)
    call, similar = await logs.before("npm *", root, allows)
    newest = [
        f"{agent}:c{place}  npm test {place}: already {WORDS[place % 4]}, by p{place}"
        for place in reversed(range(number))
    ]
    assert (call, list(similar)) == ("", newest[:SHOWN])


@pytest.mark.parametrize("behind", [0, LOOK_AT + 1])
@pytest.mark.parametrize("agent", [0, 1])
@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("named", ["with its agent", "alone"])
async def test_call_is_told_its_last_decision_and_no_other_calls(
    named: str, times: int, agent: int, behind: int
) -> None:
    logs = Logs()
    root = logs.root(1)
    session, other = logs.agent(2, root), logs.agent(3, root)
    whose = session if agent else root
    for place in range(times):
        logs.decides(whose, "call_9", "npm test", place, agent)
    logs.decides(other, "call_8", "npm test", 7, 2)
    logs.works(whose, behind)
    last = times - 1
    call, similar = await logs.before(f"{agent}:call_9" if named == "with its agent" else "call_9", root)
    assert call.endswith(f": already {WORDS[last]}, by p{last}")
    assert call.startswith(f"{agent}:call_9")
    assert similar == ()
    for unknown in (f"{agent}:call_7", "²:call_9", "9" * 5_000 + ":call_9", "7:call_9"):
        assert await logs.before(unknown, root) == ("", ())


@pytest.mark.parametrize("own", [0, 1, 2])
@pytest.mark.parametrize("sent_on", [0, 1, 2])
async def test_answer_that_the_root_sends_on_decides_no_call_of_its_own_that_has_the_same_name(
    own: int, sent_on: int
) -> None:
    logs = Logs()
    root = logs.root(1)
    for place in range(own):
        logs.decides(root, "call_9", "npm test", place)
    for place in range(sent_on):
        logs.sends_on(root, "call_9", 3 - place)
    decided = [None, ("approved", "p0"), ("denied", "p1")][own]
    line = "" if decided is None else f"0:call_9: already {WORDS[own - 1]}, by {decided[1]}"
    assert await logs.before("0:call_9", root) == (line, ())
    found = await decided_call(cast(Any, logs), await logs.head(root), "call_9")
    assert (None if found is None else (found.decision, found.who)) == decided
    request = request_of({"type": "exec_approval_request", "call_id": "call_9", "command": ["npm", "test"]})
    asked = Asked(root, TreeId(root), 0, "0", "call_9", 1, request, 0)
    first = await submit._answer(cast(Any, logs), asked, SubmissionId("mine"))
    assert (None if first is None else first[:2]) == (("approved", "p0") if own else None)


@pytest.mark.parametrize("place", [0, 1, NEWEST - 1, NEWEST])
async def test_pattern_for_the_fleet_is_told_of_the_newest_trees_and_of_the_newest_that_it_is_meant_in(
    place: int,
) -> None:
    logs = Logs()
    roots = [logs.root(number) for number in range(NEWEST + 2)][::-1]
    logs.decides(roots[place], "c1", "npm test", 1)
    logs.decides(roots[-1], "c2", "npm test old", 2)
    told = ["0:c1  npm test: already denied, by p1"] if place < NEWEST else []
    assert list((await logs.before("npm *", None))[1]) == told
    assert list((await logs.before("npm *", roots[-1]))[1]) == [
        "0:c2  npm test old: already allowed for the session, by p2"
    ]


BROKEN: dict[str, Exception | None] = {
    "an entry": DamagedEntry("log:x", 1, KeyError(b"d")),
    "no stream": Corrupt("log:x", "WRONGTYPE"),
    "the archive's part": BrokenArchive("segment 1-9 is not whole"),
    "no JSON": None,
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("part", ["read_tree_back", "log"])
@pytest.mark.parametrize("damaged", [{0}, {1}, {2}, {0, 2}, {0, 1, 2}])
async def test_tree_whose_logs_cannot_be_read_hides_no_other_and_is_named_in_the_log(
    damaged: set[int], part: str, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logs, error = Logs(), BROKEN[how]
    roots = [logs.root(number) for number in (3, 2, 1)]
    for place, root in enumerate(roots):
        logs.decides(root, f"c{place}", f"npm test {place}", place)
    heads = [await logs.head(root) for root in roots]
    broken = {str(roots[at]) for at in damaged}
    of_tree, of_session = logs.read_tree_back, logs.log

    async def read_tree_back(tree: TreeId, before: int | None, count: int) -> tuple[TreeEntry, ...]:
        found = await of_tree(tree, before, count)
        if str(tree) not in broken or part != "read_tree_back":
            return found
        raise error or ValueError("no JSON")

    async def log(session: SessionId, last: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        async for one in of_session(session, last, after):
            if session not in broken or part != "log":
                yield one
            elif error is not None:
                raise error
            else:
                yield replace(one, payload=b"{")

    monkeypatch.setattr(logs, "read_tree_back", read_tree_back)
    monkeypatch.setattr(logs, "log", log)
    monkeypatch.setattr(readable, "_told", {})
    whole = [at for at in range(3) if at not in damaged]
    for _ in range(2):
        found = await decided_of_trees(cast(Any, logs), heads)
        assert [[one.asked.call_id for one in of_tree] for of_tree in found] == [[f"c{at}"] for at in whole]
    assert [str(roots[at]) in caplog.text for at in range(3)] == [at in damaged for at in range(3)]
    assert len(caplog.records) == len(damaged), "each once"
    for at in range(3):
        similar = [f"0:c{at}  npm test {at}: already {WORDS[at]}, by p{at}"] if at in whole else []
        assert list((await logs.before(f"npm test {at}", None))[1]) == similar
    for at in damaged:
        with pytest.raises(ValueError if error is None else type(error)):
            await decided_of(cast(Any, logs), heads[at])


async def test_decision_is_about_the_last_request_of_its_name() -> None:
    """Of the one before, which ended with its turn, no decision tells."""
    logs = Logs()
    root = logs.root(1)
    child = logs.agent(2, root)
    logs.decides(child, "c1", "rm -r x", 1, agent=1)
    del logs.told[root][-1]
    logs.decides(child, "c1", "ls", 2, agent=1)
    [decided] = await decided_of(cast(Any, logs), await logs.head(root))
    assert (decided.asked.subject, decided.who) == ("ls", "p2")


@pytest.mark.parametrize("odd", [{}, {"call_id": 5}, {"call_id": "c1", "command": "ls"}])
async def test_request_of_an_odd_shape_hides_no_other_of_its_tree(odd: dict[str, Any]) -> None:
    logs = Logs()
    root = logs.root(1)
    logs.decides(logs.agent(2, root), "c1", "npm test", 1, 1)
    resolved = {"type": "request_resolved", "turn_id": "t", "decision": "approved", "resolved_at_ms": 9}
    resolved |= {"call_id": odd.get("call_id")}
    logs._add(root, *(event("t", each) for each in ({"type": "exec_approval_request", **odd}, resolved)))
    logs.told[root] += [{"type": "exec_approval_request", **odd}, resolved]
    of_root = await logs.head(root)
    assert [one.asked.call_id for one in await decided_of(cast(Any, logs), of_root)] == ["c1"]


async def test_archive_that_does_not_answer_is_told_to_who_asks_for_the_decisions_of_all_trees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs = Logs()
    root = logs.root(1)
    logs.decides(root, "c", "npm test", 1)
    away = ArchiveUnavailable("the store does not answer")

    async def log(session: SessionId, last: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        if last > after:
            raise away
        yield StoredEntry(1, 1, b"", b"", b"")

    monkeypatch.setattr(logs, "log", log)
    with pytest.raises(ArchiveUnavailable) as caught:
        await decided_of_trees(cast(Any, logs), [await logs.head(root)])
    assert caught.value is away, "a list without those that it has would be false"


@pytest.mark.parametrize("of", [None, 1, 2])
async def test_open_requests_are_listed_the_oldest_first_whichever_sessions_they_are_of(
    of: int | None,
) -> None:
    logs = Logs()
    roots = {number: logs.root(number) for number in (1, 2)}
    agent = logs.agent(3, roots[1])
    asking = [roots[2], agent, roots[1], agent, roots[2], id_of(9)]
    payload = orjson.dumps({"event": {"type": "exec_approval_request", "command": ["ls"]}})
    opened = [OpenApproval(one, f"c{at}", payload, at) for at, one in enumerate(asking)]

    async def approvals_of(shards: Sequence[int]) -> list[OpenApproval]:
        return opened

    logs.approvals_of = approvals_of  # type: ignore[attr-defined]
    logs.config, logs.keys = SimpleNamespace(shards=16), SimpleNamespace(shard_of=lambda _: 3)  # type: ignore[attr-defined]
    tree = None if of is None else TreeId(roots[of])
    found = await open_requests_of(cast(Any, logs), tree)
    wanted = {None: [0, 1, 2, 3, 4], 1: [1, 2, 3], 2: [0, 4]}[of]
    assert [(one.call_id, one.opened_ms) for one in found] == [(f"c{at}", at) for at in wanted]
