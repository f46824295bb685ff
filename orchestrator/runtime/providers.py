"""The models port over the real clients: one client a provider, opened when it is first used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from orchestrator.model.client import ClientPorts, HttpBudget, ResponsesClient
from orchestrator.model.errors import FatalKind, FatalModelError
from orchestrator.model.events import ModelEvent
from orchestrator.model.provider import InvalidProvider, Provider, ProviderSecrets
from orchestrator.model.request import Prompt


@dataclass(frozen=True, slots=True)
class KnownProvider:
    """A provider's table and its secrets, as this worker was given them."""

    provider: Provider
    secrets: ProviderSecrets


class ModelClients:
    """Implements `ports.Models` for one worker."""

    def __init__(self, known: Mapping[str, KnownProvider], ports: ClientPorts | None = None) -> None:
        self._known = known
        self._ports = ports
        self._clients: dict[str, ResponsesClient] = {}

    def retries(self, provider: str) -> tuple[int, int]:
        known = self._known.get(provider)
        if known is None:
            return 0, 0
        return known.provider.request_max_retries, known.provider.stream_max_retries

    async def stream(self, provider: str, prompt: Prompt, budget: HttpBudget) -> AsyncIterator[ModelEvent]:
        """One request of a named provider; closing the generator closes the stream."""
        client = self._client(provider)
        async with aclosing(cast(Any, client.stream(prompt, budget))) as events:
            async for event in events:
                yield event

    def _client(self, name: str) -> ResponsesClient:
        if name not in self._known:
            raise FatalModelError(
                FatalKind.NOT_FOUND,
                f"this worker has no model provider {name!r}, only {', '.join(self._known) or 'none'}; "
                f"add a table [model_providers.{name}] to its configuration",
                "other",
            )
        if name not in self._clients:
            known = self._known[name]
            try:
                self._clients[name] = ResponsesClient(known.provider, known.secrets, self._ports)
            except InvalidProvider as error:
                raise FatalModelError(FatalKind.NOT_FOUND, str(error), "other").unserved() from error
        return self._clients[name]

    async def aclose(self) -> None:
        """Closes every client; streams that are still open end with an error."""
        for client in self._clients.values():
            await client.aclose()
