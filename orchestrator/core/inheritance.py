"""Inherited conversations: a fork begins with its parent's as one text, opened only for a model.

The text is the same for every fork from one place of one conversation, so a hundred forks
share one stored copy. A log that begins with it needs nothing else of the parent's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import orjson

from orchestrator.core.blobs import REFERENCE, is_reference, references, resolve
from orchestrator.core.history import CALL_KINDS, INHERITED, OUTPUT_KINDS, Item, for_model
from orchestrator.protocol.wire import JsonValue

TextOf = Callable[[str], str | None]
_ELSEWHERE = (f'"{REFERENCE}"'.encode(), f'"{INHERITED}"'.encode())


def inherited_history(history: Iterable[Item], without: frozenset[str]) -> tuple[str, int]:
    """The conversation as a child inherits it, but for the calls (and their outputs) named in `without`.

    With the number of its items; what this session has inherited itself is one of them.
    """
    kept = [_plain(item) for item in for_model(item for item in history if not _is_of(item, without))]
    return orjson.dumps(kept, default=dict).decode(), len(kept)


def _plain(item: Item) -> Item:
    """An inherited conversation without what its own log notes beside it."""
    return {name: item[name] for name in ("type", "content")} if item.get("type") == INHERITED else item


def _is_of(item: Item, calls: frozenset[str]) -> bool:
    return item.get("type") in CALL_KINDS | OUTPUT_KINDS and item.get("call_id") in calls


def whole(history: Sequence[Item]) -> bool:
    """Whether nothing of a conversation stands elsewhere: then a model reads it as it is.

    Every model request asks this of all that was said, so the encoder looks and no loop does. It may
    be told no by a text that only speaks of such things.
    """
    try:
        text = orjson.dumps(history, default=dict)
    except orjson.JSONEncodeError:
        # Whoever sends it will find out, too, and says so in words of its own.
        return False
    return not any(word in text for word in _ELSEWHERE)


def opened(history: Iterable[Item], text_of: TextOf) -> Iterator[Item]:
    """The conversation with inherited ones in their place, at any depth, and large texts put back."""
    for item in history:
        if item.get("type") != INHERITED:
            # Only an item that has a reference is copied.
            yield resolve(item, text_of)
            continue
        items = _content(item, text_of)
        if items is not None:
            yield from opened(items, text_of)


def needed(history: Iterable[Item], text_of: TextOf) -> set[str]:
    """The texts to fetch next. What an inherited conversation needs is known only when it is there."""
    found: set[str] = set()
    for item in history:
        found.update(digest for digest in references(item) if text_of(digest) is None)
        if item.get("type") == INHERITED:
            found |= needed(_content(item, text_of) or (), text_of)
    return found


def _content(item: Item, text_of: TextOf) -> list[Item] | None:
    content: JsonValue = item["content"]
    if is_reference(content):
        content = text_of(content["$blob"])
    return orjson.loads(content) if content is not None else None
