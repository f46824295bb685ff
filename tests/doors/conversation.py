"""Holds a recorded conversation of app-server v2 with `dendro app-server`, over its pipes.

Each message of the client is sent once what was recorded before it has come. Ids are bound as they appear.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.stub import Scenario, StubConfig, running
from tests.acceptance.conversation import PATIENCE_S, Pipes, Setup, Stuck, environment, set_up, stop_orphan
from tests.acceptance.conversation import with_provider_table as settings_of
from tests.doors.comparator import Message
from tests.servers import own_database, plain_http
from tests.started import COMMAND, Started

RECORDINGS = Path(__file__).parent / "recordings" / "app-server-v2"
NOT_IN_TMP = "[sandbox_workspace_write]\nexclude_slash_tmp = true\nexclude_tmpdir_env_var = true\n"
_PLACEHOLDER = re.compile(r"@ID\d+@")
_WAITED_FOR = frozenset(
    {
        "turn/started",
        "turn/completed",
        "turn/plan/updated",
        "item/started",
        "item/completed",
        "serverRequest/resolved",
        "thread/name/updated",
        "thread/archived",
        "thread/unarchived",
        "thread/deleted",
        "thread/reverted",
    }
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording: its settings, its model, and its lines."""

    name: str
    config: str
    model: Any
    lines: tuple[Message, ...]

    @classmethod
    def read(cls, name: str) -> Recorded:
        folder = RECORDINGS / name
        lines = map(json.loads, (folder / "rpc.ndjson").read_text().splitlines())
        model = json.loads((folder / "model.json").read_text())
        return cls(name, (folder / "config.toml").read_text(), model, tuple(lines))

    @property
    def server(self) -> list[Message]:
        return [line["server"] for line in self.lines if "server" in line]


@dataclass(slots=True)
class Held:
    """The messages of a conversation that was held."""

    messages: list[Message] = field(default_factory=list)
    stderr: str = ""
    bound: dict[str, str] = field(default_factory=dict)

    def report(self) -> str:
        """For a failing test."""
        return "\n".join([*(json.dumps(one)[:400] for one in self.messages[-30:]), self.stderr[-3000:]])


def expected_of(messages: Iterable[Message]) -> Counter[str]:
    """Messages that come before the next one is sent: answers by id, notifications by kind."""
    found: Counter[str] = Counter()
    open_items: dict[str, bool] = {}
    for message in messages:
        method = message.get("method")
        if method is None:
            found[f"answer {message['id']}"] += 1
        elif "id" in message:
            found[method] += 1
        elif method in _WAITED_FOR:
            found[_kind(message)] += 1
        elif method.endswith("/outputDelta") and not open_items.get(message["params"]["itemId"]):
            open_items[message["params"]["itemId"]] = True
            found[method] += 1
    return found


def _kind(message: Message) -> str:
    return f"{message['method']} {_item(message).get('type', '')}".strip()


class AppServer:
    """A `dendro app-server` process, and what it has said."""

    def __init__(self, process: subprocess.Popen[bytes], pipes: Pipes, held: Held) -> None:
        self._process = process
        self._pipes = pipes
        self.held = held
        self._changed = asyncio.Event()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._complain())]

    async def _read(self) -> None:
        async for line in self._pipes.stdout:
            self.held.messages.append(json.loads(line))
            self._changed.set()
        self._changed.set()

    async def _complain(self) -> None:
        async for line in self._pipes.stderr:
            self.held.stderr += line.decode(errors="replace")

    async def say(self, message: Message) -> None:
        text = _PLACEHOLDER.sub(
            lambda found: self.held.bound.get(found[0], str(uuid.uuid4())), json.dumps(message)
        )
        self._pipes.stdin.write(text.encode() + b"\n")
        await self._pipes.stdin.drain()

    async def until(self, recorded: Sequence[Message], *, drop: frozenset[str] = frozenset()) -> None:
        """Waits until all of this has come; raises `Stuck` if it does not."""
        wanted = Counter({kind: n for kind, n in expected_of(recorded).items() if kind not in drop})
        try:
            async with asyncio.timeout(PATIENCE_S):
                while missing := wanted - expected_of(self.held.messages):
                    if self._tasks[0].done():
                        raise Stuck(f"the program left, before {dict(missing)}\n{self.held.report()}")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Stuck(f"never came: {dict(missing)}\n{self.held.report()}") from None
        bind(recorded, self.held)

    async def left(self) -> int:
        """Ends the input, and waits for the end."""
        self._pipes.stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._tasks)
            return await asyncio.to_thread(self._process.wait)

    async def close(self) -> None:
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pipes.close()


def bind(recorded: Sequence[Message], held: Held) -> None:
    """Learns what the ids of a recording stand for: of answers by their id, of turns and threads by order."""
    for kind in ("turn/started", "thread/started"):
        pairs = zip(_of(recorded, kind), _of(held.messages, kind), strict=False)
        for one, other in pairs:
            _learn(one.get("params"), other.get("params"), held.bound)
    answers = {message["id"]: message for message in held.messages if "method" not in message}
    for message in recorded:
        if "method" not in message and message["id"] in answers:
            _learn(message.get("result"), answers[message["id"]].get("result"), held.bound)


def _of(messages: Sequence[Message], method: str) -> list[Message]:
    return [message for message in messages if message.get("method") == method]


