"""Sandbox policies that stand in logs of earlier versions, and are not taken any more."""

from __future__ import annotations

import pytest

from orchestrator.core.modes import Widening, narrowed, sandbox_mode
from orchestrator.core.settings import TurnSettings
from orchestrator.core.state import State, Task
from orchestrator.protocol.ids import SubmissionId
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools.tool_context import ToolConfig, confinement_of

SETTINGS = TurnSettings("/", "never", {"mode": "external-sandbox", "network_access": "enabled"}, "gpt-5")


def test_session_of_an_outer_sandbox_only_reads_where_that_is_gone() -> None:
    state = State(task=Task(SubmissionId("t"), "user", SETTINGS))
    confinement = confinement_of(state, ToolConfig(SandboxSupport(None, 0, ()), {}), sandboxed=True)
    assert (confinement.mode, confinement.network) == ("read-only", False)


def test_child_of_such_a_session_gets_no_more_than_it_has() -> None:
    assert narrowed(SETTINGS, "read-only", None).sandbox_policy == {"mode": "read-only"}


def test_mode_that_nobody_knows_is_refused_by_its_name() -> None:
    assert sandbox_mode("Read Only") == "read-only"
    with pytest.raises(Widening, match="unknown sandbox_mode 'lax': read-only, workspace-write or danger"):
        sandbox_mode("lax")
