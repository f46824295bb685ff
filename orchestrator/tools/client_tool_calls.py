"""Tools that a session's client brings along, as the model is offered them, and as calls of them are read.

The worker runs nothing of them: the call waits for the client.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Final

import orjson
from pydantic import Field

from orchestrator.core.calls import Call, ClientToolWork
from orchestrator.core.calls.ask import MOST_ARGUMENT_BYTES
from orchestrator.core.client_tools import MOST_TOOLS, SEARCH, ClientTool
from orchestrator.core.commands import Immediate
from orchestrator.core.frozen import record
from orchestrator.core.state import State
from orchestrator.protocol.wire import JsonMapping, JsonObject
from orchestrator.tools.arguments import Arguments, BadArguments, json_object, parsed
from orchestrator.tools.tool import function, function_of_schema, integer, string


def offered(state: State, taken: Collection[str]) -> Iterator[JsonObject]:
    """The tools of the session's client; a name that the worker knows itself stays the worker's.

    A task beside the conversation has none: it only reads, and nobody knows what a client's tool does. Agents
    have none either; those of earlier versions have them in their facts.
    """
    if not _serves(state) or state.facts.client_tools is None:
        return
    free = [tool for tool in state.facts.client_tools.tools if tool.name not in taken]
    yield from (_offer(tool) for tool in free if not tool.deferred)
    if deferred := [tool for tool in free if tool.deferred]:
        yield spec(deferred)
        yield from map(_offer, loaded(state, deferred))


def _offer(tool: ClientTool) -> JsonObject:
    return function_of_schema(tool.name, tool.description, orjson.loads(tool.schema))


def called(state: State, call: Call) -> ClientTool | None:
    """The tool of the session's client that a call means."""
    brought = state.facts.client_tools
    if brought is None or not _serves(state) or call.item["type"] != "function_call":
        return None
    return brought.named(call.name)


def searches(state: State, call: Call) -> bool:
    """Whether a call is the search for tools of the session's client."""
    return call.name == SEARCH and call.item["type"] == "function_call" and bool(_deferred(state))


def searched(state: State, call: Call) -> Immediate:
    """The output of such a call; raises `BadArguments`."""
    return matching(call, _deferred(state))


def _deferred(state: State) -> list[ClientTool]:
    brought = state.facts.client_tools
    if brought is None or not _serves(state):
        return []
    return [tool for tool in brought.tools if tool.deferred]


def assessed(state: State, call: Call, tool: ClientTool) -> ClientToolWork:
    """The call as the client is to be asked; raises `BadArguments` for what no JSON object is."""
    brought = state.facts.client_tools
    assert brought is not None
    given = orjson.dumps(json_object(call.item["arguments"], MOST_ARGUMENT_BYTES)).decode()
    return ClientToolWork(tool.tool, brought.client, brought.limit_ms, tool.namespace, given)


def _serves(state: State) -> bool:
    return state.facts.is_root and (state.task is None or state.task.branch is None)


# ── tool search ───────────────────────────────────────────────────────────────────────────────────
# Tools of a session's client whose loading is deferred: found by their words, and offered from then on.
#
# A model is offered the search in their place. The conversation says which searches were made, so every
# worker offers the same tools; after a compaction the model searches again.