def _learn(recorded: Any, got: Any, bound: dict[str, str]) -> None:
    if isinstance(recorded, dict) and isinstance(got, dict):
        for name, value in recorded.items():
            if name in got:
                _learn(value, got[name], bound)
    elif isinstance(recorded, list) and isinstance(got, list):
        for one, other in zip(recorded, got, strict=False):
            _learn(one, other, bound)
    elif isinstance(recorded, str) and isinstance(got, str) and _PLACEHOLDER.fullmatch(recorded):
        bound.setdefault(recorded, got)


def model_of(recorded: Recorded, setup: Setup) -> Any:
    """The recording's model as the stub reads it: rules in their order, scripts by a thread's first words."""
    text = json.dumps(recorded.model).replace("@OUTSIDE@", str(setup.outside))
    model = json.loads(text.replace("@WORKSPACE@", str(setup.workspace)))
    if isinstance(model, list):
        return model
    if "rules" in model:
        return [rule["reply"] for rule in model["rules"]]
    parts = [
        {"prompt": one["when"]["last_user"], "steps": _ours(one)} for one in model["scripts"] if "when" in one
    ]
    root = next(one for one in model["scripts"] if "when" not in one)
    return {"steps": _ours(root), "agents": parts}


def _ours(script: Message) -> list[Message]:
    """Steps with the tools of agents under our names: an agent's number is its place among the spawned."""
    steps = []
    numbers: dict[str, int] = {}
    for reply in script["replies"]:
        items = [_our_call(item, numbers) if "namespace" in item else item for item in reply["items"]]
        # A pause says what came first at the peer; here that is waited for.
        held = {"hold_tail": "go"} if "tail_delay_ms" in reply else {}
        kept = {name: value for name, value in reply.items() if name != "tail_delay_ms"}
        steps.append({**kept, **held, "items": items})
    return steps


def _our_call(item: Message, numbers: dict[str, int]) -> Message:
    def number(target: str) -> int:
        found = re.search(r"out\.(\w+)\.", target)
        return numbers.get(found[1], 0) if found else 999

    args, call_id = item["args"], item["call_id"]
    match item["call"]:
        case "spawn_agent":
            numbers[call_id] = len(numbers) + 1
            call, ours = "subagent_spawn", {"prompt": args["message"]}
        case "wait_agent":
            named = [number(one) for one in args["targets"]]
            call, ours = "subagent_await", {"agent_ids": named, "timeout_s": 300}
        case "send_input":
            call, ours = (
                "subagent_send_message",
                {"agent_id": number(args["target"]), "prompt": args["message"]},
            )
        case _:
            call, ours = "subagent_cancel", {"agent_id": number(args.get("target", ""))}
    return {"call": call, "args": ours, "call_id": call_id}


def normalised(messages: Sequence[Message], setup: Setup) -> list[Message]:
    """Messages with the folders of this run by their names."""
    text = json.dumps(list(messages))
    text = text.replace(str(setup.outside), "@OUTSIDE@").replace(str(setup.workspace), "@WORKSPACE@")
    found: list[Message] = json.loads(text)
    return found


def common_calls(recorded: Recorded, messages: Sequence[Message]) -> list[Message]:
    """Messages without the calls of the peer's own tools: here an agent that was closed is over for good."""
    own = {item["id"] for item in map(_item, recorded.server) if item.get("tool") == "resumeAgent"}
    return [message for message in messages if _item(message).get("id") not in own]


def _item(message: Message) -> Message:
    item: Message = (message.get("params") or {}).get("item") or {}
    return item


@contextlib.asynccontextmanager
async def app_server(root: Path, recorded: Recorded) -> AsyncIterator[tuple[AppServer, Setup, str]]:
    """A running server with the recording's model behind it."""
    # Folders of tests lie where commands may write, if nothing forbids it.
    setup = set_up(root, settings_of(f"{recorded.config}\n") + NOT_IN_TMP, own_database())
    try:
        scenario = Scenario.parse(model_of(recorded, setup))
        async with running(StubConfig(scenario)) as stub:
            process = Started(
                [*COMMAND, "app-server"],
                cwd=setup.workspace,
                env=environment(setup, stub.base_url),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
            server = AppServer(process, await Pipes.of(process), Held())
            try:
                yield server, setup, stub.base_url.removesuffix("/v1")
            finally:
                await server.close()
    finally:
        stop_orphan(setup)


async def hold(server: AppServer, recorded: Recorded, setup: Setup, stub: str) -> None:
    """Plays the client's part."""
    before: list[Message] = []
    steered, slower = 0, "tail_delay_ms" in json.dumps(recorded.model)
    for line in recorded.lines:
        if "server" in line:
            before.append(line["server"])
            continue
        if "client" not in line:
            continue
        message = json.loads(json.dumps(line["client"]).replace("@WORKSPACE@", str(setup.workspace)))
        if slower and (waited := _to_the_first_wait(before)):
            await server.until(waited)
            await _release(stub)
            slower = False
        await server.until(before)
        await server.say(message)
        steered += message.get("method") == "turn/steer"
        if steered == 2 and message.get("method") == "turn/steer":
            # The response ends when the client has done what it was held for.
            await server.until([*before, {"id": message["id"], "result": {}}])
            await _release(stub)
    await server.until(before)


async def _release(stub: str) -> None:
    async with plain_http() as client:
        await client.post(f"{stub}/release/go")


def _to_the_first_wait(recorded: Sequence[Message]) -> Sequence[Message]:
    """The messages until an agent had been awaited for the first time: slower ones had not answered then."""
    for place, message in enumerate(recorded):
        if message.get("method") == "item/completed" and _item(message).get("tool") == "wait":
            return recorded[: place + 1]
    return ()
