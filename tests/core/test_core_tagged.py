"""Plan blocks: any cut of a text gives the same parts, and a reading line by line agrees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.modes import (
    CLOSE,
    MOST_HELD,
    OPEN,
    End,
    Normal,
    Part,
    Plan,
    Start,
    TagParser,
    proposal,
)
from tests.commit_seed import examples

PIECES = st.sampled_from(
    [
        OPEN,
        CLOSE,
        "\n",
        " ",
        "\r",
        "\t",
        "x",
        "<",
        "<prop",
        "osed_plan>",
        "</",
        ">",
        "- a",
        "é\u2028",
        " " * 200,
    ]
)
LINES = st.sampled_from(
    ["x", "x\n", f"\n{OPEN}\n", "- a\n", f"{OPEN}\n", f"{CLOSE}\n", f" {OPEN}\r\n", OPEN, CLOSE]
)
TEXTS = st.lists(PIECES, max_size=30).map("".join)


def reference(text: str) -> Iterator[Part]:
    """The parts of a text, read line by line."""
    inside = False
    lines = text.split("\n")
    for number, line in enumerate(lines):
        last = number == len(lines) - 1
        if len(line) <= MOST_HELD and line.strip() == (CLOSE if inside else OPEN):
            yield End() if inside else Start()
            inside = not inside
        elif whole := line if last else line + "\n":
            yield Plan(whole) if inside else Normal(whole)
    if inside:
        yield End()


def joined(parts: Iterable[Part]) -> list[Part]:
    """The parts with texts that follow each other made one."""
    found: list[Part] = []
    for part in parts:
        before = found[-1] if found else None
        if isinstance(part, Normal) and isinstance(before, Normal):
            found[-1] = Normal(before.text + part.text)
        elif isinstance(part, Plan) and isinstance(before, Plan):
            found[-1] = Plan(before.text + part.text)
        else:
            found.append(part)
    return found


def read(pieces: Iterable[str]) -> list[Part]:
    parser = TagParser()
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return joined([*parts, *parser.finish()])


@given(TEXTS, st.data())
def test_any_cut_of_a_text_gives_the_parts_that_its_lines_have(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(pieces) == joined(reference(text))
    assert read(text) == joined(reference(text)), "letter by letter"


@settings(max_examples=examples(400))
@given(st.lists(st.tuples(st.one_of(LINES, PIECES), st.booleans()), max_size=12))
def test_pieces_that_end_where_lines_end_give_the_parts_that_the_lines_have(
    given: list[tuple[str, bool]],
) -> None:
    pieces = [""]
    for text, joins in given:
        pieces[-1:] = [pieces[-1] + text] if joins else [pieces[-1], text]
    assert read(pieces) == joined(reference("".join(pieces)))


def test_a_text_is_shown_as_soon_as_it_can_be_no_tag() -> None:
    parser = TagParser()
    assert parser.feed("Hello") == [Normal("Hello")]
    assert parser.feed(" <proposed_plan>\n<prop") == [Normal(" <proposed_plan>\n")]
    assert parser.feed("er>") == [Normal("<proper>")]
    assert parser.feed("\n  <proposed_plan> ") == [Normal("\n")]
    assert parser.feed("\n- a") == [Start(), Plan("- a")]


@pytest.mark.parametrize(
    ("text", "said", "plan"),
    [
        ("Intro\n<proposed_plan>\n- a\n- b\n</proposed_plan>\nOutro", "Intro\nOutro", "- a\n- b"),
        ("Intro\n<proposed_plan>\n- a\n- b", "Intro", "- a\n- b"),
        ("<proposed_plan>\n- a\n</proposed_plan>", "", "- a"),
        ("<proposed_plan>\na\n</proposed_plan>\n<proposed_plan>\nb\n</proposed_plan>", "", "a\nb"),
        ("\n\n  <proposed_plan>\r\na\r\n</proposed_plan>\r\n\n  end \n", "  end", "a"),
        ("<proposed_plan>\n<proposed_plan>\n</proposed_plan>", "", "<proposed_plan>"),
        (
            "say <proposed_plan> inside\n</proposed_plan>",
            "say <proposed_plan> inside\n</proposed_plan>",
            None,
        ),
        ("<proposed_plan>", "", ""),
        ("", "", None),
    ],
)
def test_a_finished_message_is_what_it_says_and_its_plan(text: str, said: str, plan: str | None) -> None:
    found = proposal(text)
    assert (found.said, found.plan) == (said, plan)


def test_pieces_without_a_tag_are_shown_at_once_and_whole() -> None:
    parser = TagParser()
    assert parser.feed("a\nb") == [Normal("a\nb")]
    assert parser.feed("") == []
    assert parser.feed(" < c\n") == [Normal(" < c\n")]
    assert parser.feed("  ") == [], "a tag may follow"
    assert parser.feed("- d\n\n") == [Normal("  - d\n\n")]
    assert parser.feed("<proposed_plan>\n") == [Start()]
    assert parser.feed("e\n") == [Plan("e\n")]


def test_a_line_of_blanks_without_end_is_not_held() -> None:
    parser = TagParser()
    assert parser.feed(" " * MOST_HELD) == []
    assert parser.feed(" ") == [Normal(" " * (MOST_HELD + 1))]


@pytest.mark.parametrize(("length", "is_tag"), [(MOST_HELD, True), (MOST_HELD + 1, False)])
def test_line_of_a_tag_may_be_as_long_as_what_is_held_back(length: int, is_tag: bool) -> None:
    found = read(["<proposed_plan>".ljust(length) + "\nstep\n</proposed_plan>\n"])
    assert any(isinstance(part, Plan) for part in found) is is_tag
