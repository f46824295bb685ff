"""The `web_search` tool: a search that the model's provider runs itself."""

from __future__ import annotations

from typing import Final

from orchestrator.core.state import State
from orchestrator.protocol.wire import JsonObject
from orchestrator.tools.tool import Tool

WEB_SEARCH: Final[JsonObject] = {"type": "web_search"}


class WebSearch(Tool):
    """The offer of the provider's search: its calls are items of the response, and nothing runs here."""

    names = ()

    def offered(self, state: State) -> JsonObject | None:
        return WEB_SEARCH if state.facts.web_search else None
