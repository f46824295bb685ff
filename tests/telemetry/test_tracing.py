"""Traces: one for each tree, the same whichever workers tell of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import Mcp, Phase
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.model.provider_errors import RetryableModelError
from orchestrator.protocol import events as ev
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.runtime.runner import Ended
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.telemetry.listener import _Server
from orchestrator.telemetry.tracing import EndedSpan, SessionSpans, span_id, trace_id
from orchestrator.wiring.worker_parts import running_worker
from tests.broker.actors import holder_died
from tests.runtime.connections import Gate
from tests.runtime.harness import POOL, Harness
from tests.runtime.players import calls, ends, message
from tests.servers import RedisServer

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from orchestrator.telemetry import tracing as tracing_module
from orchestrator.telemetry.tracing import Tracing


def traced(harness: Harness, *, contents: bool = False) -> InMemorySpanExporter:
    """The exporter of the harness's next worker."""
    exporter = InMemorySpanExporter()
    tracing = Tracing(SimpleSpanProcessor(exporter), harness.broker.logs, time.monotonic, contents=contents)
    harness.ports = replace(harness.ports, observer=tracing)
    return exporter


@asynccontextmanager
async def working(harness: Harness) -> AsyncIterator[None]:
    worker = harness.worker()
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.drain()
        await running


def by_name(*exporters: InMemorySpanExporter) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for exporter in exporters:
        for span in exporter.get_finished_spans():
            found.setdefault(span.name, []).append(span)
    return found


async def test_turn_is_one_trace_of_a_task_with_its_turns_requests_and_calls(harness: Harness) -> None:
    exporter = traced(harness)
    harness.models.will([calls("c1"), ends("r1")], [message("done"), ends("r2")])
    session = await harness.session()
    task_id = await harness.say(session)
    async with working(harness):
        await harness.until(session, "task_complete")
    spans = by_name(exporter)
    assert {name: len(found) for name, found in spans.items()} == {
        "invoke_agent": 1,
        "turn": 2,
        "chat gpt-5": 2,
        "execute_tool shell": 1,
        "claim": 1,
    }
    assert {span.context.trace_id for found in spans.values() for span in found} == {trace_id(session)}
    (task,), (call,) = spans["invoke_agent"], spans["execute_tool shell"]
    turns, chats = spans["turn"], spans["chat gpt-5"]
    assert task.context.span_id == span_id(session, "task", task_id)
    assert task.parent is None
    assert [turn.parent.span_id for turn in turns] == [task.context.span_id] * 2
    assert [chat.parent.span_id for chat in chats] == [turn.context.span_id for turn in turns]
    assert call.parent.span_id == turns[0].context.span_id
    assert dict(task.attributes) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.conversation.id": session,
        "gen_ai.agent.id": "0",
        "dendro.task.kind": "user",
        "dendro.task.id": task_id,
        "dendro.task.outcome": "completed",
    }
    assert chats[0].attributes["gen_ai.response.id"] == "r1"
    assert chats[0].attributes["gen_ai.usage.input_tokens"] == 10
    assert chats[0].kind.name == "CLIENT"
    assert call.attributes["gen_ai.tool.call.id"] == "c1"
    assert task.start_time <= turns[0].start_time <= chats[0].start_time <= chats[0].end_time
    assert call.end_time <= turns[1].start_time <= task.end_time


