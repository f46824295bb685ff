"""Compaction: a conversation becomes initial context, recent user messages and a summary."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.core.blobs import INLINE_TEXT_BYTES
from orchestrator.core.context import CONTEXT_TAGS, standing_context
from orchestrator.core.history import Item, message_text, user_message
from orchestrator.core.state import State
from orchestrator.protocol.wire import written

SUMMARY_PROMPT = (
    "The conversation is about to be cut down to make room. Write a handover for the agent that goes on "
    "with it and will see nothing but your text and the user's recent messages. Cover: the goal and every "
    "constraint or preference that the user stated; what has been done, with file paths, commands and "
    "results that matter; decisions and their reasons; what is unfinished, in which state, and the next "
    "steps; open questions. Be specific and brief; do not call tools."
)
"""The last user message of a compaction request."""

KEPT_TOKENS = 20_000
"""User messages are kept newest first up to this much, at four bytes a token."""

STORED_CHARS = INLINE_TEXT_BYTES // 4

COMPACTED_MESSAGE = "Compact task completed"
COMPACTED_WARNING = (
    "The conversation was compacted: earlier turns are now a summary. Long threads and repeated "
    "compactions make the model less accurate; start a new session for new work."
)
_MARKER = "<turn_aborted>"


def compacted_history(
    state: State, summary: str, dropped: tuple[str, ...] = ()
) -> tuple[tuple[str, ...], list[Item]]:
    """The user texts kept, and the items that replace the history; texts that begin as `dropped` are none."""
    before = (text if isinstance(text, str) else "[a long text]" for text in state.kept_user_texts)
    texts = [*before, *(text for text in _user_texts(state.history) if not text.startswith(dropped))]
    kept = tuple(reversed(list(_newest(texts))))
    return kept, [*standing_context(state.history), _bridge(kept, summary)]


def stored_texts(kept: Iterable[str]) -> list[str]:
    """The same texts, very long ones in parts that stay in their entry for the next compaction to read."""
    return [part for text in kept for part in _parts(text)]


def _parts(text: str) -> list[str]:
    if len(text.encode("utf-8", "surrogatepass")) <= INLINE_TEXT_BYTES:
        return [text]
    return [text[at : at + STORED_CHARS] for at in range(0, len(text), STORED_CHARS)]


def _user_texts(history: Iterable[Item]) -> list[str]:
    texts = [
        message_text(item) for item in history if item.get("role") == "user" and item.get("type") == "message"
    ]
    return [text for text in texts if text and not text.startswith((*CONTEXT_TAGS, _MARKER, _BRIDGE_OPENING))]


def _newest(texts: list[str]) -> Iterable[str]:
    left = KEPT_TOKENS * 4
    for text in reversed(texts):
        if left <= 0:
            return
        # The oldest message that fits only in part keeps its beginning: that is where a request stands.
        yield text[:left]
        left -= len(text)


_BRIDGE_OPENING = "This conversation was compacted."


def _bridge(kept: tuple[str, ...], summary: str) -> Item:
    """The message that stands for the turns before.

    The next compaction knows the message by its opening. A text so long that it would be
    stored beside its entry keeps the opening in a part of its own, where a fold can read it.
    """
    messages = "\n\n".join(kept) or "(none)"
    body = (
        f" The user's messages so far, oldest first:\n\n{messages}\n\n"
        f"Summary of the work until now, written by the agent that did it:\n\n{summary}"
    )
    whole = _BRIDGE_OPENING + body
    parts = [whole] if len(whole.encode()) <= INLINE_TEXT_BYTES else [_BRIDGE_OPENING, body]
    return written(user_message(*parts))


def compaction_input(shown: list[Item]) -> list[Item]:
    """The input of a compaction request: the conversation, then the prompt."""
    return [*shown, written(user_message(SUMMARY_PROMPT))]
