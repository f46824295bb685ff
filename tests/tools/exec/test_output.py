"""The texts that the model gets of a finished command."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.tools.exec.command import (
    MODEL_BYTES,
    MODEL_LINES,
    Finished,
    for_model,
    formatted_output,
    model_output,
)
from tests.commit_seed import examples


def test_model_gets_compact_json_with_rounded_seconds() -> None:
    finished = Finished(exit_code=3, aggregated=b"out\nerr\n", duration_s=0.3421)
    expected = '{"output":"out\\nerr\\n","metadata":{"exit_code":3,"duration_seconds":0.3}}'
    assert model_output(finished) == expected


def test_a_timeout_is_said_before_the_output() -> None:
    finished = Finished(exit_code=124, aggregated=b"so far\n", duration_s=0.5029, timed_out=True)
    assert formatted_output(finished) == "command timed out after 502 milliseconds\nso far\n"


def test_a_command_that_did_not_start_says_why() -> None:
    finished = Finished(exit_code=-1, error="No such file or directory (os error 2)")
    assert json.loads(model_output(finished))["output"] == "No such file or directory (os error 2)"


def test_many_lines_are_cut_to_128_from_each_end() -> None:
    text = for_model(b"".join(b"%d\n" % n for n in range(1, 1001)))
    head, marker, tail = text.partition("\n[... omitted 744 of 1000 lines ...]\n\n")
    assert marker
    assert head.split("\n") == [str(n) for n in range(1, 129)]
    assert tail.split("\n") == [str(n) for n in range(873, 1001)]


def test_few_long_lines_are_cut_by_bytes_and_the_marker_counts_them() -> None:
    text = for_model(b"a" * 9000 + b"\n" + b"b" * 9000)
    assert len(text.encode()) == MODEL_BYTES
    assert f"omitted {18001 - MODEL_BYTES} of 18001 bytes" in text
    assert text[0] == "a"
    assert text[-1] == "b"


def test_short_output_is_left_alone_to_the_byte() -> None:
    assert for_model(b"no newline") == "no newline"
    assert for_model(b"bad \xff byte\r\n") == "bad \N{REPLACEMENT CHARACTER} byte\r\n"


@given(st.text(max_size=200), st.integers(1, 200))
@settings(max_examples=examples(60), deadline=None)
def test_no_output_is_longer_than_the_model_s_limit(piece: str, times: int) -> None:
    shortened = for_model((piece * times).encode("utf-8", "replace"))
    assert len(shortened.encode()) <= MODEL_BYTES


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("letter", ["a", "é", "€"])
def test_output_is_left_alone_up_to_its_bound_of_bytes(letter: str, more: int) -> None:
    size = len(letter.encode())
    text = letter * (MODEL_BYTES // size) + "x" * (MODEL_BYTES % size + more)
    shown = for_model(text.encode())
    assert (shown == text) is not bool(more)
    if more:
        assert f"omitted 1 of {MODEL_BYTES + 1} bytes" in shown


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("more", [0, 1])
def test_output_is_left_alone_up_to_its_bound_of_lines(end: str, more: int) -> None:
    text = "\n".join(f"{number}" for number in range(MODEL_LINES + more)) + end
    shown = for_model(text.encode())
    assert (shown == text) is not bool(more)
    if more:
        assert f"omitted 1 of {MODEL_LINES + 1} lines" in shown
        assert shown.endswith(f"{MODEL_LINES}")


@pytest.mark.parametrize("timed_out", [True, False])
@pytest.mark.parametrize("limit", [1 << 30, None])
def test_whatever_ended_a_command_is_said_before_its_output(timed_out: bool, limit: int | None) -> None:
    finished = Finished(
        exit_code=1, aggregated=b"said\n", duration_s=2.0, timed_out=timed_out, memory_limit=limit
    )
    lines = formatted_output(finished).splitlines()
    assert lines[-1] == "said"
    assert lines[:-1] == [
        *(["command passed its memory limit of 1024 MiB (sandbox.max_memory_bytes)"] if limit else []),
        *(["command timed out after 2000 milliseconds"] if timed_out else []),
    ]
    broken = replace(finished, error="it broke")
    assert formatted_output(broken) == "it broke\nsaid"
    assert formatted_output(replace(broken, aggregated=b"")) == "it broke"


def test_few_lines_that_are_too_long_are_told_by_their_bytes() -> None:
    text = "\n".join(["x" * 100] * MODEL_LINES)
    assert f"omitted {len(text) - MODEL_BYTES} of {len(text)} bytes" in for_model(text.encode())
