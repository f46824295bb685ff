"""The Responses API as a `WireFormat`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from orchestrator.model.events import ItemDone, ModelEvent
from orchestrator.model.request import Prompt
from orchestrator.model.responses.body import request_body
from orchestrator.model.responses.decode import decode
from orchestrator.model.sse import SseEvent
from orchestrator.tables import ProviderSettings


class ResponsesFormat:
    """`POST {base_url}/responses`."""

    path = "/responses"
    headers: Mapping[str, str] = {"OpenAI-Beta": "responses=experimental"}

    def body(self, prompt: Prompt, provider: ProviderSettings) -> dict[str, Any]:
        return request_body(prompt)

    def reader(self, prompt: Prompt, provider: ProviderSettings) -> ResponsesReader:
        return ResponsesReader(provider.id)


class ResponsesReader:
    """Reads one response: a server that sends an item again has not asked for its call again."""

    finished = False

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._items: set[tuple[int | None, str, bytes]] = set()

    def read(self, sse: SseEvent) -> Sequence[ModelEvent]:
        event = decode(self._provider, sse)
        if event is None or (type(event) is ItemDone and self._again(event)):
            return ()
        return (event,)

    def end(self) -> Sequence[ModelEvent]:
        return ()

    def _again(self, event: ItemDone) -> bool:
        """Whether this very item was handed out before, under the same index and id."""
        if event.place == (None, ""):
            return False
        # A server may give one index to all its items: only the same content is the same item.
        digest = hashlib.sha256(orjson.dumps(event.item, option=orjson.OPT_SORT_KEYS)).digest()
        key = (*event.place, digest)
        known = key in self._items
        self._items.add(key)
        return known
