"""The answer to `initialize`, made with next to no imports: a client that starts a server waits for it.

On stdio the first request is there before the server has loaded what it serves. `Greeter` answers it at once;
the connection then reads the same bytes, and the answer that it makes is not sent again.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROTOCOL_LEVEL = "0.169.0"
"""The version of the recorded peer whose protocol is served: clients look for it."""
NAME_CHARS = 200
ID_CHARS = 1_024


def user_agent(client: str, version: str) -> str:
    """The server's name for itself, to a client of this name."""
    return f"{client}/{PROTOCOL_LEVEL} (dendro {version}; {platform.system()}; {platform.machine()})"


def greeting(client: str, version: str, home: Path) -> dict[str, str]:
    """The result of `initialize`."""
    return {
        "userAgent": user_agent(client, version),
        "codexHome": str(home),
        "platformFamily": "unix",
        "platformOs": platform.system().lower(),
    }


@dataclass(slots=True)
class Greeter:
    """Standard input and output between a client and the connection that serves it."""

    read: Callable[[int], Awaitable[bytes]]
    write: Callable[[bytes], Awaitable[None]]
    early: bytes = b""
    """Input that was read before the connection was there."""
    answered: bool = False
    """Whether its first request was answered then: the connection's first message says the same."""

    async def receive(self, limit: int) -> bytes:
        """The next bytes of the client."""
        if self.early:
            data, self.early = self.early[:limit], self.early[limit:]
            return data
        return await self.read(limit)

    async def send(self, data: bytes) -> None:
        """Writes messages for the client, but for an answer that it has."""
        if self.answered:
            self.answered = False
            data = data.partition(b"\n")[2]
        if data:
            await self.write(data)


def early_answer(early: bytes, version: str, home: Path) -> bytes | None:
    """The answer to a first line that is a plain `initialize`; None for whatever wants a closer look."""
    line, ended, _ = early.partition(b"\n")
    try:
        value = json.loads(line) if ended else None
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get("method") != "initialize" or "jsonrpc" in value:
        return None
    id, params = value.get("id"), value.get("params")
    client = params.get("clientInfo") if isinstance(params, dict) else None
    if not isinstance(params, dict) or not isinstance(client, dict) or "protocolVersion" in params:
        return None
    if not (_is_id(id) and _is_plain(client) and _are_plain(params.get("capabilities"))):
        return None
    answer = {"id": id, "result": greeting(client["name"][:NAME_CHARS], version, home)}
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _is_id(id: Any) -> bool:
    if isinstance(id, str):
        return len(id) <= ID_CHARS
    return isinstance(id, int) and not isinstance(id, bool) and abs(id) < 1 << 53


def _is_plain(client: dict[str, Any]) -> bool:
    names = client.get("name"), client.get("version"), client.get("title") or ""
    return all(isinstance(name, str) and name.isprintable() for name in names)


def _are_plain(capabilities: Any) -> bool:
    if capabilities is None:
        return True
    if not isinstance(capabilities, dict):
        return False
    unwanted = capabilities.get("optOutNotificationMethods") or []
    experimental = capabilities.get("experimentalApi", False)
    return (
        isinstance(experimental, bool)
        and isinstance(unwanted, list)
        and all(isinstance(name, str) for name in unwanted)
    )
