"""The cost of model requests for their tree: reserved when they begin, settled when they end.

Both are read off the step's own entries, so that every commit with the end of a request settles it, that of
a takeover too. Nothing is decided here: a budget's refusal comes from the commit, and what follows from it
is the core's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import orjson

from orchestrator.broker.claims import Admitted, ProviderLimits, Wait
from orchestrator.broker.errors import BrokerError, OutOfMemory, Unavailable
from orchestrator.broker.records import (
    UNPRICED,
    Account,
    BudgetWait,
    Reservation,
    Settlement,
    Spend,
)
from orchestrator.broker.trees import warned
from orchestrator.config_keys import ModelPrice, ModelSettings
from orchestrator.core import facts as f
from orchestrator.core.blobs import is_reference
from orchestrator.core.commit_parts import BUDGET_TIMER, TreeEvent, TreePart, tree_event
from orchestrator.core.decide.task import more
from orchestrator.core.frozen import record
from orchestrator.core.settings import HELD_WAIT_S
from orchestrator.core.state import State
from orchestrator.core.tokens import Price, Usage
from orchestrator.model.prompt import Prompt
from orchestrator.protocol.agents import BudgetReport
from orchestrator.protocol.events import WarningEvent
from orchestrator.runtime import log
from orchestrator.runtime.ports import Ports

# ── admission ─────────────────────────────────────────────────────────────────────────────────────
# Asking for room at a provider before a model request is sent, and settling with it afterwards.
#
# The fleet shares the provider's limits, so the count is the broker's. A short wait is slept through
# here; a longer one is handed back, so that the session parks behind a timer. Nothing here runs for a
# provider without limits.


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


# ── budget ────────────────────────────────────────────────────────────────────────────────────────


NEAR = 0.8
"""The share of a budget from which on people are warned."""
_ESTIMATED = frozenset({"tokens", "cost"})
"""The budgets that go by the size of a request."""
_NOTHING = Spend()
_REFUSED = Spend(requests=1)
"""A request that a provider turned away used no token, but is counted: a tree that only fails still ends."""


def cost(price: ModelPrice, usage: Usage) -> int:
    """The cost in millionths of a dollar, rounded up: a budget is never short of what was billed.

    Dollars a million tokens are millionths of a dollar a token.
    """
    fresh = usage.input_tokens - usage.cached_input_tokens
    exact = fresh * price.input + usage.cached_input_tokens * price.cached_input
    exact += usage.output_tokens * price.output
    return int(-(-exact // 1))


def priced(price: ModelPrice, usage: Usage) -> Price:
    """The price as the log keeps it, with the prices of its day."""
    return Price(cost(price, usage), price.input, price.cached_input, price.output)


@record
class Accounting:
    """The costs of model requests, estimated and counted by a worker's model settings."""

    settings: ModelSettings = field(default_factory=ModelSettings)

    def estimate(self, state: State) -> Spend:
        """The most that the next request may use: its input at four bytes a token, and a full answer.

        A tree that was made without a budget of tokens or cost may be given one at any time, so its
        requests are reserved too; for these the last usage stands for the input, so that the conversation
        is not read.
        """
        if state.facts.tree_rules.budgets.keys() & _ESTIMATED:
            pinned = [state.task.pinned] if state.task is not None and state.task.pinned else []
            tokens = sum(map(_size, (*state.conversation, *pinned))) // BYTES_PER_TOKEN
        else:
            tokens = state.tokens.last.total_tokens if state.tokens is not None else 0
        most = self.settings.max_output_tokens
        usage = Usage(tokens, 0, most, 0, tokens + most)
        return self._spend(state, usage)

    def _spend(self, state: State, usage: Usage) -> Spend:
        price = self._price(state)
        return Spend(usage.total_tokens, cost(price, usage) if price else 0, 1)

    def _price(self, state: State) -> ModelPrice | None:
        return self.settings.prices.get((state.task or state).settings.model)

    def reservation(self, state: State, fact: f.RequestBegun) -> Reservation:
        """The reservation for a request that begins.

        Whether the tree limits its cost is not known here: a budget may be added at any time.
        """
        amount = self.estimate(state)
        if self._price(state) is None:
            amount = replace(amount, cost=UNPRICED)
        return Reservation(str(fact.n), amount)

    def settlement(self, state: State, fact: f.RequestEnded) -> Settlement:
        """The settlement of a request that has ended; `state` is that before its end."""
        used: Spend | None = None
        match fact:
            case _ if fact.usage:
                used = self._spend(state, Usage.of(fact.usage))
            case f.RequestDelayed():
                # No provider has served it.
                used = _NOTHING
            case (
                f.RequestRetried(served=False)
                | f.RequestFailed(served=False)
                | f.RequestStopped(served=False)
            ):
                used = _REFUSED
            case _:
                pass
        return Settlement(str(fact.n), used, (state.task or state).settings.model)

    def wait(self, state: State) -> BudgetWait:
        """The wait for room of a request that had none."""
        return BudgetWait(self.estimate(state), BUDGET_TIMER)


def _size(value: Any) -> int:
    """The bytes of an item as a request carries it: a large text counts whole, a picture by its tokens.

    A provider cuts pictures into tiles, of which the largest picture has some 1,500 tokens' worth.
    """
    if is_reference(value):
        return int(value["bytes"])
    if isinstance(value, Mapping):
        if value.get("type") == "input_image":
            return IMAGE_BYTES
        return sum(len(key) + _size(inner) for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value))
    return len(value.encode()) if isinstance(value, str) else len(orjson.dumps(value))


def warnings(state: State, accounts: Sequence[Account]) -> TreePart | None:
    """The events that warn people of budgets that are nearly used up."""
    if not accounts:
        return None
    id = state.task.id if state.task is not None else ""
    return TreePart(events=tuple(_warning(account, state, id) for account in accounts))


def nearly_used(accounts: tuple[Account, ...]) -> list[Account]:
    """The budgets that people should hear of before they are spent."""
    return [a for a in accounts if a.limit and a.limit > a.spent >= NEAR * a.limit]


def _warning(account: Account, state: State, id: str) -> TreeEvent:
    used = f"{account.spent} of {account.limit}"
    message = WarningEvent(
        message=f"the tree has used {used} of its budget of {account.kind}; "
        f"{more(account.kind, state.facts.tree_id)}",
        budget=BudgetReport(
            kind=account.kind,
            limit=account.limit or 0,
            used=account.spent,
            agent_id=state.facts.agent_id,
        ),
    )
    # So short a text leaves nothing to store beside it.
    return tree_event(id, message, (state.facts.tree_id,), {}, once=warned(account.kind))
