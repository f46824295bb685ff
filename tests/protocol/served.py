"""The part of the protocol that this version serves and sends; the rest is read, and passed on.

A test holds each of these against the code, and the reference page tells them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SERVED_OPS: Final = frozenset(
    {
        "add_to_history",
        "cancel_agent",
        "compact",
        "configure_session",
        "dynamic_tool_response",
        "exec_approval",
        "get_history_entry_request",
        "get_path",
        "inject_items",
        "interrupt",
        "list_custom_prompts",
        "list_mcp_tools",
        "list_models",
        "list_skills",
        "message_agent",
        "override_turn_context",
        "plan",
        "patch_approval",
        "remove_queued",
        "reorder_queue",
        "resolve_ask_user_question",
        "resolve_elicitation",
        "resolve_plan_approval",
        "review",
        "run_user_shell_command",
        "set_thread_name",
        "shutdown",
        "thread_rollback",
        "update_queued",
        "user_input",
        "user_input_answer",
        "user_turn",
    }
)
"""Operations that a session carries out; the others are answered by an `error`."""

SENT_EVENTS: Final = frozenset(
    {
        "agent_inbox",
        "agent_message",
        "agent_message_content_delta",
        "agent_message_delta",
        "agent_reasoning",
        "agent_reasoning_delta",
        "agent_reasoning_raw_content",
        "agent_reasoning_raw_content_delta",
        "agent_reasoning_section_break",
        "apply_patch_approval_request",
        "ask_user_question_request",
        "background_event",
        "context_compacted",
        "context_compaction",
        "conversation_path",
        "dynamic_tool_call_request",
        "dynamic_tool_call_response",
        "elicitation_request",
        "entered_plan_mode",
        "entered_review_mode",
        "error",
        "exec_approval_request",
        "exec_command_begin",
        "exec_command_end",
        "exec_command_output_delta",
        "exited_review_mode",
        "exited_plan_mode",
        "mcp_list_tools_response",
        "mcp_startup_complete",
        "mcp_startup_update",
        "get_history_entry_response",
        "input_accepted",
        "item_completed",
        "item_started",
        "items_injected",
        "list_custom_prompts_response",
        "list_models_response",
        "list_skills_response",
        "mcp_tool_call_begin",
        "mcp_tool_call_end",
        "patch_apply_begin",
        "patch_apply_end",
        "plan_delta",
        "plan_approval_request",
        "plan_update",
        "queue_changed",
        "raw_response_item",
        "reasoning_content_delta",
        "reasoning_raw_content_delta",
        "request_resolved",
        "request_user_input",
        "session_configured",
        "shutdown_complete",
        "stream_error",
        "sub_agent_tool_call_activity",
        "sub_agent_tool_call_begin",
        "sub_agent_tool_call_end",
        "sub_agent_tool_call_tokens",
        "subagent_lifecycle",
        "task_complete",
        "task_started",
        "terminal_interaction",
        "thread_name_updated",
        "thread_rolled_back",
        "token_count",
        "turn_aborted",
        "turn_diff",
        "user_message",
        "view_image_tool_call",
        "warning",
        "web_search_begin",
        "web_search_end",
    }
)
"""Events that a session publishes; the others are read in rollouts of other programs and versions."""

NEVER_SERVED: Final = frozenset({"refresh_mcp_servers", "undo"})
"""Operations of other programs that no version is to carry out: they are read, and answered by an `error`."""

NEVER_SENT: Final = frozenset(
    {
        "collab_agent_interaction_begin",
        "collab_agent_interaction_end",
        "collab_agent_spawn_begin",
        "collab_agent_spawn_end",
        "collab_close_begin",
        "collab_close_end",
        "collab_waiting_begin",
        "collab_waiting_end",
        "deprecation_notice",
        "undo_completed",
        "undo_started",
    }
)
"""Events that only other programs send."""

ONLY_READ: Final[Mapping[str, frozenset[str]]] = {
    "AgentState": frozenset({"pending_init", "running", "shutdown", "not_found", "interrupted"}),
    "ExecCommandSource": frozenset({"unified_exec_interaction"}),
    "NetworkAccess": frozenset({"restricted", "enabled"}),
    "SkillScope": frozenset({"system"}),
    "TurnAbortReason": frozenset({"budget_limited"}),
    "UserMessageKind": frozenset({"user_instructions", "environment_context"}),
    "WindowsSandboxLevel": frozenset({"disabled", "restricted-token", "elevated"}),
}
"""Values of enumerations that a session never sends, by the enumeration's name."""
