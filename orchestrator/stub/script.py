"""The stub's answers, as values: the words of a scenario file, and the port that chooses an answer.

The dataclasses are the file format (field names included), read strictly by `scenario` and
built directly by the behaviours. Nothing here knows HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, ClassVar, Protocol

import orjson
from pydantic import ConfigDict

from orchestrator.stub.request_shape import checked

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class Text:
    """An assistant message, sent in three deltas."""

    text: str
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A reasoning summary, sent in two deltas after a section break."""

    reasoning: str
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class Call:
    """A function call; a string in `args` is sent as it is, so that broken arguments can be tried."""

    call: str
    args: dict[str, Any] | str = field(default_factory=dict)
    call_id: str | None = None
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class CustomCall:
    """A call of a custom (free-form) tool."""

    custom_call: str
    input: str
    call_id: str | None = None
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class RawItem:
    """Any other output item, sent whole."""

    item: dict[str, Any]
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


OutputItem = Text | Reasoning | Call | CustomCall | RawItem


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that the response reports."""

    input: int = 100
    cached: int = 0
    output: int = 20
    reasoning: int = 0
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class Failure:
    """The error of a `response.failed`."""

    code: str
    message: str
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The reason of a `response.incomplete`."""

    reason: str
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class Step:
    """An answer. Milliseconds, because these are the file's own names."""

    items: tuple[OutputItem, ...] = ()
    usage: Usage | None = None
    """None: 100 in and 20 out in a scenario, an estimate from the bytes in a behaviour.

    A response that fails or is incomplete reports a usage only if it is given here.
    """
    status: int | None = None
    """Another HTTP status than 200; `headers` and `body` go with it, and nothing else counts."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the answer, also of a good one (rate limits)."""
    body: Any = None
    drop_after: int | None = None
    """Cut the connection after so many SSE events, counted from `response.created`."""
    failed: Failure | None = None
    incomplete: Shortfall | None = None
    hang: bool | int = False
    """True: never answer. A number: fall silent after so many SSE events."""
    tail_delay_ms: float = 0
    """Before the last SSE event, which ends the response."""
    hold_tail: str | None = None
    """The last SSE event waits until this name is posted to `/release`."""
    end_turn: bool | None = None
    delay_ms: float = 0
    """Before the answer begins."""
    delta_delay_ms: float | None = None
    """Before each delta; None leaves it to the server's pace."""
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True, slots=True)
class StubRequest:
    """A model request as the scripts see it, in the form of the Responses API."""

    session: str
    body: Mapping[str, Any]
    size: int
    digest: str
    """Eight hex digits of the body: the same request gets the same ids, whoever repeats it."""

    @classmethod
    def of(
        cls,
        raw: bytes,
        session_header: str | None,
        read: Callable[[Mapping[str, Any]], Mapping[str, Any]] = checked,
    ) -> StubRequest:
        """Reads a posted body; raises ValueError without a JSON object, `InvalidRequest` for a wrong type."""
        body = orjson.loads(raw)
        if not isinstance(body, dict):
            raise ValueError("the body is not a JSON object")
        session = body.get("prompt_cache_key") or session_header or ""
        return cls(str(session), read(body), len(raw), blake2b(raw, digest_size=4).hexdigest())


@dataclass(frozen=True, slots=True)
class Answer:
    """A step chosen for a request; `number` counts the session's requests from 1."""

    step: Step
    number: int
    id_prefix: str
    """The prefix of generated call and item ids."""


class Script(Protocol):
    """Chooses the answers; `name` is shown as the model `stub:<name>`."""

    @property
    def name(self) -> str:
        """The word after `stub:`."""
        ...

    def answer(self, request: StubRequest) -> Answer:
        """The answer to this request."""
        ...
