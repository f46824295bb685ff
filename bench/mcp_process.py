"""An MCP server with many tools, which nobody calls: `python -m bench.mcp_process COUNT`."""

from __future__ import annotations

import sys
from typing import Any

import orjson

_VERSION = "2025-06-18"


def main(count: int) -> None:
    """Serves until its standard input ends."""
    for line in sys.stdin.buffer:
        asked = orjson.loads(line)
        if "id" in asked:
            reply = {"jsonrpc": "2.0", "id": asked["id"], "result": _result(asked["method"], count)}
            sys.stdout.buffer.write(orjson.dumps(reply) + b"\n")
            sys.stdout.buffer.flush()


def _result(method: str, count: int) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": "bench", "version": "1"}
        return {"protocolVersion": _VERSION, "capabilities": {"tools": {}}, "serverInfo": info}
    return {"tools": [_tool(n) for n in range(count)]} if method == "tools/list" else {}


def _tool(n: int) -> dict[str, Any]:
    fields = {name: {"type": "string", "description": f"The {name} of it."} for name in ("name", "place")}
    schema = {"type": "object", "properties": fields, "required": ["name"]}
    return {"name": f"look_{n}", "description": f"Looks for things of kind {n}.", "inputSchema": schema}


if __name__ == "__main__":
    main(int(sys.argv[1]))
