"""`session_meta`, `turn_context`, `compacted`: their records and their JSON, and what a fold takes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.entries import Entry, line
from orchestrator.core.evolve import evolve, fold
from orchestrator.core.ids import SessionId
from orchestrator.core.lines import (
    CompactedLine,
    ContextLine,
    Line,
    MetaLine,
    encode_line,
    read_compacted,
    read_context,
    read_meta,
)
from orchestrator.core.settings import TurnSettings
from orchestrator.core.snapshot import decode, digest, encode
from orchestrator.core.state import NO_EXTRAS, PendingLookUp, PinnedPlan, SessionExtras, State
from orchestrator.protocol.ids import SubmissionId

words = st.text(max_size=8)
objects = st.dictionaries(words, st.none() | words | st.integers(0, 9), max_size=3)
metas = st.fixed_dictionaries(
    {},
    optional={
        "id": words,
        "cwd": words,
        "instructions": st.none() | words | st.just({"$blob": "0" * 64, "bytes": 70_000}),
        "git": st.none() | objects,
        "forked_from_id": words,
        "of tomorrow": st.none() | objects,
        "others": st.none() | words,
    },
)
settings = st.builds(
    TurnSettings,
    words,
    words,
    objects,
    words,
    effort=st.none() | words,
    personality=st.none() | words,
    collaboration_mode=st.none() | objects,
)


@given(metas)
def test_a_meta_line_is_written_as_it_was_read_with_fields_of_newer_versions(payload: dict[str, Any]) -> None:
    assert encode_line(read_meta(payload)) == payload


@given(settings)
def test_a_context_line_names_the_settings_that_it_was_made_of(said: TurnSettings) -> None:
    made = ContextLine.of(said)
    assert read_context(encode_line(made)) == made
    assert TurnSettings.of(made.changes()) == said


@given(st.builds(CompactedLine, words, st.none() | st.just([{}]), st.lists(words).map(tuple), st.booleans()))
def test_a_compacted_line_is_read_as_it_was_written(made: CompactedLine) -> None:
    assert read_compacted(encode_line(made)) == made


@pytest.mark.parametrize(
    ("made", "read"),
    [
        (MetaLine("s", others={"x": 1}), read_meta),
        (ContextLine.of(TurnSettings("/", "never", {"mode": "read-only"}, "m")), read_context),
        (CompactedLine("said"), read_compacted),
    ],
)
def test_an_entry_of_a_line_has_its_type_and_reads_as_the_line(
    made: Line, read: Callable[[Mapping[str, Any]], Line]
) -> None:
    entry = line(made)
    assert (entry.type, read(entry.payload)) == (made.type, made)


def test_a_context_line_that_is_silent_about_the_personality_leaves_it_and_takes_the_effort_back() -> None:
    named = {"cwd": "/there", "personality": "friendly", "effort": "high", "of tomorrow": 1}
    state = fold(State(), [Entry("turn_context", named), Entry("turn_context", {"model": "m"})], 1)
    told = state.settings
    assert (told.cwd, told.model, told.personality, told.effort) == ("/there", "m", "friendly", None)


EXTRAS = SessionExtras(
    "a name",
    (PendingLookUp(SubmissionId("l1"), {"type": "get_history_entry_request", "offset": 1}, None, "me"),),
    ("/there",),
    PinnedPlan({"goal": "g"}, 3),
    ("r1", "r2"),
)


@pytest.mark.parametrize("extras", [EXTRAS, NO_EXTRAS, SessionExtras(thread_name="")])
def test_a_snapshot_gives_back_what_only_some_sessions_have(extras: SessionExtras) -> None:
    state = State(meta=MetaLine("s", git=None, others={"x": [1]}), extras=extras)
    again = decode(encode(state))
    assert (again.meta, again.extras) == (state.meta, state.extras)
    assert digest(again) == digest(state)


def test_a_session_meta_of_somebody_else_brings_no_look_ups_and_no_plan_along() -> None:
    hostile = {"id": "s", "lookups": 5, "pinned_plan": "p", "thread_name": ["n"], "told_folders": {"a": 1}}
    state = evolve(State(), Entry("session_meta", hostile), 1)
    assert (state.meta, state.extras, state.name) == (MetaLine(SessionId("s")), NO_EXTRAS, "")
    assert decode(encode(state)) == state
