"""Addresses to listen on, and those that are refused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.gateways.wires.addresses import Address, BadAddress, parse_address


@pytest.mark.parametrize(
    "text",
    [
        "tcp://127.0.0.1:4501",
        "ws://localhost:0",
        "ws://[::1]:80",
        "wss://0.0.0.0:443",
        "tcps://10.0.0.7:1",
        "http://127.0.0.1:4600",
        "https://0.0.0.0:443",
    ],
)
def test_address_is_read_and_shown_again(text: str) -> None:
    assert str(parse_address(text)) == text


def test_unix_address_is_absolute_and_alone_means_the_usual_socket(tmp_path: Path) -> None:
    assert parse_address(f"unix://{tmp_path}/a.sock").path == tmp_path / "a.sock"
    assert parse_address("unix://", tmp_path / "usual.sock") == Address("unix", path=tmp_path / "usual.sock")


@pytest.mark.parametrize(
    "text", ["ws://0.0.0.0:4500", "tcp://10.0.0.7:4500", "ws://dendro.example:80", "http://0.0.0.0:80"]
)
def test_another_address_than_loopback_needs_tls_and_the_error_says_so(text: str) -> None:
    with pytest.raises(BadAddress, match=r"unencrypted.*gateway\.tls_certificate"):
        parse_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4500",
        "ftp://localhost:1",
        "ws://localhost",
        "ws://:4500",
        "ws://localhost:99999",
        "ws://localhost:1/path",
        "ws://me@localhost:1",
        "unix://",
        "unix://" + "x" * 200,
    ],
)
def test_text_that_is_no_address_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(BadAddress):
        parse_address(text)


@pytest.mark.parametrize("text", ["unix://~0", "unix://~nobody-here/s", "unix://~\0"])
def test_socket_in_the_home_of_nobody_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(BadAddress, match="name the whole path"):
        parse_address(text)


@given(st.text(max_size=60), st.sampled_from(("tcp", "ws", "wss", "unix", "")))
def test_any_text_is_an_address_or_a_bad_one(text: str, scheme: str) -> None:
    with suppress(BadAddress):
        parse_address(f"{scheme}://{text}")
