"""Compaction: a conversation becomes initial context, recent user messages and a summary."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from orchestrator.core.blobs import INLINE_TEXT_BYTES
from orchestrator.core.calls import USER_SHELL_TAG
from orchestrator.core.context import (
    CONTEXT_TAGS,
    FOLDER_CHANGED_TAG,
    PROCESS_GONE_TAG,
    is_context,
    is_role,
    new_context,
    standing_context,
)
from orchestrator.core.history import (
    CALL_KINDS,
    INHERITED,
    INJECTED,
    OUTPUT_KINDS,
    Item,
    message_text,
    opened_message,
    user_message,
)
from orchestrator.core.modes import is_of_modes, standing_modes, task_settings
from orchestrator.core.review import REVIEW_TAG
from orchestrator.core.state import Branch, Processes, State, Task
from orchestrator.core.user_turns import SKILL_TAG
from orchestrator.protocol.wire import JsonMapping, JsonValue, written

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
LONG_TEXT = "[a long text]"
PICTURE = "[image]"
"""The name of a picture that is not kept, in the text that it came with."""
PICTURE_BYTES = 6_000
MOST_PICTURES = 16
"""Pictures that a compaction keeps of the running task."""
_MARKER = "<turn_aborted>"
_BRIDGE_OPENING = "This conversation was compacted."
_OWN = (*CONTEXT_TAGS, PROCESS_GONE_TAG, FOLDER_CHANGED_TAG, _MARKER, _BRIDGE_OPENING)
"""The beginnings of user messages that no user wrote."""
_NOT_SAID = (*_OWN, SKILL_TAG, USER_SHELL_TAG, REVIEW_TAG)
"""The same, and of those that tell of a file, of a command or of a review."""


def compacted_history(state: State, summary: str) -> tuple[tuple[str, ...], list[Item]]:
    """The user texts kept, and the items that replace the history.

    The items are made anew: the context as it is now, the newest pictures of the task that runs, and the
    bridge to what comes.
    """
    assert state.task is not None
    if state.task.branch is not None:
        return _compacted_branch(state, state.task, state.task.branch, summary)
    history = list(state.history)
    shown = _shown_pictures(history) if state.task.kind == "user" else {}
    kept = newest_texts(state, shown)
    pictures = [picture for found in shown.values() for picture in found]
    message: list[Item] = [{**history[place], "content": pictures} for place in list(shown)[:1]]
    context = new_context(history, task_settings(state.task.settings), _given(state))
    context += map(written, standing_modes(state.task.settings))
    return kept, [*context, *message, _bridge(kept, summary + _running(state.processes))]


def _compacted_branch(
    state: State, task: Task, branch: Branch, summary: str
) -> tuple[tuple[str, ...], list[Item]]:
    """The same for a task beside the session's conversation: what it is about stands last, as it was."""
    said = [item for item in branch.items if item not in branch.opening]
    kept = _newest_of(branch.kept_user_texts, said, ())
    context = new_context(said, task.settings, _given(state))
    opening = [item for item in branch.opening if not is_context(item)]
    return kept, [*context, _bridge(kept, summary + _running(state.processes)), *opening]


def summarised_history(state: State, summary: str) -> tuple[tuple[str, ...], list[Item]]:
    """The same for a rollout whose line has the summary alone, as it was always folded."""
    before = (text if isinstance(text, str) else LONG_TEXT for text in state.kept_user_texts)
    texts = [message_text(item) for item in state.history if _is_of_user(item)]
    said = [text for text in texts if text and not text.startswith(_OWN)]
    kept = tuple(reversed(list(_newest([*before, *said]))))
    return kept, [*standing_context(state.history), _bridge(kept, summary)]


def newest_texts(state: State, shown: Collection[int] = ()) -> tuple[str, ...]:
    """The newest texts of people, oldest first; pictures are named but in the messages at `shown`."""
    return _newest_of(state.kept_user_texts, state.history, shown)


def _newest_of(kept: Iterable[JsonValue], history: Iterable[Item], shown: Collection[int]) -> tuple[str, ...]:
    before = (text if isinstance(text, str) else LONG_TEXT for text in kept)
    texts = [*before, *_user_texts(history, shown)]
    return tuple(reversed(list(_newest(texts))))


def nothing_said(history: Iterable[Item]) -> bool:
    """Whether a conversation holds only what a compaction would make anew."""
    return all(is_context(item) or is_role(item) or is_of_modes(item) or is_bridge(item) for item in history)


def was_compacted(history: Iterable[Item]) -> bool:
    """Whether a conversation begins with the summary of an earlier one."""
    return any(is_bridge(item) for item in history)


def user_turns(history: Iterable[Item]) -> list[int]:
    """The places of what people said in turns since the conversation began or was compacted, oldest first."""
    places: list[int] = []
    for place, item in enumerate(history):
        if is_bridge(item):
            places.clear()
        elif _is_of_user(item) and INJECTED not in item and not message_text(item).startswith(_NOT_SAID):
            places.append(place)
    return places


def _given(state: State) -> str | None:
    """The instructions that the session was made with, if they can be read here."""
    found = state.meta.instructions
    return found if isinstance(found, str) else None


def stored_texts(kept: Iterable[str]) -> list[str]:
    """The same texts, very long ones in parts that stay in their entry for the next compaction to read."""
    return [part for text in kept for part in _parts(text)]


