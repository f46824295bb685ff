"""Costs of flows beside a turn: answers to questions, look-ups, skills and tools of servers."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import orjson

from bench import questions
from bench.figures import Figure, at_least, at_most, spread
from bench.lab import Fleet, Lab, fleet
from bench.latency import marks
from bench.turns import PATIENCE_S, submit_turn, take_turns
from orchestrator.core.ids import SessionId
from orchestrator.core.modes import TagParser
from orchestrator.gateways.folder_facts import Workspace, look_at
from orchestrator.protocol import ops
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.plans import QuestionsAnswered
from orchestrator.protocol.submission import Submission
from orchestrator.wiring.new_sessions import guide

SKILLS, TOOLS, PROMPTS, HISTORY = 200, 30, 20, 50
DELTA_BYTES = 64
_WARM = 3
_ROUNDS = 3
"""How often requests with skills and tools take turns with requests without."""

Events = AsyncIterator[Any]


async def run(lab: Lab, quick: bool) -> list[Figure]:
    """Measures everything one at a time, as in `latency`: the load is not among what is measured."""
    times = 20 if quick else 200
    _furnish(lab)
    async with fleet(lab, "questions") as running:
        running.hire(16)
        figures = [await _answers(running, times), *await _look_ups(running, times)]
    return [*figures, *await _offers(lab, times), _plans_read(1 if quick else 8)]


# ── questions ─────────────────────────────────────────────────────────────────────────────────────


async def _answers(running: Fleet, times: int) -> Figure:
    """The session has parked when the answer comes: it is claimed, goes on, and asks the model."""
    session = await running.session()
    answered = []
    async with aclosing(cast(Any, running.client.follow(session))) as events:
        for n in range(times + _WARM):
            await submit_turn(running, session, f"turn-{n}")
            asked = await _next(events, "ask_user_question_request", "")
            response = QuestionsAnswered(answers={questions.HEADER: questions.LABEL})
            op = ops.ResolveAskUserQuestion(id=asked["callId"], response=response)
            answered.append(await _sent(running, session, f"answer-{n}", op))
            await _next(events, "task_complete", f"turn-{n}")
    seen = [mark[0] for mark in marks(running)[session]][1::2]
    waits = [at - sent for sent, at in zip(answered, seen, strict=True)][_WARM:]
    return spread("answer → request at the stub", waits, at_most(6), f"{times} questions of one session")


# ── plans ─────────────────────────────────────────────────────────────────────────────────────────


def _plans_read(megabytes: int) -> Figure:
    """The reader of `<proposed_plan>`, by itself, on text that comes in pieces of a delta's size."""
    line = "1. Read what calls this, and name each caller by its file and its line.\n"
    plan = f"Before it.\n<proposed_plan>\n{line * 40}</proposed_plan>\nBehind it.\n"
    text = plan * (megabytes * 1_000_000 // len(plan))
    pieces = [text[at : at + DELTA_BYTES] for at in range(0, len(text), DELTA_BYTES)]
    parser, began = TagParser(), time.process_time()
    for piece in pieces:
        parser.feed(piece)
    parser.finish()
    rate = len(text) / (time.process_time() - began) / 1e6
    told = f"in pieces of {DELTA_BYTES} bytes"
    return Figure("plans read as they come", rate, "MB/s", at_least(50), note=told)


# ── look-ups ──────────────────────────────────────────────────────────────────────────────────────


async def _look_ups(running: Fleet, times: int) -> list[Figure]:
    """The session is parked before each: somebody claims it, answers, and gives it back."""
    session = await running.session()
    async with aclosing(cast(Any, running.client.follow(session))) as events:
        await submit_turn(running, session, "first")
        await _next(events, "ask_user_question_request", "")
        await _sent(running, session, "stop", ops.Interrupt())
        await _next(events, "turn_aborted", "")
        for n in range(HISTORY):
            await _sent(running, session, f"kept-{n}", ops.AddToHistory(text=f"prompt {n}"))
        head = await running.client.history()
        while head.count < HISTORY:
            head = await running.client.history()

        def entry(n: int) -> ops.Op:
            return ops.GetHistoryEntryRequest(offset=n % HISTORY, log_id=head.log_id)

        return [
            await _looked_up(running, session, events, times, name, kind, op)
            for name, kind, op in (
                (f"look-up: history entry of {HISTORY}", "get_history_entry_response", entry),
                (f"look-up: {SKILLS} skills", "list_skills_response", lambda n: ops.ListSkills()),
                (f"look-up: {PROMPTS} prompts", "list_custom_prompts_response", _prompts),
            )
        ]


def _prompts(n: int) -> ops.Op:
    return ops.ListCustomPrompts()


async def _looked_up(
    running: Fleet,
    session: SessionId,
    events: Events,
    times: int,
    name: str,
    kind: str,
    op: Callable[[int], ops.Op],
) -> Figure:
    waits = []
    for n in range(times + _WARM):
        id = f"{kind}-{n}"
        sent = await _sent(running, session, id, op(n))
        await _next(events, kind, id)
        waits.append(time.monotonic() - sent)
    return spread(name, waits[_WARM:], at_most(5), f"{times} of them, one at a time")


# ── skills and tools ──────────────────────────────────────────────────────────────────────────────


async def _offers(lab: Lab, times: int) -> list[Figure]:
    """Requests with and without take turns: whatever else the machine does meets both."""
    each = max(2, times // _ROUNDS // 2)
    waits: dict[bool, list[float]] = {False: [], True: []}
    cpu_s = {False: 0.0, True: 0.0}
    for place in range(2 * _ROUNDS):
        rich = place % 2 == 1
        _serve_tools(lab, TOOLS if rich else 0)
        async with fleet(lab, "instant") as running:
            running.hire(16)
            workspace = look_at(lab.workspace, guide(running.settings)) if rich else Workspace()
            session = await running.session(workspace=workspace)
            await _counted(running, session, TOOLS if rich else 0)
            await take_turns(running, session, _WARM)
            before, first = running.costs()["worker"], len(marks(running)[session])
            turns = await take_turns(running, session, each, _WARM)
            cpu_s[rich] += (running.costs()["worker"] - before).own_s
            pairs = zip(turns, marks(running)[session][first:], strict=True)
            waits[rich] += [mark[0] - turn.submitted for turn, mark in pairs]
    more_ms = 1000 * (statistics.median(waits[True]) - statistics.median(waits[False]))
    # Summed up first: the account of a few turns is a few clock ticks.
    cpu_ms = 1000 * (cpu_s[True] - cpu_s[False]) / len(waits[True])
    note = f"{SKILLS} skills in the folder, an MCP server of {TOOLS} tools; {len(waits[True])} turns each"
    return [
        spread("submission → request, skills and tools", waits[True], None, note),
        Figure("&emsp;more than without", more_ms, "ms", at_most(1), note="difference of the p50"),
        Figure("&emsp;more CPU of the worker than without", cpu_ms, "ms", note="a turn, response included"),
    ]


async def _counted(running: Fleet, session: SessionId, tools: int) -> None:
    """Checks that the worker has the server's tools: what is not there costs nothing."""
    async with aclosing(cast(Any, running.client.follow(session))) as events:
        await _sent(running, session, "tools", ops.ListMcpTools())
        listed = await _next(events, "mcp_list_tools_response", "tools")
    if len(listed["tools"]) != tools:
        raise RuntimeError(f"the worker has {len(listed['tools'])} tools of servers instead of {tools}")


def _serve_tools(lab: Lab, count: int) -> None:
    """Gives the person a server of so many tools, or none."""
    words = orjson.dumps([str(Path(__file__).with_name("mcp_process.py")), str(count)]).decode()
    table = f'[mcp_servers.bench]\ncommand = "{sys.executable}"\nargs = {words}\n'
    (_home(lab) / "dendro.toml").write_text(table if count else "")


def _furnish(lab: Lab) -> None:
    """Puts skills into the folder, and prompts into the person's home."""
    for n in range(SKILLS):
        folder = lab.workspace / ".agents" / "skills" / f"skill-{n}"
        folder.mkdir(parents=True)
        text = f"---\nname: skill-{n}\ndescription: Knows how things of kind {n} are done.\n---\nDo it.\n"
        (folder / "SKILL.md").write_text(text)
    prompts = _home(lab) / "prompts"
    prompts.mkdir(parents=True)
    for n in range(PROMPTS):
        (prompts / f"prompt-{n}.md").write_text(f"---\ndescription: Prompt {n}\n---\nSay {n}.\n")


def _home(lab: Lab) -> Path:
    """The data folder of a person whose home the lab has."""
    return lab.settings(lab.environ()).home


# ── a client ──────────────────────────────────────────────────────────────────────────────────────


async def _sent(running: Fleet, session: SessionId, id: str, op: ops.Op) -> float:
    """Submits an op; when it was handed in."""
    at = time.monotonic()
    await running.client.submit(session, Submission(SubmissionId(id), op))
    return at


async def _next(events: Events, kind: str, id: str) -> dict[str, Any]:
    """The next event of a kind, and of a submission where one is named."""
    async with asyncio.timeout(PATIENCE_S):
        async for event in events:
            if event.type in ("error", "stream_error"):
                raise RuntimeError(f"{kind} was waited for, and there came {event.msg}")
            if event.type == kind and id in ("", event.id):
                return cast("dict[str, Any]", event.msg)
    raise RuntimeError(f"the events ended before {kind}")
