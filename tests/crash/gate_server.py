"""An MCP server with one tool: it notes its call in the ledger, asks the person, and tells the decision.

Run as `gate_server.py LEDGER`. Only the standard library: every worker of a crash run starts one.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

TOOL = {"name": "permit", "description": "Asks the person.", "inputSchema": {"type": "object"}}
waiting: deque[dict[str, Any]] = deque()
"""Messages that came while a call waited for its answer."""


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def read() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    message: dict[str, Any] = json.loads(line)
    return message


def permit(request: dict[str, Any]) -> None:
    asked = request["params"]["arguments"]
    with Path(sys.argv[1]).open("a") as ledger:
        ledger.write(f"{asked['session']} {asked['call']}\n")
    question = f"q{request['id']}"
    schema = {"type": "object", "properties": {}}
    send(id=question, method="elicitation/create", params={"message": "May I?", "requestedSchema": schema})
    while (reply := read()).get("id") != question or "method" in reply:
        cancelled = reply.get("method") == "notifications/cancelled"
        if cancelled and reply["params"]["requestId"] == request["id"]:
            return
        waiting.append(reply)
    action = reply.get("result", {}).get("action", "failed")
    send(id=request["id"], result={"content": [{"type": "text", "text": f"the person said {action}"}]})


def main() -> None:
    while True:
        message = waiting.popleft() if waiting else read()
        match message.get("method"):
            case "initialize":
                info = {"name": "gate", "version": "1"}
                version = message["params"]["protocolVersion"]
                result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
                send(id=message["id"], result=result)
            case "tools/list":
                send(id=message["id"], result={"tools": [TOOL]})
            case "tools/call":
                permit(message)
            case "ping":
                send(id=message["id"], result={})
            case _:
                pass


main()
