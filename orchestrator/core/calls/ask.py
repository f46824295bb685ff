"""Asks: calls that wait for a person's words, and what an answer has to be like.

Such a call runs nothing and holds nothing: `ASKING` is its phase from the request to the answer. Each kind
says which op answers it, reads the answer, and says what the model reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import orjson

from orchestrator.core.frozen import record
from orchestrator.protocol.items import ToolOutput
from orchestrator.protocol.wire import EventModel, JsonObject

MOST_TEXT_BYTES: Final = 32 << 10
"""Bytes of one text of an answer."""
MOST_ANSWER_BYTES: Final = 128 << 10
"""Bytes of all texts of an answer: it travels in one message, and is one output."""
MOST_NAMED: Final = 4
NAME_CHARS: Final = 40


class DoesNotAnswer(ValueError):
    """A response does not answer what was asked; the ask stays open, and the message says what is wrong."""


@record
class Settled:
    """The end of an ask: the word for it in the log, and what the model reads."""

    decision: str
    output: ToolOutput
    events: tuple[EventModel, ...] = ()
    """The events before the output."""
    hides: bool = False
    """The output has a note in the place of a secret text."""


def digest_of(response: JsonObject) -> str:
    """The identity of a response: a second one is held against it."""
    return sha256(orjson.dumps(response, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def check_texts(texts: Iterable[tuple[str, str]]) -> None:
    """Raises `DoesNotAnswer` for a blank or an over-long text; each comes with the name of its question."""
    total = 0
    for name, text in texts:
        size = len(text.encode("utf-8", "replace"))
        total += size
        if not text.strip():
            raise DoesNotAnswer(f"the answer to {shown(name)} is empty")
        if size > MOST_TEXT_BYTES:
            raise DoesNotAnswer(
                f"the answer to {shown(name)} has {size:,} bytes; at most {MOST_TEXT_BYTES:,} are taken"
            )
    if total > MOST_ANSWER_BYTES:
        raise DoesNotAnswer(f"the answers have {total:,} bytes; at most {MOST_ANSWER_BYTES:,} are taken")


def named(names: Iterable[str]) -> str:
    """The names of questions in an error, the first few of them."""
    found = list(names)
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return ", ".join(map(shown, found[:MOST_NAMED])) + more


def shown(name: str) -> str:
    return repr(name if len(name) <= NAME_CHARS else name[: NAME_CHARS - 1] + "…")
