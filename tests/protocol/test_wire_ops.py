"""Operations: every one is read and written as its documents say."""

from __future__ import annotations

import orjson
import pytest
from pydantic import ValidationError

from orchestrator.protocol import ops
from orchestrator.protocol.codec import encode_submission, parse_submission
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.policy import (
    AskForApproval,
    ReadOnly,
    ReviewDecision,
    WorkspaceWrite,
)
from orchestrator.protocol.scalars import ReasoningEffort
from orchestrator.protocol.submission import Submission
from orchestrator.protocol.wire import UNSET
from tests.protocol.wire_examples import Json, examples, ids

OPS = examples("ops")


def submit(op: Json) -> ops.Op:
    return parse_submission(orjson.dumps({"id": "sub-1", "op": op})).op


def written(op: ops.Op) -> Json:
    frame: Json = orjson.loads(encode_submission(Submission(SubmissionId("sub-1"), op)))
    value: Json = frame["op"]
    return value


@pytest.mark.parametrize("op", OPS, ids=ids(OPS))
def test_an_operation_is_written_as_it_was_read(op: Json) -> None:
    assert written(submit(op)) == op


def test_every_operation_has_an_example() -> None:
    assert {op["type"] for op in OPS} == set(ops.OPS)


DOCUMENTED = """
    interrupt user_input user_turn override_turn_context exec_approval patch_approval add_to_history
    get_history_entry_request get_path list_mcp_tools list_custom_prompts compact review shutdown
    configure_session resolve_ask_user_question plan resolve_plan_approval list_skills
    user_input_answer resolve_elicitation dynamic_tool_response refresh_mcp_servers list_models
    set_thread_name undo thread_rollback run_user_shell_command
"""


def test_every_operation_of_the_documents_is_known() -> None:
    assert set(DOCUMENTED.split()) <= set(ops.OPS)


def test_effort_is_told_apart_when_left_out_null_and_set() -> None:
    kept = submit({"type": "override_turn_context"})
    cleared = submit({"type": "override_turn_context", "effort": None})
    chosen = submit({"type": "override_turn_context", "effort": "high"})
    assert isinstance(kept, ops.OverrideTurnContext)
    assert isinstance(cleared, ops.OverrideTurnContext)
    assert isinstance(chosen, ops.OverrideTurnContext)
    assert kept.effort is UNSET
    assert cleared.effort is None
    assert chosen.effort is ReasoningEffort.HIGH
    assert [written(op).get("effort", "absent") for op in (kept, cleared, chosen)] == ["absent", None, "high"]


def test_the_sentinel_cannot_be_spelled_in_json() -> None:
    with pytest.raises(ValidationError):
        ops.OverrideTurnContext.model_validate({"effort": "unset"})


def test_a_null_option_means_that_it_was_left_out() -> None:
    op = submit({"type": "override_turn_context", "cwd": None, "model": None})
    assert op == ops.OverrideTurnContext()
    assert written(op) == {"type": "override_turn_context"}


def test_a_sandbox_policy_is_read_in_both_spellings_and_written_in_one() -> None:
    newer = {"type": "workspace-write", "writable_roots": ["/a"], "network_access": True}
    op = submit({"type": "override_turn_context", "sandbox_policy": newer})
    assert isinstance(op, ops.OverrideTurnContext)
    assert op.sandbox_policy == WorkspaceWrite(writable_roots=("/a",), network_access=True)
    assert written(op)["sandbox_policy"] == {
        "mode": "workspace-write",
        "writable_roots": ["/a"],
        "network_access": True,
        "exclude_tmpdir_env_var": False,
        "exclude_slash_tmp": False,
    }


def test_an_answer_is_read_under_its_former_name() -> None:
    response = {"answers": {"q": {"answers": ["a"]}}}
    op = submit({"type": "request_user_input_response", "id": "sub-1", "response": response})
    assert isinstance(op, ops.UserInputAnswer)
    assert written(op)["type"] == "user_input_answer"


def test_a_denial_with_a_reason_is_a_denial() -> None:
    denial = {"denied": {"rejection": "not now"}}
    op = submit({"type": "exec_approval", "id": "c1", "decision": denial})
    assert isinstance(op, ops.ExecApproval)
    assert op.decision is ReviewDecision.DENIED


def test_fields_of_newer_clients_are_ignored() -> None:
    op = submit({"type": "exec_approval", "id": "c1", "decision": "abort", "turn_id": "t", "x": {}})
    assert written(op) == {"type": "exec_approval", "id": "c1", "decision": "abort"}


def test_fields_of_newer_clients_are_ignored_at_any_depth() -> None:
    items = [{"type": "image", "image_url": "data:,", "detail": "high"}]
    policy = {"mode": "read-only", "network_access": True}
    op = submit({"type": "user_input", "items": items})
    override = submit({"type": "override_turn_context", "sandbox_policy": policy})
    assert written(op)["items"] == [{"type": "image", "image_url": "data:,"}]
    assert written(override)["sandbox_policy"] == {"mode": "read-only"}


def test_a_review_says_what_to_review() -> None:
    with pytest.raises(ValueError, match="a prompt or a target is required"):
        submit({"type": "review", "review_request": {"user_facing_hint": "h"}})


def test_an_operation_made_in_code_equals_the_one_read() -> None:
    made = ops.OverrideTurnContext(approval_policy=AskForApproval.NEVER, sandbox_policy=ReadOnly())
    read = submit(
        {"type": "override_turn_context", "approval_policy": "never", "sandbox_policy": {"mode": "read-only"}}
    )
    assert made == read


def test_an_operation_cannot_be_changed() -> None:
    op = ops.Plan.model_validate({"plan_request": {"goal": "g"}})
    with pytest.raises(ValidationError):
        op.plan_request = op.plan_request  # type: ignore[misc]
