"""The models port over the real clients: one client a provider, opened when it is first used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, cast

from orchestrator.model.client import ClientPorts, HttpBudget, ModelClient
from orchestrator.model.errors import FatalKind, FatalModelError
from orchestrator.model.events import ModelEvent
from orchestrator.model.provider import InvalidProvider, require_proxy
from orchestrator.model.request import Prompt
from orchestrator.tables import ProviderSettings


class ModelClients:
    """Implements `ports.Models` for one worker; raises `InvalidProvider` for a table that no client takes."""

    def __init__(self, known: Mapping[str, ProviderSettings], ports: ClientPorts | None = None) -> None:
        for provider in known.values():
            require_proxy(provider)
        self._known = known
        self._ports = ports
        self._clients: dict[str, ModelClient] = {}

    def retries(self, provider: str) -> tuple[int, int]:
        known = self._known.get(provider)
        if known is None:
            return 0, 0
        return known.request_max_retries, known.stream_max_retries

    async def stream(self, provider: str, prompt: Prompt, budget: HttpBudget) -> AsyncIterator[ModelEvent]:
        """Streams a request of a named provider; closing the generator closes the stream."""
        client = self._client(provider)
        async with aclosing(cast(Any, client.stream(prompt, budget))) as events:
            async for event in events:
                yield event

    def _client(self, name: str) -> ModelClient:
        if name not in self._known:
            raise FatalModelError(
                FatalKind.NOT_FOUND,
                f"this worker has no model provider {name!r}, only {', '.join(self._known) or 'none'}; "
                f"add a table [model_providers.{name}] to its configuration",
                "other",
            )
        if name not in self._clients:
            try:
                self._clients[name] = ModelClient(self._known[name], self._ports)
            except InvalidProvider as error:
                raise FatalModelError(FatalKind.NOT_FOUND, str(error), "other").unserved() from error
        return self._clients[name]

    async def aclose(self) -> None:
        """Closes every client; streams that are still open end with an error."""
        for client in self._clients.values():
            await client.aclose()
