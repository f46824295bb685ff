"""The decision table between a provider's answer and our errors, and the waits that it asks for."""

from __future__ import annotations

import json

import httpx
import pytest

from orchestrator.config_keys import ProviderSettings
from orchestrator.model.prompt import Completed
from orchestrator.model.provider_errors import (
    FatalKind,
    FatalModelError,
    ModelError,
    ProviderFault,
    RateLimited,
    RetryableModelError,
    fatal_by_status,
    raise_fault,
    rate_limit_snapshot,
    retry_after_s,
)
from orchestrator.model.responses import decode
from orchestrator.model.sse import SseEvent


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After-Ms": "1500", "Retry-After": "9"}, 1.5),
        (
            {"Retry-After": "Fri, 20 Nov 2026 08:00:30 GMT", "Date": "Fri, 20 Nov 2026 08:00:00 GMT"},
            30.0,
        ),
        ({"Retry-After": "Fri, 20 Nov 2026 08:00:00 GMT", "Date": "Fri, 20 Nov 2026 09:00:00 GMT"}, 0.0),
        ({"Retry-After": "Fri, 20 Nov 2026 08:00:30 GMT"}, None),
    ],
)
def test_wait_that_a_provider_asks_for_is_read_by_its_own_clock(
    headers: dict[str, str], wait_s: float | None
) -> None:
    assert retry_after_s(httpx.Headers(headers)) == wait_s


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_status_that_may_pass_is_not_fatal(status: int) -> None:
    assert fatal_by_status("p", status, ProviderFault(None, None)) is None


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b'{"error":{"code":"c","type":"t","message":"m"}}', ProviderFault("c", "m")),
        (b'{"error":{"code":null,"type":"t","message":"m"}}', ProviderFault("t", "m")),
        (b'{"error":"plain"}', ProviderFault(None, "plain")),
        (b'{"detail":"plain"}', ProviderFault(None, "plain")),
        (b"<html>Bad gateway</html>", ProviderFault(None, "<html>Bad gateway</html>")),
        (b"\xff", ProviderFault(None, "\ufffd")),
        (b"[1]", ProviderFault(None, None)),
        (b"", ProviderFault(None, None)),
    ],
)
def test_fault_is_read_from_any_error_body(body: bytes, fault: ProviderFault) -> None:
    assert ProviderFault.of_body(body) == fault


def test_error_event_names_its_fault_nested_or_beside_its_type() -> None:
    for data in (
        b'{"type":"error","code":"context_length_exceeded","message":"m"}',
        b'{"type":"error","error":{"code":"context_length_exceeded","message":"m"}}',
    ):
        with pytest.raises(FatalModelError, match="context window"):
            decode("p", SseEvent("error", data))
    with pytest.raises(RetryableModelError, match="no reason given"):
        decode("p", SseEvent("error", b'{"type":"error"}'))


def test_usage_that_a_server_leaves_out_stays_out_and_totals_are_filled_in() -> None:
    without = b'{"type":"response.completed","response":{"id":"r"}}'
    partly = b'{"type":"response.done","response":{"usage":{"input_tokens":3,"output_tokens":4}}}'
    ended = b'{"type":"response.completed","response":{"id":"r","end_turn":false}}'
    assert decode("p", SseEvent("message", without)) == Completed("r", None, None)
    assert decode("p", SseEvent("message", ended)) == Completed("r", None, False)
    completed = decode("p", SseEvent("response.done", partly))
    assert isinstance(completed, Completed)
    assert completed.usage is not None
    assert completed.usage["total_tokens"] == 7


@pytest.mark.parametrize(("total", "told"), [(None, 7), (0, 7), (7, 7), (6, 6), (9, 9)])
def test_total_is_what_the_server_counts_and_the_sum_where_it_counts_none(
    total: int | None, told: int
) -> None:
    usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": total}
    end = {"type": "response.completed", "response": {"id": "r", "usage": usage}}
    completed = decode("p", SseEvent("response.completed", json.dumps(end).encode()))
    assert isinstance(completed, Completed)
    assert completed.usage is not None
    assert completed.usage["total_tokens"] == told


def test_rate_limit_headers_that_make_no_sense_count_as_absent() -> None:
    assert rate_limit_snapshot(httpx.Headers({"x-codex-primary-used-percent": "lots"})) is None
    secondary = httpx.Headers({"x-codex-secondary-used-percent": "3", "x-codex-secondary-window-minutes": ""})
    assert rate_limit_snapshot(secondary) == {"primary": None, "secondary": {"used_percent": 3.0}}


@pytest.mark.parametrize("base_url", ["", "api.openai.com/v1", "ftp://host/v1", "https://"])
def test_provider_refuses_a_base_url_that_is_none(base_url: str) -> None:
    with pytest.raises(ValueError, match="an http:// or https:// URL"):
        ProviderSettings(id="p", base_url=base_url)


def test_quota_that_is_used_up_ends_a_task_though_its_status_may_pass() -> None:
    error = fatal_by_status("p", 429, ProviderFault("insufficient_quota", "no money"))
    assert error is not None
    assert error.kind is FatalKind.INSUFFICIENT_QUOTA
    assert fatal_by_status("p", 429, ProviderFault("rate_limit_exceeded", "slowly")) is None


def test_wait_of_no_time_is_one_and_a_window_of_which_nothing_is_used_is_told() -> None:
    assert retry_after_s({"retry-after-ms": "0", "retry-after": "5"}) == 0.0
    told = rate_limit_snapshot({"x-codex-primary-used-percent": "0"})
    assert told == {"primary": {"used_percent": 0.0}, "secondary": None}


@pytest.mark.parametrize(("code", "waits"), [("rate_limit_exceeded", True), ("server_error", False)])
def test_wait_that_a_message_names_is_one_of_a_rate_limit_alone(code: str, waits: bool) -> None:
    with pytest.raises(ModelError) as raised:
        raise_fault("p", ProviderFault(code, "Please try again in 20m."))
    assert isinstance(raised.value, RateLimited) is waits
