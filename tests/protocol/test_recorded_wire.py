"""The recorded conversations: all of it is understood, and written again as it was.

Four differences are decided in `docs/protocol/sources.md`, and only these are allowed:
the tag of a file change, nulls that are always written, and flags of a sandbox policy
that a client may leave out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from orchestrator.protocol.codec import UnknownRolloutItem, encode_submission, parse_submission
from orchestrator.protocol.events import PatchApplyBegin, UnknownEvent
from orchestrator.protocol.items import UnknownItem
from tests.protocol.lines import encode_event, encode_rollout_line, parse_event, parse_rollout_line

TRANSCRIPTS = Path(__file__).parent.parent / "transcripts"
CONVERSATIONS = sorted(path.parent.name for path in TRANSCRIPTS.glob("*/sq_eq.ndjson"))

ALWAYS_NULL = {"stream_error": {"codex_error_info": None, "additional_details": None}}
POLICY_FLAGS = {"network_access": False, "exclude_tmpdir_env_var": False, "exclude_slash_tmp": False}


def frames(conversation: str, side: str) -> Iterator[dict[str, Any]]:
    for line in (TRANSCRIPTS / conversation / "sq_eq.ndjson").read_bytes().splitlines():
        frame = orjson.loads(line).get(side)
        if frame is not None:
            yield frame


def decided(value: Any) -> Any:
    """A recorded value with the decided differences applied."""
    if isinstance(value, list):
        return [decided(item) for item in value]
    if not isinstance(value, dict):
        return value
    value = {key: decided(item) for key, item in value.items()}
    if value.get("mode") == "workspace-write":
        return {**POLICY_FLAGS, **value}
    if isinstance(changes := value.get("changes"), dict):
        value["changes"] = {path: tagged_inside(change) for path, change in changes.items()}
    return {**ALWAYS_NULL.get(value.get("type", ""), {}), **value}


def tagged_inside(change: dict[str, Any]) -> dict[str, Any]:
    ((tag, body),) = change.items()
    return {"type": tag, **body}


def test_there_are_recordings() -> None:
    assert len(CONVERSATIONS) >= 15


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_every_recorded_submission_is_understood(conversation: str) -> None:
    for frame in frames(conversation, "sq"):
        submission = parse_submission(orjson.dumps(frame))
        assert orjson.loads(encode_submission(submission)) == decided(frame)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_every_recorded_event_is_understood(conversation: str) -> None:
    for frame in frames(conversation, "eq"):
        event = parse_event(frame)
        assert not isinstance(event.msg, UnknownEvent)
        assert event.msg.model_extra == {}
        assert orjson.loads(encode_event(event)) == decided(frame)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_every_recorded_rollout_line_is_understood(conversation: str) -> None:
    for recorded in (TRANSCRIPTS / conversation / "rollout.jsonl").read_bytes().splitlines():
        line = parse_rollout_line(recorded)
        assert not isinstance(line.item, UnknownEvent | UnknownItem | UnknownRolloutItem)
        assert orjson.loads(encode_rollout_line(line)) == decided(orjson.loads(recorded))


def test_the_recordings_hold_a_change_of_every_kind() -> None:
    kinds = {
        change.type
        for frame in frames("patch_each", "eq")
        if isinstance(msg := parse_event(frame).msg, PatchApplyBegin)
        for change in msg.changes.values()
    }
    assert kinds == {"add", "delete", "update"}
