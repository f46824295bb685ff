"""Defects of what agents are told of each other, and of what those above them know of them."""

from __future__ import annotations

from orchestrator.core.decide import agent, agent_calls, draft, mail_delivery
from orchestrator.tools import subagents
from sim.mutant import Mutant, text

DEFECTS = (
    Mutant(
        "awaits bring one letter",
        "an await brings the first of several letters, and the others with the next one",
        text(agent_calls, "_end_wait", "collect(draft, mails)", "collect(draft, mails[:1])"),
        "brood",
    ),
    Mutant(
        "failed agents work again unnoticed",
        "an agent that failed and is given work by somebody else does not tell the one above it",
        text(
            agent, "took_task", 'tree.status != "queued" and', 'tree.status not in ("queued", "failed") and'
        ),
        "letters",
    ),
    Mutant(
        "people's interrupts are words",
        "a person's message that is to stop an agent waits for the end of its turn",
        text(agent_calls, "message_agent", "content, key, op.interrupt)", "content, key)"),
        "letters",
    ),
    Mutant(
        "siblings interrupt each other",
        "an agent stops the work of one that is not below it",
        text(subagents, "_send", '_own(asking, view, given.agent_id, "interrupted")', "pass"),
        "lineages",
    ),
    Mutant(
        "results answer for later work",
        "a result that waits when its agent is given other work is read as that work's",
        text(agent_calls, "_follow_up", "take(draft, stale)", "take(draft, stale[1:])"),
        "lineages",
    ),
    Mutant(
        "lists have those below",
        "a list of all agents of a tree has those alone that are below the one who asks",
        text(
            subagents,
            "_list",
            "view.agents.values() if given.all",
            "[one for one in view.agents.values() if one.below(asking.me)] if given.all",
        ),
        "lineages",
    ),
    Mutant(
        "interrupted sessions go on by results",
        "a result begins a turn of a session whose last one was interrupted",
        text(mail_delivery, "_wants_turn", 'autosubmit and state.outcome == "completed"', "autosubmit"),
        "lineages",
    ),
    Mutant(
        "helpers tell of no tokens",
        "an agent that waits for a helper is not told what it has used so far",
        text(draft, "show_tokens", "helper_call) is not None", "helper_call) is not None and not total"),
        "waits",
    ),
)
