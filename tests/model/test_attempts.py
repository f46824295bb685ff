"""The attempts of one model request: what is waited for, what is sent with each, and what the last one is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import orjson
import pytest

from orchestrator.config_keys import MIB, ProviderSettings, Secret, redacted
from orchestrator.core.settings import HELD_WAIT_S
from orchestrator.model.connections import place_of
from orchestrator.model.model_client import (
    BACKOFF_BASE_S,
    MAX_BACKOFF_S,
    ClientPorts,
    HttpBudget,
    ModelClient,
    ModelClients,
)
from orchestrator.model.prompt import Completed, ModelEvent, RateLimits
from orchestrator.model.provider_errors import (
    MAX_ERROR_BODY,
    FatalModelError,
    ModelError,
    RateLimited,
    RetryableModelError,
)
from tests.model.chat_chunks import STOP, stream
from tests.model.stubbed_client import API_KEY, prompt, provider

WHOLE = {
    "chat": stream(STOP),
    "responses": b'event: response.completed\ndata: {"response": {"id": "r"}}\n\n',
}
FORMATS = sorted(WHOLE)


class Body:
    """The body of an answer: one piece, and its end."""

    def __init__(self, data: bytes) -> None:
        self._pieces = [data, b""]

    async def readany(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def answer(status: int, body: Any = b"{}", **headers: str) -> Any:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return SimpleNamespace(status=status, headers=named, content=Body(data))


class Provider:
    """A client whose provider answers one thing after the other, with each attempt's headers and naps."""

    def __init__(self, wire_api: str, *answers: Any, **options: Any) -> None:
        self.answers = [*answers, answer(200, WHOLE[wire_api])]
        self.headers: list[Mapping[str, str]] = []
        self.naps: list[float] = []
        self.between: Callable[[], None] = lambda: None
        given = {"wire_api": wire_api, "api_key": Secret(API_KEY), "base_url": "http://x/v1", **options}
        table: ProviderSettings = provider(str(given.pop("base_url")), **given)
        self.client = ModelClient(table, ClientPorts(sleep=self._nap, jitter=lambda: 1.0))
        vars(self.client)["_connections"] = SimpleNamespace(post=self._post, release=lambda answer: None)

    async def _nap(self, delay_s: float) -> None:
        self.naps.append(delay_s)
        self.between()

    async def _post(self, url: Any, headers: Mapping[str, str], content: bytes) -> Any:
        self.headers.append(headers)
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def ask(self, budget: int = 4) -> list[ModelEvent]:
        return [event async for event in self.client.stream(prompt(), HttpBudget(budget))]

    async def fails(self, budget: int = 4) -> ModelError:
        with pytest.raises(ModelError) as raised:
            await self.ask(budget)
        return raised.value


PASSES = (408, 409, 425, 429, 500, 502, 503, 504, 599)
ENDS = (400, 401, 403, 404, 405, 410, 413, 422, 451)
NAMES_WAITS = (429, 503)
"""Statuses that say for how long nobody is to come."""


@pytest.mark.parametrize("wire_api", FORMATS)
@pytest.mark.parametrize("status", PASSES)
async def test_status_that_may_pass_is_passed_over(wire_api: str, status: int) -> None:
    peer = Provider(wire_api, answer(status))
    assert isinstance((await peer.ask())[-1], Completed)
    assert peer.naps == [BACKOFF_BASE_S]


@pytest.mark.parametrize("wire_api", FORMATS)
@pytest.mark.parametrize("status", ENDS)
async def test_status_that_no_repetition_cures_ends_the_request_and_is_not_billed(
    wire_api: str, status: int
) -> None:
    error = await Provider(wire_api, answer(status)).fails()
    assert isinstance(error, FatalModelError)
    assert not error.served


