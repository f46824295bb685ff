"""The model of a chaos run, and the two programs that it calls: each writes down its begin and its end."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.stub.answers import Answer, Call, Step, StubRequest, Text

_ASKED = re.compile(r"(Run|Note) (\S+) for (\S+) s")
LEDGER, PROGRAM, SERVER = "done.log", "work.sh", "ledger_server.py"
TROUBLE = "provider.trouble"
"""The file that says how the provider fails now, as in `TROUBLES`; beside the folder of commands."""
SOURCE = f"""tell() {{ echo "$1 $2 $$ $(cut -d' ' -f1 /proc/uptime)" >> {LEDGER}; }}
tell begin "$1"
sleep "$2"
tell end "$1"
"""
"""The program that commands run: a file, for a script in an argument would be read before it is judged."""
SERVER_SOURCE = '''"""An MCP server with one tool, `note`, which takes its time."""
import json, os, sys, time

TOOL = {"name": "note", "description": "Notes an id.", "inputSchema": {"type": "object", "properties": {
    "id": {"type": "string"}, "seconds": {"type": "number"}}}}


def tell(what, id):
    with open(sys.argv[1], "a") as ledger:
        ledger.write(f"{what} {id} {os.getpid()} {time.clock_gettime(time.CLOCK_BOOTTIME):.2f}\\n")


def result(request):
    params = request.get("params") or {}
    if request["method"] == "initialize":
        told = {"capabilities": {"tools": {}}, "serverInfo": {"name": "ledger", "version": "1"}}
        return {"protocolVersion": params["protocolVersion"], **told}
    if request["method"] == "tools/list":
        return {"tools": [TOOL]}
    if request["method"] == "tools/call":
        asked = params["arguments"]
        tell("begin", asked["id"])
        time.sleep(float(asked["seconds"]))
        tell("end", asked["id"])
        return {"content": [{"type": "text", "text": "noted"}]}
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request and "method" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result(request)}), flush=True)
'''
TROUBLES: Mapping[str, Step] = {
    "429": Step(
        status=429, headers={"retry-after": "1"}, body={"error": {"message": "too many", "type": "rate"}}
    ),
    "500": Step(status=500, body={"error": {"message": "it broke", "type": "server_error"}}),
    "cut": Step(items=(Text("It was cut off."),), drop_after=2),
}


def order(id: str, seconds: float, *, tool: bool = False) -> str:
    """The task of a turn: a command, or a call of the server's tool."""
    return f"{'Note' if tool else 'Run'} {id} for {seconds} s."


@dataclass(frozen=True, slots=True)
class ChaosScript:
    """Everything follows from the request alone: a person's message, and whether it was acted on."""

    name: str = "chaos"
    trouble: Path = Path("..") / TROUBLE

    def answer(self, request: StubRequest) -> Answer:
        items = request.body.get("input") or ()
        number = 1 + sum("call_id" in item for item in items)
        return Answer(self._troubled() or self._step(items), number, request.digest)

    def _troubled(self) -> Step | None:
        try:
            return TROUBLES.get(self.trouble.read_text())
        except OSError:
            return None

    def _step(self, items: Sequence[Mapping[str, Any]]) -> Step:
        asked = _ASKED.search(str(items[-1].get("content"))) if items[-1].get("role") == "user" else None
        if asked is None:
            return Step(items=(Text("Done."),))
        kind, id, seconds = asked.groups()
        if kind == "Note":
            return Step(items=(Call("mcp__ledger__note", {"id": id, "seconds": float(seconds)}),))
        return Step(items=(Call("shell", {"command": ["sh", PROGRAM, id, seconds]}),))
