"""An MCP server that does what it should not. Run as `bad_server.py MODE [FIFO]`; only the standard library.

Modes are about its start; its tools are the other bad deeds. What it is told and what happens to it goes to
the FIFO, so that tests can wait for it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
TOOLS = (
    "echo", "sleep", "die", "nonsense", "not_json", "long", "flood", "fails", "refuses", "image",
    "structured", "wide", "deep", "numbers", "forged", "ask", "ask_form", "ask_link", "change", "pings",
    "environment", "later",
)  # fmt: skip

tools: list[dict[str, Any]] = [
    {"name": name, "description": f"Does {name}.", "inputSchema": {"type": "object"}} for name in TOOLS
]


def tell(word: str) -> None:
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(word)


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def read() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    message: dict[str, Any] = json.loads(line)
    return message


def answer(request: dict[str, Any], **result: Any) -> None:
    send({"id": request["id"], "result": result})


def text(request: dict[str, Any], said: str, **more: Any) -> None:
    answer(request, content=[{"type": "text", "text": said}], **more)


def ask(request: dict[str, Any], **params: Any) -> None:
    """Asks the person, and answers the call with what came of it, unless that is cancelled first."""
    send({"id": "q1", "method": "elicitation/create", "params": params})
    while (reply := read()).get("id") != "q1":
        if reply.get("method") == "notifications/cancelled":
            return
    text(request, json.dumps(reply.get("result", reply.get("error")), sort_keys=True))


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def call(request: dict[str, Any]) -> None:
    arguments = request["params"].get("arguments") or {}
    match request["params"]["name"]:
        case "echo":
            text(request, json.dumps(arguments, sort_keys=True))
        case "environment":
            text(request, json.dumps({**os.environ, "cwd": str(Path.cwd()), "pid": os.getpid()}))
        case "sleep":
            tell("sleeping")
            while (told := read())["method"] != "notifications/cancelled":
                pass
            tell(f"cancelled {told['params']['requestId'] == request['id']}")
        case "later":
            tell("later")
        case "die":
            sys.stderr.write("no more of this\n")
            sys.stderr.flush()
            os._exit(3)
        case "nonsense":
            answer(request, content="nothing")
        case "not_json":
            sys.stdout.write("{]\n" * 1_001)
            sys.stdout.flush()
        case "long":
            sys.stdout.write("x" * (5 << 20))
            sys.stdout.flush()
        case "flood":
            while True:
                os.write(1, b'{"jsonrpc":"2.0","method":"notifications/x"}\n' * 1_000)
        case "fails":
            text(request, "it went wrong", isError=True)
        case "refuses":
            send({"id": request["id"], "error": {"code": -32603, "message": "I would rather not"}})
        case "image":
            blocks = [
                {"type": "text", "text": "a dot"},
                {"type": "image", "data": PIXEL, "mimeType": "image/png"},
            ]
            answer(
                request, content=[*blocks, {"type": "image", "data": "<svg/>", "mimeType": "image/svg+xml"}]
            )
        case "structured":
            answer(request, content=[{"type": "text", "text": "no"}], structuredContent={"n": 1})
        case "wide":
            answer(request, content=[{"type": "text", "text": "w" * 50_000} for _ in range(20)])
        case "deep":
            answer(request, content=[], structuredContent=nested(60))
        case "numbers":
            answer(request, content=[], structuredContent={"n": 10**30, "m": "\ud83d\ude00"})
        case "forged":
            answer(request, content=[], structuredContent={"$blob": "0" * 64, "bytes": 5})
        case "ask":
            schema = {"type": "object", "properties": {}}
            ask(request, message="May I?", requestedSchema=schema)
        case "ask_form":
            schema = {"type": "object", "properties": {"password": {"type": "string"}}}
            ask(request, message="Your password?", requestedSchema=schema)
        case "ask_link":
            ask(request, mode="url", message="Visit me", url="http://127.0.0.1:1/", elicitationId="e")
        case "change":
            tools[:] = [tool for tool in tools if tool["name"] == "change"]
            tools.append({"name": "fresh", "inputSchema": {"type": "object"}})
            send({"method": "notifications/tools/list_changed"})
            text(request, "changed")
        case "pings":
            for number in range(100_000):
                send({"id": f"p{number}", "method": "ping"})
        case name:
            send({"id": request["id"], "error": {"code": -32602, "message": f"unknown tool {name}"}})


def listed(request: dict[str, Any], mode: str) -> None:
    match mode:
        case "no-end":
            answer(request, tools=tools[:1], nextCursor=str(time.monotonic_ns()))
        case "many":
            answer(request, tools=[{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(500)])
        case "wrong-tools":
            wrong = [
                {"name": "x" * 200, "inputSchema": {"type": "object"}},
                {"name": "line\nbreak", "inputSchema": {"type": "object"}},
                {"name": "deep", "inputSchema": {"type": "object", "properties": {"a": nested(60)}}},
                {"name": "wide", "inputSchema": {"type": "object", "title": "y" * 40_000}},
                {"name": "good", "description": "z" * 100_000, "inputSchema": {"type": "object"}},
                {"name": "good", "description": "twice", "inputSchema": {"type": "object"}},
            ]
            answer(request, tools=wrong)
        case _:
            answer(request, tools=tools)


def main() -> None:
    mode = sys.argv[1]
    if mode == "dies":
        sys.stderr.write("I cannot start here\n")
        sys.exit(4)
    if mode == "noisy":
        print("Welcome to my server!", flush=True)
    while True:
        message = read()
        match message.get("method"):
            case "initialize" if mode == "silent":
                tell("asked")
            case "initialize" if mode == "other":
                answer(
                    message,
                    protocolVersion="1999-01-01",
                    capabilities={},
                    serverInfo={"name": "b", "version": "1"},
                )
            case "initialize" if mode == "refusing":
                send({"id": message["id"], "error": {"code": -32600, "message": "not with you"}})
            case "initialize":
                version = message["params"]["protocolVersion"]
                info = {"name": "bad", "version": "1"}
                answer(message, protocolVersion=version, capabilities={"tools": {}}, serverInfo=info)
            case "tools/list":
                listed(message, mode)
            case "tools/call":
                call(message)
            case "notifications/initialized" | "notifications/cancelled" | None:
                pass
            case _:
                send({"id": message["id"], "error": {"code": -32601, "message": "unknown method"}})


main()