MOST_FOUND: Final = 8
"""Tools of one search, if the model names no other number."""
MOST_QUERY_BYTES: Final = 1_024
MOST_WORDS: Final = 32
"""Words of a query that count."""
MOST_LETTERS: Final = 32
"""Letters of a word that count."""
MOST_SEARCHES: Final = 64
"""Searches of a conversation that count, the newest of them: each request looks at all of them."""
_WORD = re.compile(r"[a-z0-9]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_IN_NAME = 3
"""How much a word of a tool's name counts, beside one of its description or of its arguments' names."""
_STEM = 4
"""Letters that two words have to begin with alike to be taken for forms of one."""


class SearchArguments(Arguments):
    """The arguments of a search."""

    query: str
    limit: Annotated[int, Field(ge=1, le=MOST_TOOLS)] = MOST_FOUND


def spec(deferred: Sequence[ClientTool]) -> JsonObject:
    """The search as a model is offered it."""
    spaces = dict.fromkeys(tool.namespace for tool in deferred if tool.namespace is not None)
    origin = f" They belong to: {', '.join(spaces)}." if spaces else ""
    return function(
        SEARCH,
        f"Searches {len(deferred)} further tools by words of their names and descriptions.{origin} The tools "
        "that are found can be called from the next step on.",
        {
            "query": string("Words for what the tool has to do."),
            "limit": integer(f"Tools to find at most; {MOST_FOUND} if absent."),
        },
        ["query"],
    )


def matching(call: Call, deferred: Sequence[ClientTool]) -> Immediate:
    """The output of a search; raises `BadArguments`."""
    given = _arguments(call.item["arguments"])
    found = search(tuple(deferred), given.query, given.limit)
    if not found:
        return Immediate(f"no tool has these words; {len(deferred)} can be searched: use others")
    tools = [{"name": tool.name, "description": tool.description} for tool in found]
    return Immediate(orjson.dumps({"tools": tools}).decode())


def _arguments(text: str) -> SearchArguments:
    given = parsed(SearchArguments, text)
    if len(given.query.encode("utf-8", "surrogatepass")) > MOST_QUERY_BYTES:
        raise BadArguments(f"query: at most {MOST_QUERY_BYTES:,} bytes are taken")
    return given


def loaded(state: State, deferred: Sequence[ClientTool]) -> list[ClientTool]:
    """The tools that the newest searches of the conversation have found, in the order of their discovery."""
    found: dict[str, ClientTool] = {}
    asked = deque((given for item in state.conversation if (given := _search_of(item))), MOST_SEARCHES)
    for given in asked:
        found |= {tool.name: tool for tool in search(tuple(deferred), given.query, given.limit)}
    return list(found.values())


def _search_of(item: JsonMapping) -> SearchArguments | None:
    """The search that an item asks for; None for any other item, and for one that was refused."""
    if item.get("type") != "function_call" or item.get("name") != SEARCH:
        return None
    try:
        return _arguments(item["arguments"]) if isinstance(item.get("arguments"), str) else None
    except BadArguments:
        return None


@lru_cache(maxsize=4 * MOST_SEARCHES)
def search(tools: tuple[ClientTool, ...], query: str, limit: int) -> tuple[ClientTool, ...]:
    """The tools that fit a query, the best first: rare words count for more, and those of names for most."""
    asked = dict.fromkeys(_words(query)[:MOST_WORDS])
    scores = [0.0] * len(tools)
    for word in asked:
        hits = [_IN_NAME * name.has(word) + more.has(word) for name, more in map(_known, tools)]
        number = sum(map(bool, hits))
        rarity = math.log(1 + len(tools) / number) if number else 0.0
        scores = [score + rarity * hit for score, hit in zip(scores, hits, strict=True)]
    best = sorted(range(len(tools)), key=lambda place: -scores[place])
    return tuple(tools[place] for place in best[:limit] if scores[place] > 0)


@record
class _Vocabulary:
    """Words, and the beginnings of them that may be taken for another form."""

    words: frozenset[str]
    beginnings: frozenset[str]

    @classmethod
    def of(cls, words: Iterable[str]) -> _Vocabulary:
        known = frozenset(words)
        return cls(known, frozenset(part for word in known for part in _beginnings(word)))

    def has(self, asked: str) -> float:
        """1 for a word itself, half of that for another form of it."""
        if asked in self.words:
            return 1.0
        return 0.5 * (asked in self.beginnings or not self.words.isdisjoint(_beginnings(asked)))


@lru_cache(maxsize=4 * MOST_TOOLS)
def _known(tool: ClientTool) -> tuple[_Vocabulary, _Vocabulary]:
    """The words of a tool's name, and those of its description and of its arguments' names."""
    return _Vocabulary.of(_words(tool.name)), _Vocabulary.of(_described(tool))


def _described(tool: ClientTool) -> Iterator[str]:
    yield from _words(tool.description)
    properties = orjson.loads(tool.schema).get("properties")
    for name in properties if isinstance(properties, dict) else ():
        yield from _words(name)


def _words(text: str) -> list[str]:
    return [word[:MOST_LETTERS] for word in _WORD.findall(_HUMP.sub(" ", text).lower())]


def _beginnings(word: str) -> Iterator[str]:
    return (word[:end] for end in range(_STEM, len(word)))
