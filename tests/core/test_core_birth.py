"""The first entries of a session: what a replay, a client and the model are told first."""

from __future__ import annotations

import orjson
import pytest

from orchestrator.core.birth import ALONE, MOST_NAMED, Birth, ForkedFrom, first_entries, taken_settings
from orchestrator.core.compaction import SUMMARY_PROMPT, compaction_input
from orchestrator.core.context import REPLACING, instructions_item
from orchestrator.core.entries import Entry, encode_entry, fact
from orchestrator.core.evolve import fold
from orchestrator.core.facts import FoldersTold, WorkspaceBegun
from orchestrator.core.frozen import replace
from orchestrator.core.history import Item, for_model, message_text, user_message
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import State
from orchestrator.protocol.codec import UnknownRolloutItem
from orchestrator.protocol.ids import SnapshotId
from orchestrator.protocol.wire import written
from tests.core.driver import FACTS, NOON_MS, SETTINGS, Session
from tests.core.tree_driver import a_family
from tests.protocol.lines import parse_rollout_line


def born(**fields: object) -> tuple[Entry, ...]:
    facts, settings = SessionFacts.of(FACTS), TurnSettings.of({**SETTINGS, "effort": "high"})
    return first_entries(Birth(facts, settings, "1.2.3", NOON_MS, **fields))  # type: ignore[arg-type]


def test_session_begins_with_its_meta_its_settings_and_its_first_event() -> None:
    meta, configured, event, *context = born(git={"branch": "main"})
    assert meta.payload["id"] == FACTS["session_id"]
    assert meta.payload["git"] == {"branch": "main"}
    assert configured.payload["kind"] == "configured"
    assert (event.id, event.payload["type"]) == ("", "session_configured")
    assert event.payload["reasoning_effort"] == "high"
    assert [entry.type for entry in context] == ["response_item"]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://git.example/a@b.git", "https://git.example/a@b.git"),
        ("https://ann:hu@sh@git.example/a.git", "https://git.example/a.git"),
        ("HTTPS://token@git.example/a.git", "HTTPS://git.example/a.git"),
        ("ssh://git@git.example/a.git", "ssh://git@git.example/a.git"),
        ("ssh://git:hush@git.example/a.git", "ssh://git.example/a.git"),
        ("git@git.example:team/a.git", "git@git.example:team/a.git"),
        ("/srv/a.git", "/srv/a.git"),
    ],
)
def test_first_line_has_no_password_of_the_repository(url: str, told: str) -> None:
    meta = born(git={"repository_url": url, "branch": "main"})[0]
    assert meta.payload["git"] == {"repository_url": told, "branch": "main"}


def test_folded_birth_is_an_idle_session_that_knows_itself() -> None:
    state = fold(State(), born(user_instructions="be brief"), 1)
    assert state.facts == SessionFacts.of(FACTS)
    assert state.settings.effort == "high"
    assert (state.status, state.native) == ("idle", True)
    instructions, environment = map(message_text, for_model(state.history))
    assert "be brief" in instructions
    assert environment.startswith("<environment_context>")


def test_fork_begins_with_the_conversation_of_its_source_and_tells_what_differs() -> None:
    source = Session()
    source.say("what is here?", "u1")
    source.answers("a house", "r1")
    place = ForkedFrom(SessionId(FACTS["session_id"]), source.seq, "ab" * 32, source.state)
    meta, _, event, *context = entries = born(source=place, user_instructions="be brief")
    assert meta.payload["forked_from_id"] == event.payload["forked_from_id"] == place.session
    assert context[0].payload["kind"] == "forked"
    inherited, *own = fold(State(), entries, 1).history
    texts = map(message_text, orjson.loads(inherited["content"]))
    assert [text for text in texts if not text.startswith("<")] == ["what is here?", "a house"]
    assert any("be brief" in message_text(item) for item in own)