def _parts(text: str) -> list[str]:
    if len(text.encode("utf-8", "surrogatepass")) <= INLINE_TEXT_BYTES:
        return [text]
    return [text[at : at + STORED_CHARS] for at in range(0, len(text), STORED_CHARS)]


def _is_of_user(item: Item) -> bool:
    return item.get("role") == "user" and item.get("type") == "message"


def is_bridge(item: Item) -> bool:
    """Whether an item is the message that a compaction made of the turns before it."""
    return _is_of_user(item) and is_bridge_text(message_text(item))


def is_bridge_text(text: str) -> bool:
    """The same of the text of a user's message."""
    return text.startswith(_BRIDGE_OPENING)


def _user_texts(history: Iterable[Item], shown: Collection[int]) -> Iterator[str]:
    for place, item in enumerate(history):
        if item.get("type") == INHERITED:
            yield from (text if isinstance(text, str) else LONG_TEXT for text in item.get("user_texts") or ())
        elif _is_of_user(item):
            text = message_text(item)
            named = [PICTURE] * len(_pictures(item)) if place not in shown else []
            if (text or named) and not text.startswith(_NOT_SAID):
                yield " ".join([text, *named] if text else named)


# ── pictures ──────────────────────────────────────────────────────────────────────────────────────


def _pictures(item: Item) -> list[JsonMapping]:
    return [part for part in item.get("content") or () if part.get("type") == "input_image"]


def _shown_pictures(history: Sequence[Item]) -> dict[int, list[JsonMapping]]:
    """The newest pictures that people sent since an answer ended a task, by the place of their message."""
    found: dict[int, list[JsonMapping]] = {}
    left = MOST_PICTURES
    for place in range(len(history) - 1, -1, -1):
        item = history[place]
        if _ends_a_task(history, place):
            break
        pictures = _pictures(item) if _is_of_user(item) else []
        if pictures and len(pictures) <= left:
            found[place] = pictures
            left -= len(pictures)
    return dict(sorted(found.items()))


def _ends_a_task(history: Sequence[Item], place: int) -> bool:
    """Whether a task ended here: by an interrupt, or by an answer that the user's next message follows."""
    item = history[place]
    if _is_of_user(item):
        return message_text(item).startswith(_MARKER)
    behind = history[place + 1] if place + 1 < len(history) else item
    return item.get("role") == "assistant" and _is_of_user(behind)


# ── the bridge ────────────────────────────────────────────────────────────────────────────────────


def _newest(texts: list[str]) -> Iterable[str]:
    left = KEPT_TOKENS * 4
    for text in reversed(texts):
        if left <= 0:
            return
        # The oldest message that fits only in part keeps its beginning: that is where a request stands.
        yield text[:left]
        left -= len(text)


def _running(processes: Processes) -> str:
    """The processes that the agent can go on with: their numbers stand nowhere else any more."""
    lines = [f"- session ID {one.number}: {one.command} (in {one.cwd})" for one in processes.living]
    lines += [f"- session ID {one.number}: ended, its last output is not read" for one in processes.ended]
    return "\n\nProcesses of exec_command, for write_stdin:\n" + "\n".join(lines) if lines else ""


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
    return written(opened_message(_BRIDGE_OPENING, body))


# ── the request ───────────────────────────────────────────────────────────────────────────────────


def compaction_input(shown: Sequence[Item], attempt: int = 1) -> list[Item]:
    """The input of a compaction request: the conversation, then the prompt; later attempts show less."""
    return [*_without_oldest(shown, _LEFT_OUT[attempt]), written(user_message(SUMMARY_PROMPT))]


_LEFT_OUT = (0.0, 0.0, 0.5, 0.75)
"""The share of the conversation, its oldest, that an attempt leaves out."""


def _without_oldest(shown: Sequence[Item], share: float) -> Sequence[Item]:
    """The newest items; the user's last message is never left out, and a call goes with its output.

    Calls go one by one, also those of one response: their items carry no ids, by which a provider would miss
    the reasoning before them.
    """
    sizes, outputs = [_size(item) for item in shown], _outputs(shown)
    last = next((at for at in reversed(range(len(shown))) if _is_of_user(shown[at])), None)
    left, gone = share * sum(sizes), set[int]()
    for place, item in enumerate(shown):
        if left <= 0:
            break
        if place == last or place in gone:
            continue
        together = [place, *outputs.get(str(item.get("call_id")), ())] if _is_call(item) else [place]
        gone.update(together)
        left -= sum(sizes[at] for at in together)
    return [item for place, item in enumerate(shown) if place not in gone]


def _is_call(item: Item) -> bool:
    return item.get("type") in CALL_KINDS


def _outputs(shown: Sequence[Item]) -> dict[str, list[int]]:
    """The places of the outputs of each call."""
    found: dict[str, list[int]] = {}
    for place, item in enumerate(shown):
        if item.get("type") in OUTPUT_KINDS:
            found.setdefault(str(item.get("call_id")), []).append(place)
    return found


def _size(value: JsonValue) -> int:
    """The bytes that an item takes of a window, roughly; a picture takes the same whatever its size."""
    if isinstance(value, str):
        return PICTURE_BYTES if value.startswith("data:image/") else len(value)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, (list, tuple)) else 1
