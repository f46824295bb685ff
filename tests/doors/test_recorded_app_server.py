"""Recorded conversations of real clients, held with `dendro app-server` over its pipes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doors.comparator import compare, unsound
from tests.doors.conversation import Recorded, app_server, common_calls, hold, normalised
from tests.doors.results import compare_answers
from tests.doors.schema import faults

CONVERSATIONS = (
    "agents_approval",
    "agents_v1",
    "compact_manual",
    "drop_retry",
    "ephemeral",
    "err_500_retry",
    "exec_approve_accept",
    "exec_approve_cancel",
    "exec_auto",
    "handshake_errors",
    "interrupt_exec",
    "interrupt_wrong",
    "patch_approve_accept",
    "patch_each",
    "patch_via_shell",
    "plain",
    "plan_update",
    "steer_stream",
    "threads_admin",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_recorded_conversation_is_held_as_it_was(name: str, tmp_path: Path) -> None:
    recorded = Recorded.read(name)
    async with app_server(tmp_path, recorded) as (server, setup, stub):
        await hold(server, recorded, setup, stub)
        assert await server.left() == 0, server.held.report()
    got = normalised(server.held.messages, setup)
    told = [message for message in got if "method" in message and "id" not in message]
    wrong = [fault for message in told for fault in faults("ServerNotification", message)]
    answers = compare_answers(recorded.lines, got)
    both = [common_calls(recorded, messages) for messages in (recorded.server, got)]
    different = [*compare(*both), *answers, *unsound(got), *wrong]
    assert not different, "\n".join(map(str, different))
