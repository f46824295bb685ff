"""The models port over the real clients: one client a provider, opened when it is first used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

from orchestrator.model.connections import InvalidProvider, require_proxy
from orchestrator.model.credentials import CredentialError
from orchestrator.model.model_client import ClientPorts, HttpBudget, ModelClient
from orchestrator.model.prompt import ModelEvent, Prompt
from orchestrator.model.refusals import FatalKind, FatalModelError
from orchestrator.tables import ProviderSettings, Secret

SignedIn = Callable[[], Awaitable[Secret | None]]


class ModelClients:
    """Implements `ports.Models` for one worker; raises `InvalidProvider` for a table that no client takes."""

    def __init__(
        self,
        known: Mapping[str, ProviderSettings],
        ports: ClientPorts | None = None,
        signed_in: SignedIn | None = None,
    ) -> None:
        """`signed_in` answers the key of the worker's user, for providers that say so."""
        for provider in known.values():
            require_proxy(provider)
        self._known = known
        self._ports = ports
        self._signed_in = signed_in
        self._clients: dict[str, ModelClient] = {}

    def retries(self, provider: str) -> tuple[int, int]:
        known = self._known.get(provider)
        if known is None:
            return 0, 0
        return known.request_max_retries, known.stream_max_retries

    async def stream(self, provider: str, prompt: Prompt, budget: HttpBudget) -> AsyncIterator[ModelEvent]:
        """Streams a request of a named provider; closing the generator closes the stream."""
        client = self._client(provider)
        if self._known[provider].auth == "login":
            client.use_key(await self._login_key(provider))
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

    async def _login_key(self, provider: str) -> Secret:
        try:
            key = None if self._signed_in is None else await self._signed_in()
        except CredentialError as error:
            why = str(error)
        else:
            if key is not None:
                return key
            why = "nobody has signed in: sign in by a client (account/login/start), or use an env_key"
        raise FatalModelError(
            FatalKind.UNAUTHORIZED, f'model provider {provider} has auth = "login": {why}', "unauthorized"
        ).unserved()

    async def aclose(self) -> None:
        """Closes every client; streams that are still open end with an error."""
        for client in self._clients.values():
            await client.aclose()
