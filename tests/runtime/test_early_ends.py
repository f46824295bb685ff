"""A call that ends before its tool has had its say: people are told its end by the event of its kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.core.calls import Call, CallWork
from orchestrator.core.commands import CallFinished
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.wire import written
from orchestrator.runtime.sq_entries import drained_call, failed_call, refused_call
from tests.core.driver import a_command, a_patch

COMMAND = a_command("make").work(sandboxed=True)
PATCH = a_patch("/w/a").work(sandboxed=True)
ENDS: list[Callable[[Call], CallFinished]] = [
    lambda call: drained_call(call, 1.5),
    lambda call: refused_call(call, "not run: the folder is gone"),
    lambda call: failed_call(call, "internal error: TypeError: a bug"),
]


@pytest.mark.parametrize("ended", ENDS)
@pytest.mark.parametrize(("work", "event"), [(COMMAND, "exec_command_end"), (PATCH, "patch_apply_end")])
def test_a_call_that_ends_early_has_the_end_of_its_kind(
    ended: Callable[[Call], CallFinished], work: CallWork, event: str
) -> None:
    done = ended(Call(CallId("c1"), "shell", {}, work=work))
    (end,) = map(written, done.events)
    assert (end["type"], end["call_id"], end["stderr"]) == (event, "c1", done.output)
    assert end.get("success", False) is False
    assert end.get("exit_code", -1) == -1