@pytest.mark.parametrize("wire_api", FORMATS)
@pytest.mark.parametrize("status", PASSES)
@pytest.mark.parametrize("wait_s", [0.0, 1.0, HELD_WAIT_S, HELD_WAIT_S + 1, 100.0])
async def test_wait_that_is_asked_for_is_sat_out_where_it_is_short_and_where_no_status_means_it_so(
    wire_api: str, status: int, wait_s: float
) -> None:
    peer = Provider(wire_api, answer(status, retry_after=str(wait_s)))
    if status in NAMES_WAITS and wait_s > HELD_WAIT_S:
        error = await peer.fails()
        assert isinstance(error, RateLimited)
        assert (error.retry_after_s, error.served, peer.naps) == (wait_s, False, [])
    else:
        await peer.ask()
        assert peer.naps == [min(wait_s, HELD_WAIT_S)]


async def test_naps_grow_with_the_attempts_of_the_whole_request_up_to_a_bound() -> None:
    peer = Provider("responses", *[answer(500)] * 9, request_max_retries=9)
    await peer.ask(9)
    assert peer.naps == [min(BACKOFF_BASE_S * 2**used, MAX_BACKOFF_S) for used in range(9)]
    # A later stream of the same request goes on where the one before it was.
    later = Provider("responses", answer(500), request_max_retries=9)
    await later.ask(6)
    assert later.naps == [BACKOFF_BASE_S * 2**3]


@pytest.mark.parametrize("budget", [0, 1, 2])
async def test_request_is_sent_once_more_for_each_retry_that_is_left_and_then_fails(budget: int) -> None:
    peer = Provider("responses", *[answer(500)] * 5)
    error = await peer.fails(budget)
    assert isinstance(error, RetryableModelError)
    assert (len(peer.headers), len(peer.naps)) == (budget + 1, budget)
    assert not error.served


LOST = aiohttp.ServerDisconnectedError()
"""A connection that broke behind the request's last byte: it may have been served."""


@pytest.mark.parametrize(
    "attempts", [["lost"], ["lost", "refused"], ["refused", "lost"], ["refused", "refused"]]
)
@pytest.mark.parametrize("end", ["fatal", "limited", "exhausted"])
async def test_request_may_be_billed_if_any_attempt_may(attempts: list[str], end: str) -> None:
    last = {
        "fatal": [answer(401)],
        "limited": [answer(429, retry_after="60")],
        "exhausted": [answer(500)],
    }[end]
    answers = [LOST if one == "lost" else answer(500) for one in attempts]
    error = await Provider("responses", *answers, *last).fails(len(answers))
    assert error.served is ("lost" in attempts)


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_error_quotes_no_key_of_any_attempt(at: int) -> None:
    """A key that another one has replaced is one still, as is the one that replaced it."""
    keys = [API_KEY, "sk-of-the-second-attempt", "sk-of-the-third-attempt"]
    refused = answer(401, {"error": {"message": f"the key {keys[at]} is wrong"}})
    peer = Provider("responses", answer(500), answer(500), refused)
    peer.between = lambda: peer.client.use_key(Secret(keys[len(peer.naps)]))
    error = await peer.fails()
    assert [headers["Authorization"] for headers in peer.headers] == [f"Bearer {key}" for key in keys]
    assert keys[at] not in str(error)
    assert "[redacted]" in str(error)


async def test_error_quotes_none_of_several_secrets_of_a_provider() -> None:
    secrets = {"X-Team": Secret("the-secret"), "X-Site": Secret("the-secret-of-the-site")}
    said = f"{API_KEY}, {secrets['X-Site']} and {secrets['X-Team']} are refused"
    peer = Provider("responses", answer(401, {"error": {"message": said}}), secret_headers=secrets)
    assert "[redacted], [redacted] and [redacted] are refused" in str(await peer.fails())


@pytest.mark.parametrize("cut", range(40))
def test_error_quotes_no_half_of_a_secret_that_was_cut(cut: int) -> None:
    """Answers are cut to what an error may quote before secrets are looked for in them."""
    key, other = "sk-0123456789abcdefghijklmnopqrstuvwxyz", "sk-0123456789abcdefgh-of-another"
    for text in (f"no such key: {key[:cut]}… ({other})", f"{other} …{key[cut:]}: no such key"):
        told = redacted(text, (other, key))
        left = max((key[at : at + 19] in told for at in range(len(key) - 18)), default=False)
        assert not left
        assert other not in told
        assert "-of-another" not in told
    assert redacted(f"no such key: {key[:12]}", (key,)) == f"no such key: {key[:12]}"


