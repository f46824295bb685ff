"""The body of `POST {base_url}/chat/completions`.

Pure. Servers differ in the fields that they take, and some refuse a request for one that they do not know:
what the protocol does not ask for, and no setting turns on, is left out.
"""

from __future__ import annotations

from typing import Any

from orchestrator.model.chat.messages import messages_of
from orchestrator.model.chat.tools import offered_functions
from orchestrator.model.request import SCHEMA_NAME, Prompt, takes_verbosity
from orchestrator.tables import ProviderSettings


def request_body(prompt: Prompt, provider: ProviderSettings) -> dict[str, Any]:
    """The JSON object to post. The whole conversation travels with every request."""
    body: dict[str, Any] = {
        "model": prompt.model,
        "messages": messages_of(prompt.instructions, prompt.input, provider.developer_role, prompt.together),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if functions := offered_functions(prompt.tools):
        # An empty list is refused, and so are choices between no tools.
        body |= {
            "tools": functions,
            "tool_choice": "auto",
            "parallel_tool_calls": prompt.parallel_tool_calls,
        }
    if prompt.effort is not None and provider.supports_reasoning_effort:
        body["reasoning_effort"] = prompt.effort
    if prompt.verbosity is not None and takes_verbosity(prompt.model):
        body["verbosity"] = prompt.verbosity
    if prompt.output_schema is not None:
        schema = {"name": SCHEMA_NAME, "strict": True, "schema": prompt.output_schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body
