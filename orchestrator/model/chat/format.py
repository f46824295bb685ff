"""Chat completions as a `WireFormat`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.model.chat.body import request_body
from orchestrator.model.chat.decode import ChatReader
from orchestrator.model.chat.tools import converted_tools
from orchestrator.model.request import Prompt
from orchestrator.tables import ProviderSettings


class ChatFormat:
    """`POST {base_url}/chat/completions`."""

    path = "/chat/completions"
    headers: Mapping[str, str] = {}

    def body(self, prompt: Prompt, provider: ProviderSettings) -> dict[str, Any]:
        return request_body(prompt, provider)

    def reader(self, prompt: Prompt, provider: ProviderSettings) -> ChatReader:
        return ChatReader(provider.id, converted_tools(prompt.tools))
