"""Lines that a client has missed are told from the log, from the very place that it comes back to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.follow import EqCursor, hash8_of
from orchestrator.gateways.app_server import live_threads as live_module
from orchestrator.gateways.app_server.live_threads import LiveThread
from orchestrator.gateways.app_server.write_items import notifications
from tests.views.test_thread_log import Logs, event, turn
from tests.views.test_threads import ROOT

OPEN = [
    event("task_started", "open"),
    event("agent_message", "open", message="one"),
    event("exec_command_begin", "open", call_id="c", command=["make"], cwd="/w", parsed_cmd=[]),
    event("exec_command_output_delta", "open", call_id="c", stream="stdout", chunk=""),
    event("agent_message", "open", message="two"),
]
LINES = [
    *turn("a", "go"),
    event("warning", message="between"),
    *turn("b", "go", "on"),
    *turn("c", "go"),
    *OPEN,
]


def nobody(live: LiveThread, child: Any, newborn: bool) -> None:
    """Hears no agents."""


class Log:
    """A session with this log, followed up to its end."""

    def __init__(self) -> None:
        self.logs = Logs()
        self.head = self.logs.add(ROOT, LINES)
        ports = cast(Any, SimpleNamespace(found=self.logs, now_ms=lambda: 1))
        self.live = LiveThread(ports, notifications, cast(Any, None), ROOT, nobody)
        self.live.seq = self.head.seq

    def place(self, seq: int, hash8: str | None = None) -> EqCursor:
        entry = self.logs.logs[ROOT][seq - 1] if seq else None
        return EqCursor(seq, seq, hash8 or ("" if entry is None else hash8_of(entry.chain)))

    async def missed(self, seq: int, hash8: str | None = None) -> Any:
        found = await self.live.missed(self.head, self.place(seq, hash8))
        return None if found is None else [(at, [line.method for line in lines]) for at, lines in found]


async def stayed(log: Log) -> list[tuple[int, list[str]]]:
    """The same lines as who stayed has heard them."""
    found = await log.live.missed(log.head, log.place(0))
    assert found is not None
    return [(seq, [line.method for line in lines]) for seq, lines in found]


async def test_client_that_comes_back_to_any_place_is_told_what_it_has_missed_and_no_more() -> None:
    log = Log()
    all_lines = await stayed(log)
    methods = [method for _, lines in all_lines for method in lines]
    assert methods.count("turn/started") == 4
    assert methods.count("turn/completed") == 3
    for seq in range(log.head.seq + 1):
        told = await log.missed(seq)
        assert told is not None, seq
        assert told == [(at, lines) for at, lines in all_lines if at > seq], seq


async def test_place_of_another_log_or_of_none_is_told_to_be_none() -> None:
    """Also where that one is as long as this one."""
    log = Log()
    for seq in range(1, log.head.seq + 1):
        assert await log.missed(seq, "0" * 8) is None, seq
    assert await log.missed(log.head.seq) == []
    log.live.seq -= 1
    beyond = EqCursor(log.head.seq, log.head.seq, "0" * 8)
    assert await log.live.missed(log.head, beyond) is None


@pytest.mark.parametrize("most", [1, 2, 5, 11])
async def test_too_much_is_not_told_and_a_turn_is_told_only_where_its_begin_is_found(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    all_lines = await stayed(log)
    monkeypatch.setattr(live_module, "MOST_MISSED", most)
    begins = [at for at, line in enumerate(LINES, 1) if line["payload"].get("type") == "task_started"]
    ends = [at for at, line in enumerate(LINES, 1) if line["payload"].get("type") == "task_complete"]
    every = [(end, place) for end in range(1, log.head.seq + 1) for place in range(end + 1)]
    for upto, seq in every:
        log.live.seq = upto
        told, reach = await log.missed(seq), max(0, seq - most)
        begun, ended = (max((at for at in places if at <= seq), default=0) for places in (begins, ends))
        within = reach == 0 or max(begun, ended) > reach
        if upto - seq > most or not within:
            assert told is None, (upto, seq)
        else:
            assert told == [(at, lines) for at, lines in all_lines if seq < at <= upto], (upto, seq)
