"""Servers that hang, die, flood, lie and ask: each costs one call, and the next call works."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import cast

import pytest

from orchestrator.mcp.server_records import DESCRIPTION_CHARS, RESULT_BYTES, TOOLS, Answer, Question
from orchestrator.mcp.servers import Servers
from orchestrator.protocol.items import InputText
from orchestrator.protocol.mcp import CallToolResult, ElicitationAction
from orchestrator.protocol.wire import written
from tests.mcp.serving import Fifo, Heard, bad, fifo, is_alive, servers

__all__ = ["fifo"]


async def call(made: Servers, tool: str, folder: Path, heard: Heard | None = None) -> Answer:
    return await made.call(("bad", tool), {"a": 1}, folder, (heard or Heard()).ask)


async def works(made: Servers, folder: Path) -> bool:
    answer = await call(made, "echo", folder)
    return isinstance(answer.result, CallToolResult) and '{\\"a\\": 1}' in str(answer.output)


# ── starts ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("dies", "the server ended: it ended with the code 4; its last words: I cannot start here"),
        ("refusing", "unknown method"),
        ("other", "Unsupported protocol version from the server: 1999-01-01"),
    ],
)
async def test_a_server_that_cannot_start_fails_alone_and_says_why(
    mode: str, why: str, tmp_path: Path
) -> None:
    heard = Heard()
    async with servers(bad(mode, id="a"), bad(id="bad")) as made:
        started = await made.start("s1", tmp_path, heard.report)
        assert started.ready == ("bad",)
        assert why in started.failed["a"]
        assert ("a", "failed") in heard.starts
        assert await works(made, tmp_path)


async def test_a_server_that_never_answers_is_given_up_after_its_time_to_start(
    tmp_path: Path, fifo: Fifo
) -> None:
    server = bad("silent", str(fifo.path), startup_timeout_s=0.3)
    async with servers(server) as made:
        start = asyncio.create_task(made.start("s1", tmp_path, Heard().report))
        assert await fifo.word() == "asked"
        started = await start
    assert started.failed == {"bad": "it did not list its tools within 0.3 s (startup_timeout_sec)"}


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    lost = f"{tmp_path}/no-such-program"
    wrong = [bad(command="no-such-program"), bad(id="a", command=lost), bad(id="b", cwd=tmp_path / "none")]
    async with servers(*wrong) as made:
        started = await made.start("s1", tmp_path, Heard().report)
    assert started.failed == {
        "a": f"the program {lost} is not there, or cannot be run",
        "b": f"its folder {tmp_path}/none is not there",
        "bad": "the program no-such-program is not on PATH outside of projects and temporary folders: "
        "install it, or name it by its path",
    }


async def test_a_server_that_failed_is_not_started_for_each_request_anew(tmp_path: Path) -> None:
    heard = Heard()
    async with servers(bad("dies")) as made:
        await made.start("s1", tmp_path, heard.report)
        again = await made.start("s1", tmp_path, heard.report)
    assert "I cannot start here" in again.failed["bad"]
    assert heard.starts == [("bad", "starting"), ("bad", "failed")]


async def test_a_banner_before_the_messages_does_no_harm(tmp_path: Path) -> None:
    async with servers(bad("noisy")) as made:
        assert await works(made, tmp_path)


@pytest.mark.parametrize(("mode", "tools"), [("no-end", 1), ("many", TOOLS)])
async def test_a_list_of_tools_without_an_end_has_one(mode: str, tools: int, tmp_path: Path) -> None:
    async with servers(bad(mode)) as made:
        assert len((await made.start("s1", tmp_path, Heard().report)).ready) == 1
        assert len(made.offered(tmp_path)) == tools


async def test_tools_with_wrong_names_and_schemas_are_left_out_and_long_texts_cut(tmp_path: Path) -> None:
    async with servers(bad("wrong-tools")) as made:
        await made.start("s1", tmp_path, Heard().report)
        (offered,) = made.offered(tmp_path)
    assert offered.full_name == "mcp__bad__good"
    assert len(offered.tool.description) == DESCRIPTION_CHARS


# ── calls ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        ("die", "the server ended: it ended with the code 3; its last words: no more of this"),
        ("nonsense", "it answered with something that is no tool's result"),
        ("not_json", "the server does not speak MCP: it sent '{]' and the like"),
        ("long", "the server sent a message of more than 4,194,304 bytes"),
        ("pings", "the server asked more than "),
    ],
)
async def test_what_a_server_does_wrong_costs_one_call(tool: str, why: str, tmp_path: Path) -> None:
    async with servers(bad()) as made:
        answer = await call(made, tool, tmp_path)
        assert isinstance(answer.result, str)
        assert why in answer.result
        assert answer.output == answer.result
        assert await works(made, tmp_path)


async def test_a_server_that_floods_is_ended_and_the_call_fails_in_time(tmp_path: Path) -> None:
    async with servers(bad(tool_timeout_s=1)) as made:
        answer = await call(made, "flood", tmp_path)
        assert isinstance(answer.result, str)
        assert await works(made, tmp_path)


async def test_a_call_that_is_not_answered_in_time_fails_and_the_next_has_a_new_server(
    tmp_path: Path,
) -> None:
    async with servers(bad(tool_timeout_s=0.2)) as made:
        answer = await call(made, "sleep", tmp_path)
        assert answer.result == (
            "tool call failed: MCP server bad: it did not answer within 0.2 s (tool_timeout_sec)"
        )
        assert await works(made, tmp_path)


async def test_a_killed_server_costs_the_call_that_ran_and_the_next_one_works(
    tmp_path: Path, fifo: Fifo
) -> None:
    async with servers(bad("good", str(fifo.path))) as made:
        environment = await call(made, "environment", tmp_path)
        assert isinstance(environment.result, CallToolResult)
        pid = json.loads(environment.result.content[0]["text"])["pid"]
        running = asyncio.create_task(call(made, "sleep", tmp_path))
        assert await fifo.word() == "sleeping"
        os.kill(pid, signal.SIGKILL)
        assert "the server ended" in str((await running).result)
        assert await works(made, tmp_path)
        assert not is_alive(pid)


async def test_a_refusal_is_the_calls_error_and_the_server_stays(tmp_path: Path) -> None:
    async with servers(bad()) as made:
        before = (await call(made, "environment", tmp_path)).result
        refused = await call(made, "refuses", tmp_path)
        after = (await call(made, "environment", tmp_path)).result
    assert refused.result == "tool call error: I would rather not"
    assert before == after


# ── results ───────────────────────────────────────────────────────────────────────────────────


async def test_a_tools_own_failure_is_marked(tmp_path: Path) -> None:
    async with servers(bad()) as made:
        answer = await call(made, "fails", tmp_path)
    assert isinstance(answer.result, CallToolResult)
    assert answer.result.is_error is True
    assert answer.output == '[{"type":"text","text":"it went wrong"}]'


async def test_a_structured_result_is_what_the_model_reads(tmp_path: Path) -> None:
    async with servers(bad()) as made:
        answer = await call(made, "structured", tmp_path)
    assert answer.output == '{"n":1}'


async def test_an_image_is_shown_to_the_model_and_what_is_none_is_named(tmp_path: Path) -> None:
    async with servers(bad()) as made:
        answer = await call(made, "image", tmp_path)
    assert not isinstance(answer.output, str)
    text, image = [written(cast(InputText, item)) for item in answer.output]
    assert text == {"type": "input_text", "text": "a dot\n[an image that cannot be shown: image/svg+xml]"}
    assert image["image_url"].startswith("data:image/png;base64,iVBOR")


async def test_a_wide_result_is_cut_for_the_event_and_for_the_model(tmp_path: Path) -> None:
    async with servers(bad()) as made:
        answer = await call(made, "wide", tmp_path)
    assert isinstance(answer.result, CallToolResult)
    assert len(answer.result.model_dump_json()) < RESULT_BYTES + 4_096
    assert len(str(answer.output)) < 11_000


async def test_a_result_that_is_nested_too_deep_is_left_out(tmp_path: Path) -> None:
    async with servers(bad()) as made:
        answer = await call(made, "deep", tmp_path)
        assert answer.output == "[]"


async def test_numbers_that_the_log_cannot_hold_become_texts(tmp_path: Path) -> None:
    async with servers(bad()) as made:
        answer = await call(made, "numbers", tmp_path)
    assert answer.output == '{"n":"1000000000000000000000000000000","m":"😀"}'


async def test_a_result_cannot_pose_as_a_text_that_the_log_has_stored(tmp_path: Path) -> None:
    async with servers(bad()) as made:
        answer = await call(made, "forged", tmp_path)
    assert isinstance(answer.result, CallToolResult)
    assert answer.result.structured_content == {"$blob ": "0" * 64, "bytes": 5}


# ── questions ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("decision", list(ElicitationAction))
async def test_a_question_for_yes_or_no_gets_the_persons_decision(
    decision: ElicitationAction, tmp_path: Path
) -> None:
    heard = Heard(decision)
    async with servers(bad()) as made:
        answer = await call(made, "ask", tmp_path, heard)
    (question,) = heard.questions
    assert (question.server, question.message, question.answerable) == ("bad", "May I?", True)
    assert f'\\"action\\": \\"{decision.value}\\"' in str(answer.output)


@pytest.mark.parametrize("tool", ["ask_form", "ask_link"])
async def test_a_question_for_more_than_yes_or_no_is_declined(tool: str, tmp_path: Path) -> None:
    heard = Heard(ElicitationAction.ACCEPT)
    async with servers(bad()) as made:
        answer = await call(made, tool, tmp_path, heard)
    assert [question.answerable for question in heard.questions] == [False]
    assert '\\"action\\": \\"decline\\"' in str(answer.output)


async def test_a_question_that_may_be_of_another_session_is_answered_by_none(
    tmp_path: Path, fifo: Fifo
) -> None:
    first, second = Heard(ElicitationAction.ACCEPT), Heard(ElicitationAction.ACCEPT)
    async with servers(bad("good", str(fifo.path))) as made:
        other = asyncio.create_task(call(made, "later", tmp_path, first))
        assert await fifo.word() == "later"
        answer = await call(made, "ask", tmp_path, second)
        other.cancel()
        await asyncio.wait({other})
    assert [[question.answerable for question in heard.questions] for heard in (first, second)] == [
        [False]
    ] * 2
    assert '\\"action\\": \\"decline\\"' in str(answer.output)


async def test_time_limit_of_a_call_stands_while_a_person_thinks(tmp_path: Path) -> None:
    class Slow(Heard):
        async def ask(self, question: Question) -> ElicitationAction:
            thought = asyncio.Event()
            asyncio.get_running_loop().call_later(0.6, thought.set)
            await thought.wait()
            return await super().ask(question)

    async with servers(bad(tool_timeout_s=0.3)) as made:
        answer = await call(made, "ask", tmp_path, Slow(ElicitationAction.ACCEPT))
        assert "accept" in str(answer.output)
        late = await call(made, "sleep", tmp_path)
        assert "it did not answer within 0.3 s" in str(late.output)
