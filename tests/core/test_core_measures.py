"""Bounds of texts count bytes of UTF-8, whatever letters they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from orchestrator.core.agent_views import MESSAGE_BYTES, RESULT_BYTES, told_result
from orchestrator.core.blobs import INLINE_BYTES, INLINE_TEXT_BYTES, externalise
from orchestrator.core.calls import MOST_COMMAND_BYTES, ClientToolWork, command_fault
from orchestrator.core.calls.ask import MOST_ANSWER_BYTES, MOST_TEXT_BYTES, DoesNotAnswer, check_texts
from orchestrator.core.calls.exec import cut_output
from orchestrator.core.client_tools import MOST_BYTES, MOST_BYTES_TOGETHER, BadTool, client_tool, client_tools
from orchestrator.core.compaction import stored_texts
from orchestrator.core.context import instructions_item, is_context, standing_instructions
from orchestrator.core.decide.ops import MOST_INJECTED_BYTES, MOST_PROMPT_BYTES, injected_fault
from orchestrator.core.decide.request import SUMMARY_BYTES
from orchestrator.core.decide.task import MOST_GOAL_BYTES, goal_fault
from orchestrator.core.entries import encode_entry, item
from orchestrator.core.history import message_text, opened_message
from orchestrator.core.modes import MOST_INSTRUCTIONS, mode_fault
from orchestrator.core.review import MOST_ASKED, request_fault
from orchestrator.core.workspace import NAMES_BYTES, fitting
from orchestrator.protocol import ops
from orchestrator.protocol.inputs import InjectedInput, InjectedMessage
from orchestrator.protocol.review import BaseBranch, Commit, CustomReview, ReviewRequest
from orchestrator.protocol.scalars import CollaborationMode, CollaborationSettings, ModeKind
from tests.core.driver import Session, assistant, op
from tests.core.tree_driver import a_family

LETTERS = ("x", "é", "€", "𝄞")


def refuses(check: Callable[[str], object]) -> Callable[[str], bool]:
    def refused(text: str) -> bool:
        try:
            check(text)
        except DoesNotAnswer:
            return True
        return False

    return refused


def _mode(text: str) -> bool:
    settings = CollaborationSettings(model="m", developer_instructions=text)
    return mode_fault(CollaborationMode(mode=ModeKind.PLAN, settings=settings)) is not None


def _injected(text: str) -> bool:
    half = len(text) // 2
    said = tuple(
        InjectedMessage(type="message", role="user", content=(InjectedInput(text=part),))
        for part in (text[:half], text[half:])
    )
    return injected_fault(ops.InjectItems(type="inject_items", items=said)) is not None


def _remembered(text: str) -> bool:
    return "error" in Session().submit(op("add_to_history", text=text)).types


def _told_agent(text: str) -> bool:
    tree, _ = a_family()
    said = op("message_agent", agent_id=1, text=text)
    return "error" in tree.root.submit(said, agents=(tree.target(1),)).types


def _tool(description: str, schema: Mapping[str, str]) -> bool:
    try:
        client_tool(None, "look", description, {"type": "object", **schema})
    except BadTool:
        return True
    return False


def _in_parts(text: str) -> None:
    """An answer of several texts, of which none is too long by itself."""
    size = MOST_TEXT_BYTES // 4
    check_texts((f"q{at}", text[at : at + size]) for at in range(0, len(text), size))


BOUNDS: Mapping[str, tuple[int, Callable[[str], bool]]] = {
    "instructions of a mode": (MOST_INSTRUCTIONS, _mode),
    "goal of a plan": (MOST_GOAL_BYTES, lambda text: goal_fault(text) is not None),
    "prompt of a review": (MOST_ASKED, lambda text: request_fault(ReviewRequest(prompt=text)) is not None),
    "branch": (MOST_ASKED, lambda text: _review(BaseBranch(branch=text))),
    "commit": (MOST_ASKED, lambda text: _review(Commit(sha=text, title=None))),
    "instructions of a review": (MOST_ASKED, lambda text: _review(CustomReview(instructions=text))),
    "command of a person": (MOST_COMMAND_BYTES, lambda text: command_fault(text) is not None),
    "one text of an answer": (MOST_TEXT_BYTES, refuses(lambda text: check_texts([("q", text)]))),
    "all texts of an answer": (MOST_ANSWER_BYTES, refuses(_in_parts)),
    "output of a client's tool": (
        MOST_ANSWER_BYTES,
        refuses(
            lambda text: ClientToolWork("t", "c", 1).settled({"success": True, "output": text}),
        ),
    ),
    "description of a client's tool": (MOST_BYTES - len('{"type":"object"}'), lambda text: _tool(text, {})),
    "schema of a client's tool": (
        MOST_BYTES - len('{"type":"object","title":""}'),
        lambda text: _tool("", {"title": text}),
    ),
    "messages without a turn": (MOST_INJECTED_BYTES, _injected),
    "entry of a history": (MOST_PROMPT_BYTES, _remembered),
    "message to an agent": (MESSAGE_BYTES, _told_agent),
}


def _review(target: BaseBranch | Commit | CustomReview) -> bool:
    return request_fault(ReviewRequest(target=target)) is not None


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize("what", BOUNDS)
def test_text_of_as_many_bytes_as_may_be_is_taken_and_one_letter_more_is_not(what: str, letter: str) -> None:
    most, refused = BOUNDS[what]
    count = most // len(letter.encode())
    assert [refused(letter * number) for number in (count, count + 1)] == [False, True]


@pytest.mark.parametrize("letter", LETTERS)
def test_tools_of_a_client_have_so_many_bytes_together(letter: str) -> None:
    size, count = len(letter.encode()), MOST_BYTES_TOGETHER // 8
    schema = {"type": "object", "title": letter * ((count // 2 - 28) // size)}
    said = letter * (count // 2 // size)
    tools = [client_tool(None, f"t{number}", said, schema) for number in range(9)]
    assert client_tools("c", 1, tools[:8]) is not None
    with pytest.raises(BadTool, match="bytes of descriptions and schemas: at most 65,536"):
        client_tools("c", 1, tools)


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize(("field", "most"), [("output", INLINE_BYTES), ("text", INLINE_TEXT_BYTES)])
def test_text_that_is_larger_than_its_line_may_have_stands_beside_it(
    field: str, most: int, letter: str
) -> None:
    count = most // len(letter.encode())
    for number in (count, count + 1):
        blobs: dict[str, bytes] = {}
        kept = externalise({field: letter * number}, blobs)
        assert (kept == {field: letter * number}) == (number == count)
        assert len(blobs) == number - count


@pytest.mark.parametrize("letter", LETTERS)
def test_result_of_an_agent_is_cut_to_as_many_bytes_as_its_parent_reads(letter: str) -> None:
    count = RESULT_BYTES // len(letter.encode())
    assert told_result(letter * count) == letter * count
    told = told_result(letter * (count + 1))
    assert told is not None
    beginning, _, note = told.partition("\n")
    assert beginning == letter * ((RESULT_BYTES - len(note) - 1) // len(letter.encode()))
    assert f"{(count + 1) * len(letter.encode()):,} bytes" in note
    assert told_result(told) == told


@pytest.mark.parametrize("letter", LETTERS)
def test_output_of_a_process_is_cut_in_its_middle_to_so_many_bytes(letter: str) -> None:
    size = len(letter.encode())
    assert cut_output(letter * (400 // size), 100) == letter * (400 // size)
    head, note, tail = cut_output(letter * 1_000, 100).split("\n")
    assert (head, tail) == (letter * (200 // size), letter * (200 // size))
    assert note == f"[... omitted {1_000 * size - 400} of {1_000 * size} bytes ...]"


@pytest.mark.parametrize("letter", LETTERS)
def test_names_of_files_fit_into_an_entry_by_their_bytes(letter: str) -> None:
    name = letter * (100 // len(letter.encode()))
    each = len(name.encode()) + 4
    assert len(fitting([name] * 100)) == NAMES_BYTES // each


@pytest.mark.parametrize("letter", LETTERS)
def test_summary_stays_in_its_entry_where_a_fold_reads_it(letter: str) -> None:
    session = Session()
    session.say("go")
    session.answers("done")
    session.compact()
    session.begin()
    session.item(assistant(letter * SUMMARY_BYTES))
    assert session.task.summary == letter * (SUMMARY_BYTES // len(letter.encode()))
    assert session.replayed() == session.state


@pytest.mark.parametrize("letter", LETTERS)
def test_texts_of_people_and_long_instructions_keep_where_rules_read_them_whatever_letters_they_have(
    letter: str,
) -> None:
    text = letter * INLINE_TEXT_BYTES
    parts = stored_texts([text])
    assert "".join(parts) == text
    assert all(len(part.encode()) <= INLINE_TEXT_BYTES for part in parts)
    size = INLINE_TEXT_BYTES // len(letter.encode())
    for count in (len(text), size, size - 1, size - 40, size - 100):
        said = encode_entry(item(instructions_item(letter * count)), 0, {}).entry.payload
        assert is_context(said)
        assert standing_instructions([said]) == [said]


@pytest.mark.parametrize("letter", LETTERS)
def test_message_is_one_part_if_all_of_it_fits_into_its_line_and_its_opening_is_always_read(
    letter: str,
) -> None:
    count = (INLINE_TEXT_BYTES - 5) // len(letter.encode())
    for number, parts in ((0, 1), (count, 1), (count + 1, 2), (INLINE_TEXT_BYTES, 2)):
        said = opened_message("<tag>", letter * number)
        assert len(said.content) == parts
        kept = encode_entry(item(said), 0, {}).entry.payload
        assert message_text(kept).startswith("<tag>")
