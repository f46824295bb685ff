"""Events of a session as a person sees them, on a terminal and in a pipe."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from rich.console import Console

from orchestrator.broker.records import Summary
from orchestrator.cli.invocation import hoisted
from orchestrator.core.counts import age
from orchestrator.protocol import ops
from orchestrator.requests import request_of
from orchestrator.requests.approvals import command_text
from orchestrator.terminal.faults import ExitCode, Fault, explain
from orchestrator.terminal.live import DIFF_LINES, OUTPUT_LINES, Live, reminder, show_request
from orchestrator.terminal.text import plain
from orchestrator.terminal.watched_turn import Prompt
from orchestrator.views.event import Event
from orchestrator.views.event_text import visible
from orchestrator.views.tree import message_summary
from tests.requests.test_answers import ASKS

BEGIN = {
    "type": "exec_command_begin", "call_id": "c", "command": ["bash", "-lc", "ls"], "cwd": "/",
    "parsed_cmd": [],
}  # fmt: skip
END = {
    "type": "exec_command_end", "call_id": "c", "stdout": "", "stderr": "", "aggregated_output": "a\nb",
    "exit_code": 2, "duration": {"secs": 1, "nanos": 500_000_000},
}  # fmt: skip


def seen(*messages: dict[str, Any], streaming: bool = False) -> list[str]:
    out = io.StringIO()
    live = Live(Console(file=out, width=40, force_terminal=False), streaming)
    for message in messages:
        live.show(Event("1", message))
    return out.getvalue().splitlines()


def delta(text: str) -> dict[str, Any]:
    return {"type": "agent_message_delta", "delta": text}


OF_TURN = {"thread_id": "s", "turn_id": "t1"}


def plan(type: str, text: str) -> dict[str, Any]:
    return {**OF_TURN, "type": type, "item": {"type": "Plan", "id": "t1-plan", "text": text}}


def piece(text: str) -> dict[str, Any]:
    return {**OF_TURN, "type": "plan_delta", "item_id": "t1-plan", "delta": text}


MESSAGE = {"type": "agent_message", "message": "Intro\nOutro"}


def test_proposed_plan_streams_once_and_so_does_the_message_around_it() -> None:
    begun = [delta("Intro"), plan("item_started", ""), piece("- a\n"), piece("- b")]
    done = plan("item_completed", "- a\n- b")
    whole = ["Intro", "the agent proposes a plan:", "- a", "- b"]
    assert seen(*begun, delta("Outro"), done, MESSAGE, streaming=True) == [*whole, "Outro"]
    assert seen(*begun, done, {**MESSAGE, "message": "Intro"}, streaming=True) == whole


def test_finished_plan_is_shown_where_nothing_streams_or_something_else_did() -> None:
    done = plan("item_completed", "- a\n- b")
    shown = ["the agent proposes a plan:", "  - a", "  - b"]
    assert seen(done, MESSAGE) == [*shown, "Intro", "Outro"]
    broken = [piece("- x"), plan("item_started", "")]
    assert seen(*broken, done, streaming=True)[-3:] == shown
    # The text of the item counts; pieces of a second plan are none of the first.
    assert seen(plan("item_started", ""), piece("- x"), done, streaming=True)[-3:] == shown
    second = {**piece("- z"), "item_id": "t1-other"}
    begun = {**OF_TURN, "type": "item_started", "item": {"type": "Plan", "id": "t1-other", "text": ""}}
    lines = seen(plan("item_started", ""), piece("- a\n- b"), begun, second, done, streaming=True)
    assert lines == ["the agent proposes a plan:", "- a", "- b", "the agent proposes a plan:", "- z"]
    other = {**OF_TURN, "type": "item_completed", "item": {"type": "AgentMessage", "id": "m", "content": []}}
    assert seen(other) == []
    assert (visible(done), visible(other), visible(plan("item_started", ""))) == (True, False, False)
    assert message_summary(done) == "proposes a plan: - a"


def chunk(data: bytes) -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    return {"type": "exec_command_output_delta", "call_id": "c", "stream": "stdout", "chunk": encoded}


@pytest.mark.parametrize("streamed", [b"", b"a", b"a\n", b"a\nb", b"a\nb\n"])
def test_output_that_was_streamed_is_shown_once_also_where_its_line_is_not_over(streamed: bytes) -> None:
    lines = seen(
        BEGIN, *([chunk(streamed)] if streamed else []), {**END, "aggregated_output": "a\nb"}, streaming=True
    )
    told = streamed.decode().splitlines() or ["a", "b"]
    assert lines == ["$ ls", *(f"  {line}" for line in told), "✗ exit 2 1.5s"]


def test_call_of_a_clients_tool_is_shown_with_its_outcome_and_a_note_for_its_images() -> None:
    asked: dict[str, Any] = {
        "type": "dynamic_tool_call_request",
        "callId": "c",
        "turnId": "t1",
        "tool": "look",
    }
    asked["arguments"] = {"id": 1}
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgoA"}
    end: dict[str, Any] = {
        "type": "dynamic_tool_call_response",
        "call_id": "c",
        "turn_id": "t1",
        "tool": "look",
    }
    end |= {"success": True, "output": "found"}
    shown = seen({**asked, "namespace": "shop"}, {**end, "content_items": [image, image]})
    assert shown == ['⚙ shop: look {"id":1}', "  found", "  [2 images]", "✓"]
    assert seen({**asked, "arguments": {}}, {**end, "success": False}) == ["⚙ look", "  found", "✗"]


def test_text_streams_once_on_a_terminal() -> None:
    whole = {"type": "agent_message", "message": "Hello you"}
    assert seen(delta("Hello "), delta("you"), whole, BEGIN, streaming=True) == ["Hello you", "$ ls"]


def test_words_to_a_process_are_shown_and_cannot_paint_the_terminal() -> None:
    typed = {"type": "terminal_interaction", "call_id": "c", "process_id": "3", "stdin": "1+1\n\x1b[2J\x03"}
    assert seen(typed) == ["  process 3 ← 1+1␊␛[2J␃"]
    assert message_summary(typed).startswith("process 3 ← 1+1")


def test_call_of_a_servers_tool_is_shown_with_its_arguments_and_its_result() -> None:
    invocation = {"server": "time", "tool": "now", "arguments": {"zone": "\x1b[2J"}}
    begin = {"type": "mcp_tool_call_begin", "call_id": "c", "invocation": invocation}
    took = {"duration": {"secs": 0, "nanos": 200_000_000}}
    content = [{"type": "text", "text": "noon\x1b[2J"}, {"type": "image", "data": "x"}]
    end = {**begin, **took, "type": "mcp_tool_call_end", "result": {"content": content}}
    assert seen(begin, end) == [
        '⚙ time: now {"zone":"\\u001b[2J"}',
        "  noon␛[2J",
        "  [image]",
        "✓ 0.2s",
    ]
    assert seen({**end, "result": "the server ended"}) == ["  the server ended", "✗ 0.2s"]
    assert seen({**end, "result": {"content": [], "isError": True}}) == ["✗ 0.2s"]
    failed = {"type": "mcp_startup_update", "server": "time", "status": {"state": "failed", "error": "gone"}}
    assert seen(failed) == ["the MCP server time did not start: gone"]


def test_helpers_and_settled_requests_are_told_in_a_line_each() -> None:
    invocation = {"description": "Reads it", "label": "reader", "prompt": "p"}
    begin = {"type": "sub_agent_tool_call_begin", "call_id": "h", "invocation": invocation}
    now = {"type": "sub_agent_tool_call_activity", "call_id": "h", "activity": "thinking"}
    end = {**begin, "type": "sub_agent_tool_call_end", "result": {"Ok": "x"}, "outcome": "completed"}
    end["duration"] = {"secs": 1, "nanos": 0}
    settled: dict[str, Any] = {"type": "request_resolved", "call_id": "c", "turn_id": "t1", "agent_id": 3}
    settled |= {"decision": "denied", "who": "ann", "resolved_at_ms": 1}
    gone = {**settled, "decision": "withdrawn", "who": ""}
    assert seen(begin, now, end, settled, gone) == [
        "+ helper reader: Reads it",
        "✓ helper reader completed",
        "request c of agent 3 was denied by ann",
        "request c of agent 3 is not asked any more: its turn has ended",
    ]


def test_a_pipe_gets_whole_lines_only() -> None:
    assert seen(delta("Hel"), {"type": "agent_message", "message": "Hello"}) == ["Hello"]


def test_a_command_shows_its_output_and_how_it_ended() -> None:
    assert seen(BEGIN, END) == ["$ ls", "  a", "  b", "✗ exit 2 1.5s"]


def test_a_character_cut_between_two_deltas_is_whole() -> None:
    data = "grün\n".encode()
    assert seen(BEGIN, chunk(data[:3]), chunk(data[3:]), END, streaming=True)[1] == "  grün"


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_character_that_is_cut_is_whole_where_the_other_stream_or_another_command_writes_between(
    cut: int,
) -> None:
    data = "木grün\n".encode()
    for other in ({"stream": "stderr"}, {"call_id": "c2"}):
        pieces = [{**chunk(data[:cut])}, {**chunk(data), **other}, {**chunk(data[cut:])}]
        begins, ends = [BEGIN, {**BEGIN, "call_id": "c2"}], [END, {**END, "call_id": "c2"}]
        lines = seen(*begins, *pieces, *ends, streaming=True)
        assert sum("\ufffd" in line for line in lines) == 0, lines
        assert [*map("".join(lines).count, "木ü")] == [2, 2]


def test_each_of_several_commands_has_its_own_lines_and_counts_those_that_are_not_shown() -> None:
    calls = {"c1": OUTPUT_LINES - 1, "c2": OUTPUT_LINES, "c3": OUTPUT_LINES + 2}
    messages: list[dict[str, Any]] = [{**BEGIN, "call_id": call} for call in calls]
    for number in range(max(calls.values())):
        messages += [
            {**chunk(b"%s %d\n" % (call.encode(), number)), "call_id": call}
            for call, most in calls.items()
            if number < most
        ]
    messages += [{**END, "call_id": call} for call in ("c3", "c1", "c2")]
    lines = seen(*messages, streaming=True)
    shown = {call: sum(line.startswith(f"  {call} ") for line in lines) for call in calls}
    assert shown == {"c1": OUTPUT_LINES - 1, "c2": OUTPUT_LINES, "c3": OUTPUT_LINES}
    assert lines[-4:] == ["  … 2 more lines", *["✗ exit 2 1.5s"] * 3]


@pytest.mark.parametrize(("more", "said"), [(5, "5 more lines"), (1, "1 more line")])
def test_long_output_is_cut_and_says_so(more: int, said: str) -> None:
    many = b"".join(b"line %d\n" % n for n in range(OUTPUT_LINES + more))
    lines = seen(BEGIN, chunk(many), END, streaming=True)
    assert lines[OUTPUT_LINES] == f"  line {OUTPUT_LINES - 1}"
    assert lines[OUTPUT_LINES + 1] == f"  … {said}"


@pytest.mark.parametrize("end", ["\x0b", "\x0c", "\r", "\x1c", "\x85", "\u2028", "\u2029"])
def test_added_line_is_one_line_whatever_is_in_it(end: str) -> None:
    diff = f"@@ -1 +1 @@\n+# quiet{end} evil()\n kept\n"
    update = {"type": "update", "unified_diff": diff, "move_path": None}
    shown = seen(
        {"type": "patch_apply_begin", "call_id": "p", "auto_approved": True, "changes": {"/w/a": update}}
    )
    assert [line[2:3] for line in shown[1:]] == ["@", "+", " "]
    assert shown[2].endswith("evil()")


@pytest.mark.parametrize(
    ("left_out", "lines", "said"),
    [
        (1, 1, ["… 1 more file, which is not shown", "  … 1 more line"]),
        (7, 3, ["… 7 more files, which are not shown", "  … 3 more lines"]),
    ],
)
def test_large_patch_says_how_many_files_and_lines_it_does_not_show(
    left_out: int, lines: int, said: list[str]
) -> None:
    content = "".join(f"{n}\n" for n in range(DIFF_LINES + lines))
    begin = {
        "type": "patch_apply_begin", "call_id": "c", "auto_approved": True,
        "changes": {"a.txt": {"type": "add", "content": content}}, "changes_left_out": left_out,
    }  # fmt: skip
    shown = seen(begin)
    assert [line for line in shown if "more" in line or "shown" in line] == [said[1], said[0]]


def test_figures_leave_the_baseline_and_the_cache_out() -> None:
    usage = {
        "input_tokens": 30_000, "cached_input_tokens": 10_000, "output_tokens": 500,
        "reasoning_output_tokens": 0, "total_tokens": 30_500,
    }  # fmt: skip
    info = {"total_token_usage": usage, "last_token_usage": usage, "model_context_window": 49_000}
    live = Live(Console(file=io.StringIO()))
    live.show(Event("1", {"type": "token_count", "info": info}))
    live.show(Event("1", {"type": "token_count", "info": None}))
    assert live.figures({}) == "20,500 tokens, 50% of the context left"
    rest = Summary(blended_total=21_000, context_left=0.4)
    assert live.figures(rest) == "21,000 tokens, 40% of the context left", "an interrupted turn tells of none"
    assert live.figures({"blended_total": 9}) == "20,500 tokens, 50% of the context left", "an older rest"


def test_a_command_cannot_hide_itself_from_whoever_is_asked() -> None:
    out = io.StringIO()
    live = Live(Console(file=out, width=200), streaming=False)
    command = ["bash", "-lc", "rm -rf /\x1b[2K\recho \u202eharmless\u202c [bold]"]
    request = {"type": "exec_approval_request", "call_id": "c", "command": command, "cwd": "/w"}
    show_request(live, request_of(request))
    assert "rm -rf /␛[2K␍echo \\u202eharmless\\u202c [bold]" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_person_who_is_asked_reads_the_variables_of_the_command() -> None:
    out = io.StringIO()
    live = Live(Console(file=out, width=200), streaming=False)
    request = {"type": "exec_approval_request", "call_id": "c", "command": ["ls"], "cwd": "/w"}
    show_request(live, request_of({**request, "env": {"LD_PRELOAD": "/w/a\nb\x1b[2K"}}))
    assert out.getvalue().splitlines() == [
        "? the agent wants to run a command",
        "  where it would run (in /w) is not recorded: an older version of Dendro has asked",
        "  with LD_PRELOAD='/w/a␊b␛[2K' ",
        "  ls",
    ]


def test_text_without_controls_is_left_alone() -> None:
    assert plain("Zeile\n\tzwei ✓") == "Zeile\n\tzwei ✓"


def test_an_answer_names_the_call_and_its_agent() -> None:
    request = request_of({"type": "apply_patch_approval_request", "call_id": "c7", "agent_id": 3})
    op = Prompt(request).take("a")
    assert isinstance(op, ops.PatchApproval)
    assert (op.id, op.agent_id, op.decision) == ("c7", 3, "approved_for_session")


@pytest.mark.parametrize(
    ("given", "heard"),
    [
        (["run", "-c", "a=1", "hi"], ["-c", "a=1", "run", "hi"]),
        (["proto", "--config=x.toml"], ["--config=x.toml", "proto"]),
        (["run", "--home", "/h", "--json"], ["--home", "/h", "run", "--json"]),
        (["run", "--", "-c"], ["run", "--", "-c"]),
        (["run", "-c"], ["-c", "run"]),
        (["exec", "--config", "a=1", "--config=b=2"], ["-c", "a=1", "-c", "b=2", "exec"]),
        (["--config", "f", "app-server", "--config", "a=1"], ["--config", "f", "-c", "a=1", "app-server"]),
    ],
)
def test_global_options_count_wherever_they_stand(given: list[str], heard: list[str]) -> None:
    assert hoisted(given) == heard


def test_an_unforeseen_error_says_that_it_is_one() -> None:
    told, code = explain(ZeroDivisionError("by\nzero"))
    assert told.startswith("internal error: ZeroDivisionError: by zero (set DENDRO_DEBUG=1")
    assert code == ExitCode.FAILED
    assert explain(Fault("no", ExitCode.WAITING)) == ("no", ExitCode.WAITING)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (59, "59s"), (3599, "59m"), (7200, "2h"), (9e5, "10d")]
)
def test_an_age_is_told_in_its_largest_unit(seconds: float, shown: str) -> None:
    assert age(seconds) == shown


def test_review_is_shown_with_what_it_is_about_and_each_finding_with_its_place() -> None:
    target = {"type": "baseBranch", "branch": "main\x1b[2J"}
    entered = {"type": "entered_review_mode", "target": target, "user_facing_hint": "speed"}
    location = {"absolute_file_path": "/w/a.py", "line_range": {"start": 3, "end": 5}}
    finding = {
        "title": "loses\nrows", "body": "when empty\nalways\x1b[2J", "confidence_score": 0.9, "priority": 1,
        "code_location": location,
    }  # fmt: skip
    output = {
        "findings": [finding], "overall_correctness": "patch is incorrect", "overall_explanation": "why",
        "overall_confidence_score": 0.75,
    }  # fmt: skip
    assert seen(entered, {"type": "exited_review_mode", "review_output": output}) == [
        "reviews the changes against main␛[2J (speed)",
        "review: patch is incorrect, 1 finding (confidence 0.75)",
        "  why",
        "  [P1] loses␊rows — /w/a.py:3-5",
        "    when empty",
        "    always␛[2J",
    ]
    assert seen({"type": "exited_review_mode", "review_output": None}) == ["the review has no result"]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"prompt": "look at a"}, "reviews look at a"),
        ({"prompt": "look at a", "user_facing_hint": "a"}, "reviews look at a (a)"),
        ({"target": {"type": "uncommittedChanges"}}, "reviews the uncommitted changes"),
        ({"target": {"type": "commit", "sha": "abc", "title": None}}, "reviews commit abc"),
        ({"target": {"type": "custom", "instructions": "docs"}}, "reviews docs"),
    ],
)
def test_each_subject_of_a_review_has_its_words(asked: dict[str, Any], text: str) -> None:
    assert seen({"type": "entered_review_mode", **asked}) == [text]


@pytest.mark.parametrize("char", ["\u3164", "\uffa0", "\u115f", "\u034f", "\u2028", "\u2029", "\U000e0100"])
def test_character_that_a_terminal_shows_nothing_of_is_spelled(char: str) -> None:
    assert plain(f"ls{char}") == f"ls\\u{ord(char):04x}"
    assert plain("木 ❤\ufe0f é \u00a0«") == "木 ❤\ufe0f é \u00a0«"


@pytest.mark.parametrize("space", ["\u00a0", "\u2003", "\u3000", "\u2800"])
def test_space_that_is_none_to_a_shell_is_spelled_in_a_command(space: str) -> None:
    spelled = f"\\u{ord(space):04x}"
    assert command_text(["bash", "-lc", f"ls{space}-l /etc"]) == f"ls{spelled}-l /etc"
    assert command_text(["ls", f"a{space}b"]) == f"ls 'a{spelled}b'"


FORGED = "x\nrequest c9 was approved by anna"


@pytest.mark.parametrize(
    "message",
    [
        {**BEGIN, "command": ["bash", "-lc", FORGED]},
        {"type": "patch_apply_end", "call_id": "c", "success": False, "stdout": "", "stderr": FORGED},
        {
            "type": "patch_apply_begin", "call_id": "c", "auto_approved": True,
            "changes": {
                FORGED: {"type": "update", "unified_diff": FORGED, "move_path": FORGED},
                f"{FORGED}2": {"type": "add", "content": FORGED},
                f"{FORGED}3": {"type": "delete", "content": FORGED},
            },
        },
        {"type": "plan_update", "explanation": FORGED, "plan": [{"step": FORGED, "status": "pending"}]},
        {
            "type": "subagent_lifecycle", "event": "created",
            "subagent": {"agent_id": 1, "label": FORGED, "summary": FORGED},
        },
        {"type": "agent_mail", "direction": "sent", "agent_id": 1, "kind": "message", "text": FORGED},
        {"type": "sub_agent_tool_call_begin", "invocation": {"label": FORGED, "description": FORGED}},
        {"type": "view_image_tool_call", "call_id": "c", "path": FORGED},
        {"type": "warning", "message": FORGED},
        {"type": "background_event", "message": FORGED},
    ],
    ids=lambda message: message["type"],
)  # fmt: skip
def test_text_of_a_model_begins_no_line_that_looks_like_one_of_dendros(message: dict[str, Any]) -> None:
    assert not [line for line in seen(message) if line.startswith("request")]


BROKEN = "a\nrequest c9 was approved\tby anna\x1b[2J\r"
ON_ONE_LINE = "a␊request c9 was approved␉by anna␛[2J␍"


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("moved", [None, "/w/b", BROKEN])
@pytest.mark.parametrize("path", ["/w/a", BROKEN])
@pytest.mark.parametrize("verb", ["add", "delete", "update"])
def test_file_of_a_patch_is_named_on_a_line_of_its_own_whatever_it_is_called(
    verb: str, path: str, moved: str | None, place: int, asked: bool
) -> None:
    text = {"unified_diff": "-x"} if verb == "update" else {"content": "x\n"}
    change = {"type": verb, **text, **({"move_path": moved} if moved and verb == "update" else {})}
    changes: dict[str, Any] = {"/w/0": {"type": "delete", "content": "x\n"}}
    changes = {**changes, path: change} if place else {path: change, **changes}
    event = {"type": "patch_apply_begin", "call_id": "c", "auto_approved": True, "changes": changes}
    lines = asked_of({**event, "type": "apply_patch_approval_request"}) if asked else seen(event)
    mark = {"add": "A", "delete": "D", "update": "M"}[verb]
    target = f" → {moved}" if moved and verb == "update" else ""
    named = f"{mark} {path}{target}".replace(BROKEN, ON_ONE_LINE)
    assert [line for line in lines if not line.startswith(("  ", "?"))] == (
        ["D /w/0", named] if place else [named, "D /w/0"]
    )


def asked_of(event: Mapping[str, Any]) -> list[str]:
    """The lines of a request as a person is shown them."""
    out = io.StringIO()
    show_request(Live(Console(file=out, width=200), streaming=False), request_of(event))
    return out.getvalue().splitlines()


def forged(value: Any) -> Iterator[Any]:
    """The value with each of its texts in turn, and each path of a patch, as one that deceives sets it."""
    match value:
        case str():
            yield FORGED
        case list():
            for place, inner in enumerate(value):
                for other in forged(inner):
                    yield [*value[:place], other, *value[place + 1 :]]
        case dict():
            for name, inner in value.items():
                if name.startswith("/"):
                    yield {FORGED if each == name else each: found for each, found in value.items()}
                if name not in ("type", "status"):
                    for other in forged(inner):
                        yield {**value, name: other}


REACH = {"sandboxed": True, "text": "in the sandbox, in /w", "why": "it writes", "says": "to build"}
PREFIX = ["git", "push"]
TOLD: dict[str, dict[str, Any]] = {
    "command": {"reach": {**REACH, "machine": "m1"}, "env": {"A": "x"}, "reason": "r", "grant_root": "/srv"},
    "prefix": {"proposed_execpolicy_amendment": PREFIX},
    "patch": {"reach": REACH, "reason": "r", "cwd": "/w", "grant_root": "/srv"},
    "choices": {},
    "plan": {},
    "elicitation": {"reach": REACH},
    "input": {},
    "client_tool": {"namespace": "n", "client": "editor"},
}


def told_event(kind: str) -> dict[str, Any]:
    """A request of this kind with all that it may tell."""
    event = {**ASKS["command" if kind == "prefix" else kind], **TOLD[kind]}
    if kind == "patch":
        moved = {"type": "update", "unified_diff": "-a\n+b", "move_path": "/w/c"}
        event["changes"] = {**event["changes"], "/w/b": moved, "/w/d": {"type": "add", "content": "d"}}
    return event


@pytest.mark.parametrize("kind", TOLD)
def test_no_text_of_a_request_begins_a_line_that_looks_like_one_of_dendros(kind: str) -> None:
    event = told_event(kind)
    found = list(forged(event))
    assert found
    for each in found:
        request = request_of({**each, "type": event["type"]})
        lines = asked_of(request.event)
        assert not [line for line in lines if line.startswith("request")], each
        assert "\n" not in reminder(request), each
        for agent in (1, 2):
            of_agent = request.asked_by(agent, "s3", FORGED)
            assert "\n" not in reminder(of_agent), each
