"""Headers that a request must have before it becomes a WebSocket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.gateways.wires.addresses import HttpRules, bearer, host_name, refusal

RULES = HttpRules(frozenset({"dendro.example"}), frozenset({"https://board.example"}))


def status(headers: dict[str, list[str]], local: str = "127.0.0.1", rules: HttpRules = RULES) -> int:
    answer = refusal(rules, headers, local)
    return answer.status.value if answer else 101


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:4500", "127.0.0.1:1", "127.8.8.8", "[::1]:4500", "dendro.example:443"]
)
def test_gateway_takes_requests_for_loopback_and_for_its_own_names(host: str) -> None:
    assert status({"host": [host]}) == 101


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.7", "", "a@[::1]"],
)
def test_gateway_refuses_a_name_that_somebody_else_gave_its_address(host: str) -> None:
    assert status({"host": [host]}) == 421


def test_gateway_takes_the_very_address_that_the_client_reached() -> None:
    assert status({"host": ["10.0.0.7:4500"]}, local="10.0.0.7") == 101


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"]])
def test_gateway_refuses_a_request_with_no_host_or_with_two(hosts: list[str]) -> None:
    assert status({"host": hosts}) == 400


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://board.example", "http://localhost"]
)
def test_pages_of_other_origins_are_refused(origin: str) -> None:
    assert status({"host": ["localhost"], "origin": [origin]}) == 403


def test_page_of_an_allowed_origin_may_connect_unless_another_one_stands_beside_it() -> None:
    assert status({"host": ["localhost"], "origin": ["https://board.example"]}) == 101
    both = ["https://board.example", "https://evil.example"]
    assert status({"host": ["localhost"], "origin": both}) == 403


def test_unix_socket_takes_any_host_and_still_no_origin() -> None:
    rules = HttpRules(any_host=True)
    assert status({"host": ["anything"]}, "", rules) == 101
    assert status({"origin": ["https://evil.example"]}, "", rules) == 403


def test_token_is_read_from_a_bearer_header_alone() -> None:
    assert bearer({"authorization": ["Bearer abc"]}) == "abc"
    assert bearer({"authorization": ["bearer  abc "]}) == "abc"
    for other in ("Basic abc", "Bearer ", "Bearer", "", "dendro_x_y"):
        assert bearer({"authorization": [other]}) == "", "shown, and no token"
    assert bearer({}) is None


@given(st.text(max_size=80))
def test_any_text_as_a_host_gets_an_answer(text: str) -> None:
    host_name(text)
    answer = refusal(RULES, {"host": [text]}, "10.0.0.7")
    assert answer is None or answer.text.isascii() or answer.text.encode()


@given(st.text(max_size=80))
def test_no_text_but_an_allowed_origin_passes_as_an_origin(text: str) -> None:
    passes = refusal(RULES, {"host": ["localhost"], "origin": [text]}, "") is None
    assert passes == (text.strip().lower() == "https://board.example")