async def test_turn_that_two_workers_shared_is_one_trace(harness: Harness) -> None:
    lost_worker = traced(harness)
    session = await harness.session()
    harness.models.will([calls("c1"), ends()], [message("done"), ends()])
    harness.tools.gates["c1"] = Gate()
    task_id = await harness.say(session)
    # A worker's loop reports claims; a runner alone does not.
    worker = harness.worker("lost")
    running = asyncio.create_task(worker.run())
    await harness.tools.began("c1").wait()
    (runner,) = worker._runners.values()
    runner.lose()
    worker.drain()
    await running
    await holder_died(harness.broker, session)
    next_worker = traced(harness)
    async with working(harness):
        await harness.until(session, "task_complete")
    first, second = by_name(lost_worker), by_name(next_worker)
    assert {name: len(found) for name, found in first.items()} == {"chat gpt-5": 1, "claim": 1}
    assert {name: len(found) for name, found in second.items()} == {
        "invoke_agent": 1,
        "turn": 2,
        "chat gpt-5": 1,
        "execute_tool shell": 1,
        "claim": 1,
    }
    (task,), (call,), (chat,) = second["invoke_agent"], second["execute_tool shell"], first["chat gpt-5"]
    assert task.context.span_id == span_id(session, "task", task_id)
    assert chat.parent.span_id == second["turn"][0].context.span_id == call.parent.span_id
    assert chat.context.trace_id == task.context.trace_id
    # The task and its call began under the worker that was lost.
    assert task.start_time <= chat.start_time <= chat.end_time <= second["claim"][0].start_time
    assert call.start_time <= second["claim"][0].start_time
    assert "dendro.begin_unknown" not in task.attributes


@pytest.mark.parametrize("claims", ["AA", "AB", "AAA", "AAB", "ABA", "ABB", "ABC", "ABAB", "ABCA", "ABBA"])
@pytest.mark.parametrize("running", [True, False], ids=["lost at a call", "lost at a request"])
async def test_spans_of_a_task_are_told_once_in_whatever_order_workers_hold_it(
    harness: Harness, claims: str, running: bool
) -> None:
    """Each holder but the last is lost while a call runs, or while the model answers behind one."""
    exporters, tracings = {}, {}
    for name in set(claims):
        exporters[name] = traced(harness)
        tracings[name] = harness.ports.observer
    session = await harness.session()
    task_id = await harness.say(session)
    for at, name in enumerate(claims):
        harness.ports = replace(harness.ports, observer=tracings[name])
        last, gate = at == len(claims) - 1, Gate()
        harness.models.will([message("done") if last else calls(f"c{at}"), ends()])
        if running:
            harness.tools.gates[f"c{at}"] = gate
        elif not last:
            harness.models.will([gate])
        worker = harness.worker(f"worker-{name}")
        serving = asyncio.create_task(worker.run())
        if last:
            await harness.until(session, "task_complete")
        else:
            await (harness.tools.began(f"c{at}") if running else gate.reached).wait()
            (runner,) = worker._runners.values()
            runner.lose()
        worker.drain()
        await serving
        if not last:
            await holder_died(harness.broker, session)
    told = [span for exporter in exporters.values() for span in exporter.get_finished_spans()]
    found = Counter(span.context.span_id for span in told)
    assert [span.name for span in told if found[span.context.span_id] > 1] == []
    ids = {span_id(session, "call", task_id, f"c{at}") for at in range(len(claims) - 1)}
    assert ids | {span_id(session, "task", task_id)} <= found.keys()


async def test_session_that_waited_for_a_person_goes_on_in_its_trace(harness: Harness) -> None:
    exporter = traced(harness)
    harness.models.will([calls("c1", ask=True), ends()], [message("done"), ends()])
    session = await harness.session("untrusted")
    await harness.say(session)
    async with working(harness):
        await harness.until(session, "exec_approval_request")
    assert "invoke_agent" not in by_name(exporter)
    async with working(harness):
        await harness.approve(session, "c1")
        await harness.until(session, "task_complete")
    spans = by_name(exporter)
    assert len(spans["claim"]) >= 2
    assert len(spans["invoke_agent"]) == 1
    (call,) = spans["execute_tool shell"]
    assert call.start_time <= spans["claim"][1].start_time


async def test_request_that_is_sent_again_is_an_error_of_the_same_turn(harness: Harness) -> None:
    exporter = traced(harness)
    harness.models.will([RetryableModelError("cut", delay_s=0.0)], [message("done"), ends()])
    session = await harness.session()
    await harness.say(session)
    async with working(harness):
        await harness.until(session, "task_complete")
    spans = by_name(exporter)
    failed, done = spans["chat gpt-5"]
    (turn,) = spans["turn"]
    assert failed.attributes["error.type"] == "retry"
    assert not failed.status.is_ok
    assert done.status.is_unset
    assert failed.parent.span_id == done.parent.span_id == turn.context.span_id


SECRET = "the words of a person"


