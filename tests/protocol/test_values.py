"""Values of the protocol's enumerations, as the documents list them."""

from __future__ import annotations

from enum import Enum

import pytest
from pydantic import TypeAdapter, ValidationError

from orchestrator.protocol.scalars import Duration
from tests.coverage_page import enumerations

DOCUMENTED = {
    "AgentOrigin": "spawn fork send_message",
    "AgentState": "pending_init running shutdown not_found interrupted",
    "AskForApproval": "untrusted on-failure on-request never",
    "CancelEvidence": "proved presumed",
    "CodexErrorKind": "context_window_exceeded usage_limit_exceeded internal_server_error unauthorized "
    "bad_request sandbox_error thread_rollback_failed other",
    "CompactionPhase": "begun done",
    "Delivered": "steered queued",
    "Delivery": "steer queue replace",
    "ElicitationAction": "accept decline cancel",
    "ExecCommandSource": "agent user_shell unified_exec_startup unified_exec_interaction",
    "HttpFaultKind": "http_connection_failed response_stream_connection_failed response_stream_disconnected "
    "response_too_many_failed_attempts",
    "ItemEvents": "plan all",
    "LifecycleChange": "created status reasoning_header deleted updated",
    "LocalShellStatus": "completed in_progress incomplete",
    "ModeKind": "plan code pair_programming execute custom default",
    "NetworkAccess": "restricted enabled",
    "OutputStream": "stdout stderr",
    "Personality": "none friendly pragmatic",
    "ReasoningEffort": "none minimal low medium high xhigh",
    "ReasoningSummary": "auto concise detailed none",
    "Refusal": "no_active_turn other_turn turn_not_steerable",
    "ReviewDecision": "approved approved_for_session denied abort",
    "SandboxMode": "read-only workspace-write danger-full-access",
    "SkillScope": "user repo system admin",
    "StepStatus": "pending in_progress completed",
    "SubagentStatus": "queued running ready idle failed canceled",
    "TurnAbortReason": "interrupted replaced review_ended budget_limited",
    "UserMessageKind": "plain user_instructions environment_context",
    "Verbosity": "low medium high",
    "WindowsSandboxLevel": "disabled restricted-token elevated",
}


@pytest.mark.parametrize("enumeration", list(enumerations()), ids=lambda one: one.__name__)
def test_every_value_of_an_enumeration_is_the_documents_word(enumeration: type[Enum]) -> None:
    adapter: TypeAdapter[Enum] = TypeAdapter(enumeration)
    words = DOCUMENTED[enumeration.__name__].split()
    assert [adapter.dump_python(adapter.validate_json(f'"{word}"'), mode="json") for word in words] == words
    assert {str(value.value) for value in enumeration} == set(words)
    with pytest.raises(ValidationError):
        adapter.validate_json('"another"')


@pytest.mark.parametrize("seconds", [0.0, 0.4, 0.5, 1.6, 1.999999999, 59.75, 3_600.5])
def test_duration_is_cut_to_the_seconds_that_were_over(seconds: float) -> None:
    told = Duration.cut(seconds)
    assert told.secs == int(seconds)
    assert told.seconds == pytest.approx(seconds, abs=2e-9)
