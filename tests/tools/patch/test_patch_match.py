"""Where chunks fit, and what becomes of the lines around them."""

from __future__ import annotations

import time

import pytest

from orchestrator.tools.patch.grammar import Chunk, UpdateFile, parse_patch
from orchestrator.tools.patch.plan import TOO_ALIKE, ChunkMismatch, apply_chunks


def chunks(*lines: str) -> tuple[Chunk, ...]:
    (hunk,) = parse_patch("\n".join(("*** Begin Patch", "*** Update File: f", *lines, "*** End Patch"))).hunks
    assert isinstance(hunk, UpdateFile)
    return hunk.chunks


def test_chunks_are_sought_forward_one_after_the_other() -> None:
    text = "a\nx\nb\nx\nc\n"
    assert apply_chunks(text, chunks("@@", "-x", "+1", "@@", "-x", "+2")) == "a\n1\nb\n2\nc\n"
    with pytest.raises(ChunkMismatch) as error:
        apply_chunks(text, chunks("@@", "-c", "+C", "@@", "-x", "+1"))
    assert (error.value.chunk_index, error.value.problem, error.value.expected) == (
        1,
        "expected lines",
        ("x",),
    )


def test_context_moves_the_search_behind_it() -> None:
    text = "def f():\n    pass\ndef g():\n    pass\n"
    changed = apply_chunks(text, chunks("@@ def g():", "-    pass", "+    return"))
    assert changed == "def f():\n    pass\ndef g():\n    return\n"


def test_nothing_before_the_context_is_changed_whichever_line_of_the_chunk_is_the_rarest() -> None:
    assert apply_chunks("a\nb\na\na\nb\n", chunks("@@ a", " a", "-b", "+c")) == "a\nb\na\na\nc\n"
    assert apply_chunks("b\na\nb\na\nb\na\n", chunks("@@ b", "-b", "+c", " a")) == "b\na\nc\na\nb\na\n"


def test_nested_contexts_are_sought_one_after_the_other() -> None:
    text = "class A:\n  def f():\n    1\nclass B:\n  def f():\n    1\n"
    changed = apply_chunks(text, chunks("@@ class B:", "@@   def f():", "-    1", "+    2"))
    assert changed == "class A:\n  def f():\n    1\nclass B:\n  def f():\n    2\n"


def test_missing_context_is_named() -> None:
    with pytest.raises(ChunkMismatch, match=r"^Failed to find context 'def h'$"):
        apply_chunks("def f\n", chunks("@@ def h", "-x"))


def test_exact_match_anywhere_is_better_than_a_forgiving_one_before_it() -> None:
    assert apply_chunks("x  \n  x\nx\n", chunks("-x", "+y")) == "x  \n  x\ny\n"
    assert apply_chunks("  x\nx  \n", chunks("-x", "+y")) == "  x\ny\n"
    assert apply_chunks("  x\n", chunks("-x", "+y")) == "y\n"


def test_typographic_punctuation_matches_ascii() -> None:
    text = "say \u201chi\u201d \u2013 it\u2019s\u00a0ok\n"
    assert apply_chunks(text, chunks('-say "hi" - it\'s ok', "+done")) == "done\n"


def test_kept_lines_stay_as_the_file_has_them() -> None:
    text = "\u201chead\u201d  \n\told\ntail \n"
    assert (
        apply_chunks(text, chunks(' "head"', "-old", "+new", " tail")) == "\u201chead\u201d  \nnew\ntail \n"
    )


def test_added_lines_take_the_line_ending_of_the_file() -> None:
    assert apply_chunks("a\r\nb\r\n", chunks(" a", "+x", " b")) == "a\r\nx\r\nb\r\n"
    assert apply_chunks("a\r\nb\r\nlast", chunks("-last", "+end")) == "a\r\nb\r\nend\r\n"
    assert apply_chunks("a\r\nb\n", chunks(" a", "+x")) == "a\r\nx\nb\n"


def test_lines_of_the_files_end_are_its_last_or_do_not_fit() -> None:
    assert apply_chunks("x\ny\nx\n", chunks("-x", "+z", "*** End of File")) == "x\ny\nz\n"
    assert apply_chunks("x\ny\n", chunks("-y", "-", "+z", "*** End of File")) == "x\nz\n"
    with pytest.raises(ChunkMismatch, match="expected lines"):
        apply_chunks("x\ny\n", chunks("-x", "+z", "*** End of File"))
    with pytest.raises(ChunkMismatch, match="expected lines"):
        apply_chunks("x\n", chunks("-x", "+x", "@@", "-x", "+z", "*** End of File"))


