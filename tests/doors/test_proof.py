"""`tree/verify`: the reports of a tree's logs as a client reads them, made once until one of them grows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.broker.records import SessionHead
from orchestrator.core.chain import BrokenLink
from orchestrator.core.ids import TreeId
from orchestrator.core.merkle import leaf_hash
from orchestrator.gateways.app_server.methods.proof import _for_tenant, _session
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.rollouts.bundle_receipts import Receipt, read_statement
from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects
from orchestrator.rollouts.register import Register, receipt_of
from orchestrator.rollouts.signed_notes import Checkpoint
from orchestrator.rollouts.verify import Report
from tests.doors.peer import Peer, connected, served
from tests.doors.test_app_server_threads import NOBODY, talked
from tests.doors.test_app_server_turns import HELLO, ports_of, said, working
from tests.doors.test_fleet_methods import agent, does, held, tree
from tests.rollouts import bundles as b
from tests.runtime.harness import Harness

pytestmark = pytest.mark.realredis


@dataclass(slots=True)
class Verifier:
    """Stands for the verification: answers as told, and counts how often it is asked."""

    harness: Harness
    findings: Sequence[BrokenLink] = ()
    unchecked: str = ""
    error: Exception | None = None
    asked: list[str] = field(default_factory=list)
    meanwhile: Callable[[], Awaitable[object]] | None = None
    """Done once, when the logs have been read and nothing was told of them."""

    async def verify(self, tree: TreeId) -> tuple[Sequence[SessionHead], Sequence[Report]]:
        self.asked.append(tree)
        if self.error is not None:
            raise self.error
        heads = await self.harness.broker.logs.heads_of_tree(tree)
        reports = [
            Report(f"session {head.session}", head.seq, head.head, ("it is this session's log",),
                   self.findings, unchecked=self.unchecked, session=head.session)
            for head in heads
        ]  # fmt: skip
        if self.meanwhile is not None:
            does, self.meanwhile = self.meanwhile, None
            await does()
        return heads, [*reports, Report(f"tree {tree}", 3, b"", ("in no chain",), ())]


@pytest.fixture
def verifier(harness: Harness) -> Verifier:
    return Verifier(harness)


@pytest.fixture
async def peer(harness: Harness, verifier: Verifier) -> AsyncIterator[Peer]:
    ports = ports_of(harness, verify=verifier.verify)
    async with served(ports, notifications) as server, working(harness), connected(server) as peer:
        await peer.greet(experimentalApi=True)
        yield peer


async def test_client_reads_how_far_each_log_of_a_tree_is_verified(
    peer: Peer, harness: Harness, verifier: Verifier
) -> None:
    thread = await talked(peer, harness, "one")
    head = await harness.broker.logs.head(thread)  # type: ignore[arg-type]
    assert head is not None
    told = await peer.call("tree/verify", {"treeId": thread})
    row = {"threadId": thread, "of": head.seq, "head": head.head.hex(), "verifiedTo": head.seq, "ok": True}
    assert told == {
        "sessions": [{**row, "holds": ["it is this session's log"]}],
        "treeLog": {"verifiedTo": 3, "ok": True, "holds": ["in no chain"]},
        "keyed": False,
        "ok": True,
    }
    verifier.findings = [BrokenLink(4, "its hash does not follow"), BrokenLink(3, "a text is gone")]
    (broken,) = (told := await peer.call("tree/verify", {"treeId": thread, "full": True}))["sessions"]
    assert (broken["verifiedTo"], broken["ok"], told["ok"]) == (2, False, False)
    assert broken["fault"] == {"seq": 3, "text": "a text is gone"}
    verifier.findings, verifier.unchecked = (), "keyed: cannot be checked here"
    (unknown,) = (told := await peer.call("tree/verify", {"treeId": thread, "full": True}))["sessions"]
    assert (unknown["ok"], told["ok"], unknown["unchecked"]) == (None, None, "keyed: cannot be checked here")


async def test_tree_is_verified_again_when_a_log_of_it_has_grown_and_not_before(
    peer: Peer, harness: Harness, verifier: Verifier
) -> None:
    thread, other = await talked(peer, harness, "one"), await talked(peer, harness, "one")
    first = await peer.call("tree/verify", {"treeId": thread})
    assert await peer.call("tree/verify", {"treeId": thread}) == first
    await peer.call("tree/verify", {"treeId": other})
    assert verifier.asked == [thread, other]
    harness.models.will(HELLO)
    await said(peer, thread, "two")
    await peer.until("turn/completed")
    again = await peer.call("tree/verify", {"treeId": thread})
    assert again["sessions"][0]["of"] > first["sessions"][0]["of"]
    await peer.call("tree/verify", {"treeId": other})
    assert verifier.asked == [thread, other, thread]
    # No session's log tells of it, and the tree's own does.
    await peer.call("budget/add", {"treeId": thread, "requestId": "r", "add": {"tokens": 9}})
    await peer.call("tree/verify", {"treeId": thread})
    await peer.call("tree/verify", {"treeId": other})
    assert verifier.asked == [thread, other, thread, thread]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("grows", ["root", "agent", "root and a new agent", "another tree"])
async def test_tree_of_which_a_log_grew_while_it_was_verified_is_verified_again(
    peer: Peer, harness: Harness, verifier: Verifier, grows: str, *, full: bool
) -> None:
    """Nobody who asks then is told that what came meanwhile is verified."""
    broker = harness.broker
    root, other = await tree(broker), await held(broker, await tree(broker))
    own = await held(broker, root)
    child, said = agent(own, 1)
    at = await does(broker, own, own, status="running", children=(child,), summary=said)
    of_child = await held(broker, child.session)

    async def meanwhile() -> None:
        if grows == "another tree":
            await does(broker, other, other, status="running")
        elif grows == "agent":
            await does(broker, of_child, of_child, status="running")
        else:
            born, told = agent(own, 2)
            more = {"children": (born,), "summary": told} if grows == "root and a new agent" else {}
            await does(broker, at, own, status="running", **more)

    verifier.meanwhile = meanwhile
    first = await peer.call("tree/verify", {"treeId": root, "full": full})
    assert len(first["sessions"]) == 2
    for _ in range(2):
        again = await peer.call("tree/verify", {"treeId": root})
        grown = sum(row["of"] for row in again["sessions"]) - sum(row["of"] for row in first["sessions"])
        assert (grown > 0) is (grows != "another tree")
        assert len(again["sessions"]) == (3 if grows == "root and a new agent" else 2)
    assert len(verifier.asked) == (1 if grows == "another tree" else 2)


def test_report_tells_a_tenant_no_path_of_the_machine() -> None:
    broken = BrokenLink(4, "the file /home/me/.dendro/sessions/rollout-1.jsonl names another hash for it")
    told = Report("session s", 4, b"", ("it agrees with the file /home/me/r.jsonl",), [broken], session="s")
    row = _session({}, _for_tenant(told))
    assert row["fault"]["text"] == "the file …/rollout-1.jsonl names another hash for it"
    assert row["holds"] == ["it agrees with the file …/r.jsonl"]


async def test_tenant_reads_of_its_trees_verification_without_places(
    harness: Harness, verifier: Verifier
) -> None:
    verifier.findings = [BrokenLink(3, "the file /home/me/x.jsonl names another hash for it")]
    tenant = Principal("acme/ann", "acme", Scope.SUBMIT)
    root = await tree(harness.broker, namespace="acme")
    at = ports_of(harness, verify=verifier.verify)
    async with served(at, notifications) as server, connected(server, tenant) as peer:
        await peer.greet(experimentalApi=True)
        (row,) = (await peer.call("tree/verify", {"treeId": root}))["sessions"]
    assert row["fault"]["text"] == "the file …/x.jsonl names another hash for it"


async def test_tree_that_is_not_there_or_cannot_be_read_is_told_so(
    peer: Peer, harness: Harness, verifier: Verifier
) -> None:
    thread = await talked(peer, harness, "one")
    assert "no rollout found" in (await peer.refused("tree/verify", {"treeId": NOBODY}))[1]
    assert "treeId" in (await peer.refused("tree/verify", {"treeId": "x" * 300}))[1]
    verifier.error = ArchiveUnavailable("the archive does not answer")
    assert "cannot be read now: the archive" in (await peer.refused("tree/verify", {"treeId": thread}))[1]
    verifier.error = TimeoutError()
    assert "not verified within 60 s" in (await peer.refused("tree/verify", {"treeId": thread}))[1]
    verifier.error = None
    assert (await peer.call("tree/verify", {"treeId": thread}))["ok"] is True


async def test_client_is_given_the_receipt_of_a_threads_log(
    harness: Harness, verifier: Verifier, tmp_path: Path
) -> None:
    """The register is of one statement about the thread's log; before it there is none."""
    objects, stated = Objects(tmp_path.as_uri()), list[str]()

    async def receipt(head: SessionHead) -> Receipt | None:
        if not stated and (log := f"session:{head.session}"):
            told = b.statement(log, str(head.tree), [], 1, "rest")
            stated.append(told)
            register = Register(objects, "home")
            return receipt_of(register, register.newest(), log)
        signed = b.OPERATOR.signed(Checkpoint(b.ORIGIN, 1, leaf_hash(stated[0].encode())).text)
        return Receipt(read_statement(0, stated[0]), (), signed)

    ports = ports_of(harness, verify=verifier.verify, receipt=receipt)
    async with served(ports, notifications) as server, working(harness), connected(server) as peer:
        await peer.greet(experimentalApi=True)
        thread = await talked(peer, harness, "one")
        assert await peer.call("thread/receipt", {"threadId": thread}) == {"receipt": None}
        told = (await peer.call("thread/receipt", {"threadId": thread}))["receipt"]
        assert Receipt.read(json.dumps(told).encode()).head.log == f"session:{thread}"
        assert "no rollout found" in (await peer.refused("thread/receipt", {"threadId": NOBODY}))[1]


async def test_server_without_a_register_says_so(peer: Peer, harness: Harness) -> None:
    thread = await talked(peer, harness, "one")
    assert "no receipts.url is set" in (await peer.refused("thread/receipt", {"threadId": thread}))[1]
