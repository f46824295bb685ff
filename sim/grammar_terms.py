"""Terms of a second reading of logs: names of items, their texts, and an entry that cannot stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.core.entries import RESPONSE_ITEM, Entry

Item = Mapping[str, Any]
CALLS = ("function_call", "custom_tool_call", "local_shell_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output")
CONTEXT = ("<environment_context>", "<user_instructions>")
MANNERS = ("personality", "collaboration_mode")
ABORTED = "<turn_aborted>"
ADDED = "injected"
MARKS = frozenset({ADDED, "beside"})
"""The mark of a message that was added without a turn."""
REVIEWED = "<code_review>"
PNG = "iVBORw0KGgoA"
"""The beginning of a PNG in base64, without which no picture is taken."""
PICTURE_BYTES = 6_000
"""The bytes that a picture counts as, whatever its size."""
BRINGS, BROUGHT = "+summary-", "concise"
"""The mark in the id of input that sets the summary of its turn, and the summary."""
BOTH = "~both"
"""The end of an id under which two clients of one person hand in an input each."""
FORM = "~form"
"""The end of the id of input whose answer is to have a form."""
MEANT = "@"
"""In the id of a submission: behind it stands the turn that it is for, and no other."""
BRIDGE = "This conversation was compacted."
REPLACES = "These instructions replace all that were given before them."
COUNTS = (
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "reasoning_output_tokens",
    "total_tokens",
)
OTHER_MODEL = "gpt-5-mini"
"""The model of reviews and plans, where those have one of their own."""
WINDOWS = {"gpt-5": 272_000, OTHER_MODEL: 272_000}
"""Of the models that simulations ask."""
STREAM_RETRIES, HTTP_RETRIES = 4, 2
HELD_MS = 5_000
HELD_ASKED_MS, MOST_ASKED_MS = 1_000, 20_000
"""Of waits that the model asks for, when its worker holds the session and when nobody does."""
AFTER_RUNNING = {
    "exec": "exec_command_end",
    "patch": "patch_apply_end",
    "merge": "patch_apply_end",
    "mcp": "mcp_tool_call_end",
}
BEFORE_RUNNING = {
    "exec": "exec_command_begin",
    "patch": "patch_apply_begin",
    "merge": "patch_apply_begin",
    "mcp": "mcp_tool_call_begin",
}


class Wrong(Exception):
    """An entry that cannot stand where it does."""


def check(holds: object, seen: str) -> None:
    if not holds:
        raise Wrong(seen)


def text_of(item: Item) -> str:
    """A message's text parts, joined."""
    return "".join(str(part.get("text", "")) for part in item.get("content") or ())


def unmarked(item: Item) -> Item:
    """An item without the marks of those that were added without a turn, or made beside an earlier call."""
    return {name: item[name] for name in item if name not in MARKS} if MARKS & item.keys() else item


def only_plans(settings: Mapping[str, Any]) -> bool:
    """Whether a task of these settings only plans."""
    return (settings.get("collaboration_mode") or {}).get("mode") == "plan"


def tags_in_force(settings: Mapping[str, Any]) -> list[str]:
    """The tags of the messages by which a model knows its mode and its personality."""
    mode = settings.get("collaboration_mode") or {}
    own = (mode.get("settings") or {}).get("developer_instructions")
    # A session begins in the mode `code`, in which a person may have words of their own.
    tags = ["<collaboration_mode>"] if own or mode.get("mode", "code") not in ("code", "default") else []
    return [*tags, "<personality>"] if settings.get("personality", "none") != "none" else tags


MODES = {
    "plan": "You are in plan mode.",
    "code": "You are in code mode:",
    "pair_programming": "You are in pair programming mode:",
    "execute": "You are in execute mode:",
    "custom": "You are in a mode of the user's own.",
}
PERSONALITIES = {"friendly": "Be friendly:", "pragmatic": "Be pragmatic:", "none": "is taken back:"}
"""Words by which a model knows its mode, and its personality."""


def form_of(id: str) -> dict[str, Any] | None:
    """The schema of the answers to an input of this id."""
    return {"type": "object", "title": id} if id.endswith(FORM) else None


def mode_of(settings: Mapping[str, Any]) -> str:
    """The mode of a task of these settings; a newer name of `code` is `default`."""
    kind = str((settings.get("collaboration_mode") or {}).get("mode", "code"))
    return "code" if kind == "default" else kind


def split(text: str) -> tuple[str, str | None]:
    """The words of a message and the plan in it, read line by line; None without a plan."""
    said: list[str] = []
    blocks: list[list[str]] = []
    inside = False
    for line in text.split("\n"):
        if line.strip() == ("</proposed_plan>" if inside else "<proposed_plan>"):
            inside = not inside
            blocks += [[]] if inside else []
        else:
            (blocks[-1] if inside else said).append(line)
    plan = "\n".join(line for block in blocks for line in block) if blocks else None
    return "\n".join(said).strip("\n"), plan


REDACTED = "[redacted]"
"""The words that stand instead of those that were redacted."""


def named(entry: Entry) -> str:
    return f"{entry.type} {entry.payload.get('kind') or entry.payload.get('type') or ''}".strip()


def is_marker(entry: Entry) -> bool:
    return entry.type == RESPONSE_ITEM and text_of(entry.payload).startswith(ABORTED)


def is_said(item: Item) -> bool:
    text = text_of(item)
    return bool(text) and not text.startswith(
        (*CONTEXT, ABORTED, BRIDGE, REVIEWED, "<user_shell_command>", "<process_gone>", "<folder_changed>")
    )


def is_role(item: Item) -> bool:
    return item.get("role") == "developer" and text_of(item).startswith("You are agent ")


def opens(item: Item) -> bool:
    """Whether an item is of those that a conversation begins with, also behind a compaction."""
    of_user = item.get("role") == "user" and text_of(item).startswith((*CONTEXT, BRIDGE))
    return of_user or is_role(item)


def tells_manners(item: Item) -> bool:
    """Whether an item tells the model of its mode or its personality."""
    tags = tuple(f"<{name}>" for name in MANNERS)
    return item.get("role") == "developer" and text_of(item).startswith(tags)


def is_pictures(item: Item) -> bool:
    return item.get("role") == "user" and all(part["type"] == "input_image" for part in item["content"])


def plain(texts: Sequence[str]) -> list[str]:
    """Texts without the names of pictures that stood beside them."""
    bare = (text.replace(" [image]", "").removeprefix("[image]") for text in texts)
    return [text for text in bare if text]


def in_order(whole: str, parts: Sequence[str]) -> bool:
    at = 0
    for part in parts:
        at = whole.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True
