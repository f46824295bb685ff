"""Requests of every kind, asked of clients on WebSockets, across a gateway's death, answered by either."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.cli.machine import PATIENCE_S, Machine, dendro
from tests.doors.clients.conftest import machine, redis_server
from tests.doors.schema import assert_valid
from tests.started import Started

__all__ = ["machine", "redis_server"]
pytestmark = [pytest.mark.realredis, pytest.mark.slow]

Message = dict[str, Any]
ASKING_SERVER = Path(__file__).parents[1] / "mcp" / "asking_server.py"
PATCH = "*** Begin Patch\n*** Add File: patched.txt\n+made\n*** End Patch\n"
QUESTION = {"id": "store", "header": "Store", "question": "Which one?"}
OPTIONS = [{"label": each, "description": each} for each in ("Redis", "Disk")]
CHOICE = {"header": "Store", "question": "Which one?", "options": OPTIONS, "multiSelect": False}
STEPS = [{"step": "Write it", "status": "pending"}]
PROPOSAL = {"title": "A login", "summary": "Adds it.", "plan": {"plan": STEPS}}
CALLS = {
    "command": {"call": "shell", "args": {"command": ["touch", "made.txt"]}},
    "patch": {"custom_call": "apply_patch", "input": PATCH},
    "choice": {"call": "ask_user_question", "args": {"questions": [CHOICE]}},
    "plan": {"call": "approve_plan", "args": {"proposal": PROPOSAL}},
    "elicitation": {"call": "mcp__asking__permit", "args": {}},
}
"""The request of each agent, by its label."""
INPUT = {"call": "request_user_input", "args": {"questions": [QUESTION]}}
ROOT = "root"
MODE = {"mode": "plan", "settings": {"model": "gpt-5"}}
"""The root is offered `request_user_input` in this mode."""
KINDS = {
    "command": ("item/commandExecution/requestApproval", "CommandExecutionRequestApproval"),
    "patch": ("item/fileChange/requestApproval", "FileChangeRequestApproval"),
    "choice": ("item/tool/requestUserInput", "ToolRequestUserInput"),
    ROOT: ("item/tool/requestUserInput", "ToolRequestUserInput"),
    "plan": ("item/tool/requestUserInput", "ToolRequestUserInput"),
    "elicitation": ("mcpServer/elicitation/request", "McpServerElicitationRequest"),
}
ANSWERS: dict[str, Message] = {
    "command": {"decision": "accept"},
    "patch": {"decision": "accept"},
    "choice": {"answers": {"Store": {"answers": ["Redis"]}}},
    ROOT: {"answers": {"store": {"answers": ["Redis"]}}},
    "plan": {"answers": {"plan": {"answers": ["Approve"]}}},
    "elicitation": {"action": "accept", "content": {}},
}


def scenario() -> str:
    spawn = [{"call": "subagent_spawn", "args": {"label": one, "prompt": one}} for one in CALLS]
    wait = {"call": "subagent_await", "args": {"agent_ids": list(range(1, len(CALLS) + 1))}}
    root = [{"items": [*spawn, INPUT]}, {"items": [wait]}, {"items": [{"text": "Done."}]}]
    agents = [
        {"label": one, "steps": [{"items": [call]}, {"items": [{"text": f"{one} done."}]}]}
        for one, call in CALLS.items()
    ]
    return json.dumps({"steps": root, "agents": agents, "after_end": "repeat_last"})


class Client:
    """A client that has greeted."""

    def __init__(self, wire: ClientConnection) -> None:
        self._wire = wire
        self.heard: list[Message] = []
        self.call(
            0,
            "initialize",
            clientInfo={"name": "mine", "version": "1"},
            capabilities={"experimentalApi": True},
        )

    def send(self, **message: Any) -> None:
        self._wire.send(json.dumps(message))

    def until(self, wanted: Callable[[Message], bool]) -> Message:
        while True:
            self.heard.append(json.loads(self._wire.recv(PATIENCE_S)))
            if wanted(self.heard[-1]):
                return self.heard[-1]

    def call(self, id: int, method: str, **params: Any) -> Any:
        self.send(id=id, method=method, params=params)
        answer = self.until(lambda message: message.get("id") == id and "method" not in message)
        assert "result" in answer, answer
        return answer["result"]

    def asked(self, count: int) -> dict[str, Message]:
        """The requests that were put to the client, by their threads, as soon as there are so many."""
        found: dict[str, Message] = {}
        for message in self.heard:
            if "id" in message and "method" in message:
                found[message["params"]["threadId"]] = message
        while len(found) < count:
            message = self.until(lambda message: "id" in message and "method" in message)
            found[message["params"]["threadId"]] = message
        return found

    def nicknames(self) -> dict[str, str]:
        """The threads that the client was told of, by the labels of their agents."""
        told = [
            message["params"]["thread"] for message in self.heard if message.get("method") == "thread/started"
        ]
        return {thread["agentNickname"] or ROOT: thread["id"] for thread in told}


@contextmanager
def gateway(user: Machine, address: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = Started(
        dendro("serve", "--listen", address),
        stderr=subprocess.PIPE,
        text=True,
        cwd=user.folder,
        env=user.environ,
    )
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        assert "listening on " in said, said
        yield process, said.split("listening on ")[1].strip()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@contextmanager
def client(address: str) -> Iterator[Client]:
    with connect(address, max_size=None) as wire:
        yield Client(wire)


def resolved(id: int) -> Callable[[Message], bool]:
    return lambda message: (
        message.get("method") == "serverRequest/resolved" and message["params"]["requestId"] == id
    )


def test_requests_of_a_tree_outlive_the_gateway_and_are_answered_by_either_client(machine: Machine) -> None:
    home = Path(machine.environ["DENDRO_HOME"])
    home.mkdir(mode=0o700)
    server = f"command = {json.dumps(sys.executable)}\nargs = {json.dumps(['-I', str(ASKING_SERVER)])}\n"
    (home / "dendro.toml").write_text(f"[mcp_servers.asking]\n{server}")
    with machine.playing(scenario()) as user, ExitStack() as stack:
        worker = stack.enter_context(Started(dendro("worker"), cwd=user.folder, env=user.environ))
        stack.callback(worker.terminate)
        with gateway(user, "ws://127.0.0.1:0") as (first, address), client(address) as one:
            asks = {"approvalPolicy": "untrusted", "sandbox": "workspace-write"}
            root = one.call(1, "thread/start", **asks)["thread"]["id"]
            go = [{"type": "text", "text": "go"}]
            one.call(2, "turn/start", threadId=root, input=go, collaborationMode=MODE)
            call = one.asked(len(KINDS))[one.nicknames()["elicitation"]]
            # The call of the server's tool is asked about before the server asks itself.
            one.send(id=call["id"], result={"decision": "accept"})
            one.until(lambda message: message.get("method") == KINDS["elicitation"][0])
            before, threads = one.asked(len(KINDS)), one.nicknames()
            assert says_the_reach(before[threads["elicitation"]]["params"]["message"], user)
            first.send_signal(signal.SIGKILL)
            first.wait()
        with gateway(user, address), client(address) as one, client(address) as two:
            for each in (one, two):
                each.call(1, "thread/resume", threadId=root)
            asked, others = one.asked(len(KINDS)), two.asked(len(KINDS))
            for number, (label, (method, definition)) in enumerate(KINDS.items()):
                mine, its = asked[threads[label]], others[threads[label]]
                assert (mine["method"], mine["params"]) == (method, before[threads[label]]["params"])
                assert_valid(f"{definition}Params", mine["params"])
                if number % 2:
                    one.send(id=mine["id"], result=ANSWERS[label])
                    two.until(resolved(its["id"]))
                else:
                    two.send(id=its["id"], result=ANSWERS[label])
                    one.until(resolved(mine["id"]))
            done = one.until(ended(root))
            two.until(ended(root))
    assert done["params"]["turn"]["status"] == "completed", done["params"]["turn"]["error"]
    assert (machine.folder / "patched.txt").read_text() == "made\n"


def ended(thread: str) -> Callable[[Message], bool]:
    return lambda message: (
        message.get("method") == "turn/completed" and message["params"]["threadId"] == thread
    )


TOOL = {"name": "weather", "description": "Tells it.", "inputSchema": {"type": "object"}}


def test_without_a_terminal_a_command_leaves_a_session_that_waits_for_a_program_with_a_tool(
    machine: Machine,
) -> None:
    steps = [{"items": [{"call": "weather", "args": {}}]}, {"items": [{"text": "Sunny."}]}]
    with machine.playing(json.dumps(steps)) as user, ExitStack() as stack:
        worker = stack.enter_context(Started(dendro("worker"), cwd=user.folder, env=user.environ))
        stack.callback(worker.terminate)
        with gateway(user, "ws://127.0.0.1:0") as (_, address), client(address) as one:
            root = one.call(1, "thread/start", dynamicTools=[{"type": "function", **TOOL}])["thread"]["id"]
            one.call(2, "turn/start", threadId=root, input=[{"type": "text", "text": "go"}])
            one.until(lambda message: message.get("method") == "item/tool/call")
            left = user.run("run", "--resume", root)
    assert left.returncode == 3, left.stdout + left.stderr
    assert "waiting for an answer, or the program that brings a tool; dendro approvals lists" in left.stderr


def says_the_reach(text: str, user: Machine) -> bool:
    """Whether a server's question begins with where the server works, in Dendro's words."""
    where = f"OUTSIDE THE SANDBOX, in {user.folder} on {socket.gethostname()}"
    return text.startswith(f"{where}, the MCP server asking works: an answer goes to it")


def listened(one: Client, root: str) -> Message:
    """The event of a server's question, as a listener of version 1 at the root is told it."""
    one.call(1, "addConversationListener", conversationId=root)
    told = one.until(lambda message: message.get("method") == "codex/event/elicitation_request")
    event: Message = told["params"]["msg"]
    return event