async def test_traces_hold_no_contents_unless_a_person_wants_them(harness: Harness) -> None:
    for contents in (False, True):
        exporter = traced(harness, contents=contents)
        harness.models.will([calls("c1", note=SECRET), ends()], [message(SECRET), ends()])
        session = await harness.session()
        harness.tools.outputs["c1"] = SECRET
        await harness.say(session, SECRET)
        async with working(harness):
            await harness.until(session, "task_complete")
        shown = [span.to_json() for span in exporter.get_finished_spans()]
        assert any(SECRET in span for span in shown) is contents
    spans = by_name(exporter)
    (task,), (call,) = spans["invoke_agent"], spans["execute_tool shell"]
    assert task.attributes["gen_ai.input.messages"] == task.attributes["gen_ai.output.messages"] == SECRET
    assert SECRET in call.attributes["gen_ai.tool.call.arguments"]
    assert SECRET in call.attributes["gen_ai.tool.call.result"]


async def test_name_of_a_tool_that_a_model_made_up_is_no_content(harness: Harness) -> None:
    exporter = traced(harness)
    harness.models.will([calls("c1", f"tool {SECRET}"), ends()], [message("x"), ends()])
    session = await harness.session()
    await harness.say(session)
    async with working(harness):
        await harness.until(session, "task_complete")
    assert "execute_tool other" in by_name(exporter)
    assert not any(SECRET in span.to_json() for span in exporter.get_finished_spans())


