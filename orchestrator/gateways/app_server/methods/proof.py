"""The methods of proof: a tree's logs are verified, as `dendro verify --tree` does, and a receipt is given.

A verification reads every entry: one runs at a time in a process, and its result is kept for as long as no
log of the tree has grown.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated
from weakref import WeakKeyDictionary

import orjson
from pydantic import Field

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import SessionHead
from orchestrator.core.frozen import replace
from orchestrator.core.ids import TreeId
from orchestrator.core.tree import ROOT
from orchestrator.gateways.app_server.door import Door
from orchestrator.gateways.app_server.messages import RpcError, bad_params
from orchestrator.gateways.app_server.method import Method, Params, Result
from orchestrator.gateways.app_server.methods.threads import head_to_read
from orchestrator.gateways.principals import Scope
from orchestrator.protocol.wire import JsonObject
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.views.event import without_places

if TYPE_CHECKING:
    from orchestrator.rollouts.verify import Report

VERIFY_S = 60.0
"""A tree that takes longer is left to `dendro verify`."""
MOST_KEPT = 64
_Ends = tuple[tuple[str, int, bytes], ...]
"""The sessions of a tree, each with the end of its log."""
_At = tuple[int, _Ends]
"""The end of a tree's own log, and of those of its sessions."""


class TreeVerify(Params):
    """A tree, and whether its logs are read again that were found sound and have not grown since."""

    tree_id: Annotated[str, Field(max_length=200)]
    full: bool = False


class ThreadReceipt(Params):
    """A thread."""

    thread_id: Annotated[str, Field(max_length=200)]


class _Kept:
    """The verified trees of a process."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.found: OrderedDict[str, tuple[_At, Result]] = OrderedDict()

    def keep(self, tree: TreeId, at: _At, told: Result) -> None:
        self.found[tree] = at, told
        self.found.move_to_end(tree)
        if len(self.found) > MOST_KEPT:
            self.found.popitem(last=False)


_OF: WeakKeyDictionary[Broker, _Kept] = WeakKeyDictionary()


async def tree_verify(door: Door, params: TreeVerify) -> Result:
    """Verifies every session of a tree, and the tree's own log against them."""
    root = await head_to_read(door, params.tree_id)
    if root.agent_id != ROOT:
        raise bad_params("treeId: this thread is an agent's: give its root's")
    if door.ports.verify is None:
        raise RpcError("this server verifies no logs: dendro verify does")
    kept = _OF.setdefault(door.ports.found.broker, _Kept())
    try:
        async with asyncio.timeout(VERIFY_S), kept.turn:
            known = None if params.full else kept.found.get(root.tree)
            # The tree's own log grows by an addition to a limit, too, of which no session's log tells.
            tree_seq = (await door.ports.found.broker.trees.registry(root.tree)).tree_seq
            if known is not None and known[0] == (tree_seq, await _now(door, known[0][1])):
                return known[1]
            heads, reports = await door.ports.verify(root.tree)
            if door.principal.is_tenant:
                reports = [_for_tenant(report) for report in reports]
            told = _told(bool(door.ports.key_id), heads, reports)
            kept.keep(root.tree, (tree_seq, _ends(heads)), told)
            return told
    except TimeoutError:
        why = f"the logs of this tree were not verified within {VERIFY_S:.0f} s"
        raise RpcError(f"{why}: dendro verify {root.tree} --tree takes its time") from None
    except ArchiveUnavailable as error:
        raise RpcError(f"the logs of this tree cannot be read now: {error}") from None


async def thread_receipt(door: Door, params: ThreadReceipt) -> Result:
    """The receipt of a thread's log, as `dendro receipt` prints it; null where none is stated yet."""
    head = await head_to_read(door, params.thread_id)
    if door.ports.receipt is None:
        raise RpcError("this server has no register: no receipts.url is set")
    try:
        async with asyncio.timeout(VERIFY_S), _OF.setdefault(door.ports.found.broker, _Kept()).turn:
            found = await door.ports.receipt(head)
    except TimeoutError:
        raise RpcError(f"the register was not read within {VERIFY_S:.0f} s: dendro receipt does it") from None
    except (ArchiveUnavailable, ValueError) as error:
        raise RpcError(f"the register cannot be read now: {error}") from None
    return {"receipt": None if found is None else orjson.loads(found.encode())}


def _for_tenant(report: Report) -> Report:
    """A report without the paths and addresses of the machine: a rollout's file may be among its notes."""
    findings = [replace(found, reason=without_places(found.reason)) for found in report.findings]
    return replace(report, shown=tuple(map(without_places, report.shown)), findings=findings)


async def _now(door: Door, then: _Ends) -> _Ends:
    """The ends of the same sessions now. A new one is made by an entry of another, which has grown then."""
    sessions = [session for session, _, _ in then]
    return _ends(await door.ports.found.broker.logs.heads(sessions))  # type: ignore[arg-type]


def _ends(heads: Sequence[SessionHead]) -> _Ends:
    return tuple(sorted((str(head.session), head.seq, head.head) for head in heads))


def _told(keyed: bool, heads: Sequence[SessionHead], reports: Sequence[Report]) -> Result:
    ends = {str(head.session): head for head in heads}
    sessions = [_session(ends, report) for report in reports if report.session]
    of_tree = [_log(report) for report in reports if not report.session]
    return {
        "sessions": sessions,
        "treeLog": of_tree[0] if of_tree else None,
        "keyed": keyed,
        "ok": _sound([row["ok"] for row in (*sessions, *of_tree)]),
    }


def _sound(rows: Sequence[bool | None]) -> bool | None:
    """Whether all holds; None where nothing is wrong, and something cannot be checked here."""
    return False if False in rows else None if None in rows else True


def _session(ends: Mapping[str, SessionHead], report: Report) -> JsonObject:
    head = ends.get(report.session)
    return {
        "threadId": report.session,
        "of": report.seq if head is None else max(head.seq, report.seq),
        "head": report.head.hex(),
        **_log(report),
    }


def _log(report: Report) -> JsonObject:
    """The result for a log; `ok` is null where its chain is keyed otherwise: nothing can be said of it."""
    first = min(report.findings, key=lambda link: link.seq, default=None)
    told: JsonObject = {
        "verifiedTo": report.seq if first is None else max(0, first.seq - 1),
        "ok": False if first is not None else None if report.unchecked else True,
        "holds": list(report.shown),
    }
    if first is not None:
        told["fault"] = {"seq": first.seq, "text": first.reason}
    if report.unchecked:
        told["unchecked"] = report.unchecked
    return told


METHODS: Mapping[str, Method] = {
    "thread/receipt": Method(ThreadReceipt, thread_receipt, Scope.READ, waits=True),
    "tree/verify": Method(TreeVerify, tree_verify, Scope.READ, waits=True),
}
