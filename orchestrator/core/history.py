"""A session's conversation as an append-only persistent list, and what the model is shown of it.

`evolve` keeps every earlier state valid, so an append must not copy the conversation:
`Log` shares full chunks between versions and copies only its short tail, which keeps a
fold over n entries linear. `for_model` is the only place that repairs a conversation:
the log itself is never rewritten.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from operator import is_
from typing import Final, Generic, TypeVar

from orchestrator.core.blobs import INLINE_TEXT_BYTES
from orchestrator.core.frozen import record
from orchestrator.protocol.items import (
    CustomToolCallOutput,
    FunctionCallOutput,
    InputText,
    Message,
    ToolOutput,
    image_kind,
)
from orchestrator.protocol.wire import JsonMapping, JsonValue, written

Item = JsonMapping
"""A ResponseItem as JSON; unknown kinds are kept whole."""

T = TypeVar("T")
_CHUNK = 64

CALL_KINDS = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
OUTPUT_KINDS = frozenset({"function_call_output", "custom_tool_call_output"})
INJECTED = "injected"
"""The mark of a message that a client added without a turn. No model is shown it."""
BESIDE = "beside"
"""The mark of a call that a response made behind the output of its last one. No model is shown it."""
_MARKS = (INJECTED, BESIDE)
INHERITED = "inherited"
"""The kind of the item that stands for a whole conversation, which a fork began with."""
ABORTED = "aborted"
"""The output that heals a call left without one (Codex's word)."""
_MODEL = "assistant"


@record
class Log(Generic[T]):
    """An immutable sequence with cheap append: full chunks are shared, the tail is copied."""

    chunks: tuple[tuple[T, ...], ...] = ()
    tail: tuple[T, ...] = ()

    @classmethod
    def of(cls, items: Iterable[T]) -> Log[T]:
        everything = tuple(items)
        full = len(everything) - len(everything) % _CHUNK
        chunks = tuple(everything[start : start + _CHUNK] for start in range(0, full, _CHUNK))
        return cls(chunks, everything[full:])

    def append(self, item: T) -> Log[T]:
        if len(self.tail) + 1 < _CHUNK:
            return Log(self.chunks, (*self.tail, item))
        return Log((*self.chunks, (*self.tail, item)), ())

    def prefix(self, length: int) -> Log[T]:
        """The first `length` items; sharing is given up only by the chunk that is cut."""
        whole, rest = divmod(min(length, len(self)), _CHUNK)
        if whole == len(self.chunks):
            return Log(self.chunks, self.tail[:rest])
        return Log(self.chunks[:whole], self.chunks[whole][:rest])

    def begins(self, other: Log[T]) -> bool:
        """Whether `other` has the very same items, and maybe more behind them."""
        full = len(self.chunks)
        if len(other) < len(self) or not all(map(is_, self.chunks, other.chunks)):
            return False
        return all(map(is_, self.tail, other.chunks[full] if full < len(other.chunks) else other.tail))

    def behind(self, length: int) -> Iterator[T]:
        """The items behind the first `length`."""
        full, rest = divmod(length, _CHUNK)
        yield from islice(chain(chain.from_iterable(self.chunks[full:]), self.tail), rest, None)

    def __len__(self) -> int:
        return len(self.chunks) * _CHUNK + len(self.tail)

    def __iter__(self) -> Iterator[T]:
        for chunk in self.chunks:
            yield from chunk
        yield from self.tail


def user_message(*texts: str) -> Message:
    """A `message` item of role user; each text is a part."""
    return Message(role="user", content=tuple(InputText(text=text) for text in texts))


def opened_message(opening: str, *rest: str) -> Message:
    """A message that rules know by its opening; of a text too long for its line a log has a reference.

    Then the opening is a part of its own, where rules can read it.
    """
    text = "".join((opening, *rest))
    fits = len(text.encode("utf-8", "surrogatepass")) <= INLINE_TEXT_BYTES
    return user_message(text) if fits else user_message(opening, *rest)


def for_model(history: Iterable[Item]) -> list[Item]:
    """The conversation as a request carries it.

    Each output stands right behind its call, whatever the order they were recorded in
    (the recorded Codex's order); a call without an output gets one that says `aborted`;
    an output without a call is left out.
    """
    return [item for _, item in _arranged(history)]


def since(history: Iterable[Item], sent: int, length: int) -> list[Item]:
    """The items that a provider that keeps conversations has not seen, in the form of `for_model`.

    The provider was sent the first `sent` items, and answered items among those up to `length`: of these
    only the outputs of its calls, and what others said meanwhile, are new to it.
    """
    return [
        item
        for place, item in _arranged(history)
        if place >= length
        or (place >= sent and (item.get("type") in OUTPUT_KINDS or item.get("role", _MODEL) != _MODEL))
    ]


def made_together(history: Iterable[Item]) -> frozenset[str]:
    """The calls of which the same response made another one before them, by their ids.

    No request is begun while a call is open: what was asked for before its output is of the same response.
    """
    found, unanswered = set[str](), set[str]()
    for item in history:
        kind = item.get("type")
        if kind == "message":
            unanswered.clear()
        elif kind in OUTPUT_KINDS:
            unanswered.discard(item.get("call_id") or "")
        elif kind in CALL_KINDS:
            call_id = item.get("call_id") or ""
            if unanswered or BESIDE in item:
                found.add(call_id)
            unanswered.add(call_id)
    return frozenset(found)


def _arranged(history: Iterable[Item]) -> list[tuple[int, Item]]:
    """The items to show, each with its place in the history; a healed output has its call's."""
    arrangement = Arrangement()
    arrangement.take(history)
    return arrangement.placed(0)


class Arrangement:
    """The items to show of a conversation that grows: what was taken once is not looked at again."""

    __slots__ = ("_shown", "_taken", "_unanswered", "_waiting")

    def __init__(self) -> None:
        self._shown: list[tuple[int, Item]] = []
        self._taken = 0
        self._waiting: dict[str, int] = {}
        self._unanswered: set[int] = set()

    def take(self, items: Iterable[Item]) -> int:
        """Takes what follows; answers up to which place all that is shown is as it was before."""
        shown, waiting, unanswered = self._shown, self._waiting, self._unanswered
        first, place = len(shown), self._taken - 1
        for place, item in enumerate(items, self._taken):
            kind = item.get("type")
            if INJECTED in item or BESIDE in item:
                item = {name: value for name, value in item.items() if name not in _MARKS}
            if kind in OUTPUT_KINDS:
                kept = waiting.pop(item.get("call_id") or "", None)
                if kept is not None:
                    shown[kept] = (place, item)
                    unanswered.discard(kept)
                    first = min(first, kept)
                continue
            shown.append((place, item))
            if kind in CALL_KINDS and item.get("call_id"):
                waiting[item["call_id"]] = len(shown)
                unanswered.add(len(shown))
                shown.append((place, item))
        self._taken = place + 1
        return first

    def placed(self, first: int) -> list[tuple[int, Item]]:
        """The items shown from a place on; a call that has no output yet has one that says `aborted`."""
        found = self._shown[first:]
        for kept in self._unanswered:
            if kept >= first:
                place, call = found[kept - first]
                found[kept - first] = (place, written(call_output(call, ABORTED)))
        return found


def call_output(call: Item, output: ToolOutput) -> FunctionCallOutput | CustomToolCallOutput:
    """The output item that answers `call`: custom tools have an output kind of their own."""
    kind = CustomToolCallOutput if call["type"] == "custom_tool_call" else FunctionCallOutput
    return kind(call_id=call["call_id"], output=output)


def message_text(item: Item) -> str:
    """All text parts of a message, joined; a part so long that it is stored elsewhere is only named."""
    found = ""
    for part in item.get("content") or ():
        if type(part) is dict or isinstance(part, Mapping):
            text = part.get("text", "")
            found += text if isinstance(text, str) else "[a long text]"
    return found


def searched(item: Item) -> str:
    """The words of a search on the web: its queries, the page that was opened, the text looked for in it."""
    action = item.get("action")
    if not isinstance(action, Mapping):
        return ""
    match action.get("type"):
        case "open_page":
            return _word(action.get("url"))
        case "find_in_page":
            return f"{_word(action.get('pattern'))} in {_word(action.get('url'))}"
        case _:
            queries = action.get("queries")
            several = queries if isinstance(queries, list | tuple) else ()
            return _word(action.get("query")) or ", ".join(map(_word, several))


def _word(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""


# ── images ────────────────────────────────────────────────────────────────────────────────────────
# Images by URL: which of them a model can be shown.
#
# The content decides what an image is, and neither its name nor what its URL says.


MAX_IMAGE_BYTES: Final = 20 << 20
DATA_URL, HTTPS_URL = "data:image/", "https://"


def check_image_url(url: str) -> None:
    """Raises `ValueError` for a URL under which no image can be sent to a model."""
    if url.startswith(HTTPS_URL):
        return
    head, comma, encoded = url.partition(",")
    if not (head.startswith(DATA_URL) and head.endswith(";base64") and comma):
        raise ValueError("an image is a URL `https://…` or `data:image/…;base64,…`")
    if len(encoded) * 3 // 4 > MAX_IMAGE_BYTES:
        raise ValueError(f"it has more than {MAX_IMAGE_BYTES:,} bytes, which is the most that can be sent")
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("what follows `;base64,` is not base64") from None
    image_kind(content)
