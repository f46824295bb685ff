"""A session's log as the lines of a file: in Codex's shapes, or whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import SessionHead, TreeEntry
from orchestrator.core.counts import counted
from orchestrator.core.entries import (
    EVENT_MSG,
    EventKind,
    milliseconds,
    published_kind,
    read_event,
    timestamp,
)
from orchestrator.core.tree import ROOT
from orchestrator.protocol.agents import LifecycleChange, SubagentSummary
from orchestrator.protocol.events import AgentInbox, EventMsg, SubagentLifecycle
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.file_format import Header, full_line
from orchestrator.rollouts.inherited_lines import LogLine, missing_texts
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.replay import LiveFold
from orchestrator.rollouts.rollout_file import export_lines
from orchestrator.rollouts.tree_log import tree_entries


@dataclass(slots=True)
class Tally:
    """The count of a log's entries in a file."""

    lines: int = 0
    last: int = 0
    """The entry of the last line."""

    def summary(self, seq: int) -> str:
        """The count in words, as `verify` and `import` print it."""
        left_out, behind = self.last - self.lines, seq - self.last
        parts = [f"{self.lines:,} stand in the file"]
        parts += [f"{left_out:,} are left out of it but for their digests"] if left_out else []
        parts += (
            [f"{behind:,} {'follows' if behind == 1 else 'follow'} behind its last line"] if behind else []
        )
        return f"{counted(seq, 'entry')}, {'; '.join(parts)}"


def header_of(head: SessionHead, key_id: str) -> Header:
    """The first line of a full export; `key_id` names the chain's key, if it has one."""
    live = LiveFold.of(head)
    return Header(
        session_id=head.session,
        pool=head.pool,
        seq=head.seq,
        head=head.head,
        key_id=key_id,
        state_seq=live.seq if live else 0,
        state_sha256=live.sha256 if live else "",
    )


async def exported(found: LogSource, head: SessionHead, full: bool, tally: Tally) -> AsyncIterator[bytes]:
    """The file's lines as they are read; raises `RolloutError` if the log is not all there."""
    carried: list[LogLine] = []
    told = TreeLines(found.broker, head)
    last = 0
    async for entry in found.log(head.session, head.seq):
        last = entry.seq
        line = LogLine(entry)
        carried.append(line)
        if full or not (line.is_fact or entry.digest):
            # One line at a time: the large texts of many would not fit into memory together.
            texts = await _texts_of(found, head, carried)
            lines = (
                (full_line(one, texts.get) for one in carried) if full else export_lines(carried, texts.get)
            )
            if not full and carried[0].stored.seq > 1:
                yield await told.before(milliseconds(line.value["timestamp"]))
            yield b"".join(lines)
            tally.lines, tally.last = tally.lines + 1, last
            carried = []
    if not full:
        yield await told.before(None)
    if last < head.seq:
        raise RolloutError(
            f"entry {last + 1} of session {head.session} is missing; `dendro verify` tells more"
        )


async def _texts_of(found: LogSource, head: SessionHead, lines: Sequence[LogLine]) -> dict[str, str]:
    """All texts that the lines refer to, those inside inherited conversations too."""

    texts: dict[str, str] = {}
    asked: set[str] = set()
    while missing := missing_texts(lines, texts.get) - asked:
        asked |= missing
        texts |= await found.large_texts(head.tree, missing)
    return texts


# ── tree lines ────────────────────────────────────────────────────────────────────────────────────
# Lines of the tree's log in an exported log: the lifecycle and mailboxes of a parent's agents.
#
# No rollout holds them, since many sessions' commits write them: they are in the tree's log, in one order
# (`tree_seq`). A file for readers has the lines merged in by time, each with the entry of the session
# that caused it. The lines have no place in this log's chain, and a reader of the file as a log skips
# them.


_TOLD = frozenset[EventKind]({SubagentLifecycle, AgentInbox})


class TreeLines:
    """The lines of one session's agents, in the order of the tree's log, a stretch at a time."""

    def __init__(self, broker: Broker, head: SessionHead) -> None:
        self._head = head
        self._children: set[int] = set()
        self._entries = tree_entries(broker.logs, head.tree)
        self._next: tuple[TreeEntry, Mapping[str, Any]] | None = None

    async def before(self, at_ms: int | None) -> bytes:
        """The lines written before `at_ms`, or all, from where the last call ended."""
        lines: list[bytes] = []
        while one := self._next or await self._following():
            self._next = one
            if at_ms is not None and one[0].at_ms >= at_ms:
                break
            lines.append(_line(*one))
            self._next = None
        return b"".join(lines)

    async def _following(self) -> tuple[TreeEntry, Mapping[str, Any]] | None:
        """The next entry with a line: behind a clock that was set back, one without may be dated later."""
        async for entry in self._entries:
            # Asked for before it is decoded: most of a tree's log is about other things.
            if published_kind(entry.payload) in _TOLD:
                told = orjson.loads(entry.payload)
                if self._concerns(read_event(told["msg"])):
                    return entry, told
        return None

    def _concerns(self, event: EventMsg) -> bool:
        """Whether the session's queue has the event: the root's of all agents, others' of children."""
        if self._head.agent_id == ROOT:
            return True
        match event:
            case SubagentLifecycle(event=change, subagent=SubagentSummary() as agent):
                if change is LifecycleChange.CREATED and agent.parent_agent_id == self._head.agent_id:
                    self._children.add(agent.agent_id)
                return agent.agent_id in self._children
            case SubagentLifecycle(agent_id=agent_id) | AgentInbox(agent_id=agent_id):
                return agent_id in self._children
            case _:
                return False


def _line(entry: TreeEntry, told: Mapping[str, Any]) -> bytes:
    caused_by = {"session_id": entry.session, "seq": entry.seq, "chain": entry.head.hex()}
    value = {
        "timestamp": timestamp(entry.at_ms),
        "type": EVENT_MSG,
        "payload": told["msg"],
        "id": told["id"],
        "tree_seq": entry.tree_seq,
        "caused_by": caused_by,
    }
    return orjson.dumps(value) + b"\n"
