"""The search for tools whose loading is deferred: its hits, its bounds, and the offers that follow it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import orjson
import pytest

from orchestrator.core.calls import Call
from orchestrator.core.client_tools import MOST_TOOLS, SEARCH, ClientTool, client_tool, client_tools
from orchestrator.core.commands import Assessment, Immediate
from orchestrator.core.state import State
from orchestrator.protocol.ids import CallId
from orchestrator.tools import client_tool_calls as offering
from orchestrator.tools.client_tool_calls import MOST_FOUND, MOST_WORDS, offered, search
from orchestrator.tools.toolbox import Toolbox
from tests.core.driver import Session, function_call, op, text

CREATE = ("cal", "createEvent", "Puts a meeting into the calendar.", "title")
LIST = ("cal", "list_events", "Shows the meetings of a day.", "day")
MAIL = ("post", "send", "Sends a letter.", "recipient")


def deferred(space: str | None, name: str, description: str, *arguments: str) -> ClientTool:
    schema = {"type": "object", "properties": {argument: {"type": "string"} for argument in arguments}}
    return client_tool(space, name, description, schema, deferred=True)


TOOLS = [deferred(*each) for each in (CREATE, LIST, MAIL)]


def working(tools: list[ClientTool] | None = None) -> Session:
    found = client_tools("mine", 1_000, TOOLS if tools is None else tools)
    assert found is not None
    session = Session(facts={"client_tools": found.wire()})
    session.submit(op("user_input", items=[text("go")]), "u1")
    return session


def names(state: State) -> list[str]:
    return [offer["name"] for offer in offered(state, ())]


def searches(session: Session, call_id: str, arguments: dict[str, Any]) -> None:
    """The model searches, and reads what was found."""
    session.begin()
    session.item(function_call(call_id, SEARCH, _json(arguments)))
    session.ends()
    session.assessed(call_id, Immediate("…"))


@dataclass
class Site:
    state: State


async def assess(arguments: Any, session: Session | None = None) -> Assessment:
    item = function_call("c1", SEARCH, arguments if isinstance(arguments, str) else _json(arguments))
    state = (session or working()).state
    return await Toolbox(()).assess(Call(CallId("c1"), SEARCH, item), cast(Any, Site(state)))


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("calendar", ["cal__createEvent"]),
        ("create an event", ["cal__createEvent", "cal__list_events"]),
        ("EVENTS", ["cal__list_events", "cal__createEvent"]),
        ("recipient", ["post__send"]),
        ("letters", ["post__send"]),
        ("xyzzy", []),
        ("", []),
    ],
)
def test_search_goes_by_names_descriptions_and_arguments(query: str, found: list[str]) -> None:
    assert [tool.name for tool in search(tuple(TOOLS), query, MOST_FOUND)] == found


def test_search_finds_no_more_than_it_was_asked_for() -> None:
    assert len(search(tuple(TOOLS), "event send", 1)) == 1


def test_words_beyond_the_bound_of_a_query_do_not_count() -> None:
    filler = [f"w{n}" for n in range(MOST_WORDS)]
    assert search(tuple(TOOLS), " ".join([*filler, "letter"]), MOST_FOUND) == ()
    assert len(search(tuple(TOOLS), " ".join([*filler[1:], "letter"]), MOST_FOUND)) == 1


def test_newest_searches_alone_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offering, "MOST_SEARCHES", 1)
    session = working()
    for call_id, query in (("s1", "letter"), ("s2", "calendar")):
        searches(session, call_id, {"query": query})
    assert names(session.state) == [SEARCH, "cal__createEvent"]


async def test_model_reads_the_names_it_may_call() -> None:
    told = await assess({"query": "letter"})
    assert isinstance(told, Immediate)
    assert orjson.loads(str(told.output)) == {
        "tools": [{"name": "post__send", "description": "Sends a letter."}]
    }


async def test_search_that_finds_nothing_says_how_many_there_are() -> None:
    told = await assess({"query": "xyzzy"})
    assert isinstance(told, Immediate)
    assert told.output == "no tool has these words; 3 can be searched: use others"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "query: Field required"),
        ({"query": 3}, "query"),
        ({"query": "x" * 1_025}, "query: at most 1,024 bytes"),
        ({"query": "x", "limit": 0}, "limit"),
        ({"query": "x", "limit": MOST_TOOLS + 1}, "limit"),
        ("{", "failed to parse"),
    ],
)
async def test_search_that_makes_no_sense_is_answered_with_the_argument(arguments: Any, why: str) -> None:
    told = await assess(arguments)
    assert isinstance(told, Immediate)
    assert why in str(told.output)


async def test_session_without_deferred_tools_has_no_search() -> None:
    at_once = working([client_tool(None, "lookup", "Looks.", {})])
    assert names(at_once.state) == ["lookup"]
    told = await assess({"query": "looks"}, at_once)
    assert isinstance(told, Immediate)
    assert "unsupported" in str(told.output)


def test_tools_that_were_found_are_offered_in_the_order_of_their_discovery() -> None:
    session = working()
    assert names(session.state) == [SEARCH]
    searches(session, "s1", {"query": "letter"})
    assert names(session.state) == [SEARCH, "post__send"]
    searches(session, "s2", {"query": "event letter"})
    assert names(session.state)[:2] == [SEARCH, "post__send"]
    assert sorted(names(session.state)[2:]) == ["cal__createEvent", "cal__list_events"]


def test_search_that_was_refused_offers_nothing() -> None:
    session = working()
    searches(session, "s1", {"query": "letter", "limit": 1_000})
    assert names(session.state) == [SEARCH]
