"""The op of a user turn as a session keeps it: while it waits for the session, and when its task begins.

Its settings and its bookmark are the op's own. Its input items stand apart, in their wire form: a log keeps a
reference in the place of a very large text, which the protocol's models do not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from orchestrator.core.frozen import record
from orchestrator.core.history import Item
from orchestrator.core.settings import readable_setting
from orchestrator.protocol import ops
from orchestrator.protocol.ids import ResponseId
from orchestrator.protocol.scalars import Delivery
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue, written

UserTurnOp: TypeAlias = (
    ops.UserInput | ops.UserTurn | ops.Compact | ops.Plan | ops.Review | ops.RunUserShellCommand
)

_MODELS: Mapping[str, type[UserTurnOp]] = {
    "user_input": ops.UserInput,
    "user_turn": ops.UserTurn,
    "compact": ops.Compact,
    "plan": ops.Plan,
    "review": ops.Review,
    "run_user_shell_command": ops.RunUserShellCommand,
}
WITHOUT_INPUT: Final = (ops.Compact, ops.Plan, ops.Review, ops.RunUserShellCommand)
"""Ops that begin a task without input items."""
_SCHEMA = "final_output_json_schema"


@record
class UserTurn:
    """An op, and the items that it came with; those of `op` itself are empty."""

    op: UserTurnOp
    items: tuple[Item, ...] = ()

    @classmethod
    def asked(cls, op: UserTurnOp, read: tuple[Item, ...] | None = None) -> UserTurn:
        """The turn that a submitted op asks for; `read` are its items with what lies in files put in."""
        if isinstance(op, WITHOUT_INPUT):
            return cls(op)
        items = read if read is not None else tuple(map(written, op.items))
        return cls(op.model_copy(update={"items": ()}), items)

    @classmethod
    def of(cls, wire: JsonMapping) -> UserTurn:
        """From the JSON in a log; raises `ValueError` for what is no such op."""
        plain = {name: value if name == _SCHEMA else readable_setting(value) for name, value in wire.items()}
        items: Sequence[Item] = wire.get("items") or ()
        kind = _MODELS[wire["type"]]
        known = plain if issubclass(kind, WITHOUT_INPUT) else {**plain, "items": ()}
        return cls(kind.model_validate(known), tuple(items))

    def wire(self) -> JsonObject:
        """The op whole, as JSON."""
        wire = self.op.model_dump(mode="json")
        return {**wire, "items": list(self.items)} if "items" in wire else wire

    @property
    def bookmark(self) -> ResponseId | None:
        """The response that the conversation goes on from, if it is not the last one."""
        return None if isinstance(self.op, WITHOUT_INPUT) else self.op.last_response_id

    @property
    def is_input(self) -> bool:
        """Whether a person says something; else the op begins a task of its own kind."""
        return not isinstance(self.op, WITHOUT_INPUT)

    @property
    def delivery(self) -> Delivery | None:
        """Where the op is to go while a task runs; None: as the session has it."""
        return None if isinstance(self.op, WITHOUT_INPUT) else self.op.delivery

    @property
    def expected_turn_id(self) -> str | None:
        """The turn that the input is for, and no other."""
        return self.op.expected_turn_id if isinstance(self.op, ops.UserInput) else None

    @property
    def client_id(self) -> str | None:
        """The sender's own name for the message."""
        return None if isinstance(self.op, WITHOUT_INPUT) else self.op.client_user_message_id

    @property
    def replaces(self) -> bool:
        """Whether a task that runs is stopped for it."""
        return self.delivery in (None, Delivery.REPLACE)

    @property
    def unknown_mentions(self) -> tuple[str, ...]:
        """The apps that the input names and no MCP server stands for, by their paths."""
        named = (item for item in self.items if item["type"] == "mention" and not item.get("tools"))
        return tuple(str(item["path"]) for item in named)

    @property
    def output_schema(self) -> JsonValue:
        """The JSON Schema that the last message has to conform to; None for any."""
        return None if isinstance(self.op, WITHOUT_INPUT) else self.op.final_output_json_schema
