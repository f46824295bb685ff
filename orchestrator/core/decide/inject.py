"""`inject_items`: messages that join the conversation without a turn."""

from __future__ import annotations

from typing import Final

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.commands import Submitted
from orchestrator.core.decide.draft import Draft
from orchestrator.core.decide.user_turn import MOST_STEERED, SEND_AGAIN
from orchestrator.core.history import INJECTED, Item
from orchestrator.core.state import State
from orchestrator.protocol import events as ev
from orchestrator.protocol import ops
from orchestrator.protocol.wire import written

MOST_INJECTED: Final = 16
MOST_INJECTED_BYTES: Final = 128 << 10
"""Their text together: with every byte of it escaped, a step fits one commit."""
_MODEL: Final = "assistant"


def inject(draft: Draft, command: Submitted, op: ops.InjectItems) -> None:
    """Adds the messages at once, or with the next request of the turn that runs."""
    why = injected_fault(op) or _refusal(draft.state, op)
    if why is not None:
        draft.add(e.error(command.id, why))
        return
    running = draft.state.task is not None
    for message in op.items:
        item: Item = {**written(message), INJECTED: True}
        draft.add(f.Steered(command.id, item) if running else e.item(item))
    draft.add(e.event(command.id, ev.ItemsInjected(count=len(op.items))))


def injected_fault(op: ops.InjectItems) -> str | None:
    """The reason why no conversation can take the messages; None if one can."""
    if not op.items:
        return "items: at least one is needed; nothing was done"
    if len(op.items) > MOST_INJECTED:
        return (
            f"items: at most {MOST_INJECTED} messages, these are {len(op.items):,}; send the rest by itself"
        )
    size = sum(len(part.text.encode()) for message in op.items for part in message.content)
    if size > MOST_INJECTED_BYTES:
        most = f"at most {MOST_INJECTED_BYTES:,} bytes of text together"
        return f"items: {most}, these are {size:,}; send the rest by itself"
    for place, message in enumerate(op.items):
        wanted = "output_text" if message.role == _MODEL else "input_text"
        if any(part.type != wanted for part in message.content):
            return f"items[{place}].content: a message of the role {message.role} has parts of type {wanted}"
        if not any(part.text.strip() for part in message.content):
            return f"items[{place}].content: say something"
    return None


def _refusal(state: State, op: ops.InjectItems) -> str | None:
    task = state.task
    if state.tree.canceling:
        return "this agent was cancelled: it takes no more input"
    if task is None:
        waits = "not taken: input waits for its turn; send it again when that has begun"
        return waits if state.queue else None
    if task.kind != "user" or task.stopping:
        being = "is being stopped" if task.stopping else "runs, whose conversation ends with it"
        return f"not taken: a {task.kind} turn {being}; send it again when that has ended"
    if any(message.role == _MODEL for message in op.items):
        return (
            "not taken: a turn runs, and a message in the model's name would pass for its answer; "
            "send it again when the turn has ended"
        )
    if len(task.steered) + len(op.items) > MOST_STEERED:
        return f"not taken: {MOST_STEERED} inputs wait for the task's next request; {SEND_AGAIN}"
    return None
