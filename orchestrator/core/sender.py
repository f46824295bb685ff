"""Senders: who gave an op, as the door knew them through which it came.

A door writes the sender beside a submission, in the queue; no field of the submission itself says it. A fact
that an op of a person leads to has it as `by`; where `by` has meant the op's id all along, as `sender`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import orjson

from orchestrator.core.frozen import record
from orchestrator.protocol.wire import JsonMapping, JsonObject

Via: TypeAlias = Literal["cli", "terminal", "proto", "sq-eq", "app-server", "window", "mcp-server", "demo"]
"""The doors that submissions come by: `cli` is a command, `proto` lines on standard input, `sq-eq` those of a
socket."""
MACHINE: Final = "machine"
"""In the place of a token's id: the machine's own user, who needs none."""
OF_ISSUER: Final = "openid:"
"""The begin of the names of those with a token of an issuer, behind their namespace: no other name has it."""


@record
class Sender:
    """The principal of a door, with the door and the token that it came by."""

    who: str
    namespace: str = ""
    scope: str = ""
    via: str = ""
    """The door, one of `Via`; a newer version may have others."""
    token: str = ""
    """The id of the token, or `machine`."""
    subject: str = ""
    """The same one beyond this deployment: `uid:<number>@<host>`, or `<issuer>|<subject>` of OpenID."""
    stated_name: str = ""
    """The client's own name for itself. Nothing proves it."""

    def wire(self) -> JsonObject:
        """As JSON."""
        told = {name: getattr(self, name) for name in _NAMED}
        return told | {name: value for name in _SELDOM if (value := getattr(self, name))}

    def encoded(self) -> bytes:
        """The bytes of a submission's entry in the queue."""
        return orjson.dumps(self.wire())


_NAMED: Final = ("who", "namespace", "scope", "via", "token")
_SELDOM: Final = ("subject", "stated_name")


def sender_of(wire: JsonMapping | None) -> Sender | None:
    """The sender that JSON names; None for what names none: an older version wrote it, or somebody else."""
    if not isinstance(wire, Mapping) or not isinstance(wire.get("who"), str):
        return None
    said = {name: wire.get(name) for name in (*_NAMED, *_SELDOM)}
    return Sender(**{name: value for name, value in said.items() if isinstance(value, str)})


def sender_wire(sender: Sender | None) -> JsonObject | None:
    """As a fact has it."""
    return None if sender is None else sender.wire()


def decoded(data: bytes) -> Sender | None:
    """The sender of an entry of the queue; None likewise."""
    try:
        return sender_of(orjson.loads(data)) if data else None
    except orjson.JSONDecodeError:
        return None
