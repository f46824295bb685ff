"""The context items that tell the model where it works and under which policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orchestrator.core.history import INHERITED, Item, message_text, opened_message, user_message
from orchestrator.core.settings import TurnSettings
from orchestrator.protocol.items import Message
from orchestrator.protocol.wire import JsonMapping, written

USER_INSTRUCTIONS_LIMIT = 128 * 1024
"""Characters: the files of a person and of a repository may have 64 KiB each."""
INSTRUCTIONS_TAG = "<user_instructions>"
REPLACING = f"{INSTRUCTIONS_TAG}\n\nThese instructions replace all that were given before them.\n\n"
"""The beginning of instructions that stand in the place of all earlier ones."""
TURN_ABORTED_MARKER = (
    "<turn_aborted>\n  The user interrupted this turn. Commands that were running were stopped and may have "
    "had effects; check before repeating them.\n</turn_aborted>"
)

PROCESS_GONE_TAG = "<process_gone>"
PROCESS_GONE = f"{PROCESS_GONE_TAG}\n{{}}\n</process_gone>"
"""The message that tells the model of a process that is gone with its worker."""
FOLDER_CHANGED_TAG = "<folder_changed>"
FOLDER_CHANGED = f"{FOLDER_CHANGED_TAG}\n{{}}\n</folder_changed>"
"""The message that tells the model what its folder has lost on its way to another machine, or by a fall."""

ROLE_OPENING = "You are agent "
"""The beginning of the developer message that gives an agent below the root its part."""
SHELL = "bash"

CONTEXT_TAGS = ("<environment_context>", INSTRUCTIONS_TAG)

_SHOWN = ("cwd", "approval_policy", "sandbox_policy")


def initial_context(settings: TurnSettings, user_instructions: str | None, shell: str) -> list[Message]:
    """The items that open a conversation: the user's instructions if any, then the environment."""
    items = []
    if user_instructions:
        items.append(instructions_item(user_instructions))
    items.append(environment_context(settings.wire(), shell))
    return items


def instructions_item(user_instructions: str, *, replacing: bool = False) -> Message:
    """The item with the instructions that the user (or the project) gives for every turn."""
    text = user_instructions[:USER_INSTRUCTIONS_LIMIT]
    opening = REPLACING if replacing else f"{INSTRUCTIONS_TAG}\n\n"
    return opened_message(opening, text, "\n\n</user_instructions>")


def new_context(history: Iterable[Item], settings: TurnSettings, given: str | None = None) -> list[Item]:
    """The context that opens a rewritten conversation: instructions, the environment, the agent's part.

    Whatever tells the model under what it works has its place here, once, and as it is now. `given` are the
    instructions of a fork whose log says nothing of those that it inherits.
    """
    items = list(history)
    instructions = standing_instructions(items)
    if not instructions and given and any(item.get("type") == INHERITED for item in items):
        instructions = [written(instructions_item(given))]
    roles = [item for item in items if is_role(item)]
    return [*instructions, written(environment_context(settings.wire(), SHELL)), *roles[-1:]]


def standing_instructions(history: Iterable[Item]) -> list[Item]:
    """The instructions that still hold, in order: not those that were replaced, and each of them once."""
    found: dict[str, Item] = {}
    for item in _instructions(history):
        text = message_text(item)
        if text.startswith(REPLACING):
            found.clear()
        found[text if "[a long text]" not in text else str(len(found))] = item
    return list(found.values())


def _instructions(history: Iterable[Item]) -> Iterator[Item]:
    for item in history:
        if item.get("type") == INHERITED:
            yield from item.get("instructions") or ()
        elif is_context(item) and message_text(item).startswith(INSTRUCTIONS_TAG):
            yield item


def outlasting(items: Iterable[Item], opening: Iterable[Item], history: Iterable[Item]) -> list[Item]:
    """The items of a task's own conversation that the session's has to know, each of them once."""
    found, known = list[Item](), [*opening, *filter(_outlasts, history)]
    for item in filter(_outlasts, items):
        if item not in known and item not in found:
            found.append(item)
    return found


def _outlasts(item: Item) -> bool:
    """Whether an item tells of what holds for the session, whatever conversation it was said in."""
    told = (REPLACING, PROCESS_GONE_TAG, FOLDER_CHANGED_TAG)
    return item.get("role") == "user" and message_text(item).startswith(told)


def is_role(item: Item) -> bool:
    """Whether an item tells an agent of its part in the tree."""
    return item.get("role") == "developer" and message_text(item).startswith(ROLE_OPENING)


def standing_context(history: Iterable[Item]) -> list[Item]:
    """The context items that still hold, as a rollout that has only a summary is folded."""
    found = [item for item in history if is_context(item)]
    texts = [message_text(item) for item in found]
    last = next((at for at in reversed(range(len(found))) if texts[at].startswith(REPLACING)), 0)
    return [item for at, item in enumerate(found) if at >= last or not texts[at].startswith(INSTRUCTIONS_TAG)]


def environment_context(fields: JsonMapping, shell: str | None = None) -> Message:
    """`<environment_context>` with the fields that are given, in the recorded order."""
    plain = (name for name in ("cwd", "approval_policy") if fields.get(name) is not None)
    lines = ["<environment_context>", *(f"  <{name}>{fields[name]}</{name}>" for name in plain)]
    if fields.get("sandbox_policy") is not None:
        lines += _sandbox_lines(fields["sandbox_policy"])
    if shell:
        lines.append(f"  <shell>{shell}</shell>")
    lines.append("</environment_context>")
    return user_message("\n".join(lines))


def is_context(item: Item) -> bool:
    """Whether an item tells where the model works, rather than what people or the model said."""
    return item.get("role") == "user" and message_text(item).startswith(CONTEXT_TAGS)


def _sandbox_lines(policy: JsonMapping) -> list[str]:
    mode = policy["mode"]
    open_network = mode == "danger-full-access" or bool(policy.get("network_access"))
    lines = [
        f"  <sandbox_mode>{mode}</sandbox_mode>",
        f"  <network_access>{'enabled' if open_network else 'restricted'}</network_access>",
    ]
    if policy.get("writable_roots"):
        roots = [f"    <root>{root}</root>" for root in policy["writable_roots"]]
        lines += ["  <writable_roots>", *roots, "  </writable_roots>"]
    return lines


def context_change(before: TurnSettings, now: TurnSettings, named: JsonMapping) -> Message | None:
    """The item that tells of new settings, with those that were `named`; None if the model knows them all."""
    if context_told(before, now) is None:
        return None
    return environment_context(
        {
            name: getattr(now, name)
            for name in _SHOWN
            if named.get(name) is not None or getattr(now, name) != getattr(before, name)
        }
    )


def context_told(told: TurnSettings, now: TurnSettings) -> Message | None:
    """The item that tells of what differs from the settings that the model knows; None if nothing does."""
    changed = {name: getattr(now, name) for name in _SHOWN if getattr(now, name) != getattr(told, name)}
    return environment_context(changed) if changed else None