async def test_error_of_an_answer_that_is_no_json_quotes_no_key_at_its_cut() -> None:
    said = ("x" * 270) + f" {API_KEY}-{'0123456789' * 4} is refused"
    key = Secret(f"{API_KEY}-{'0123456789' * 4}")
    error = await Provider("responses", answer(401, said.encode()), api_key=key).fails()
    assert API_KEY not in str(error)
    assert "x [redacted]" in str(error)


STATED: list[tuple[dict[str, Any], str]] = [
    ({"query_params": {"key": "AIza-1"}}, "AIza-1"),
    ({"query_params": {"code": "x", "api_key": "a b/ü"}}, "a%20b%2F%C3%BC"),
    ({"query_params": {"api_key": "a b/ü"}}, "a+b%2F%C3%BC"),
    ({"http_headers": {"Authorization": "Bearer sk-1"}}, "sk-1"),
    ({"http_headers": {"Authorization": "Bearer sk-1"}}, "Bearer sk-1"),
    ({"http_headers": {"X-Other": "x", "X-Api-Key": "sk-1"}}, "sk-1"),
    ({"http_headers": {"Cookie": "id=sk-1"}}, "id=sk-1"),
    ({"base_url": "http://u:p%40ss@x/v1"}, "p@ss"),
    ({"base_url": "http://u:p%40ss@x/v1"}, "p%40ss"),
    ({"proxy": "http://u:proxy-pass@y"}, "proxy-pass"),
]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(("stated", "secret"), STATED, ids=range(len(STATED)))
async def test_error_quotes_no_secret_that_the_table_states_elsewhere(
    stated: dict[str, Any], secret: str, inside: bool
) -> None:
    said = {"error": {"message": f"/v1?x={secret}: version 2024-02 of gpt-5 is refused"}}
    refused = (
        answer(200, b"event: error\ndata: " + orjson.dumps(said) + b"\n\n") if inside else answer(401, said)
    )
    peer = Provider("responses", refused, **stated)
    error = await peer.fails(0)
    assert "/v1?x=[redacted]: version 2024-02 of gpt-5 is refused" in str(error)
    assert secret not in str(error)


async def test_provider_that_is_not_reached_is_named_without_the_user_of_its_address() -> None:
    table = provider("http://ann:sk-pass@x:81/v1?y=1", proxy="http://bob:sk-proxy@z:82")
    assert place_of(table) == "http://x:81/v1?y=1 through the proxy z:82"
    plain = provider("https://x/v1")
    assert place_of(plain) == "https://x/v1"


async def test_plain_parameters_and_headers_stay_in_errors() -> None:
    said = {"error": {"message": "api-version 2024-02 and team blue are not served"}}
    table = {"query_params": {"api-version": "2024-02"}, "http_headers": {"X-Team": "blue"}}
    error = await Provider("responses", answer(401, said), **table).fails(0)
    assert "api-version 2024-02 and team blue are not served" in str(error)


async def test_headers_of_the_table_replace_those_of_the_client_and_secret_ones_both() -> None:
    peer = Provider(
        "responses",
        http_headers={"User-Agent": "mine", "X-Both": "open"},
        secret_headers={"X-Both": Secret("hidden")},
    )
    await peer.ask()
    (headers,) = peer.headers
    assert (headers["User-Agent"], headers["X-Both"]) == ("mine", "hidden")


@pytest.mark.parametrize("write", [str.lower, str.upper, str.title])
@pytest.mark.parametrize("wire_api", ["responses", "chat"])
async def test_headers_replace_those_of_their_name_in_whatever_letters(
    wire_api: str, write: Callable[[str], str]
) -> None:
    replaced = ("User-Agent", "Authorization", "Accept", "session_id", "Accept-Encoding", "Content-Type")
    peer = Provider(
        wire_api,
        http_headers={**{write(name): "mine" for name in replaced}, "x-both": "open", "X-One": "1"},
        secret_headers={"X-BOTH": Secret("hidden")},
    )
    await peer.ask()
    (headers,) = peer.headers
    found = [(name.lower(), value) for name, value in headers.items()]
    assert len(found) == len(dict(found)), "each name once"
    assert {name: dict(found)[name.lower()] for name in replaced} == dict.fromkeys(replaced, "mine")
    assert (dict(found)["x-both"], dict(found)["x-one"]) == ("hidden", "1")


