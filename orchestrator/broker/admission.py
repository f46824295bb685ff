"""Admission of model requests: requests and tokens per minute of a provider, for the whole fleet.

A provider is a name here, a ticket names the asker. Knows nothing of models or sessions. A request is
admitted on an estimate of its tokens and settled when its usage is known. An answer that was lost costs at
most the estimate, which refills: asking or settling again never lets more through than the limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.broker.connection import call
from orchestrator.broker.port import Port
from orchestrator.core.frozen import record

if TYPE_CHECKING:
    from orchestrator.broker.reply_fields import AdmitWait

PATIENCE_MS = 60_000
"""The longest wait before a ticket asks again: requests settled meanwhile make room."""
GRACE_MS = 30_000
"""Time for which the place of a late ticket is kept: its worker may be lost, or have no room."""


@record
class ProviderLimits:
    """A provider's limits per minute; None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@record
class Admitted:
    """The request may be sent now, and is counted."""

    now_ms: int


@record
class Wait:
    """The ticket should ask again after `wait_ms`; its place is kept until then and a little longer."""

    wait_ms: int
    now_ms: int


class Admission(Port):
    """The part of the broker that counts the requests sent to providers."""

    async def admit(self, provider: str, ticket: str, tokens: int, limits: ProviderLimits) -> Admitted | Wait:
        """Counts a request of about `tokens`, or says when to ask again under the same ticket."""
        requests_limit, tokens_limit = _per_minute(limits)
        admit = call(
            "admit",
            list(self.keys.provider(provider)),
            ticket=ticket,
            tokens=tokens,
            requests_limit=requests_limit,
            tokens_limit=tokens_limit,
            patience_ms=PATIENCE_MS,
            grace_ms=GRACE_MS,
        )
        reply = await self._run(admit, ticket)
        match reply.code:
            case "OK":
                return Admitted(self._clock.note(reply.now))
            case "WAIT":
                wait: AdmitWait = reply.fields
                return Wait(wait["wait"], self._clock.note(wait["now"]))
            case _:
                raise reply.unexpected()

    async def settle(self, provider: str, estimated: int, used: int, limits: ProviderLimits) -> None:
        """Puts the account right once the usage of an admitted request is known."""
        if limits.tokens_per_minute is None:
            return
        counts, _ = self.keys.provider(provider)
        limit = limits.tokens_per_minute
        reply = await self._run(
            call("settle", [counts], estimated=estimated, used=used, limit=limit),
            provider,
        )
        if reply.code != "OK":
            raise reply.unexpected()
        self._clock.note(reply.now)


def _per_minute(limits: ProviderLimits) -> tuple[int, int]:
    """The limits as the script reads them: 0 is no limit."""
    return limits.requests_per_minute or 0, limits.tokens_per_minute or 0
