"""Requests that are not open any more: who decided them, and how.

A second answer learns of the first, however it names the request: by agent and call, by the call
alone, or by a pattern. Logs are read from their end, and only for patterns that match no open request.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from orchestrator.broker.errors import Corrupt
from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.core import facts as f
from orchestrator.core.blobs import references, resolve
from orchestrator.core.entries import decode_entry, event_kind, stored_kind
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.tree import ROOT
from orchestrator.protocol.events import RequestResolved, UnknownEvent
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.requests import TO_PEOPLE, call_id_of, request_of
from orchestrator.rollouts import BrokenArchive
from orchestrator.rollouts.log_source import LogSource
from orchestrator.views.agent_past import page_before
from orchestrator.views.approvals import Asked, Decided, Wishes, decision_text
from orchestrator.views.event import Event
from orchestrator.views.patterns import names_call
from orchestrator.views.readable import UNREADABLE, readable, readable_head, tell

LOOK_AT = 512
"""Entries of one tree's logs among which earlier decisions are looked for."""
MOST_LOOKED_AT = 20_000
"""Entries of one session among which the decision about a call is looked for."""
LOOK_BACK = 500
"""Requests and decisions that are read of one tree, from its end."""
NEWEST = 50
"""Sessions of the fleet whose trees are looked through, the newest first."""
SHOWN = 3
"""Earlier requests that are shown for a pattern, the newest first."""

Gone = tuple[str, ReviewDecision]
"""A pattern that no open request is meant by, and the answer that it was to give."""


