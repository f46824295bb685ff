"""Messages that an agent sent and got, by its log, and how a person reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.follow import EqCursor
from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.core import commands as c
from orchestrator.core.entries import DENDRO, decode_entry
from orchestrator.core.facts import decode
from orchestrator.views.agent_past import message_in, message_line, with_messages
from orchestrator.views.event import Event
from orchestrator.wiring.open_deployment import Opened
from tests.core.tree_driver import Agent, TreeDriver, answers


class Logs:
    """Where the messages of one agent's log are looked for."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.broker = SimpleNamespace(logs=SimpleNamespace(head=self._parent, read_rollout=self._read))

    async def _parent(self, session: str) -> Any:
        return SimpleNamespace(agent_id=self._agent.state.facts.ancestors[-1])

    async def _read(self, session: str, after: int, count: int) -> tuple[StoredEntry, ...]:
        lines = enumerate(self._agent.lines[after : after + count], after + 1)
        return tuple(StoredEntry(seq, 1, line, b"", b"") for seq, line in lines)

    async def large_texts(self, tree: str, digests: Iterable[str]) -> dict[str, str]:
        return {digest: self._agent.blobs[digest].decode() for digest in digests}

    @property
    def opened(self) -> Opened:
        return cast(Opened, self)

    def head(self, seq: int = 0) -> SessionHead:
        facts = self._agent.state.facts
        known = SimpleNamespace(
            session=facts.session_id, tree=facts.tree_id, seq=seq, parent=facts.parent_session
        )
        return cast(SessionHead, known)


async def letters(agent: Agent) -> list[str]:
    """The lines that a person reads of an agent's mail."""
    logs = Logs(agent)
    facts = [entry.payload for entry in map(decode_entry, agent.lines) if entry.type == DENDRO]
    found = [await message_in(logs.opened, logs.head(), decode(fact)) for fact in facts]
    return [message_line(letter) for letter in found if letter is not None]


def a_family() -> tuple[TreeDriver, Agent]:
    tree = TreeDriver()
    tree.root.say("do it", "u1")
    child = tree.root.spawns("count", label="counter")
    tree.settle()
    return tree, child


async def test_person_reads_a_message_in_both_logs() -> None:
    tree, child = a_family()
    tree.root.sends(1, "look\nat the tests   too")
    tree.root.sends(1, "stop", interrupt=True)
    tree.settle()
    assert await letters(tree.root) == ["✉ to agent 1: look at the tests too", "⚡ to agent 1: stop"]
    assert await letters(child) == ["✉ from agent 0: look at the tests too", "⚡ from agent 0: stop"]


async def test_person_reads_what_became_of_an_agent_in_both_logs() -> None:
    tree, child = a_family()
    answers(child, "12 tests")
    tree.settle()
    assert await letters(child) == ["✉ to agent 0: ready"]
    assert await letters(tree.root) == ["✉ from agent 1 (counter): ready: 12 tests"]
    child.say("once more", "u2")
    grandchild = child.spawns("count here", label="below")
    tree.settle()
    answers(grandchild, "3 tests")
    tree.settle()
    assert await letters(grandchild) == ["✉ to agent 1: ready"]


async def test_person_reads_no_letter_that_was_refused() -> None:
    tree, child = a_family()
    tree.root.cancels(1)
    tree.settle()
    assert "was canceled" in tree.root.sends(1, "go on")
    assert await letters(child) == ["✉ to agent 0: canceled"]
    assert await letters(tree.root) == ["✉ from agent 1 (counter): canceled: canceled"]


async def test_person_reads_what_a_watchdog_says() -> None:
    tree, child = a_family()
    tree.root.asks("w", "subagent_watchdog", c.SetWatchdog(tree.target(1), 30_000, "how far?"))
    tree.root.fires("watchdog:1")
    tree.settle()
    assert await letters(tree.root) == ["✉ to agent 1, by a watchdog: how far?"]
    assert await letters(child) == ["✉ from a watchdog of agent 0: how far?"]


async def test_person_reads_a_line_of_a_long_letter_that_stands_beside_its_log() -> None:
    tree, child = a_family()
    tree.root.sends(1, "all " * 20_000)
    tree.settle()
    assert child.blobs, "too long for an entry"
    (sent,), (got,) = await letters(tree.root), await letters(child)
    assert sent.startswith("✉ to agent 1: all all")
    assert (len(sent), sent[-1]) == (len("✉ to agent 1: ") + 200, "…")
    assert got.removeprefix("✉ from agent 0: ") == sent.removeprefix("✉ to agent 1: ")


async def test_follower_sees_a_letter_before_what_it_leads_to() -> None:
    tree, child = a_family()
    logs, seen = Logs(child), child.seq
    tree.root.sends(1, "look")
    tree.settle()
    reached = EqCursor(9, child.seq, "00000000")

    async def events() -> AsyncIterator[Event]:
        yield Event("u", {"type": "task_started"}, EqCursor(8, seen, "00000000"))
        yield Event("u", {"type": "stream_error"})
        yield Event("u", {"type": "user_message"}, reached)
        yield Event("u", {"type": "agent_message"}, reached)
        yield Event("u", {"type": "warning"})

    found = [event.type async for event in with_messages(logs.opened, logs.head(seen), events())]
    shown = ["agent_mail", "user_message", "agent_message", "warning"]
    assert found == ["task_started", "stream_error", *shown], "an event without a place moves nothing on"


@pytest.mark.parametrize("stride", [1, 2, 3, 5, 1_000])
async def test_follower_sees_each_letter_once_and_in_order_however_far_an_event_moves_on(stride: int) -> None:
    tree, child = a_family()
    logs, seen = Logs(child), child.seq
    for number in range(3):
        tree.root.sends(1, f"look {number}")
        tree.root.sends(1, f"stop {number}", interrupt=True)
    tree.settle()
    answers(child, "12 tests")
    tree.settle()
    places = [*range(seen + stride, child.seq, stride), child.seq]

    async def events() -> AsyncIterator[Event]:
        for place in places:
            yield Event("u", {"type": "background_event"}, EqCursor(9, place, "00000000"))
            yield Event("u", {"type": "warning"})

    told = [event.msg async for event in with_messages(logs.opened, logs.head(seen), events())]
    mail = [message_line(message) for message in told if message["type"] == "agent_mail"]
    assert mail == await letters(child)
    assert len(mail) >= 7
    assert len(told) == len(mail) + 2 * len(places)