async def test_task_whose_beginning_is_gone_begins_with_the_claim(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([calls("c1"), ends()], [message("done"), ends()])
    harness.tools.gates["c1"] = Gate()
    await harness.say(session)
    runner = harness.runner(await harness.claimed(session, "lost"))
    task = asyncio.create_task(runner.run())
    await harness.tools.began("c1").wait()
    runner.lose()
    assert await task is Ended.LOST
    await holder_died(harness.broker, session)

    class Empty:
        """A log whose older part is in the archive alone."""

        async def read_rollout(self, *_: object) -> tuple[()]:
            return ()

    exporter = InMemorySpanExporter()
    tracing = Tracing(SimpleSpanProcessor(exporter), Empty(), time.monotonic)  # type: ignore[arg-type]
    harness.ports = replace(harness.ports, observer=tracing)
    async with working(harness):
        await harness.until(session, "task_complete")
    (whole,) = by_name(exporter)["invoke_agent"]
    assert whole.attributes["dendro.begin_unknown"] is True


def test_tasks_of_an_agent_hang_under_what_made_it() -> None:
    child = SessionFacts(parent_session="p", born_in="t1")  # type: ignore[arg-type]
    helper = replace(child, helper_call="c9")  # type: ignore[arg-type]
    assert SessionSpans(child)._origin() == span_id("p", "task", "t1")
    assert SessionSpans(helper)._origin() == span_id("p", "call", "t1", "c9")
    assert SessionSpans(SessionFacts())._origin() is None


U1, C1, C2 = SubmissionId("u1"), CallId("c1"), CallId("c2")
BEGUN = f.TaskBegun(U1, "user", TurnSettings("/w", "never", {"mode": "read-only"}, "gpt-5"))
FIRST = f.RequestBegun(1, "turn", 1)
ENDS: tuple[type[Any], ...] = (f.RequestRetried, f.RequestDelayed, f.RequestFailed, f.RequestStopped)


def told(*entries: f.Fact | e.Entry, contents: bool = False) -> list[EndedSpan]:
    """The spans that end with these entries of a log."""
    spans = SessionSpans(SessionFacts(session_id=SessionId("s")), contents)
    log = [each if isinstance(each, e.Entry) else e.fact(each) for each in entries]
    return [span for at_ms, entry in enumerate(log) for span in spans.receive(entry, at_ms)]


def call_item(call_id: str) -> e.Entry:
    return e.item({"type": "function_call", "name": "shell", "arguments": "{}", "call_id": call_id})


@pytest.mark.parametrize("ended", [f.RequestCompleted, *ENDS])
def test_request_tells_each_kind_of_its_tokens_and_why_it_failed(ended: type[Any]) -> None:
    usage = {"input_tokens": 100, "cached_input_tokens": 40, "output_tokens": 30}
    end = ended(n=1, usage=usage | {"reasoning_output_tokens": 7})
    chat = told(BEGUN, FIRST, end)[0]
    assert {name: value for name, value in chat.attributes.items() if ".usage." in name} == {
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.cache_read.input_tokens": 40,
        "gen_ai.usage.output_tokens": 30,
        "gen_ai.usage.reasoning.output_tokens": 7,
    }
    assert chat.error == ("" if ended is f.RequestCompleted else end.outcome)


@pytest.mark.parametrize("outcome", ["completed", "failed", "interrupted", "replaced", "canceled"])
def test_task_and_the_calls_that_it_cuts_short_tell_how_it_ended(outcome: Any) -> None:
    asked = (call_item("c1"), f.CallMoved(C1, Phase.RUNNING), call_item("c2"))
    cut, turn, task = told(BEGUN, FIRST, *asked, f.CallMoved(C1, Phase.DONE), f.TaskEnded(outcome))[1:]
    assert (cut.name, cut.attributes["gen_ai.tool.call.id"], cut.error) == (
        "execute_tool shell",
        "c2",
        outcome,
    )
    assert (turn.name, turn.error) == ("turn", "")
    assert task.attributes["dendro.task.outcome"] == outcome
    assert task.error == ("" if outcome == "completed" else outcome)


def test_each_call_that_is_closed_with_others_is_a_failure_and_one_that_is_done_is_none() -> None:
    asked = (call_item("c1"), call_item("c2"), call_item("c3"))
    spans = told(BEGUN, FIRST, *asked, f.CallMoved(CallId("c3"), Phase.DONE), f.CallsClosed((C1, C2)))
    errors = {str(span.attributes["gen_ai.tool.call.id"]): span.error for span in spans}
    assert errors == {"c3": "", "c1": "closed", "c2": "closed"}


def test_each_content_is_cut_and_the_first_words_of_a_person_are_the_tasks() -> None:
    long = "x" * 5_000
    answer = {"type": "function_call_output", "call_id": "c1", "output": long}
    asked = {"type": "function_call", "name": "shell", "arguments": long, "call_id": "c1"}
    call, _, task = told(
        BEGUN,
        e.event("u1", ev.UserMessage(message=long)),
        e.event("u1", ev.UserMessage(message="more")),
        FIRST,
        e.item(asked),
        e.item(answer),
        f.CallMoved(C1, Phase.DONE),
        e.event("u1", ev.TaskComplete(last_agent_message=long)),
        f.TaskEnded("completed"),
        contents=True,
    )
    names = ("arguments", "result")
    assert [call.attributes[f"gen_ai.tool.call.{name}"] for name in names] == [long[:4_096]] * 2
    ends = (task.attributes["gen_ai.input.messages"], task.attributes["gen_ai.output.messages"])
    assert ends == (long[:4_096], long[:4_096])


def error(id: str, info: Any) -> e.Entry:
    return e.event(id, ev.Error(message=SECRET, codex_error_info=info))


@pytest.mark.parametrize("outcome", ["completed", "failed"])
@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([error("u1", "usage_limit_exceeded")], "usage_limit_exceeded"),
        ([error("u1", {"http_connection_failed": {"http_status_code": 500}})], "http_connection_failed"),
        ([error("u1", "bad_request"), error("u1", "unauthorized")], "unauthorized"),
        ([error("u1", SECRET)], "other"),
        ([error("u1", None)], "other"),
        ([error("u2", "bad_request")], ""),
        ([error("", "bad_request")], ""),
    ],
)
def test_task_has_the_kind_of_its_own_last_error(errors: list[e.Entry], kind: str, outcome: Any) -> None:
    (task,) = told(BEGUN, *errors, f.TaskEnded(outcome))
    assert task.error == (kind or ("" if outcome == "completed" else outcome))