@dataclass(slots=True)
class Before:
    """The decisions on requests that are not open any more."""

    calls: dict[str, str] = field(default_factory=dict)
    """For a pattern that names one call: how it was decided."""
    similar: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For another pattern: how the last requests that it means were decided."""

    def without_calls(self, wishes: Wishes) -> Wishes:
        """The wishes that are still to be answered."""
        return {
            decision: [each for each in patterns if each not in self.calls]
            for decision, patterns in wishes.items()
        }


async def decided_before(
    found: LogSource, tree: TreeId | None, asked: Sequence[Asked], wishes: Wishes
) -> Before:
    """Looks for requests that wishes mean and that are not open: in a tree, or in the newest of the fleet."""
    gone = [
        (pattern, decision)
        for decision, patterns in wishes.items()
        for pattern in patterns
        if not any(one.meant_by(pattern, decision) for one in asked)
    ]
    before = Before()
    if tree is not None:
        before.calls.update(await _named_calls(found, tree, gone))
        gone = [(pattern, decision) for pattern, decision in gone if pattern not in before.calls]
    if gone and tree is not None:
        root = await found.broker.logs.head(SessionId(tree))
        _look_through([] if root is None else await decided_of(found, root, within=0), gone, before)
    elif gone:
        async for root in _newest_roots(found):
            (earlier,) = await decided_of_trees(found, [root], within=0) or [[]]
            gone = _look_through(earlier, gone, before)
            if not gone:
                break
    return before


async def _newest_roots(found: LogSource) -> AsyncIterator[SessionHead]:
    heads = await readable(found.broker.logs, await found.broker.logs.newest(NEWEST))
    for tree in dict.fromkeys(head.tree for head in heads):
        root = await readable_head(found.broker.logs, SessionId(tree))
        if root is not None:
            yield root


def _look_through(earlier: Sequence[Decided], gone: Sequence[Gone], before: Before) -> list[Gone]:
    """Adds what one tree knows; answers the patterns that it knows nothing of."""
    left = list[Gone]()
    for pattern, decision in gone:
        meant = list(islice((one for one in earlier if one.asked.meant_by(pattern, decision)), SHOWN))
        if not meant:
            left.append((pattern, decision))
        elif names_call(pattern, meant[0].asked.agent_id, meant[0].asked.call_id):
            before.calls[pattern] = meant[0].line()
        else:
            before.similar[pattern] = tuple(one.line() for one in meant)
    return left


# ── a tree's decisions ────────────────────────────────────────────────────────────────────────────


async def decided_of(found: LogSource, root: SessionHead, within: int = LOOK_AT) -> list[Decided]:
    """The requests of a tree that were decided, the last one first; among its last entries `within`."""
    page = await page_before(found, root, LOOK_BACK, _asks_or_resolves, within=within)
    tree = root.tree
    requests: dict[tuple[int, str], Event] = {}
    decided: list[Decided] = []
    for event in page.events:
        if event.type in TO_PEOPLE:
            if isinstance(event.told, UnknownEvent):
                # An imported file may have a request that states no call; it hides none of the others.
                continue
            requests[int(event.msg.get("agent_id", ROOT)), call_id_of(event.msg)] = event
        elif isinstance(told := event.told, RequestResolved):
            request = requests.pop((told.agent_id or ROOT, told.call_id), None)
            if request is not None:
                asked = await _as_asked(found, tree, request.msg)
                decided.append(Decided(asked, told.decision, told.who, False, told.resolved_at_ms or 0))
    return decided[::-1]


async def decided_of_trees(
    found: LogSource, roots: Sequence[SessionHead], within: int = LOOK_AT
) -> list[list[Decided]]:
    """The same of each of several trees; one whose logs cannot be read hides no other, and is left out."""
    decided = list[list[Decided]]()
    for root in roots:
        try:
            decided.append(await decided_of(found, root, within))
        except (*UNREADABLE, Corrupt, BrokenArchive) as error:
            tell({root.session: error})
    return decided


def _asks_or_resolves(message: Mapping[str, Any]) -> bool:
    return message["type"] in TO_PEOPLE or event_kind(message) is RequestResolved


async def _as_asked(found: LogSource, tree: TreeId, message: Mapping[str, Any]) -> Asked:
    texts = await found.large_texts(tree, references(message))
    return Asked(
        session=SessionId(message.get("session_id", tree)),
        tree=tree,
        agent_id=int(message.get("agent_id", ROOT)),
        agent_path=str(message.get("agent_path", ROOT)),
        call_id=call_id_of(message),
        opened_ms=0,
        request=request_of(resolve(dict(message), texts.get)),
        seq=0,
    )


# ── one call, in its agent's own log ──────────────────────────────────────────────────────────────


async def _named_calls(found: LogSource, tree: TreeId, gone: Sequence[Gone]) -> dict[str, str]:
    """How calls that are named with their agents were decided, however long ago."""
    told: dict[str, str] = {}
    for pattern in {pattern for pattern, _ in gone}:
        agent, colon, call_id = pattern.partition(":")
        if colon and re.fullmatch("[0-9]{1,9}", agent):
            fact = await _answer(found, tree, int(agent), call_id)
            if fact is not None:
                words = decision_text(fact.decision)
                told[pattern] = f"{pattern}: already {words}, by {fact.who or 'a client'}"
    return told


async def decided_call(
    found: LogSource, head: SessionHead, call_id: str, within: int = MOST_LOOKED_AT
) -> f.Answered | None:
    """The last decision about a call in a session's own log; None where its newest entries have none."""
    last, stretch = head.seq, LOOK_AT
    while last > max(0, head.seq - within):
        after = max(0, last - stretch)
        read = found.log(head.session, last, after)
        answers = [stored async for stored in read if stored_kind(stored.payload) is f.Answered]
        for stored in reversed(answers):
            if (fact := _decides(stored, call_id)) is not None:
                return fact
        last = after
    return None


async def _answer(found: LogSource, tree: TreeId, agent: int, call_id: str) -> f.Answered | None:
    """The decision about a call in its agent's log, the last one of this id."""
    named = (await found.broker.trees.agents(tree)).get(f"s:{agent}") if agent else tree.encode()
    head = await found.broker.logs.head(SessionId(named.decode())) if named else None
    if head is None:
        return None
    answer = None
    async for stored in found.log(head.session, head.seq):
        if stored_kind(stored.payload) is f.Answered:
            answer = _decides(stored, call_id) or answer
    return answer


def _decides(stored: StoredEntry, call_id: str) -> f.Answered | None:
    """The decision on a call of the session itself; an answer that is sent on is about an agent's call."""
    match f.decode(decode_entry(stored.payload).payload):
        case f.Answered(agent_id=None) as fact if fact.call_id == call_id:
            return fact
        case _:
            return None
