"""Every recorded conversation gives the same items live and from its log, and deltas that add up."""

from __future__ import annotations

import pytest

from orchestrator.views.event import Event
from orchestrator.views.thread_log import turns_of
from orchestrator.views.turns import turn_records as r
from tests.views.turns.told import SESSION, changes, completed, logged, recordings

RECORDED = dict(recordings())


@pytest.mark.parametrize("name", RECORDED)
def test_items_of_the_live_stream_are_the_items_of_the_log(name: str) -> None:
    live, log = changes(RECORDED[name]), changes(logged(RECORDED[name]))
    assert completed(live) == completed(log)
    kept = [item for turn in turns_of(SESSION, logged(RECORDED[name])) for item in turn.items]
    assert {item.id for _, item in completed(log)} <= {item.id for item in kept}


@pytest.mark.parametrize("name", RECORDED)
def test_deltas_name_an_item_that_has_begun_and_add_up_to_its_text(name: str) -> None:
    assert_adds_up(changes(RECORDED[name]))


def assert_adds_up(found: list[r.Change]) -> None:
    open_items: dict[tuple[r.TurnId, r.ItemId], list[r.ItemDelta]] = {}
    for change in found:
        match change:
            case r.ItemStarted(turn, item):
                open_items[turn, item.id] = []
            case r.ItemDelta(turn, id):
                open_items[turn, id].append(change)
            case r.ItemCompleted(turn, item):
                _check(open_items.pop((turn, item.id)), item)
            case _:
                pass


def _check(deltas: list[r.ItemDelta], item: r.ThreadItem) -> None:
    def said(kind: r.DeltaKind, index: int = 0) -> str:
        return "".join(delta.text for delta in deltas if (delta.kind, delta.index) == (kind, index))

    match item:
        case r.AgentMessage():
            assert said(r.DeltaKind.MESSAGE) == item.text
            assert deltas or not item.text
        case r.Plan():
            # A plan's text ends with its last line; what streams has the line's end, too.
            assert said(r.DeltaKind.PLAN).rstrip("\n") == item.text.rstrip("\n")
        case r.Reasoning():
            parts = tuple(said(r.DeltaKind.REASONING_SUMMARY, at) for at, _ in enumerate(item.summary))
            assert parts == item.summary
            assert said(r.DeltaKind.REASONING_TEXT) == "".join(item.content)
        case _:
            pass


def test_every_turn_of_the_recordings_that_ended_has_an_end() -> None:
    ends = {name: [type(change) for change in changes(events)] for name, events in RECORDED.items()}
    for name, kinds in ends.items():
        begun = sum(event.type == "task_started" for event in RECORDED[name])
        over = sum(event.type in {"task_complete", "turn_aborted"} for event in RECORDED[name])
        assert (kinds.count(r.TurnStarted), kinds.count(r.TurnCompleted) >= min(over, begun)) == (begun, True)


def test_what_no_projector_knows_changes_nothing() -> None:
    assert changes([Event("t", {"type": "of_a_newer_version"}), Event("t", {})]) == []
