"""A program's own tool, through a real worker: it runs, streams, asks and fails, and a crash is told."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from orchestrator import (
    CustomTool,
    Event,
    Opened,
    ReviewDecision,
    Settings,
    SettingsSources,
    Submission,
    SubmissionId,
    ToolPlace,
    ToolRequest,
    load_settings,
    new_session,
    opened,
    run_worker,
)
from orchestrator.core.calls import Call, Custom, CustomWork
from orchestrator.core.calls.approval_policy import Ask, Refuse, Run
from orchestrator.core.commands import Immediate
from orchestrator.core.decide.takeover import IN_DOUBT
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.core.settings import TurnSettings
from orchestrator.core.state import Branch, State, Task
from orchestrator.protocol import ops
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.inputs import TextInput
from orchestrator.stub import Scenario, StubConfig, running
from orchestrator.tools.custom import OFFER_BYTES, PAYLOAD_BYTES, SUMMARY_CHARS, _offer, custom_tools
from orchestrator.tools.tool_context import CallSite
from orchestrator.tools.toolbox import Toolbox
from tests.servers import RedisServer, plain_http, start_redis
from tests.tools.toy_tool import Toy

GIVEN_S = 60.0


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@dataclass
class Talk:
    """A person who gives one prompt, and sees what becomes of it."""

    deployment: Opened
    settings: Settings
    environ: dict[str, str]
    folder: Path
    model: str
    seen: list[Event] = field(default_factory=list)

    async def turn(self, on_event: Callable[[Event], Any] | None = None) -> None:
        """Follows the turn of a new session to its end."""
        client = self.deployment.client()
        session = await new_session(self.settings, client)
        op = ops.UserInput(items=(TextInput(text="go"),))
        await client.submit(session, Submission(id=SubmissionId("u1"), op=op))
        async with asyncio.timeout(GIVEN_S):
            async for event in client.follow(session):
                self.seen.append(event)
                if event.type in ("task_complete", "turn_aborted"):
                    return
                if event.type == "exec_approval_request":
                    answer = ops.ExecApproval(id=event.msg["call_id"], decision=ReviewDecision.APPROVED)
                    await client.submit(session, Submission(id=SubmissionId("a1"), op=answer))
                if on_event is not None:
                    await on_event(event)

    def one(self, type: str) -> Any:
        (found,) = [event.msg for event in self.seen if event.type == type]
        return found

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.seen]

    async def requests(self) -> list[Any]:
        """The requests that the model got."""
        async with plain_http() as client:
            answer = await client.get(f"{self.model.removesuffix('/v1')}/requests")
        return [each["body"] for each in answer.json()]

    async def output(self) -> str:
        """The output of its call, as the model got it."""
        last = (await self.requests())[-1]
        found = [item for item in last["input"] if item["type"] == "function_call_output"]
        return str(found[-1]["output"])


@asynccontextmanager
async def talking(folder: Path, server: RedisServer, **arguments: Any) -> AsyncIterator[Talk]:
    """A model that calls the toy once with these arguments, then says that it is done."""
    steps: list[dict[str, object]] = [
        {"items": [{"call": "toy", "args": arguments}]},
        {"items": [{"text": "Done."}]},
    ]
    async with running(StubConfig(Scenario.parse(steps))) as provider:
        environ = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "DENDRO_HOME": str(folder / "home"),
            "DENDRO_REDIS_URL": server.url,
            "OPENAI_BASE_URL": provider.base_url,
            "OPENAI_API_KEY": "the stub needs none",
        }
        settings = load_settings(SettingsSources(cwd=folder, environ=environ))
        async with opened(settings) as deployment:
            yield Talk(deployment, settings, environ, folder, provider.base_url)


@pytest.mark.always
async def test_tool_runs_streams_and_asks(tmp_path: Path, redis_server: RedisServer) -> None:
    async with (
        talking(tmp_path, redis_server, words=["hello", "world"], ask=True) as talk,
        run_worker(talk.settings, tools=(Toy(),)),
    ):
        await talk.turn()
        asked = talk.one("exec_approval_request")
        assert (asked["command"], asked["reach"]["why"]) == (["toy", "says hello world"], "it speaks aloud")
        begun, ended = talk.one("mcp_tool_call_begin"), talk.one("mcp_tool_call_end")
        assert begun["invocation"]["server"] == "custom"
        assert begun["invocation"]["arguments"]["words"] == ["hello", "world"]
        said = f"said 2 words in {tmp_path.name}"
        assert ended["result"]["content"] == [{"type": "text", "text": said}]
        assert await talk.output() == said
        order = ["exec_approval_request", "mcp_tool_call_begin", "exec_command_output_delta"]
        assert [type for type in talk.types if type in (*order, "mcp_tool_call_end")] == [
            *order,
            "mcp_tool_call_end",
        ]
        offered = [tool["name"] for tool in (await talk.requests())[0]["tools"]]
        assert offered[-1] == "toy"


async def test_call_whose_worker_was_killed_is_in_doubt(tmp_path: Path, redis_server: RedisServer) -> None:
    async with talking(tmp_path, redis_server, words=["hello"], hold=True) as talk:
        workers = [await worker(talk)]

        async def killed(event: Event) -> None:
            if event.type == "exec_command_output_delta":
                workers[0].kill()
                await workers[0].wait()
                workers.append(await worker(talk))

        try:
            await talk.turn(killed)
        finally:
            for one in workers:
                if one.returncode is None:
                    one.kill()
                    await one.wait()
        assert talk.one("mcp_tool_call_end")["result"] == IN_DOUBT
        assert await talk.output() == IN_DOUBT


async def worker(talk: Talk) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.tools.toy_tool", str(talk.folder), env=talk.environ
    )


# ── what a tool or a model may get wrong ──────────────────────────────────────────────────────


class Named(Toy):
    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("shell",), "'shell' is the name of a built-in tool"),
        (("container.exec",), "'container.exec' is no name for a tool"),
        (("subagent_spawn",), "'subagent_spawn' is the name of a built-in tool"),
        (("mcp__x__y",), "begins as tools of MCP servers do"),
        (("",), "is no name for a tool"),
        (("x" * 65,), "is no name for a tool"),
        (("toy", "toy"), "is the name of two of your tools"),
    ],
)
async def test_tool_with_a_name_that_cannot_be_stops_the_start(
    names: tuple[str, ...], said: str, tmp_path: Path, redis_server: RedisServer
) -> None:
    environ = {
        "HOME": str(tmp_path),
        "DENDRO_HOME": str(tmp_path / "own"),
        "DENDRO_REDIS_URL": redis_server.url,
    }
    settings = load_settings(SettingsSources(cwd=tmp_path, environ=environ))
    with pytest.raises(ValueError, match=said):
        async with run_worker(settings, tools=[Named(name) for name in names]):
            raise AssertionError("the worker has started")


def test_tool_that_is_described_at_too_great_length_is_refused() -> None:
    long = Toy()
    long.description = "x" * (65 << 10)
    with pytest.raises(ValueError, match=r"'toy' has 66,\d+ bytes of description"):
        custom_tools((long,), (), 10)


def call(arguments: str, work: CustomWork | None = None) -> Call:
    item = {"type": "function_call", "name": "toy", "arguments": arguments, "call_id": "c1"}
    return Call(CallId("c1"), "toy", item, work=work)


def site(deltas: list[Any] | None = None) -> CallSite:
    settings = TurnSettings("/w", "never", {"mode": "read-only"}, "gpt-5")
    sink = [] if deltas is None else deltas
    return CallSite("c", State(task=Task(SubmissionId("u1"), "user", settings)), sink.append)


def toolbox(tool: CustomTool, most: int = 10) -> Toolbox:
    return Toolbox(custom_tools((tool,), (), most))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{", "failed to parse function arguments: "),
        ("[]", "failed to parse function arguments: they are no JSON object"),
        ('{"words": 3}', "toy: words: a list of words is needed"),
        ('{"words": []}', "nothing to say"),
        ('{"words": ["%s"]}' % ("x" * PAYLOAD_BYTES), "65,551 bytes of arguments are given, at most 65,536"),
        ('{"words": %s}' % ("[" * 64 + "]" * 64), "the arguments are nested deeper than 64 levels"),
        ('{"words": [1]}', "toy failed: TypeError: "),
    ],
)
async def test_model_reads_what_was_wrong_with_its_arguments(arguments: str, said: str) -> None:
    found = await toolbox(Toy()).assess(call(arguments), site())
    assert isinstance(found, Immediate)
    assert str(found.output).startswith(said)


@pytest.mark.parametrize("who", ["root", "agent", "helper", "review", "plan"])
async def test_who_only_reads_is_not_offered_the_tool_and_a_call_of_it_is_refused(who: str) -> None:
    there = site().state
    assert there.task is not None
    given = there.task.settings
    match who:
        case "agent" | "helper":
            helps = CallId("h1") if who == "helper" else None
            there = replace(there, facts=replace(there.facts, agent_id=AgentId(1), helper_call=helps))
        case "review" | "plan":
            there = replace(there, task=Task(SubmissionId("u1"), who, given, branch=Branch(given)))
        case _:
            pass
    tools, reads = toolbox(Toy()), who not in ("root", "agent")
    assert ([spec["name"] for spec in tools.specs(there)] == ["toy"]) is not reads
    found = await tools.assess(call('{"words": ["hello"]}'), replace(site(), state=there))
    refused = isinstance(found, Immediate) and str(found.output).startswith("unsupported call: toy")
    assert refused is reads


class Broken(Toy):
    """Misbehaves as it is told."""

    def __init__(self, fault: Callable[[], Any]) -> None:
        self.fault = fault

    async def assess(self, arguments: dict[str, Any], place: ToolPlace) -> Any:
        return self.fault()

    async def run(self, payload: dict[str, Any], place: ToolPlace, write: Callable[[str], None]) -> Any:
        return self.fault()


def leaves() -> None:
    sys.exit(3)


def waits_for_what_was_cancelled() -> None:
    raise asyncio.CancelledError


def large() -> ToolRequest:
    return ToolRequest({"text": "x" * PAYLOAD_BYTES}, "large")


def odd() -> ToolRequest:
    return ToolRequest({"text": object()}, "odd")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (leaves, "toy failed: SystemExit: 3"),
        (waits_for_what_was_cancelled, "toy failed: CancelledError"),
        (large, "toy failed: ValueError: its request has 65,547 bytes, at most 65,536 can be kept"),
        (odd, "toy failed: TypeError: "),
        (dict, "toy failed: TypeError: it returned a dict, and no text"),
    ],
)
async def test_assessment_that_fails_is_the_output_of_its_call(fault: Callable[[], Any], said: str) -> None:
    found = await toolbox(Broken(fault)).assess(call("{}"), site())
    assert isinstance(found, Immediate)
    assert str(found.output).startswith(said)


WORK = CustomWork(("k",), "toy", {"words": ["hello"]}, "says hello", "/w")


@pytest.mark.parametrize("fault", [leaves, waits_for_what_was_cancelled, lambda: 1 / 0, lambda: None])
async def test_run_that_fails_is_the_output_of_its_call(fault: Callable[[], Any]) -> None:
    found = await toolbox(Broken(fault)).run(call("{}", WORK), site())
    assert str(found.output).startswith("toy failed: ")
    (ended,) = found.events
    assert (ended.type, getattr(ended, "result", None)) == ("mcp_tool_call_end", found.output)


async def test_tool_is_cancelled_with_its_turn() -> None:
    class Held(Toy):
        def __init__(self) -> None:
            self.begun, self.ended = asyncio.Event(), False

        async def run(self, payload: Any, place: ToolPlace, write: Callable[[str], None]) -> str:
            self.begun.set()
            try:
                return await super().run(payload, place, write)
            finally:
                self.ended = True

    held = Held()
    work = CustomWork(("k",), "toy", {"words": [], "hold": True}, "holds", "/w")
    running = asyncio.create_task(toolbox(held).run(call("{}", work), site()))
    await held.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert held.ended


async def test_run_beyond_its_time_limit_is_stopped() -> None:
    slow = Toy()
    slow.timeout_s = 0.0
    work = CustomWork(("k",), "toy", {"words": [], "hold": True}, "holds", "/w")
    found = await toolbox(slow).run(call("{}", work), site())
    assert found.output == "toy was stopped: it ran for longer than its time limit"


async def test_output_is_shortened_as_that_of_a_command_and_deltas_are_counted() -> None:
    class Loud(Toy):
        async def run(self, payload: Any, place: ToolPlace, write: Callable[[str], None]) -> str:
            for _ in range(100):
                write("x" * 20_000)
            self.late = write
            return "line\n" * 1_000

    loud, deltas = Loud(), list[Any]()
    found = await toolbox(loud, most=3).run(call("{}", WORK), site(deltas))
    assert "[... omitted 744 of 1000 lines ...]" in str(found.output)
    assert len(deltas) == 3
    loud.late("after the end")
    assert len(deltas) == 3


async def test_worker_without_the_tool_does_not_run_its_call() -> None:
    found = await Toolbox(()).run(call("{}", WORK), site())
    assert "this worker has no tool of the name toy" in str(found.output)
    assert found.events[0].type == "mcp_tool_call_end"


async def test_judge_that_says_nonsense_leaves_the_call_in_doubt() -> None:
    class Odd(Toy):
        async def judge(self, payload: dict[str, Any]) -> Any:
            return "perhaps"

    class Sure(Toy):
        async def judge(self, payload: dict[str, Any]) -> Any:
            return "all" if payload == {"words": ["hello"]} else "none"

    assert await toolbox(Odd()).judge(call("{}", WORK), "c") == "in_doubt"
    assert await toolbox(Sure()).judge(call("{}", WORK), "c") == "all"


def late() -> None:
    raise TimeoutError


@pytest.mark.parametrize("fault", [leaves, lambda: 1 / 0, late])
async def test_judge_that_fails_leaves_the_call_in_doubt(fault: Callable[[], Any]) -> None:
    class Failing(Toy):
        async def judge(self, payload: dict[str, Any]) -> Any:
            return fault()

    assert await toolbox(Failing()).judge(call("{}", WORK), "c") == "in_doubt"


def wide(size: int) -> dict[str, Any]:
    """An object of so many bytes as JSON, of letters that have two each but for one at most."""
    room = size - len('{"text":""}')
    return {"text": "é" * (room // 2) + "x" * (room % 2)}


@pytest.mark.parametrize("more", [0, 1])
async def test_model_gives_a_tool_as_many_bytes_as_it_may(more: int) -> None:
    arguments = orjson.dumps(wide(PAYLOAD_BYTES + more)).decode()
    found = await toolbox(Broken(lambda: "done")).assess(call(arguments), site())
    assert isinstance(found, Immediate)
    assert (found.output == "done") is (not more)


@pytest.mark.parametrize("more", [0, 1])
async def test_tool_keeps_as_many_bytes_for_its_run_as_it_may(more: int) -> None:
    wanted = ToolRequest(wide(PAYLOAD_BYTES + more), "wide")
    found = await toolbox(Broken(lambda: wanted)).assess(call("{}"), site())
    assert isinstance(found, Custom) is (not more)


@pytest.mark.parametrize("more", [0, 1])
def test_tool_is_described_in_as_many_bytes_as_it_may_be(more: int) -> None:
    described = Toy()
    described.description = ""
    room = OFFER_BYTES - len(orjson.dumps(_offer(described)))
    described.description = "é" * (room // 2) + "x" * (room % 2 + more)
    if more:
        with pytest.raises(ValueError, match=r"'toy' has 65,537 bytes of description"):
            custom_tools((described,), (), 10)
    else:
        assert len(custom_tools((described,), (), 10)) == 1


LONG = "a\n b\t " + "x" * 300


@pytest.mark.parametrize(
    ("summary", "ask", "told", "asked"),
    [
        ("says a", None, "says a", None),
        ("two\nlines", "for two\nreasons", "two lines", "for two reasons"),
        ("", "", "toy", "toy"),
        (" \n", " \n", "toy", "toy"),
    ],
)
async def test_people_read_one_line_of_what_a_call_does_and_are_asked_whatever_it_says(
    summary: str, ask: str | None, told: str, asked: str | None
) -> None:
    wanted = ToolRequest({"n": 1}, summary, ask, repeatable=ask is None)
    found = await toolbox(Broken(lambda: wanted)).assess(call("{}"), site())
    assert isinstance(found, Custom)
    assert (found.summary, found.ask, found.repeatable) == (told, asked, ask is None)
    assert (found.payload, found.cwd) == ({"n": 1}, "/w")
    policy = TurnSettings("/w", "on-request", {"mode": "read-only"}, "gpt-5")
    assert isinstance(found.judged(policy, frozenset()), Run if ask is None else Ask)
    never = replace(policy, approval_policy="never")
    assert isinstance(found.judged(never, frozenset()), Run if ask is None else Refuse)


async def test_lines_for_people_are_cut() -> None:
    wanted = ToolRequest({}, LONG, LONG)
    found = await toolbox(Broken(lambda: wanted)).assess(call("{}"), site())
    assert isinstance(found, Custom)
    for line in (found.summary, str(found.ask)):
        assert line.startswith("a b xxx")
        assert len(line) <= SUMMARY_CHARS


def test_approval_for_the_session_is_for_one_tool_with_one_payload_in_whatever_order() -> None:
    one = Custom("toy", {"a": 1, "b": [1, 2]}, "s", "/w", "why")
    same = Custom("toy", {"b": [1, 2], "a": 1}, "other words", "/elsewhere", "another reason")
    others = [replace(one, tool="boy"), replace(one, payload={"a": 1, "b": [2, 1]}), replace(one, payload={})]
    policy = TurnSettings("/w", "on-request", {"mode": "read-only"}, "gpt-5")
    approved = frozenset({one.key})
    assert [isinstance(each.judged(policy, approved), Run) for each in (one, same, *others)] == [
        *(True, True),
        *(False, False, False),
    ]


@pytest.mark.parametrize("when", ["assess", "run"])
async def test_tool_is_told_whose_call_it_is_and_where(when: str) -> None:
    places: list[ToolPlace] = []

    class Placed(Toy):
        async def assess(self, arguments: dict[str, Any], place: ToolPlace) -> Any:
            places.append(place)
            return "done"

        async def run(self, payload: dict[str, Any], place: ToolPlace, write: Callable[[str], None]) -> str:
            places.append(place)
            return "done"

    there = site().state
    assert there.task is not None
    own = replace(there.task.settings, cwd="/task", sandbox_policy={"mode": "workspace-write"})
    facts = replace(there.facts, session_id=SessionId("s2"), tree_id=TreeId("s1"), agent_id=AgentId(3))
    there = replace(there, facts=facts, task=replace(there.task, settings=own))
    tools, at = toolbox(Placed()), replace(site(), state=there)
    await (tools.assess(call("{}"), at) if when == "assess" else tools.run(call("{}", WORK), at))
    assert places == [ToolPlace(SessionId("s2"), TreeId("s1"), AgentId(3), "/task", "workspace-write")]


async def test_output_of_each_call_is_shown_under_its_own_id_and_what_waits_before_its_end() -> None:
    class Slow(Toy):
        async def run(self, payload: Any, place: ToolPlace, write: Callable[[str], None]) -> str:
            for part in payload["words"]:
                write(part)
                await asyncio.sleep(0)
            return "done"

    tools, deltas = toolbox(Slow()), list[Any]()
    runs = []
    for id, words in (("c1", ["é", "a"]), ("c2", ["b", "ü", "\ud800"])):
        work = CustomWork(("k",), "toy", {"words": words}, "says", "/w")
        runs.append(tools.run(Call(CallId(id), "toy", {}, work=work), site(deltas)))
    await asyncio.gather(*runs)
    told: dict[str, bytes] = {}
    for delta in deltas:
        assert delta["stream"] == "stdout"
        told[delta["call_id"]] = told.get(delta["call_id"], b"") + base64.b64decode(delta["chunk"])
    assert told == {"c1": "éa".encode(), "c2": "bü?".encode()}