def test_first_lines_are_lines_of_the_protocol() -> None:
    for entry in born(user_instructions="be brief", git={"commit_hash": "abc"}):
        item = parse_rollout_line(encode_entry(entry, NOON_MS, {}).line).item
        assert not isinstance(item, UnknownRolloutItem)


def test_compaction_request_ends_with_the_prompt() -> None:
    shown: list[Item] = [written(user_message("one"))]
    assert compaction_input(shown) == [*shown, written(user_message(SUMMARY_PROMPT))]


def test_person_is_told_which_files_a_portable_folder_begins_without() -> None:
    names = tuple(f"'{number}.bin'" for number in range(MOST_NAMED + 2))
    told = [entry.payload for entry in born(folder=WorkspaceBegun(SnapshotId("s0"), (), names))]
    (warning,) = [msg["message"] for msg in told if msg.get("type") == "warning"]
    assert warning == f"not in the session's folder: {', '.join(names[:MOST_NAMED])} and 2 more"
    few = [entry.payload for entry in born(folder=WorkspaceBegun(SnapshotId("s0"), (), names[:1]))]
    assert "not in the session's folder: '0.bin'" in [msg.get("message") for msg in few]


def test_named_model_reaches_the_mode_of_the_source_if_it_has_one() -> None:
    own = TurnSettings.of({**SETTINGS, "model": "gpt-5-mini", "effort": "low"})
    bare = replace(Session().state, settings=replace(Session().state.settings, collaboration_mode=None))
    taken = taken_settings(bare, own, {"model"})
    assert (taken.model, taken.effort, taken.collaboration_mode) == ("gpt-5-mini", bare.settings.effort, None)
    mode = {"mode": "plan", "settings": {"model": "gpt-5", "reasoning_effort": "high"}}
    planning = replace(bare, settings=replace(bare.settings, collaboration_mode=mode))
    assert taken_settings(planning, own, {"cwd"}).collaboration_mode == mode
    known = taken_settings(planning, own, {"effort"}).collaboration_mode
    assert known is not None
    assert known["settings"] == {"model": planning.settings.model, "reasoning_effort": "low"}


def at(session: Session) -> ForkedFrom:
    return ForkedFrom(SessionId("of-the-source"), session.seq, "ab" * 32, session.state)


def own_texts(entries: tuple[Entry, ...]) -> list[str]:
    """The messages of a fork's own, behind the conversation that it inherits."""
    return [message_text(entry.payload) for entry in entries if entry.type == "response_item"]


def test_fork_of_an_agent_is_told_that_it_is_alone_and_one_of_a_root_is_not() -> None:
    tree, (child,) = a_family()
    assert [ALONE in own_texts(born(source=at(session))) for session in (tree.root, child)] == [False, True]


@pytest.mark.parametrize(
    ("given", "told"), [(None, False), ("", False), ("be brief", False), ("be kind", True)]
)
def test_fork_is_told_of_its_persons_instructions_where_they_are_others(
    given: str | None, told: bool
) -> None:
    source = Session()
    for entry in born(user_instructions="be brief"):
        source.record(entry)
    texts = own_texts(born(source=at(source), user_instructions=given))
    assert [text for text in texts if text.startswith(REPLACING)] == (
        [message_text(written(instructions_item(str(given), replacing=True)))] if told else []
    )


@pytest.mark.parametrize("folders", [(), ("/repo", "/repo/sub"), ("/other",)])
def test_fork_knows_which_folders_its_conversation_was_told_of(folders: tuple[str, ...]) -> None:
    source = Session()
    for entry in born():
        source.record(entry)
    if folders:
        source.record(fact(FoldersTold(folders)))
    entries = born(source=at(source))
    assert fold(State(), entries, 1).told_folders == (folders or ("/repo",))
    kinds = [entry.payload.get("kind") for entry in entries if entry.type == "dendro"]
    assert ("folders_told" in kinds) == bool(folders)
