"""Settings of a thread, from the end of its log."""

from __future__ import annotations

from typing import Any, cast

from orchestrator.core.lines import ContextLine, encode_line
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.views.threads import settings_of
from tests.views.test_thread_log import Line, Logs, fact, turn
from tests.views.test_threads import ROOT

FIRST = TurnSettings("/work", "on-request", {"mode": "read-only"}, "gpt-5", "own")
BEGUN = fact("configured", settings=FIRST.wire(), session=SessionFacts().wire())


def task(kind: str = "user", **changes: Any) -> Line:
    return fact("task", id="t", task=kind, settings={**FIRST.wire(), **changes})


async def read(logs: Logs, *lines: Line) -> TurnSettings:
    found = logs.add(ROOT, lines, meta={"model_provider": "own"})
    return await settings_of(cast(Any, logs), found)


async def test_settings_of_a_new_session_are_those_of_its_birth_and_their_changes() -> None:
    assert await read(Logs(), BEGUN) == FIRST
    changes = [
        fact("settings", changes={"model": "a", "cwd": "/b"}),
        fact("settings", changes={"model": "c"}),
    ]
    found = await read(Logs(), BEGUN, *changes)
    assert (found.model, found.cwd, found.model_provider) == ("c", "/b", "own")


async def test_settings_are_those_of_the_last_turn_of_a_person_whatever_a_review_used() -> None:
    found = await read(Logs(), BEGUN, task(model="m1"), *turn("t1", "x")[1:], task("review", model="m2"))
    assert found.model == "m1"


async def test_reader_of_a_turn_of_many_entries_stops_at_a_request() -> None:
    logs = Logs()
    context = {"type": "turn_context", "payload": encode_line(ContextLine.of(FIRST.changed({"model": "m3"})))}
    many = [line for _ in range(1_000) for line in turn("t1", "x")[1:]]
    found = await read(logs, BEGUN, task(model="m1"), *many)
    assert (found.model, found.model_provider) == ("m1", "own")
    logs.read = 0
    found = await read(logs, BEGUN, *many, context, *many, *many)
    assert (found.model, found.model_provider) == ("m3", "own")
    assert logs.read < 13_000


async def test_provider_that_was_chosen_behind_a_request_is_not_taken_back_to_that_of_the_birth() -> None:
    context = {"type": "turn_context", "payload": encode_line(ContextLine.of(FIRST.changed({"model": "m3"})))}
    many = [line for _ in range(2_000) for line in turn("t1", "x")[1:]]
    found = await read(Logs(), BEGUN, context, *many, fact("settings", changes={"model_provider": "other"}))
    assert (found.model, found.model_provider) == ("m3", "other")
