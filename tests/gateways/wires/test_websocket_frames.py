"""Frames of a WebSocket: the library's own bytes, made once for all connections that send a message."""

from __future__ import annotations

import pytest
from websockets.protocol import OPEN, SERVER, Protocol

from orchestrator.gateways.wires.listeners import KEPT_BYTES, text_frame


def of_the_library(message: bytes) -> bytes:
    protocol = Protocol(SERVER)
    protocol.state = OPEN
    protocol.send_text(message)
    return b"".join(protocol.data_to_send())


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 100_000])
def test_frame_is_that_of_the_library_at_each_width_of_its_length(size: int) -> None:
    message = b"x" * size
    assert text_frame(message) == of_the_library(message)


def test_frame_of_a_short_message_is_made_once_and_a_long_one_is_not_kept() -> None:
    short, long = b"s" * KEPT_BYTES, b"l" * (KEPT_BYTES + 1)
    assert text_frame(short) is text_frame(short)
    assert text_frame(long) is not text_frame(long)
