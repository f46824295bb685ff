"""The canonical form of a model request, by whose SHA-256 two requests are the same request.

    {"input":[…],"instructions":"…","model":"…","reasoning":{…},"text":{…},"tool_choice":"auto","tools":[…]}

JSON in UTF-8, its keys sorted, without spaces; what a request does not have is null. `input` is whole, also
where the provider is asked to go on from a response. Ids of items and of calls are their numbers, each in the
order in which they first come; encrypted reasoning is its SHA-256; answers that are secret are not there.
Tools stand in the order of their names. What a request carries beside these seven shows the model nothing.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from typing import Any, Final

import orjson

from orchestrator.core.birth import needed, opened, refers
from orchestrator.core.frozen import record
from orchestrator.core.history import Arrangement, Log
from orchestrator.model.prompt import Item, Prompt
from orchestrator.model.responses import reasoning_of, sent_form, text_controls
from orchestrator.recent import Recent

MOST_SESSIONS: Final = 256
"""Sessions of which the digest of the input so far is remembered."""
_SORTED: Final = orjson.OPT_SORT_KEYS


@record
class Sent:
    """The digests of a request, and the texts of the two that are no input, by their own digests."""

    sha256: str
    instructions: str
    tools: str
    texts: Mapping[str, str]


class _Input:
    """The input of a session's last request, and the state of the hash behind it."""

    __slots__ = ("_calls", "_hash", "_ids", "_items", "_written")

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._hash = hashlib.sha256(b'{"input":[')
        self._written = False
        self._ids: dict[str, int] = {}
        self._calls: dict[str, int] = {}

    def precedes(self, items: Sequence[Item]) -> bool:
        """Whether these items begin with those that were read."""
        # Of the very same objects a list is quick to see that they are equal.
        return self._items == list(items[: len(self._items)])

    def read(self, items: Sequence[Item]) -> None:
        """Takes the items behind those that were read."""
        for item in items[len(self._items) :]:
            if (form := sent_form(item)) is not None:
                data = orjson.dumps(self._canonical(form), default=dict, option=_SORTED)
                self._hash.update(b"," + data if self._written else data)
                self._written = True
            self._items.append(item)

    def _canonical(self, item: Item) -> dict[str, Any]:
        made = dict(item)
        if isinstance(id := made.get("id"), str):
            made["id"] = self._ids.setdefault(id, len(self._ids))
        if isinstance(call := made.get("call_id"), str):
            made["call_id"] = self._calls.setdefault(call, len(self._calls))
        if isinstance(secret := made.get("encrypted_content"), str):
            made["encrypted_content"] = _sha256(secret.encode("utf-8", "surrogatepass"))
        return made

    def digest(self, behind: bytes) -> str:
        """The digest of the whole with what stands behind the input."""
        whole = self._hash.copy()
        whole.update(behind)
        return whole.hexdigest()


@record
class _Text:
    """A part of requests that many sessions share: the last one that was encoded, with its digest."""

    of: Sequence[Item] | str
    data: bytes
    sha256: str

    @classmethod
    def read(cls, of: Sequence[Item] | str, data: bytes) -> _Text:
        return cls(of, data, hashlib.sha256(data).hexdigest())


class CanonicalRequests:
    """The canonical digests of a process's requests: of a conversation that grew, the new part is read."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], _Input] = OrderedDict()
        self._instructions = _Text.read("", b"")
        self._tools = _Text.read((), b"[]")

    def of(self, prompt: Prompt, purpose: str) -> Sent | None:
        """The digests of a prompt of a session's turn, or of its compaction; None for what is no JSON."""
        key = prompt.session_id, purpose
        known = self._known.pop(key, None)
        if known is None or not known.precedes(prompt.input):
            known = _Input()
        try:
            known.read(prompt.input)
            instructions, tools = self._read_instructions(prompt.instructions), self._read_tools(prompt.tools)
            rest = {
                "instructions": prompt.instructions,
                "model": prompt.model,
                "reasoning": reasoning_of(prompt),
                "text": text_controls(prompt) or None,
                "tool_choice": "auto",
            }
            behind = orjson.dumps(rest, default=dict, option=_SORTED)
        except (orjson.JSONEncodeError, UnicodeEncodeError):
            return None
        self._known[key] = known
        while len(self._known) > MOST_SESSIONS:
            self._known.popitem(last=False)
        texts = {instructions.sha256: prompt.instructions, tools.sha256: tools.data.decode()}
        digest = known.digest(b"]," + behind[1:-1] + b',"tools":' + tools.data + b"}")
        return Sent(digest, instructions.sha256, tools.sha256, texts)

    def _read_instructions(self, text: str) -> _Text:
        if self._instructions.of != text:
            self._instructions = _Text.read(text, text.encode())
        return self._instructions

    def _read_tools(self, tools: Sequence[Item]) -> _Text:
        known = self._tools
        if len(known.of) != len(tools) or not same(known.of, tools):
            data = orjson.dumps(sorted(map(_plain, tools), key=_name), default=dict, option=_SORTED)
            self._tools = _Text.read(tuple(tools), data)
        return self._tools


