"""Tools that a client brings along: a call waits for the client, and ends with its answer, or without."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from orchestrator.core.calls import ClientToolWork
from orchestrator.core.calls.ask import (
    MOST_ANSWER_BYTES,
    MOST_IMAGE_BYTES,
    MOST_IMAGES,
    NO_CLIENT,
    NOTHING_SAID,
)
from orchestrator.core.client_tools import (
    MOST_BYTES,
    MOST_BYTES_TOGETHER,
    MOST_TOOLS,
    BadTool,
    ClientTools,
    client_tool,
    client_tools,
)
from orchestrator.core.outstanding import AssessCall, OweRequest
from orchestrator.core.settings import SessionFacts
from orchestrator.core.snapshot import decode, encode
from tests.core.driver import Seen, Session, op, text

OBJECT = {"type": "object", "properties": {"id": {"type": "string"}}}
LIMIT_MS = 60_000


PNG = "data:image/png;base64,iVBORw0KGgoA"
NO_PNG = "data:image/png;base64,c2ltdWxhdGVk"
IMAGE = {"type": "inputImage", "imageUrl": PNG}
ELSEWHERE = {"type": "inputImage", "imageUrl": f"https://example.org/{'é' * (2 << 20)}"}
LARGE = {"type": "inputImage", "imageUrl": f"{PNG}{'A' * (4 << 20)}"}


def brought(*names: str) -> ClientTools:
    tools = [client_tool("shop", name, "Looks it up.", OBJECT) for name in names or ("lookup",)]
    found = client_tools("mine", LIMIT_MS, tools)
    assert found is not None
    return found


def work() -> ClientToolWork:
    return ClientToolWork("lookup", "mine", LIMIT_MS, "shop", '{"id":"x"}')


def asking(*call_ids: str, **fields: Any) -> Session:
    """A session whose calls wait for the client that brought their tool."""
    session = Session(facts={"client_tools": brought().wire(), **fields})
    session.submit(op("user_input", items=[text("go")]), "u1")
    session.asks_for(*(call_ids or ("c1",)), name="shop__lookup")
    for call_id in call_ids or ("c1",):
        session.assessed(call_id, work())
    return session


def answers(session: Session, target: str = "c1", **response: Any) -> Seen:
    return session.submit(op("dynamic_tool_response", id=target, response={"success": True, **response}))


def test_client_is_asked_with_the_arguments_and_nothing_is_owed_meanwhile() -> None:
    session = asking()
    request = session.seen[-1].one("dynamic_tool_call_request")
    assert request == {
        "type": "dynamic_tool_call_request",
        "callId": "c1",
        "turnId": "u1",
        "tool": "lookup",
        "arguments": {"id": "x"},
        "namespace": "shop",
        "client": "mine",
    }
    assert session.owes() == ()
    assert orjson.loads(session.approvals["c1"].payload)["kind"] == "client_tool"
    assert decode(encode(session.state)) == session.state == session.replayed()


@pytest.mark.parametrize(
    ("response", "success", "told"),
    [
        (
            {"contentItems": [{"type": "inputText", "text": "a"}, {"type": "inputText", "text": "b"}]},
            True,
            "a\nb",
        ),
        ({"output": "an older client's words"}, True, "an older client's words"),
        ({"success": False, "contentItems": [{"type": "inputText", "text": "no"}]}, False, "no"),
        ({"success": False}, False, NOTHING_SAID),
        ({}, True, ""),
    ],
)
def test_answer_of_the_client_is_the_output_and_an_event_tells_whether_it_did_it(
    response: dict[str, Any], success: bool, told: str
) -> None:
    session = asking()
    seen = answers(session, **response)
    assert session.output_of("c1") == told
    end = seen.one("dynamic_tool_call_response")
    assert (end["call_id"], end["success"], end["output"]) == ("c1", success, told)
    assert session.owes() == (OweRequest(),)
    assert (session.approvals, session.timers) == ({}, {})
    assert session.state == session.replayed()


@pytest.mark.parametrize("success", [True, False])
def test_images_of_an_answer_stand_in_the_output_and_in_its_event_in_their_order(success: bool) -> None:
    session = asking()
    parts = [IMAGE, {"type": "inputText", "text": "a"}, {"type": "inputText", "text": "b"}]
    end = answers(session, success=success, contentItems=parts).one("dynamic_tool_call_response")
    shown = [{"type": "input_image", "image_url": PNG}, *({"type": "input_text", "text": t} for t in "ab")]
    assert session.output_of("c1") == shown
    assert (end["success"], end["output"], end["content_items"]) == (success, "a\nb", shown)
    assert decode(encode(session.state)) == session.state == session.replayed()


@pytest.mark.parametrize(
    ("response", "told"),
    [
        ({"output": "x" * (MOST_ANSWER_BYTES + 1)}, "131,073 bytes; at most 131,072"),
        (
            {"contentItems": [{"type": "inputImage", "imageUrl": "data:"}]},
            "contentItems[0].imageUrl: an image",
        ),
        (
            {"contentItems": [IMAGE, {"type": "inputImage", "imageUrl": NO_PNG}]},
            "contentItems[1].imageUrl: it",
        ),
        ({"contentItems": [IMAGE] * (MOST_IMAGES + 1)}, "at most 16 images are taken, these are 17"),
        ({"contentItems": [LARGE] * 2}, f"at most {MOST_IMAGE_BYTES:,} are taken"),
        ({"contentItems": [ELSEWHERE] * 2}, f"at most {MOST_IMAGE_BYTES:,} are taken"),
    ],
)
def test_answer_that_cannot_be_read_is_an_error_and_the_call_stays_open(
    response: dict[str, Any], told: str
) -> None:
    session = asking()
    seen = answers(session, **response)
    assert told in seen.one("error")["message"]
    assert session.status == "awaiting_answer"


def test_client_that_does_not_answer_in_time_has_failed_and_the_turn_goes_on() -> None:
    session = asking(approval_timeout_ms=None)
    (timer,) = session.timers.values()
    assert timer.at_ms - session.now_ms == LIMIT_MS
    session.fires(timer.id)
    assert session.output_of("c1") == NO_CLIENT
    assert session.state.answers[-1].decision == "failed"
    assert session.owes() == (OweRequest(),)


def test_calls_of_one_response_are_put_to_the_client_together_and_each_answer_counts_once() -> None:
    session = Session(facts={"client_tools": brought().wire()})
    session.submit(op("user_input", items=[text("go")]), "u1")
    session.asks_for("c1", "c2", name="shop__lookup")
    assert session.owes() == (AssessCall("c1"), AssessCall("c2"))
    for call_id in ("c1", "c2"):
        session.assessed(call_id, work())
    answers(session, "c2", output="second")
    answers(session, "c1", output="first")
    late = answers(session, "c1", output="again")
    assert "c1" in late.one("error")["message"]
    assert [session.output_of(call) for call in ("c1", "c2")] == ["first", "second"]


def test_answer_by_another_op_settles_nothing() -> None:
    session = asking()
    seen = session.submit(op("exec_approval", id="c1", decision="approved"))
    wanted = "c1 is a call of a tool that a client brings: answer it with dynamic_tool_response"
    assert seen.one("error")["message"] == wanted
    assert session.status == "awaiting_answer"


def test_interrupt_ends_the_call_with_its_turn_and_the_clients_answer_comes_too_late() -> None:
    session = asking()
    session.submit(op("interrupt"))
    assert (session.approvals, session.timers) == ({}, {})
    assert answers(session, output="late").one("error")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((None, "", "d", OBJECT), "is no name"),
        ((None, "a b", "d", OBJECT), "is no name"),
        (("n" * 65, "a", "d", OBJECT), "is no name"),
        (("n" * 60, "abcdef", "d", OBJECT), "too long with its namespace"),
        ((None, "shell", "d", OBJECT), "the name of a built-in tool"),
        (("mcp", "x", "d", OBJECT), "begins as tools of MCP servers do"),
        ((None, "a", "d", []), "describes no object"),
        ((None, "a", "d", {"type": "string"}), "describes no object"),
        ((None, "a", "d" * MOST_BYTES, OBJECT), "at most 16,384"),
    ],
)
def test_tool_that_cannot_be_offered_is_refused_with_its_reason(given: Any, told: str) -> None:
    with pytest.raises(BadTool, match=told):
        client_tool(*given)


def test_schema_that_is_nested_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(40):
        schema = {"properties": schema}
    with pytest.raises(BadTool, match="nested deeper than 32 levels"):
        client_tool(None, "a", "d", schema)


def test_too_many_tools_and_two_of_one_name_are_refused() -> None:
    tool = client_tool(None, "a", "d", OBJECT)
    with pytest.raises(BadTool, match="65 tools are brought, at most 64"):
        client_tools("mine", 1, [tool] * (MOST_TOOLS + 1))
    with pytest.raises(BadTool, match="a is the name of two tools"):
        client_tools("mine", 1, [tool, tool])
    large = [client_tool(None, f"a{n}", "d" * 16_000, OBJECT) for n in range(5)]
    with pytest.raises(BadTool, match=f"at most {MOST_BYTES_TOGETHER:,}"):
        client_tools("mine", 1, large)
    assert client_tools("mine", 1, []) is None


def test_facts_of_tools_that_are_offered_at_once_are_read_by_earlier_versions() -> None:
    now, later = client_tool(None, "now", "d", OBJECT), client_tool(None, "later", "d", OBJECT, deferred=True)
    assert "deferred" not in now.wire()
    found = client_tools("mine", 1, [now, later])
    assert found is not None
    assert ClientTools.of(orjson.loads(orjson.dumps(found.wire()))) == found


def test_facts_keep_the_tools_of_the_client_and_those_of_other_sessions_do_not_speak_of_any() -> None:
    facts = SessionFacts(client_tools=brought("one", "two"))
    assert SessionFacts.of(orjson.loads(orjson.dumps(facts.wire()))) == facts
    assert "client_tools" not in SessionFacts().wire()
