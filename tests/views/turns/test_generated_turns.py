"""Turns of any shape give the same items live and from the log, and deltas that add up."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.views.event import Event
from orchestrator.views.thread_log import turns_of
from orchestrator.views.turns import turn_records as r
from tests.views.turns.test_recorded_turns import assert_adds_up
from tests.views.turns.told import PASSING, SESSION, begun, changes, completed, done, numbered, told

texts = st.text("ab é\n", min_size=1, max_size=6)
pieces = st.lists(texts, min_size=0, max_size=3)


@st.composite
def message(draw: st.DrawFn) -> list[Event]:
    parts, rest = draw(pieces), draw(st.sampled_from(["", "!"]))
    deltas = [told("agent_message_delta", delta=part) for part in parts]
    return [*deltas, told("agent_message", message="".join(parts) + rest), told("raw_response_item", item={})]


@st.composite
def reasoning(draw: st.DrawFn) -> list[Event]:
    parts = draw(st.lists(texts, min_size=1, max_size=3))
    live: list[Event] = []
    streamed = draw(st.booleans())
    for part in parts if streamed else ():
        live += [told("agent_reasoning_section_break"), told("agent_reasoning_delta", delta=part)]
    whole = [told("agent_reasoning", text=part) for part in parts]
    return [*live, *whole, told("raw_response_item", item={})]


@st.composite
def command(draw: st.DrawFn) -> list[Event]:
    id = f"c{draw(st.integers(0, 10**9))}"
    about = {"call_id": id, "command": ["x"], "cwd": "/"}
    end = told("exec_command_end", call_id=id, exit_code=draw(st.integers(0, 2)), aggregated_output="")
    is_asked, is_refused, is_over = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    asked = [told("exec_approval_request", **about)] if is_asked else []
    if is_asked and is_refused:
        return asked
    return [*asked, told("exec_command_begin", **about), *([end] if is_over else [])]


@st.composite
def broken(draw: st.DrawFn) -> list[Event]:
    return [told("agent_message_delta", delta=draw(texts)), told("stream_error", message="cut")]


@st.composite
def turn(draw: st.DrawFn) -> list[Event]:
    said = draw(st.lists(st.one_of(message(), reasoning(), command(), broken()), max_size=6))
    is_told = draw(st.booleans())
    usage = [told("token_count", info=None)] if is_told else []
    end = draw(st.sampled_from([done(), told("turn_aborted", reason="interrupted")]))
    return [begun(), *(event for part in said for event in part), *usage, end]


def session(turns: list[list[Event]]) -> list[Event]:
    """The turns under names of their own."""
    names = (f"t{n}" for n in count())
    return [Event(id, event.msg) for id, events in zip(names, turns, strict=False) for event in events]


def placed(events: list[Event]) -> list[Event]:
    """The events as a reader gets them: those that a log lacks bear the number of the entry before."""
    found, seq = [], 0
    for event in numbered(events):
        seq += event.type not in PASSING
        found.append(Event(event.id, event.msg, at_ms=event.at_ms, seq=seq))
    return [event for event in found if event.type != "raw_response_item"]


@given(st.lists(turn(), max_size=3).map(session).map(placed))
def test_items_of_the_live_stream_are_the_items_of_the_log(events: list[Event]) -> None:
    log = [event for event in events if event.type not in PASSING]
    live = changes(events)
    assert completed(live) == completed(changes(log))
    assert_adds_up(live)
    ids = [(turn.id, item.id) for turn in turns_of(SESSION, log) for item in turn.items]
    assert len(ids) == len(set(ids))


@given(st.lists(turn(), min_size=1, max_size=3).map(session).map(placed), st.data())
def test_projector_that_read_a_log_goes_on_live_with_the_same_items(
    events: list[Event], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(events)))
    log = [event for event in events[:at] if event.type not in PASSING]
    seen = changes([*log, *events[at:]])
    assert completed(seen) == completed(changes(events))
    ends = [change.turn for change in seen if isinstance(change, r.TurnCompleted)]
    assert len(ends) == len({event.id for event in events})
