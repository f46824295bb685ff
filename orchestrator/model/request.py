"""The content of a model request, whichever wire format carries it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from orchestrator.core.frozen import record

Item = Mapping[str, Any]
"""A ResponseItem on the wire."""

SCHEMA_NAME: Final = "codex_output_schema"
"""The name under which a request holds the schema of a task's last message."""


@record
class Prompt:
    """The content of a model request."""

    model: str
    instructions: str
    input: Sequence[Item]
    tools: Sequence[Item]
    effort: str | None
    summary: str | None
    verbosity: str | None
    session_id: str
    supports_reasoning: bool
    parallel_tool_calls: bool = False
    previous_response_id: str | None = None
    store: bool = False
    """Whether the provider is to keep the response, so that a later request can name it."""
    output_schema: Mapping[str, Any] | None = None
    together: frozenset[str] = frozenset()
    """The calls of the input that one response made with the call before them, by their ids."""


def session_headers(session_id: str) -> dict[str, str]:
    """The headers of every request; its format, its provider and its key add their own."""
    return {
        "conversation_id": session_id,
        "session_id": session_id,
        "Accept": "text/event-stream",
        "Content-Type": "application/json",
    }


def takes_verbosity(model: str) -> bool:
    """The gpt-5 family does; its codex variants answer 400 to anything but the default."""
    return model.startswith("gpt-5") and "-codex" not in model
