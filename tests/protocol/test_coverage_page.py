"""Faults of the page of proofs: what it lacks, and what it names in vain, is told."""

from __future__ import annotations

from tests.coverage_page import PAGE, faults, names_of_the_protocol, names_of_tools

HEAD = "| what | where it is said | what holds | proved by |\n|---|---|---|---|\n"
TEST = "tests/protocol/test_values.py::test_every_value_of_an_enumeration_is_the_documents_word"


def told(row: str, *wanted: str) -> list[str]:
    return list(faults(HEAD + row, wanted))


def test_page_has_a_row_for_all_of_the_protocol_and_names_tests_that_exist() -> None:
    wanted = (*names_of_the_protocol(), *names_of_tools())
    assert list(faults(PAGE.read_text(encoding="utf-8"), wanted)) == []


def test_name_without_a_row_and_row_without_a_name_are_told() -> None:
    assert told(f"| `a`, `E`: `x` | | | {TEST} |", "a", "E", "E.x", "E.y") == ["E.y has no row"]
    assert told(f"| `b` | | | {TEST} |") == ["line 3: b is no name"]


def test_row_that_names_no_test_has_to_say_so() -> None:
    assert told("| `a` | | it works | |", "a") == [
        "line 3 names no test, and does not say that there is none"
    ]
    assert told("| `a` | | **not served** by this version | |", "a") == []


def test_test_that_is_not_there_is_told_with_its_recording() -> None:
    further = "tests/acceptance/test_further_conversations.py::test_client_is_served_as_the_protocol_says"
    assert told(f"| `a` | | | {TEST}x |", "a") == [f"line 3: there is no {TEST}x"]
    assert told("| `a` | | | tests/gone.py::test_x |", "a") == ["line 3: there is no tests/gone.py::test_x"]
    assert told(f"| `a` | | | {further}[nothing] |", "a") == [f"line 3: {further} has no recording nothing"]
    assert told(f"| `a` | | | {further}[resume] |", "a") == []