def attached(address: str, root: str) -> Message:
    """The same, as a client of the SQ/EQ is told it that attaches to the root."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    first = {"id": "1", "op": {"type": "configure_session", "session_id": root}}
    with socket.create_connection((host, int(port)), PATIENCE_S) as wire:
        wire.sendall(json.dumps(first).encode() + b"\n")
        with wire.makefile("rb") as lines:
            told = (json.loads(line)["msg"] for line in lines)
            return next(msg for msg in told if msg["type"] == "elicitation_request")


def test_servers_question_to_an_agent_says_at_each_door_where_the_server_works(machine: Machine) -> None:
    home = Path(machine.environ["DENDRO_HOME"])
    home.mkdir(mode=0o700)
    server = f"command = {json.dumps(sys.executable)}\nargs = {json.dumps(['-I', str(ASKING_SERVER)])}\n"
    (home / "dendro.toml").write_text(f"[mcp_servers.asking]\n{server}")
    spawn = {"call": "subagent_spawn", "args": {"label": "scout", "prompt": "scout"}}
    wait = {"call": "subagent_await", "args": {"agent_ids": [1]}}
    steps = [{"items": [spawn]}, {"items": [wait]}, {"items": [{"text": "Done."}]}]
    scout = [{"items": [CALLS["elicitation"]]}, {"items": [{"text": "scout done."}]}]
    play = {"steps": steps, "agents": [{"label": "scout", "steps": scout}], "after_end": "repeat_last"}
    with machine.playing(json.dumps(play)) as user, ExitStack() as stack:
        worker = stack.enter_context(Started(dendro("worker"), cwd=user.folder, env=user.environ))
        stack.callback(worker.terminate)
        _, address = stack.enter_context(gateway(user, "ws://127.0.0.1:0"))
        _, lines = stack.enter_context(gateway(user, "tcp://127.0.0.1:0"))
        one, two = stack.enter_context(client(address)), stack.enter_context(client(address))
        root = one.call(1, "thread/start", approvalPolicy="never")["thread"]["id"]
        one.call(2, "turn/start", threadId=root, input=[{"type": "text", "text": "go"}])
        asked = one.until(lambda message: message.get("method") == KINDS["elicitation"][0])
        assert asked["params"]["threadId"] != root
        assert says_the_reach(asked["params"]["message"], user), asked
        for event in (listened(two, root), attached(lines, root)):
            assert says_the_reach(event["reach"]["text"], user), event
            assert (event["agent_id"], event["reach"]["sandboxed"]) == (1, False)
        one.send(id=asked["id"], result={"action": "decline"})
        assert one.until(ended(root))["params"]["turn"]["status"] == "completed"
