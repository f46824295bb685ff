"""A call that ends before its tool has had its say: people are told its end by the event of its kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.core.commands import CallFinished
from orchestrator.core.state import Call
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.wire import written
from orchestrator.runtime.intake import drained_call, failed_call, refused_call

ENDS: list[Callable[[Call], CallFinished]] = [
    lambda call: drained_call(call, 1.5),
    lambda call: refused_call(call, "not run: the folder is gone"),
    lambda call: failed_call(call, "internal error: TypeError: a bug"),
]


@pytest.mark.parametrize("ended", ENDS)
@pytest.mark.parametrize(("kind", "event"), [("exec", "exec_command_end"), ("patch", "patch_apply_end")])
def test_a_call_that_ends_early_has_the_end_of_its_kind(
    ended: Callable[[Call], CallFinished], kind: str, event: str
) -> None:
    done = ended(Call(CallId("c1"), "shell", {}, spec={"kind": kind}))
    (end,) = map(written, done.events)
    assert (end["type"], end["call_id"], end["stderr"]) == (event, "c1", done.output)
    assert end.get("success", False) is False
    assert end.get("exit_code", -1) == -1
