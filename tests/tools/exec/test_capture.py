"""The part of a command's output that is kept."""

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.tools.exec.command import Capture
from tests.commit_seed import examples


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(2, 60))
@settings(max_examples=examples(80), deadline=None)
def test_capture_keeps_the_start_and_the_end_and_counts_the_rest(chunks: list[bytes], limit: int) -> None:
    capture = Capture(limit)
    for chunk in chunks:
        capture.add(chunk)
    whole, kept = b"".join(chunks), capture.kept()
    if len(whole) <= limit:
        assert kept == whole
        assert capture.dropped == 0
    else:
        assert capture.dropped == len(whole) - limit
        assert kept.startswith(whole[: limit // 2])
        assert kept.endswith(whole[len(whole) - (limit - limit // 2) :])
        assert b"%d bytes dropped" % capture.dropped in kept
