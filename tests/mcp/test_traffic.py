"""The account of a connection: how much a server may ask, at once and within a minute."""

from __future__ import annotations

import pytest
from mcp.types import (
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

from orchestrator.mcp.server_records import MESSAGES_A_MINUTE, OPEN_REQUESTS, REQUESTS_A_MINUTE, Misbehaved
from orchestrator.mcp.servers import Traffic


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ping() -> JSONRPCMessage:
    return JSONRPCRequest(jsonrpc="2.0", id=1, method="ping")


def pong() -> JSONRPCMessage:
    return JSONRPCResponse(jsonrpc="2.0", id=1, result={})


def refusal() -> JSONRPCMessage:
    return JSONRPCError(jsonrpc="2.0", id=1, error=ErrorData(code=-32601, message="no such method"))


NEWS = JSONRPCNotification(jsonrpc="2.0", method="notifications/message")


def ask(traffic: Traffic, times: int) -> None:
    for _ in range(times):
        traffic.received(ping())
        traffic.sent(pong())


def test_server_has_no_more_than_its_bound_of_requests_open() -> None:
    traffic = Traffic("bad", Clock())
    for _ in range(OPEN_REQUESTS):
        traffic.received(ping())
        traffic.sent(ping())  # what is asked of the server answers nothing that it asked
    with pytest.raises(Misbehaved, match="asked more than 32 things at once"):
        traffic.received(ping())


def test_request_that_is_refused_is_answered() -> None:
    traffic = Traffic("bad", Clock())
    for _ in range(OPEN_REQUESTS + 1):
        traffic.received(ping())
        traffic.sent(refusal())


def test_server_whose_requests_are_answered_at_once_asks_no_more_than_its_bound_a_minute() -> None:
    traffic = Traffic("bad", Clock())
    ask(traffic, REQUESTS_A_MINUTE)
    with pytest.raises(Misbehaved, match="asked more than 600 things within a minute"):
        traffic.received(ping())


def test_server_sends_no_more_messages_of_any_kind_than_its_bound_a_minute() -> None:
    traffic = Traffic("bad", clock := Clock())
    for _ in range(2):
        for _ in range(MESSAGES_A_MINUTE):
            traffic.received(NEWS)
        clock.now += 60
    for _ in range(MESSAGES_A_MINUTE):
        traffic.received(NEWS)
    with pytest.raises(Misbehaved, match="sent more than 60,000 messages within a minute"):
        traffic.received(pong())


def test_server_that_asks_now_and_then_is_served_for_ever() -> None:
    traffic = Traffic("bad", clock := Clock())
    for _ in range(3):
        ask(traffic, REQUESTS_A_MINUTE)
        clock.now += 60
