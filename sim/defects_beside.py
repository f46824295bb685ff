"""Defects of tasks with a conversation of their own: what they see, what they keep, and what they leave."""

from __future__ import annotations

from orchestrator.core import compaction, evolve
from orchestrator.core.decide import task
from sim.mutant import Mutant, text

DEFECTS = (
    Mutant(
        "reviewers know the conversation",
        "a review begins with what was said before it",
        text(
            evolve,
            "_branch",
            "Log.of(fact.opening), fact.opening,",
            "Log.of((*state.history, *fact.opening)), fact.opening,",
        ),
        "reviews",
    ),
    Mutant(
        "reviews are told twice",
        "what a reviewer reads and does joins the session's conversation, too",
        text(
            evolve,
            "_response_item",
            "return replace(state, task=replace(task, branch=branch))",
            "return replace(state, history=state.history.append(payload), task=replace(task, branch=branch))",
        ),
        "reviews",
    ),
    Mutant(
        "ended reviews stay open",
        "clients are not told that a review is over which was stopped or has failed",
        text(task, "review_exit", "return Exit(message, (ev.ExitedReviewMode(),))", "return Exit(message)"),
        "reviews",
    ),
    Mutant(
        "findings are lost",
        "the conversation does not get what a review leaves to it",
        text(task, "keep", "draft.add(*map(e.item, left.items))", "pass"),
        "reviews",
    ),
    Mutant(
        "reviews are only replaced",
        "a review that other input ends is told as any task that is replaced",
        text(task, "_abort_reason", 'task.kind == "review"', "False"),
        "reviews",
    ),
    Mutant(
        "reviews forget their subject",
        "a compaction in a review drops what it is about",
        text(
            compaction,
            "_compacted_branch",
            ", *opening]",
            "]",
        ),
        "reviews",
    ),
)
