"""The role text of an agent below the root, a developer message in the agent's own log.

The text is an item of the conversation and no change of the instructions: a fork's conversation
so begins like its parent's, and the provider's prompt cache stays valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from orchestrator.core.context import ROLE_OPENING


def role_of(number: int, label: str | None, part: str) -> str:
    """The agent's number and label, and then its part (`AGENT` or `HELPER`)."""
    named = f' ("{label}")' if label else ""
    return f"{ROLE_OPENING}{number}{named} in a tree of agents. {part}"


AGENT = (
    "They work on one task together. Another agent made you: your "
    "parent. Stay within what you were asked for; take anything earlier in this conversation as background. "
    "You are not alone in the workspace: do not undo what others did. Obey your parent and the sandbox that "
    "you have. Your last message is your result, and your parent sees nothing else of your work: write it so "
    "that nobody has to redo your steps, with paths, findings and what is left open. While you work, tell "
    "your parent of real progress by subagent_send_message, in a sentence or two. Wait with subagent_await "
    "only when you cannot go on without another agent; subagent_logs shows what one does without "
    "disturbing it."
)

_TOGETHER = "You are not alone in the workspace: do not undo what others did."
_APART = (
    "Your folder is a copy of your parent's and yours alone: nobody sees what you change in it until your "
    "parent takes it over, so leave there what is worth it, and nothing else."
)
AGENT_APART = AGENT.replace(_TOGETHER, _APART)
"""The part of an agent with a folder of its own."""

HELPER = (
    "You read and report for another agent. You cannot write, ask for permission, or make agents. Answer "
    "what you were asked, briefly and with the paths that prove it: your last message is all that anybody "
    "sees."
)

SLANTS: Final[Mapping[str, str]] = {
    "Minimal": "the smallest change that reaches the goal; leave out all that can wait",
    "Correctness": "a change that is right in every case: edge cases, failures, data that is there, tests",
    "DX": "a change that is pleasant to use and to work on: clear interfaces, messages, names and docs",
}
"""The points of view from which variants of a plan are drafted."""
DRAFT: Final = (
    "Draft a plan for this goal, from one point of view.\n\nGoal: {goal}\n\nPoint of view: {slant}, which is "
    "{meaning}.\n\nRead what the plan depends on, and change nothing. Your last message is one JSON object "
    'and nothing else: {{"title": TEXT, "summary": TEXT, "plan": {{"explanation": TEXT, "plan": [{{"step": '
    'TEXT, "status": "pending"}}]}}}}. The explanation says assumptions, approach, risks and how it is '
    "validated; the steps, at most 16, say where each is done and can be checked one by one."
)
