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
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from orchestrator.core.frozen import record
from orchestrator.model.prompt import Item, Prompt
from orchestrator.model.responses import reasoning_of, sent_form, text_controls

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
        """Whether these items begin with those that were read; items do not change, so most are the same."""
        return self._items == list(items[: len(self._items)])

    def read(self, items: Sequence[Item]) -> None:
        """Takes the items behind those that were read."""
        for item in items[len(self._items) :]:
            if (form := sent_form(item)) is not None:
                data = orjson.dumps(self._canonical(form), default=dict, option=_SORTED)
                self._hash.update(b"," + data if self._written else data)
                self._written = True
        self._items = list(items)

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


class CanonicalRequests:
    """The canonical digests of a process's requests: of a conversation that grew, the new part is read."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], _Input] = OrderedDict()

    def of(self, prompt: Prompt, purpose: str) -> Sent | None:
        """The digests of a prompt of a session's turn, or of its compaction; None for what is no JSON."""
        key = prompt.session_id, purpose
        known = self._known.pop(key, None)
        if known is None or not known.precedes(prompt.input):
            known = _Input()
        try:
            known.read(prompt.input)
            instructions = prompt.instructions.encode()
            tools = orjson.dumps(sorted(map(_plain, prompt.tools), key=_name), default=dict, option=_SORTED)
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
        named = _sha256(instructions), _sha256(tools)
        texts = {named[0]: prompt.instructions, named[1]: tools.decode()}
        return Sent(known.digest(b"]," + behind[1:-1] + b',"tools":' + tools + b"}"), *named, texts)


def _plain(tool: Item) -> dict[str, Any]:
    return dict(tool)


def _name(tool: Mapping[str, Any]) -> tuple[str, str]:
    return str(tool.get("name") or ""), str(tool.get("type") or "")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
