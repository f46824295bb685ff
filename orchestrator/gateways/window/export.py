"""The export of a log over HTTP: the lines that `dendro export` writes, as they are read."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Final

from pydantic import Field, ValidationError

from orchestrator.broker.records import SessionHead
from orchestrator.core.frozen import record
from orchestrator.gateways.app_server.door import missing, thread_head
from orchestrator.gateways.app_server.door_ports import Ports
from orchestrator.gateways.app_server.messages import NotMeant, bad_params, invalid, no_rollout
from orchestrator.gateways.app_server.method import Params
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.protocol.wire import JsonValue
from orchestrator.rollouts.export import Tally, exported, header_of

MOST_AT_ONCE: Final = 2
"""Exports of a gateway at the same time: a log is as long as it has grown."""
_OTHERS: Final = "a log tells folders and commands of the machine: its export is for the machine's user"
_WHOLE: Final = "the export of every entry"


class ExportWish(Params):
    """A thread, and whether every entry is wanted, as `dendro export --full` writes them."""

    thread_id: Annotated[str, Field(max_length=1_024)]
    full: bool = False


@record
class Export:
    """A log that is to be sent."""

    head: SessionHead
    full: bool

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{'session' if self.full else 'rollout'}-{self.head.session}.jsonl"

    async def lines(self, ports: Ports) -> AsyncGenerator[bytes, None]:
        """The file as it is read; raises `RolloutError` if the log is not all there."""
        if self.full:
            yield header_of(self.head, ports.key_id).encode(ports.found.secret) + b"\n"
        async for lines in exported(ports.found, self.head, self.full, Tally()):
            if lines:
                yield lines


async def export_of(ports: Ports, principal: Principal, given: JsonValue) -> Export:
    """The export that is asked for; raises `RpcError`, `NotPermitted`, `BrokerError`."""
    principal.require(Scope.APPROVE, "export")
    if principal.is_tenant:
        raise NotMeant(_OTHERS)
    if not isinstance(given, dict):
        raise bad_params("an object is expected")
    try:
        wish = ExportWish.model_validate(given)
    except ValidationError as error:
        raise invalid(error) from None
    if wish.full:
        principal.require(Scope.ADMIN, _WHOLE)
    client = ports.client(principal, "window")
    head = await thread_head(client, wish.thread_id)
    if head is None:
        raise await missing(client, wish.thread_id, no_rollout(wish.thread_id))
    return Export(head, wish.full)