def test_error_of_a_task_is_none_of_the_next_one() -> None:
    second = f.TaskBegun(SubmissionId("u2"), "compact", replace(BEGUN.settings, model="o3"))
    spans = told(
        *(BEGUN, FIRST, error("u1", "bad_request"), f.RequestFailed(n=1), f.TaskEnded("failed")),
        *(second, f.RequestBegun(2, "compact", 1), f.RequestCompleted(n=2), f.TaskEnded("completed")),
    )
    assert [(span.name, span.error) for span in spans] == [
        *(("chat gpt-5", "failed"), ("turn", ""), ("invoke_agent", "bad_request")),
        *(("chat o3", ""), ("turn", ""), ("invoke_agent", "")),
    ]
    first, other = spans[2], spans[5]
    assert [span.attributes["dendro.task.kind"] for span in (first, other)] == ["user", "compact"]
    assert [span.attributes["gen_ai.request.model"] for span in (first, other)] == ["gpt-5", "o3"]
    assert [span.parent for span in spans[1::3]] == [first.id, other.id]
    assert [span.attributes["dendro.request.purpose"] for span in spans[::3]] == ["turn", "compact"]
    assert [span.parent for span in spans[::3]] == [span.id for span in spans[1::3]]


ASKED: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "function_call", "name": "shell", "arguments": "what"}, "shell", "what"),
    ({"type": "custom_tool_call", "name": "apply_patch", "input": "what"}, "apply_patch", "what"),
    ({"type": "local_shell_call", "action": {"command": ["what"]}}, "local_shell", "what"),
]


@pytest.mark.parametrize("contents", [True, False])
@pytest.mark.parametrize(("item", "tool", "said"), ASKED, ids=[row[1] for row in ASKED])
def test_call_of_each_form_is_told_by_its_tool_and_kind_and_its_contents_where_they_are_wanted(
    item: dict[str, Any], tool: str, said: str, contents: bool
) -> None:
    work = Mcp("time", "now", {}, "/w").work(sandboxed=False)
    output = {"type": f"{item['type']}_output", "call_id": "c1", "output": "found"}
    (call,) = told(
        *(BEGUN, e.item({**item, "call_id": "c1"}), f.CallMoved(C1, Phase.RUNNING, work=work)),
        *(e.item(output), f.CallMoved(C1, Phase.DONE)),
        contents=contents,
    )
    assert (call.name, call.attributes["gen_ai.tool.name"]) == (f"execute_tool {tool}", tool)
    assert call.attributes["dendro.call.kind"] == "mcp"
    assert (said in str(call.attributes.get("gen_ai.tool.call.arguments", ""))) is contents
    assert call.attributes.get("gen_ai.tool.call.result") == ("found" if contents else None)
    # From the model's wish to its output.
    assert (call.begun_ms, call.ended_ms) == (1, 4)


@pytest.mark.parametrize("ended", ENDS)
def test_repetitions_of_a_request_are_of_its_turn_and_what_follows_its_answer_of_the_next(ended: Any) -> None:
    spans = told(
        *(BEGUN, FIRST, ended(n=1), f.RequestBegun(2, "turn", 1), f.RequestCompleted(n=2)),
        *(call_item("c1"), f.CallMoved(C1, Phase.DONE), f.RequestBegun(3, "turn", 1)),
        *(f.RequestCompleted(n=3), f.TaskEnded("completed")),
    )
    turns = [span for span in spans if span.name == "turn"]
    assert [(turn.begun_ms, turn.ended_ms) for turn in turns] == [(1, 7), (7, 9)]
    of = {span.id: turns.index(turn) for span in spans for turn in turns if span.parent == turn.id}
    chats = [of[span.id] for span in spans if span.name == "chat gpt-5"]
    assert (chats, [of[span.id] for span in spans if span.name == "execute_tool shell"]) == ([0, 0, 1], [0])


async def test_claim_is_told_with_its_worker_pool_and_end_and_each_under_its_epoch(harness: Harness) -> None:
    exporter = traced(harness)
    harness.models.will([message("a"), ends()], [message("b"), ends()])
    session = await harness.session()
    for words in ("first", "second"):
        await harness.say(session, words)
        async with working(harness):
            await harness.until(session, "task_complete")
    claims = sorted(by_name(exporter)["claim"], key=lambda span: span.attributes["dendro.epoch"])
    epochs = [span.attributes["dendro.epoch"] for span in claims]
    assert epochs == sorted(set(epochs))
    assert len(epochs) >= 2
    for span in claims:
        assert span.attributes["dendro.worker"] == "w1"
        assert span.attributes["dendro.pool"] == POOL
        assert span.attributes["dendro.end"] == "parked"
        assert span.context.span_id == span_id(session, "claim", str(span.attributes["dendro.epoch"]))
        assert span.parent is None
        assert span.start_time <= span.end_time


