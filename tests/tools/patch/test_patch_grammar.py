"""The reader of patches: what it accepts, and the words with which it refuses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.tools.patch.grammar import (
    AddFile,
    Chunk,
    ChunkLine,
    DeleteFile,
    LineKind,
    Patch,
    PatchSyntaxError,
    UpdateFile,
    parse_patch,
)
from tests.commit_seed import examples

Write = Callable[..., str]


def lines(*marked: str) -> tuple[ChunkLine, ...]:
    return tuple(ChunkLine(LineKind(line[0]), line[1:]) for line in marked)


def test_reader_takes_every_kind_of_hunk_in_order(patch: Write) -> None:
    text = patch(
        "*** Add File: new.txt", "+alpha", "+", "*** Delete File: old.txt",
        "*** Update File: a.py", "*** Move to: b.py",
        "@@ class A", " keep", "-drop", "+add", "*** End of File",
    )  # fmt: skip
    chunk = Chunk(("class A",), lines(" keep", "-drop", "+add"), end_of_file=True)
    assert parse_patch(text) == Patch(
        (AddFile("new.txt", "alpha\n\n"), DeleteFile("old.txt"), UpdateFile("a.py", "b.py", (chunk,)))
    )


def test_reader_accepts_a_patch_without_hunks_and_leaves_the_verdict_to_the_plan(patch: Write) -> None:
    assert parse_patch(patch()) == Patch(())


@pytest.mark.parametrize("opener", ["<<EOF", "<<'EOF'", '<<"EOF"'])
def test_reader_takes_a_heredoc_left_around_the_body(patch: Write, opener: str) -> None:
    assert parse_patch(f"{opener}\n{patch('*** Delete File: x')}EOF\n") == Patch((DeleteFile("x"),))


def test_reader_refuses_a_heredoc_with_another_delimiter_left_around_the_body(patch: Write) -> None:
    with pytest.raises(PatchSyntaxError, match="The first line of the patch must be"):
        parse_patch(f"<<'PATCH'\n{patch('*** Delete File: x')}PATCH\n")


def test_reader_ignores_blanks_around_markers_and_carriage_returns(patch: Write) -> None:
    text = "\n  *** Begin Patch \r\n  *** Update File: a.txt \r\n@@ \r\n-x\r\n+y\r\n *** End Patch\t\r\n\n"
    assert parse_patch(text) == Patch((UpdateFile("a.txt", None, (Chunk((), lines("-x", "+y")),)),))


def test_first_chunk_needs_no_marker_and_an_empty_line_is_empty_context(patch: Write) -> None:
    text = patch("*** Update File: a.txt", " one", "", "-two", "@@", "+x")
    chunks = (Chunk((), lines(" one", " ", "-two")), Chunk((), lines("+x")))
    assert parse_patch(text) == Patch((UpdateFile("a.txt", None, chunks),))


@pytest.mark.parametrize("first", [["@@"], ["@@ f", "@@"], ["-a", "@@"]])
def test_a_hunk_without_a_line_before_the_next_is_refused(patch: Write, first: list[str]) -> None:
    text = patch("*** Update File: a.py", *first, "@@ g" if first != ["@@ f", "@@"] else "-x", "-x")
    if first == ["-a", "@@"]:
        text = patch("*** Update File: a.py", *first, "@@", "-x")
    with pytest.raises(PatchSyntaxError, match=r"Unexpected line found in update hunk: '@@"):
        parse_patch(text)


def test_a_chunk_may_name_contexts_within_each_other(patch: Write) -> None:
    text = patch("*** Update File: a.py", "@@ class A", "@@   def f(self):", "-x")
    (hunk,) = parse_patch(text).hunks
    assert isinstance(hunk, UpdateFile)
    assert hunk.chunks[0].contexts == ("class A", "  def f(self):")


def test_only_a_newline_ends_a_line(patch: Write) -> None:
    text = patch("*** Add File: a", "+form\x0cfeed\u2028and\x85more")
    assert parse_patch(text) == Patch((AddFile("a", "form\x0cfeed\u2028and\x85more\n"),))


def test_a_move_counts_only_right_after_the_header(patch: Write) -> None:
    text = patch("*** Update File: a", "@@", "-x", "*** Move to: b")
    with pytest.raises(PatchSyntaxError, match="is not a valid hunk header"):
        parse_patch(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "The first line of the patch must be '*** Begin Patch'"),
        ("<<EOF\nEOF", "The first line of the patch must be '*** Begin Patch'"),
        ("bad", "The first line of the patch must be '*** Begin Patch'"),
        ("*** Begin Patch", "The last line of the patch must be '*** End Patch'"),
        ("*** Begin Patch\nbad", "The last line of the patch must be '*** End Patch'"),
        (
            "*** Begin Patch\nbad\n*** End Patch",
            "invalid hunk at line 2, 'bad' is not a valid hunk header. Valid hunk headers: "
            "'*** Add File: {path}', '*** Delete File: {path}', '*** Update File: {path}'",
        ),
        (
            "*** Begin Patch\n*** Update File: a.py\n*** End Patch",
            "invalid hunk at line 2, Update file hunk for path 'a.py' is empty",
        ),
        (
            "*** Begin Patch\n*** Delete File: x\n*** Update File: a.py\n@@ f\n*** End Patch",
            "invalid hunk at line 5, Update hunk does not contain any lines",
        ),
        (
            "*** Begin Patch\n*** Update File: a.py\n@@\n*** End of File\n*** End Patch",
            "invalid hunk at line 4, Update hunk does not contain any lines",
        ),
        (
            "*** Begin Patch\n*** Update File: a.py\n@@\nbad\n*** End Patch",
            "invalid hunk at line 4, Unexpected line found in update hunk: 'bad'. Every line should start "
            "with ' ' (context line), '+' (added line), or '-' (removed line)",
        ),
        (
            "*** Begin Patch\n*** Update File: a.py\n@@\n-x\nbad\n*** End Patch",
            "invalid hunk at line 5, Expected update hunk to start with a @@ context marker, got: 'bad'",
        ),
    ],
)
def test_reader_refuses_with_the_line_and_the_reason(text: str, message: str) -> None:
    with pytest.raises(PatchSyntaxError) as error:
        parse_patch(text)
    assert error.value.message == message


MARKERS = st.sampled_from(
    [
        "*** Begin Patch", "*** End Patch", "*** Add File: a", "*** Delete File: a", "*** Update File: a",
        "*** Update File: ", "*** Move to: b", "*** End of File", "@@", "@@ f", "@@ ", "+x", "-x", " x", "",
        "\r", "<<EOF", "EOF", "\u2028", "\ud800", "\0",
    ]
)  # fmt: skip


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(MARKERS | st.text(max_size=8), max_size=12), st.booleans())
def test_reader_raises_nothing_but_its_own_error(parts: list[str], framed: bool) -> None:
    framing = ["*** Begin Patch", *parts, "*** End Patch"] if framed else parts
    with contextlib.suppress(PatchSyntaxError):
        assert isinstance(parse_patch("\n".join(framing)), Patch)
