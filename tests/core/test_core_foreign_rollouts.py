"""Rollouts that the recorded Codex wrote: a fold shows the model what Codex showed it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.entries import EVENT_MSG, TURN_CONTEXT, Entry
from orchestrator.core.evolve import fold
from orchestrator.core.history import for_model, message_text
from orchestrator.core.lines import ContextLine, MetaLine, encode_line
from orchestrator.core.snapshot import decode, digest, encode
from orchestrator.core.state import State

RECORDED = Path(__file__).parent.parent / "transcripts"
NAMES = sorted(folder.parent.name for folder in RECORDED.glob("*/rollout.jsonl"))


def rollout(name: str) -> list[Entry]:
    lines = (RECORDED / name / "rollout.jsonl").read_text().splitlines()
    return [Entry(line["type"], line["payload"]) for line in map(json.loads, lines)]


def last_request(name: str) -> dict[str, Any]:
    lines = (RECORDED / name / "model_requests.ndjson").read_text().splitlines()
    request: dict[str, Any] = json.loads(lines[-1])
    return request


def before_the_last_request(name: str) -> State:
    """The state at the last `turn_context`, which Codex writes as a request goes out."""
    entries = rollout(name)
    place = max(at for at, entry in enumerate(entries) if entry.type == TURN_CONTEXT)
    return fold(State(), entries[: place + 1], 1)


def normalised(item: Any) -> Any:
    """The recording names a compaction's text instead of holding it."""
    text = message_text(item) if item.get("type") == "message" else ""
    if text.startswith("This conversation was compacted.") or text == "@LONG_TEXT@":
        return "the summary of the conversation", item["role"]
    return item


@pytest.mark.parametrize("name", NAMES)
def test_history_of_a_foreign_rollout_is_what_its_model_was_shown(name: str) -> None:
    shown = for_model(before_the_last_request(name).history)
    assert [normalised(item) for item in shown] == [normalised(item) for item in last_request(name)["input"]]


@pytest.mark.parametrize("name", NAMES)
def test_settings_of_a_foreign_rollout_are_those_of_its_last_request(name: str) -> None:
    state = before_the_last_request(name)
    contexts = [entry.payload for entry in rollout(name) if entry.type == TURN_CONTEXT]
    assert encode_line(ContextLine.of(state.settings)) == contexts[-1]
    reasoning = last_request(name)["reasoning"]
    assert (state.settings.effort, state.settings.summary) == (reasoning.get("effort"), reasoning["summary"])
    assert not state.native


@pytest.mark.parametrize("name", NAMES)
def test_tokens_of_a_foreign_rollout_are_its_last_count(name: str) -> None:
    entries = rollout(name)
    infos = [entry.payload["info"] for entry in entries if entry.payload.get("type") == "token_count"]
    tokens = fold(State(), entries, 1).tokens
    if infos[-1] is None:
        assert tokens is None
    else:
        assert tokens is not None
        assert tokens.written(infos[-1]["model_context_window"]) == infos[-1]


@pytest.mark.parametrize("name", NAMES)
def test_foreign_state_is_idle_and_survives_a_snapshot(name: str) -> None:
    state = fold(State(), rollout(name), 1)
    assert state.status == "idle"
    assert state.meta.originator == "codex_cli_rs"
    assert digest(decode(encode(state))) == digest(state)


def test_compaction_of_a_foreign_rollout_keeps_what_the_user_said() -> None:
    state = fold(State(), rollout("compact"), 1)
    bridge = message_text(for_model(state.history)[1])
    assert "one" in bridge
    assert bridge.endswith("SUMMARY OF THE TALK")
    assert state.kept_user_texts == ("one",)


def test_second_session_meta_of_a_copied_history_does_not_rename_the_session() -> None:
    entries = [Entry("session_meta", {"id": "child"}), Entry("session_meta", {"id": "parent"})]
    assert fold(State(), entries, 1).meta == MetaLine("child")


def test_lines_of_a_newer_peer_leave_the_state_as_it_was() -> None:
    before = fold(State(), rollout("plain"), 1)
    newer = [
        Entry("ghost_commit", {"id": "x"}),
        Entry("event_msg", {"type": "hologram"}),
        Entry("dendro", {"kind": "of tomorrow"}),
    ]
    assert fold(before, newer, 100) == before


def test_limits_of_a_foreign_rollout_are_those_that_it_told_last() -> None:
    counts = ({"primary": {"used_percent": 1.0}}, {"primary": {"used_percent": 2.0}}, None)
    told = [{"type": "token_count", "info": None, "rate_limits": limits} for limits in counts]
    state = fold(State(), [Entry(EVENT_MSG, payload) for payload in told], 1)
    assert state.rate_limits == {"primary": {"used_percent": 2.0}}