@pytest.mark.parametrize("window", ["primary", "secondary"])
async def test_rate_limits_are_told_whichever_window_the_answer_names(window: str) -> None:
    peer = Provider("responses")
    peer.answers = [
        answer(200, WHOLE["responses"], **{f"x_codex_{window}_used_percent": "7"}),
    ]
    limits, _ = await peer.ask()
    assert isinstance(limits, RateLimits)
    assert cast(Any, limits.snapshot)[window] == {"used_percent": 7.0}


@pytest.mark.parametrize("length", [MAX_ERROR_BODY - 1, MAX_ERROR_BODY, MAX_ERROR_BODY + 1])
async def test_refusal_is_read_up_to_a_bound(length: int) -> None:
    begun, end = b'{"error": {"message": "no", "more": "', b'"}}'
    body = begun + b"x" * (length - len(begun) - len(end)) + end
    error = await Provider("responses", answer(400, body)).fails()
    # What is cut is no JSON any more: its beginning is shown as it is.
    assert ("answered 400: no;" in str(error)) is (length <= MAX_ERROR_BODY)


@pytest.mark.parametrize("wire_api", FORMATS)
@pytest.mark.parametrize(("more", "whole"), [(0, True), (1, False)])
async def test_response_is_taken_up_to_its_bound_in_all_its_pieces(
    wire_api: str, more: int, whole: bool
) -> None:
    comment = b": " + b"x" * (MIB // 2) + b"\n\n"
    rest = MIB - len(comment) - len(WHOLE[wire_api]) - len(b": \n\n")
    pieces = [comment, b": " + b"x" * (rest + more) + b"\n\n", WHOLE[wire_api], b""]
    peer = Provider(wire_api, max_response_bytes=MIB)
    found = answer(200)
    found.content._pieces = pieces
    peer.answers = [found]
    if whole:
        assert isinstance((await peer.ask())[-1], Completed)
    else:
        assert "was cut off there" in str(await peer.fails())


@pytest.mark.parametrize("wire_api", FORMATS)
@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"x_request_id": "a", "request_id": "b"}, "a"),
        ({"request_id": "b"}, "b"),
        ({"x_request_id": "x" * 5_000, "request_id": "b"}, "b"),
        ({"x_request_id": "", "request_id": f"b-{API_KEY}"}, "b-[redacted]"),
        ({"other_id": "c"}, ""),
    ],
)
async def test_request_is_named_by_the_first_header_that_names_it(
    wire_api: str, named: dict[str, str], told: str
) -> None:
    peer = Provider(wire_api)
    peer.answers = [answer(200, WHOLE[wire_api], **named)]
    completed = (await peer.ask())[-1]
    assert isinstance(completed, Completed)
    assert completed.served is not None
    assert completed.served.request_id == told


async def test_each_provider_of_a_worker_has_one_client_and_all_of_them_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    async def aclose(client: ModelClient) -> None:
        closed.append(client.provider.id)

    monkeypatch.setattr(ModelClient, "aclose", aclose)
    known = {name: provider("http://x/v1", name, request_max_retries=at) for at, name in enumerate("abc")}
    clients = ModelClients(known)
    for name in ("a", "b", "a", "c", "b"):
        clients.stream(name, prompt(), HttpBudget(0))
    assert [clients.retries(name)[0] for name in ("a", "b", "c")] == [0, 1, 2]
    assert clients.retries("d") == (0, 0)
    with pytest.raises(FatalModelError, match="no model provider 'd', only a, b, c"):
        clients.stream("d", prompt(), HttpBudget(0))
    assert all(clients._client(name) is clients._client(name) for name in known)
    await clients.aclose()
    assert sorted(closed) == ["a", "b", "c"]
