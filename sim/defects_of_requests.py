"""Defects of what models are told, of what followers read behind a gap, and of what a renewal proves."""

from __future__ import annotations

from typing import Any

from orchestrator.broker import follow
from orchestrator.core import agent_views, context, modes
from orchestrator.core.calls.ask import QuestionWork
from orchestrator.core.decide import mail_delivery, task
from orchestrator.runtime import model_request
from sim.mutant import Mutant, swapped, text

SAID_FIRST = """\
    for item in piece.said:
        draft.add(e.item(item))
"""
CLOSED_FIRST = """\
    for call in piece.calls:
        _close(draft, call, output, (elapsed_s or {}).get(call.call_id))
    _end_helpers(draft, awaited_helpers(piece.calls), output)
"""


def _at_the_end(real: Any) -> Any:
    return lambda conversation: len(list(conversation))


DEFECTS = (
    Mutant(
        "input overtakes stopped calls",
        "input that had joined a stopped turn stands before the outputs of the calls that it met",
        text(task, "_end", f"{CLOSED_FIRST}{SAID_FIRST}", f"{SAID_FIRST}{CLOSED_FIRST}"),
        "approvals",
    ),
    Mutant(
        "interrupting letters wait",
        "letters that interrupt are told in the order of arrival, and not before all others",
        text(mail_delivery, "in_order", "sorted(inbox, key=lambda mail: not mail.interrupt)", "list(inbox)"),
        "letters",
    ),
    Mutant(
        "letters of several agents are told as of one",
        "the result of an await has the letters of all senders in the group of the first",
        text(
            mail_delivery,
            "by_sender",
            "(mail.agent_id, completions.get(mail.agent_id, 0))",
            "(0, completions.get(mail.agent_id, 0))",
        ),
        "brood",
    ),
    Mutant(
        "results hide what was written before",
        "of an agent that wrote and then ended its parent reads the end alone",
        text(agent_views, "awaited", 'if mail.kind == "message"]', 'if mail.kind == "message" and not done]'),
        "family",
    ),
    Mutant(
        "letters are numbered by their last",
        "the call that tells of letters has the number of the last of them",
        text(mail_delivery, "_synthetic", "{group[0].n}", "{group[-1].n}"),
        "family",
    ),
    Mutant(
        "letters are taken and not told",
        "letters that an await has no room for leave the inbox all the same",
        text(mail_delivery, "collect", "take(draft, taken)", "take(draft, mails)"),
        "letters",
    ),
    Mutant(
        "results stay unread",
        "a child whose result was read counts as one whose result waits",
        text(mail_delivery, "_read", "if idle:", "if False:"),
        "tree",
    ),
    Mutant(
        "calls that never ran are told to have run",
        "a call that is stopped before it began is told for how long it ran",
        text(
            task,
            "_close",
            'output if after_s is None else f"{output} after {after_s:.1f}s"',
            'f"{output} after {after_s or 0.0:.1f}s"',
        ),
        "waits",
    ),
    Mutant(
        "replaced turns are told as interrupted",
        "the conversation says that a person interrupted a turn which new input replaced",
        text(task, "_over", 'reason == "interrupted" and', 'reason in ("interrupted", "replaced") and'),
    ),
    Mutant(
        "models are not told of their sandbox",
        "the context that opens a conversation names the folder and the policy alone",
        text(context, "environment_context", 'if fields.get("sandbox_policy") is not None:', "if False:"),
    ),
    Mutant(
        "answers change places",
        "of several questions each is answered with what was said to the last",
        text(QuestionWork, "settled", "{header: given[header] for", "{header: given[headers[-1]] for"),
        "asks",
    ),
    Mutant(
        "approved plans come last",
        "the approved plan stands behind the conversation, and not behind its context",
        swapped(modes, "_behind_context", _at_the_end),
        "plans",
    ),
    Mutant(
        "approved plans lose their steps",
        "an approved plan is told by its title and its summary",
        text(modes, "plan_text", "enumerate(plan.plan.plan, 1)", "enumerate(plan.plan.plan[1:], 1)"),
        "plans",
    ),
    Mutant(
        "providers' errors name secrets",
        "what a provider quotes of a secret answer stays in its error",
        swapped(model_request, "hidden", lambda real: lambda words, told: words),
        "asks",
    ),
    Mutant(
        "a gap is filled twice over",
        "behind a gap a follower is shown events again that it has seen",
        text(follow, "follow", "_log(reader, session, gap.after_seq,", "_log(reader, session, 0,"),
        "latecomers",
    ),
    Mutant(
        "a gap ends before the log does",
        "of the log that fills a gap the last entry is left out",
        text(follow, "follow", "gap.after_seq, head.seq)", "gap.after_seq, head.seq - 1)"),
        "latecomers",
    ),
)