@pytest.mark.parametrize("sampler", ["traceidratio", "parentbased_traceidratio"])
def test_each_trace_is_kept_whole_or_not_at_all_by_whichever_worker(
    sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    trees = [f"tree-{n}" for n in range(40)]
    kept: list[set[str]] = []
    # One worker tells of the task alone, another of its turn, a third of both in the other order.
    for spans in ([None], [7], [7, None]):
        exporter, of = InMemorySpanExporter(), {trace_id(tree): tree for tree in trees}
        tracing = Tracing(SimpleSpanProcessor(exporter), None, time.monotonic)  # type: ignore[arg-type]
        for tree in trees:
            for at, parent in enumerate(spans):
                tracing._tell(tree, EndedSpan("turn", 100 + at, parent, 0, 1, {}))
        told = Counter(of[span.context.trace_id] for span in exporter.get_finished_spans())
        assert set(told.values()) == {len(spans)}
        kept.append(set(told))
    assert kept[0] == kept[1] == kept[2]
    assert 5 < len(kept[0]) < 35


def test_ids_tell_all_sessions_and_keys_apart() -> None:
    ids = {
        span_id(s, *k)
        for s in ("a", "ab")
        for k in (("task", "b"), ("taskb",), ("task", "b", ""), ("turn", "b"))
    }
    assert len(ids) == 8
    assert trace_id("a") != trace_id("b")
    assert span_id("\ud800") == span_id("\ud800")


async def test_worker_sends_its_traces_where_the_standard_variables_say(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[tuple[str, bytes]] = []

    async def collector(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        requests.append((scope["path"], body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    server = _Server(uvicorn.Config(collector, port=0, lifespan="off", log_config=None, ws="none"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
    port = server.servers[0].sockets[0].getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    environ = {"HOME": str(tmp_path), "DENDRO_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    overrides = ("worker.tracing=true", "worker.trace_contents=true", "redis.prefix=traces:")
    settings = load_settings(SettingsSources(tmp_path, environ, overrides=overrides))
    async with running_worker(settings, redis_server.url) as worker:
        observer = worker._ports.observer
        assert isinstance(observer, Tracing)
        assert observer._contents
        observer._tell("t", next(_some_span()))
        running = asyncio.create_task(worker.run())
        worker.drain()
        await running
    server.should_exit = True
    await serving
    ((path, body),) = requests
    assert path == "/v1/traces"
    assert b"dendro-worker" in body
    assert b"execute_tool other" in body


@pytest.mark.parametrize(("said", "name"), [("", "dendro-worker"), ("builds", "builds")])
async def test_traces_have_the_name_of_the_service_that_the_variable_says(
    said: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", said)
    told = {"OTEL_SERVICE_NAME": said}
    tracing = tracing_module.exported(told, "1.0", "w1", cast(Any, None), contents=False)
    assert tracing._provider.resource.attributes["service.name"] == name
    await tracing.aclose()


async def test_worker_that_leaves_does_not_wait_for_a_collector_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing_module, "CLOSE_S", 0.05)
    given_up = threading.Event()

    class Patient:
        """A processor that tries until it is told to give up."""

        def shutdown(self) -> None:
            assert given_up.wait(20)

    processor: Any = Patient()
    tracing = Tracing(processor, None, time.monotonic, give_up=given_up.set)  # type: ignore[arg-type]
    await tracing.aclose()
    assert given_up.is_set()


def _some_span() -> Any:
    spans = SessionSpans(SessionFacts(session_id="s"))  # type: ignore[arg-type]
    spans.begin_unseen("t1", 0)
    spans._move_call("c1", None, 1)
    return spans._end_call("c1", 2)
