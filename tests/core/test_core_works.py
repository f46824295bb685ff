"""Works of calls: their JSON is that of every earlier log, and a kind that is not known passes whole."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import (
    CallWork,
    Custom,
    ExecWork,
    Mcp,
    Phase,
    Runnable,
    UnknownWork,
    spec_of,
    timer_of,
    work_of,
)
from orchestrator.core.commit_parts import Approval
from orchestrator.core.decide import IllegalCommand
from orchestrator.core.decide.takeover import IN_DOUBT
from orchestrator.core.settings import TurnSettings
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import StoredText
from tests.core.call_works import works_of_calls
from tests.core.driver import Session, a_command

WORDS = st.text(max_size=8)
OBJECTS = st.dictionaries(WORDS, st.none() | st.integers(-9, 9) | WORDS, max_size=3)
REFERENCE = {"$blob": "ab" * 32, "bytes": 70_000}
SETTINGS = TurnSettings("/w", "on-request", {"mode": "workspace-write"}, "gpt-5")

EXEC = (
    b'{"kind":"exec","keys":["k"],"command":["touch","x"],"cwd":"/w","parsed_cmd":[{"type":"unknown",'
    b'"cmd":"touch x"}],"timeout_ms":null,"env":{"A":"b"},"sandboxed":true,"timer":3}'
)
PATCH = (
    b'{"kind":"patch","keys":["patch:/w/a"],"patch":"*** Begin","cwd":"/w","changes":{"/w/a":{"type":"add",'
    b'"content":"one"}},"summary":"A a","record":[["/w/a",null,"abc"]],"baselines":{"set":{},"drop":[]},'
    b'"grant_root":null,"left_out":2,"sandboxed":false}'
)
AWAIT = b'{"kind":"await","agent_ids":[1,2],"timer":7,"until_ms":1800}'
HELPER = b'{"kind":"helper","agent_id":1,"invocation":{"label":"l","prompt":"p"},"begun_ms":9}'
NEWER = b'{"kind":"of a newer version","questions":[{"header":"Auth"}],"timer":4}'
LARGE = (
    b'{"kind":"exec","keys":[STORED],"command":["echo",STORED],"cwd":"/w","parsed_cmd":[],"timeout_ms":5,'
    b'"env":{},"sandboxed":true}'
).replace(b"STORED", orjson.dumps(REFERENCE))


@pytest.mark.parametrize("line", [EXEC, PATCH, AWAIT, HELPER, NEWER, LARGE])
def test_work_is_written_as_the_log_of_an_earlier_version_has_it(line: bytes) -> None:
    work = work_of(orjson.loads(line))
    assert work is not None
    assert orjson.dumps(spec_of(work)) == line


@given(works_of_calls(WORDS, st.integers(0, 1 << 53), OBJECTS))
def test_work_that_was_written_is_read_as_it_was(work: CallWork) -> None:
    assert work_of(orjson.loads(orjson.dumps(spec_of(work)))) == work


def test_known_kind_that_lacks_a_field_is_no_work() -> None:
    with pytest.raises(KeyError):
        work_of({"kind": "exec", "command": ["make"]})


def test_work_of_a_newer_version_passes_whole_and_names_its_timer() -> None:
    work = work_of(orjson.loads(NEWER))
    assert isinstance(work, UnknownWork)
    assert timer_of(work) == 4


def test_text_that_stands_beside_the_log_is_named_where_people_read() -> None:
    work = work_of(orjson.loads(LARGE))
    assert isinstance(work, ExecWork)
    assert work.command[1] == StoredText.model_validate(REFERENCE)
    assert work.activity == "runs echo [a long text]"
    assert work.remembered(SETTINGS).keys == ()


def session(assessed: Runnable, **settings: Any) -> Session:
    """A session whose call `c1` was assessed so."""
    begun = Session(settings=settings)
    begun.say("go", "u1")
    begun.asks_for("c1", name="toy")
    begun.assessed("c1", assessed)
    return begun


def test_command_too_long_for_its_entry_runs_once_it_is_approved_and_is_asked_about_again() -> None:
    words = ("echo", "x" * 70_000)
    waiting = session(a_command(*words, dangerous=True, key=" ".join(words)))
    begun = waiting.decides("c1", "approved_for_session").one("exec_command_begin")
    assert begun["command"][1]["bytes"] == 70_000
    assert waiting.state.approved == frozenset()
    assert waiting.replayed() == waiting.state


# ── custom tools ──────────────────────────────────────────────────────────────────────────────


def toy(**fields: Any) -> Custom:
    return Custom("toy", {"text": "hello"}, "says hello", "/w", **fields)


def test_custom_call_without_a_question_runs_at_once() -> None:
    running = session(toy(), approval_policy="untrusted")
    assert running.call("c1").phase is Phase.RUNNING
    begun = running.seen[-1].one("mcp_tool_call_begin")
    assert begun["invocation"] == {"server": "custom", "tool": "toy", "arguments": {"text": "hello"}}


def test_custom_call_is_asked_about_with_its_name_and_its_line() -> None:
    waiting = session(toy(ask="it speaks"))
    asked = waiting.seen[-1].one("exec_approval_request")
    assert (asked["command"], asked["reach"]["why"]) == (["toy", "says hello"], "it speaks")
    waiting.decides("c1", "denied")
    assert waiting.output_of("c1") == "tool call rejected by user"


def test_custom_call_approved_for_the_session_is_not_asked_about_again() -> None:
    waiting = session(toy(ask="it speaks"))
    waiting.decides("c1", "approved_for_session")
    waiting.finishes("c1")
    waiting.asks_for("c2", "c3", name="toy")
    waiting.assessed("c2", toy(ask="it speaks"))
    assert waiting.call("c2").phase is Phase.RUNNING
    waiting.finishes("c2")
    waiting.assessed("c3", Custom("toy", {"text": "other"}, "says other", "/w", ask="it speaks"))
    assert waiting.call("c3").phase is Phase.AWAITING_APPROVAL


def test_custom_call_that_needs_a_person_is_refused_where_nobody_is_asked() -> None:
    refused = session(toy(ask="it speaks"), approval_policy="never")
    assert refused.output_of("c1") == "it speaks: the approval policy is never, so nobody is asked: not run"


@pytest.mark.parametrize(
    ("judgement", "repeatable", "phase"),
    [
        ("in_doubt", False, Phase.DONE),
        ("in_doubt", True, Phase.PROPOSED),
        ("none", False, Phase.PROPOSED),
        ("all", False, Phase.DONE),
    ],
)
def test_custom_call_of_a_lost_worker_is_judged(judgement: str, repeatable: bool, phase: Phase) -> None:
    running = session(toy(repeatable=repeatable))
    seen = running.is_taken_over(c1=judgement)
    if phase is Phase.PROPOSED:
        assert running.call("c1").phase is phase
        return
    ended = seen.one("mcp_tool_call_end")["result"]
    done = {"content": [{"type": "text", "text": "says hello"}]}
    assert ended == (done if judgement == "all" else IN_DOUBT)
    assert running.output_of("c1") == ("says hello" if judgement == "all" else IN_DOUBT)


# ── tools of MCP servers ──────────────────────────────────────────────────────────────────────


def clock(arguments: dict[str, Any] | None = None, *, read_only: bool = False) -> Mcp:
    return Mcp("time", "now", arguments or {"zone": "UTC"}, "/w", read_only)


@pytest.mark.parametrize("policy", ["never", "on-request", "on-failure"])
def test_tool_of_a_server_runs_unasked_for_the_server_is_trusted(policy: str) -> None:
    running = session(clock(), approval_policy=policy)
    assert running.call("c1").phase is Phase.RUNNING
    begun = running.seen[-1].one("mcp_tool_call_begin")
    assert begun["invocation"] == {"server": "time", "tool": "now", "arguments": {"zone": "UTC"}}


def test_tool_of_a_server_is_asked_about_where_all_is_asked_about() -> None:
    waiting = session(clock(), approval_policy="untrusted")
    asked = waiting.seen[-1].one("exec_approval_request")
    assert asked["command"] == ["mcp", "time", "now", '{"zone":"UTC"}']
    waiting.decides("c1", "denied")
    assert waiting.output_of("c1") == "tool call rejected by user"


def test_tool_that_only_reads_by_the_word_of_a_believed_server_is_not_asked_about() -> None:
    assert session(clock(read_only=True), approval_policy="untrusted").call("c1").phase is Phase.RUNNING


@pytest.mark.parametrize(
    "other",
    [
        Mcp("time", "now", {"zone": "CET"}, "/w"),
        Mcp("time", "now", {"zone": "UTC", "more": 1}, "/w"),
        Mcp("time", "now", None, "/w"),
        Mcp("time", "set", {"zone": "UTC"}, "/w"),
        Mcp("clock", "now", {"zone": "UTC"}, "/w"),
    ],
)
def test_approval_for_the_session_is_for_one_tool_of_one_server_with_its_arguments(other: Mcp) -> None:
    given = {"zone": "UTC", "at": {"a": 1, "b": 2}}
    for first, again in ((clock(), clock()), (clock(given), clock({"at": {"b": 2, "a": 1}, "zone": "UTC"}))):
        waiting = session(first, approval_policy="untrusted")
        waiting.decides("c1", "approved_for_session")
        waiting.finishes("c1")
        waiting.asks_for("c2", "c3", name="mcp__time__now")
        waiting.assessed("c2", again)
        assert waiting.call("c2").phase is Phase.RUNNING
        waiting.finishes("c2")
        waiting.assessed("c3", other)
        assert waiting.call("c3").phase is Phase.AWAITING_APPROVAL


@pytest.mark.parametrize("read_only", [False, True])
def test_tool_of_a_server_whose_worker_was_lost_is_in_doubt_whatever_the_server_says(
    read_only: bool,
) -> None:
    running = session(clock(read_only=read_only))
    seen = running.is_taken_over(c1="in_doubt")
    assert seen.one("mcp_tool_call_end")["result"] == IN_DOUBT
    assert running.output_of("c1") == IN_DOUBT
    assert running.replayed() == running.state


def test_call_of_a_newer_version_that_ran_is_in_doubt_and_one_that_waits_can_be_denied() -> None:
    spec = work_of(orjson.loads(NEWER))
    running = Session()
    running.say("go", "u1")
    running.asks_for("c1", "c2")
    running.record(e.fact(f.CallMoved(CallId("c1"), Phase.RUNNING, epoch=1, work=spec)))
    running.record(e.fact(f.CallMoved(CallId("c2"), Phase.AWAITING_APPROVAL, work=spec)))
    # The worker of that version has asked people.
    running.approvals["c2"] = Approval("c2", b"{}")
    running.is_taken_over()
    assert running.output_of("c1") == IN_DOUBT
    with pytest.raises(IllegalCommand, match="does not know"):
        running.decides("c2", "approved")
    running.decides("c2", "denied")
    assert running.output_of("c2") == "call rejected by user"
