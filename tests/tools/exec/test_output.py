"""The texts that the model gets of a finished command."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.tools.exec.command import MODEL_BYTES, Finished, for_model, formatted_output, model_output
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