def test_chunk_that_only_adds_goes_to_the_end() -> None:
    assert apply_chunks("a\nb\n", chunks("@@ a", "+x", "+y")) == "a\nb\nx\ny\n"
    assert apply_chunks("", chunks("+x")) == "x\n"
    assert apply_chunks("a\nb\n", chunks("@@", "+x", "@@", "-a", "+A")) == "A\nb\nx\n"


def test_last_empty_line_of_a_chunk_may_be_the_newline_at_the_end() -> None:
    assert apply_chunks("a\nb\n", chunks("-b", "+c", "")) == "a\nc\n"
    assert apply_chunks("a\nb\n", chunks("-b", "-", "+c", "+")) == "a\nc\n"
    assert apply_chunks("a\nb\n\n", chunks("-b", "+c", "")) == "a\nc\n\n"


@pytest.mark.parametrize(
    ("text", "lines", "changed"),
    [
        # An empty line that the file does not have is not kept: it is new if anything stands behind it.
        ("a\nb\n", (" b", " ", "+c"), "a\nb\n\nc\n"),
        ("a\nb\n", (" b", "+c", " "), "a\nb\nc\n"),
        ("a\nb\n", ("-b", "-", "+c"), "a\nc\n"),
        ("a\nb\n", ("-b", "+c", "- "), None),
        # Alone it is no line to be found: what is new goes where the search stands.
        ("a\nb\n", ("@@", " ", "+c"), "\nc\na\nb\n"),
        ("a\nb\n", ("+c", " "), "c\na\nb\n"),
        ("a\nb\n", ("@@ a", "-", "+c"), "a\nc\nb\n"),
        ("a\nb\n", ("-a", "@@", " ", "+c"), "\nc\nb\n"),
        ("a\n\nb\n", ("@@", " ", "+c"), "a\n\nc\nb\n"),
        ("a\nb\n", ("+c", " ", "*** End of File"), "c\na\nb\n"),
        ("a\nb\n", ("-b", "", "+c", "*** End of File"), "a\n\nc\n"),
    ],
)
def test_an_empty_line_that_is_not_found_is_sought_without(
    text: str, lines: tuple[str, ...], changed: str | None
) -> None:
    if changed is None:
        with pytest.raises(ChunkMismatch):
            apply_chunks(text, chunks(*lines))
    else:
        assert apply_chunks(text, chunks(*lines)) == changed


def test_result_ends_with_a_newline_and_no_blank_line_is_lost() -> None:
    assert apply_chunks("a\nb", chunks("-b", "+c")) == "a\nc\n"
    assert apply_chunks("a\nb", chunks("-a", "+c")) == "c\nb\n"
    assert apply_chunks("a\n\n\n", chunks("-a", "+b")) == "b\n\n\n"
    assert apply_chunks("a\n", chunks("-a")) == ""


def test_overlapping_chunks_are_a_mismatch() -> None:
    with pytest.raises(ChunkMismatch):
        apply_chunks("a\nb\nc\n", chunks("-a", "-b", "@@", "-b", "-c"))


def test_a_large_file_costs_milliseconds_even_where_lines_repeat() -> None:
    repeated = ["", "    return None", "}"] * 28_000
    lines = [*repeated, "needle", *repeated]
    text = "\n".join(lines) + "\n"
    assert len(text) > 1_000_000
    many = [line for _ in range(200) for line in ("@@", "    return None", "-}", "+};")][1:]
    started = time.process_time()
    apply_chunks(text, chunks("@@ needle", *many))
    apply_chunks(text, chunks("  }", "-needle ", "+pin", ""))
    # Tens of milliseconds here; a quadratic search would take minutes.
    assert time.process_time() - started < 2


def test_chunk_that_nearly_fits_everywhere_is_given_up_before_it_costs_minutes() -> None:
    text = "a\n" * 400_000 + "b\n" * 400_000
    block = (*(" a" for _ in range(100_000)), " b", " a", "-b")
    with pytest.raises(ChunkMismatch) as error:
        apply_chunks(text, chunks("@@", *block))
    assert (error.value.problem, error.value.expected) == (TOO_ALIKE, ())


def test_long_chunk_of_like_lines_is_found_where_it_fits() -> None:
    text = "a\n" * 200_000 + "end\n"
    changed = apply_chunks(text, chunks("@@", *(" a" for _ in range(50_000)), "-end", "+done"))
    assert changed == "a\n" * 200_000 + "done\n"