# ── inputs ────────────────────────────────────────────────────────────────────────────────────────
# Conversations as their requests carry them. Items do not change: each is arranged, opened and encoded once.


MOST_INPUT_BYTES: Final = 32 << 20
"""Encoded input that is kept of all sessions together; the session that was asked for last stays."""
TextOf = Callable[[str], str | None]


@record
class Shown:
    """A whole conversation as a model is shown it, and the JSON array of what is sent of it."""

    items: Sequence[Item]
    encoded: bytes


class _Conversation:
    """The conversation of a session as its last request showed it."""

    __slots__ = ("_arranged", "_items", "_read", "_sizes", "data")

    def __init__(self) -> None:
        self._read: Log[Item] = Log()
        self._arranged = Arrangement()
        self._items: list[Item] = []
        self._sizes: list[tuple[int, int]] = []
        """For each arranged item: the items that are shown, and the bytes that are sent, up to its end."""
        self.data = bytearray()

    def precedes(self, history: Log[Item]) -> bool:
        return self._read.begins(history)

    def read(self, history: Log[Item], text_of: TextOf) -> bool:
        """Takes what is new; False where that needs a text which is not at hand: the rest waits for it."""
        stands = self._arranged.take(history.behind(len(self._read)))
        self._read = history
        del self._sizes[stands:]
        items, sent = self._sizes[-1] if self._sizes else (0, 0)
        del self._items[items:]
        del self.data[sent:]
        for _, item in self._arranged.placed(len(self._sizes)):
            shown: Sequence[Item] = (item,)
            data = orjson.dumps(item)
            if refers(data):
                if needed(shown, text_of):
                    return False
                shown = list(opened(shown, text_of))
                forms = map(sent_form, shown)
                self._add(shown, [orjson.dumps(form) for form in forms if form is not None])
            elif (form := sent_form(item)) is not None:
                self._add(shown, (data if form is item else orjson.dumps(form),))
            else:
                self._add(shown, ())
        return True

    def _add(self, shown: Sequence[Item], sent: Iterable[bytes]) -> None:
        encoded = b"".join(b"," + data for data in sent)
        self._items += shown
        self.data += encoded
        self._sizes.append((len(self._items), len(self.data)))

    def shown(self) -> Shown:
        # Each item has a comma before it.
        return Shown(list(self._items), b"".join((b"[", memoryview(self.data)[1:], b"]")))


class Conversations:
    """The conversations of a process's sessions: of one that grew, the new part is read."""

    def __init__(self, most_bytes: int = MOST_INPUT_BYTES) -> None:
        self._known = Recent[str, _Conversation](most_bytes, most=MOST_SESSIONS, newest_stays=True)

    def of(self, session: str, history: Log[Item], text_of: TextOf) -> Shown | None:
        """The whole conversation; None if it needs a text that is not at hand, or is no JSON."""
        known = self._known.take(session)
        if known is None or not known.precedes(history):
            known = _Conversation()
        try:
            at_hand = known.read(history, text_of)
        except orjson.JSONEncodeError:
            return None
        self._known.put(session, known, len(known.data))
        return known.shown() if at_hand else None


def same(before: Sequence[object], now: Sequence[object]) -> bool:
    """Whether `now` begins with the very objects of `before`: items and tools do not change."""
    return len(before) <= len(now) and all(map(is_, before, now))


def _plain(tool: Item) -> dict[str, Any]:
    return dict(tool)


def _name(tool: Mapping[str, Any]) -> tuple[str, str]:
    return str(tool.get("name") or ""), str(tool.get("type") or "")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
