"""Requests to people: the events that ask, and the answers that refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from orchestrator.core.calls.exec import AMENDED
from orchestrator.views.turns.records import RequestKind

ASKS: Final[Mapping[str, RequestKind]] = {
    "exec_approval_request": RequestKind.COMMAND,
    "apply_patch_approval_request": RequestKind.PATCH,
    "request_user_input": RequestKind.QUESTIONS,
    "ask_user_question_request": RequestKind.CHOICES,
    "elicitation_request": RequestKind.ELICITATION,
    "plan_approval_request": RequestKind.PLAN,
    "dynamic_tool_call_request": RequestKind.TOOL,
}
APPROVALS: Final = frozenset({RequestKind.COMMAND, RequestKind.PATCH, RequestKind.ELICITATION})
"""Requests that people answer with yes or no; the others want words."""
WITH_ITEM: Final = frozenset({RequestKind.COMMAND, RequestKind.PATCH})
"""Requests that are about an item of their own, which begins before they are made."""
WITHDRAWN: Final = "withdrawn"
DENIED: Final = "denied"
_APPROVED: Final = frozenset({"approved", "approved_for_session"})


def refuses(decision: str) -> bool:
    """Whether the answer to an approval refuses it; an empty one is not known."""
    return bool(decision) and decision not in _APPROVED and not decision.startswith(AMENDED)
