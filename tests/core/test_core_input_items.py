"""Input items: what they make of a conversation, and which of them can make nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core import commands as c
from orchestrator.core.history import message_text
from orchestrator.core.user_turns import fault, user_message_event
from orchestrator.protocol.ids import SubmissionId
from tests.core.driver import Session, op, text


def marked(words: str, *spans: tuple[int, int]) -> dict[str, Any]:
    elements = [{"byte_range": {"start": start, "end": end}, "placeholder": "x"} for start, end in spans]
    return {"type": "text", "text": words, "text_elements": elements}


def read(session: Session, *items: dict[str, Any], id: str = "u1") -> Any:
    """Submits input whose files the worker has read."""
    asked = op("user_input", items=[text("what was submitted")])
    return session.happens(c.Submitted(SubmissionId(id), asked, items=items))


SKILL = {"type": "skill", "name": "pdf", "path": "/s/SKILL.md", "content": "Do it."}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"items": []}, "items: at least one is needed; nothing was done"),
        ({"items": [text("a")], "final_output_json_schema": "x"}, "final_output_json_schema: an object"),
        ({"items": [marked("abc", (1, 4))]}, "items[0].text_elements[0].byte_range: 1 to 4 is no part of"),
        ({"items": [marked("abc", (1, 1))]}, "1 to 1 is no part of a text of 3 bytes"),
        ({"items": [marked("abc", (2, 1))]}, "2 to 1 is no part"),
        ({"items": [text("a"), marked("aäb", (0, 2))]}, "items[1].text_elements[0].byte_range: it cuts a"),
        ({"items": [marked("aäb", (2, 3))]}, "it cuts a character"),
        ({"items": [marked("abc", (0, 2), (1, 3))]}, "[1].byte_range: it begins before the end of the one"),
        ({"items": [marked("abc", (2, 3), (0, 1))]}, "[1].byte_range: it begins before"),
    ],
)
def test_input_that_cannot_be_taken_is_an_error_and_stops_nothing(
    fields: dict[str, Any], message: str
) -> None:
    session = Session()
    session.say("go", "u1")
    session.begin()
    seen = session.submit(op("user_input", **fields), "u2")
    assert seen.types == ["error"]
    assert message in seen.one("error")["message"]
    assert not session.task.stopping


def test_marked_parts_of_texts_are_told_by_their_place_in_the_whole() -> None:
    session = Session()
    items = [marked("äb", (0, 2)), text("c"), marked("de", (0, 1), (1, 2))]
    message = session.submit(op("user_input", items=items)).one("user_message")
    assert message["message"] == "äb\nc\nde"
    whole = message["message"].encode()
    spans = [(part["byte_range"]["start"], part["byte_range"]["end"]) for part in message["text_elements"]]
    assert [whole[start:end].decode() for start, end in spans] == ["ä", "d", "e"]


@given(st.lists(st.tuples(st.text(max_size=6), st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=4))
def test_marked_part_stays_the_same_text_in_the_whole(parts: list[tuple[str, int, int]]) -> None:
    items, wanted = [], []
    for words, first, last in parts:
        start, end = (len(words[:place].encode()) for place in sorted((first, last)))
        items.append(marked(words, (start, end)) if start < end else text(words))
        wanted += [words[min(first, last) : max(first, last)]] if start < end else []
    assert fault(op("user_input", items=items)) is None  # type: ignore[arg-type]
    told = user_message_event(items)
    whole = told["message"].encode()
    ranges = [part["byte_range"] for part in told.get("text_elements", ())]
    spans = [(place["start"], place["end"]) for place in ranges]
    assert [whole[start:end].decode() for start, end in spans] == wanted


def test_image_of_a_file_is_told_by_its_path_and_shown_to_the_model() -> None:
    session = Session()
    image = {"type": "image", "image_url": "data:image/png;base64,AA", "path": "/a.png"}
    seen = read(session, text("look"), image)
    told = seen.one("user_message")
    assert (list(told["local_images"]), "images" in told) == (["/a.png"], False)
    (shown,) = session.shown()
    assert shown["content"][1] == {"type": "input_image", "image_url": "data:image/png;base64,AA"}


def test_skill_comes_behind_the_message_that_names_it() -> None:
    session = Session()
    seen = read(session, text("use"), SKILL)
    assert seen.one("user_message")["message"] == "use\n$pdf"
    said, skill = session.shown()
    assert [part["text"] for part in said["content"]] == ["use", "$pdf"]
    whole = "".join(part["text"] for part in skill["content"])
    assert whole == "<skill>\n<name>pdf</name>\n<path>/s/SKILL.md</path>\nDo it.\n</skill>"
    assert len(session.shown()) == 2


def test_steered_skill_joins_with_its_message() -> None:
    session = Session(facts={"on_user_input": "steer"})
    session.say("go", "u1")
    session.begin()
    read(session, text("use"), SKILL, id="u2")
    assert len(session.task.steered) == 2
    session.answers_now("half")
    session.begin()
    assert [item["role"] for item in session.shown()] == ["user", "assistant", "user", "user"]


def test_input_with_a_schema_replaces_the_task_that_others_join() -> None:
    session = Session(facts={"on_user_input": "steer"})
    session.say("go", "u1")
    session.begin()
    session.say("in JSON", "u2", final_output_json_schema={"type": "object"})
    assert session.task.stopping == "replaced"


def test_many_mentions_are_one_warning() -> None:
    session = Session()
    mentions = [{"type": "mention", "name": f"m{n}", "path": f"app://{n}"} for n in range(500)]
    seen = session.submit(op("user_input", items=mentions))
    assert seen.types.count("warning") == 1
    assert "app://9:" in seen.one("warning")["message"]


def test_server_that_is_mentioned_is_named_to_the_model_with_its_tools() -> None:
    session = Session()
    mention = {"type": "mention", "name": "notes", "path": "app://notes", "tools": ["mcp__notes__add"]}
    seen = read(session, text("see"), mention)
    assert "warning" not in seen.types
    said, told = session.shown()
    assert (said["content"][1]["text"], told["role"]) == ("@notes", "developer")
    assert "app://notes" in told["content"][0]["text"]
    assert "mcp__notes__add" in told["content"][0]["text"]


@pytest.mark.parametrize("steers", [False, True])
def test_server_is_named_to_the_model_once_however_often_it_is_mentioned(steers: bool) -> None:
    session = Session(facts={"on_user_input": "steer"})
    if steers:
        session.say("go")
    notes = {"type": "mention", "name": "notes", "path": "app://notes", "tools": ["mcp__notes__add"]}
    mail = {"type": "mention", "name": "mail", "path": "app://mail", "tools": ["mcp__mail__send"]}
    seen = read(session, text("see"), notes, mail, *[{**notes, "name": "n"}, mail] * 300)
    assert len(seen.decision.entries) < 16
    session.begin()
    told = [message_text(item) for item in session.shown() if item["role"] == "developer"]
    assert [line.split(" is ")[0] for line in told] == ["@notes", "@mail"]
    assert len(session.shown()[-3]["content"]) == 603


def test_skills_text_is_not_kept_by_a_compaction_as_words_of_the_person() -> None:
    session = Session()
    read(session, text("use"), SKILL)
    session.answers("done")
    session.compact("c1")
    session.answers("summary")
    assert "Do it." not in "".join(session.texts())
    assert "use" in session.texts()[-1]
