"""An MCP server that asks a person in the middle of a call, as `asking_server` does, in a tenth of its time.

The SDK takes most of a second to import; only the standard library is needed here.
"""

from __future__ import annotations

import json
import sys
from typing import Any

PERMIT = {
    "name": "permit",
    "description": "Asks once, or once more.",
    "inputSchema": {"type": "object", "properties": {"twice": {"type": "boolean"}}},
}


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def read() -> dict[str, Any]:
    message: dict[str, Any] = json.loads(sys.stdin.readline() or sys.exit())
    return message


def action(question: str, number: int) -> str | None:
    """The answer of the person to a question; None if the call is cancelled first."""
    schema = {"type": "object", "properties": {}}
    params = {"message": question, "requestedSchema": schema}
    send(id=number, method="elicitation/create", params=params)
    while (reply := read()).get("method") or reply.get("id") != number:
        if reply.get("method") == "notifications/cancelled":
            return None
    return str(reply["result"]["action"])


def permitted(twice: bool) -> str | None:
    said = [action("May I?", 1)]
    if twice and said[0]:
        said.append(action("Really?", 2))
    return None if None in said else " ".join(filter(None, said))


while True:
    match read():
        case {"method": "initialize", "id": number, "params": {"protocolVersion": version}}:
            info = {"name": "asking", "version": "1"}
            send(
                id=number,
                result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info},
            )
        case {"method": "tools/list", "id": number}:
            send(id=number, result={"tools": [PERMIT]})
        case {"method": "tools/call", "id": number, "params": params}:
            text = permitted(bool((params.get("arguments") or {}).get("twice")))
            if text is not None:
                send(id=number, result={"content": [{"type": "text", "text": text}]})
