"""Asking for room at a provider before a model request is sent, and settling with it afterwards.

The fleet shares the provider's limits, so the count is the broker's. A short wait is slept
through here; a longer one is handed back, so that the session parks behind a timer. Nothing
here runs for a provider without limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.broker.claims import Admitted, ProviderLimits, Wait
from orchestrator.broker.errors import BrokerError, OutOfMemory, Unavailable
from orchestrator.core.frozen import record
from orchestrator.core.settings import HELD_WAIT_S
from orchestrator.model.request import Prompt
from orchestrator.runtime.log import log
from orchestrator.runtime.ports import Ports

BYTES_PER_TOKEN = 4
IMAGE_BYTES = 6_000
"""A picture is counted by its tiles, not by the text that carries it: about 1,500 tokens."""
UNAVAILABLE_S = 0.5


@record
class RoomRequest:
    """A model request for which a provider's limits must have room."""

    provider: str
    limits: ProviderLimits
    ticket: str
    """The session's id: it has one request at a time, and keeps its place while it is parked."""
    tokens: int
    """The tokens that the request may use, by estimate."""


def estimated_tokens(prompt: Prompt, remembered: int, max_output_tokens: int) -> int:
    """The tokens that a request may use: one for four bytes of text, and the longest answer.

    `remembered` are the tokens of the conversation that the provider holds and the prompt leaves out.
    """
    said = _bytes((prompt.instructions, prompt.input, prompt.tools))
    return said // BYTES_PER_TOKEN + remembered + max_output_tokens


def _bytes(value: Any) -> int:
    match value:
        case str():
            picture = value.startswith("data:image/")
            return IMAGE_BYTES if picture else len(value.encode("utf-8", "surrogatepass"))
        case Mapping():
            return sum(len(name) + _bytes(part) for name, part in value.items())
        case Sequence():
            return sum(map(_bytes, value))
        case _:
            return 1


async def admitted(ports: Ports, asking: RoomRequest) -> int:
    """Returns 0 when the request may be sent, else the milliseconds after which to come back and ask."""
    while True:
        match await _answer(ports, asking):
            case Admitted():
                return 0
            case Wait(wait_ms) if wait_ms > HELD_WAIT_S * 1000:
                return wait_ms
            case Wait(wait_ms):
                await ports.sleep(wait_ms / 1000)


async def _answer(ports: Ports, asking: RoomRequest) -> Admitted | Wait:
    while True:
        try:
            return await ports.broker.claims.admit(
                asking.provider, asking.ticket, asking.tokens, asking.limits
            )
        except (Unavailable, OutOfMemory) as error:
            # Without an answer the claim cannot be renewed either: that ends this wait, if nothing else.
            log.warning("provider %s: no word on its limits, asking again: %s", asking.provider, error)
            await ports.sleep(UNAVAILABLE_S)


async def settle(ports: Ports, asking: RoomRequest, usage: Mapping[str, int] | None) -> None:
    """Corrects the estimate by the usage; without a usage the estimate stays as it was."""
    if usage is None:
        return
    try:
        await ports.broker.claims.settle(asking.provider, asking.tokens, usage["total_tokens"], asking.limits)
    except BrokerError as error:
        # The response stands whatever becomes of its account; the estimate refills by itself.
        log.warning("provider %s: its usage was not settled: %s", asking.provider, error)
