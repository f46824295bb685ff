"""What must hold in every simulation, each rule under a name and in a sentence.

The names are what a failure says, what `docs/simulator.md` lists, and what the table of
planted defects counts by.
"""

from __future__ import annotations

from dataclasses import dataclass

SENTENCES = {
    "gapless": "The entries of a session's log are numbered 1, 2, 3, …, and its hash names the last one.",
    "chain": "Every entry's chain value follows from the one before it, and the hash names the last value.",
    "epochs": "Every entry was written under the epoch that the session had then, and epochs only grow.",
    "log": (
        "No log holds what no log may hold: two tasks at once, a call that starts twice for one decision,"
        " an event under a foreign id, a task without exactly one end."
    ),
    "one_place": (
        "A session that owes something is in exactly one of `due` and `leases`; one that is in neither "
        "has read its queue to the end."
    ),
    "owner": "A session has an owner if and only if it is in `leases`.",
    "cursor": "The queue's cursor never goes back and never passes the queue's end.",
    "acknowledged": (
        "A submission that was acknowledged is in the queue or was applied, as long as Redis keeps what "
        "it acknowledged."
    ),
    "applied_once": "No submission is applied twice, whatever was sent again, and by whom.",
    "begun_in_log": (
        "When a call starts, the log says that it runs, under the claim that starts it; where Redis has "
        "forgotten that, nothing of it runs for longer than a claim is trusted."
    ),
    "started_once": "A decision to run a call starts it at most once.",
    "effects_once": "A patch is written at most once.",
    "leases": "Nobody is given a session whose holder's lease has not run out.",
    "revoked": "Of a session that was revoked no claim stands until it is claimed anew.",
    "alone": ("When a session is claimed, no command of an earlier claim runs any more."),
    "right_to_run": "When everything has come to rest no command runs any more.",
    "stopped": "When the end of a task is in the log, none of its commands runs any more.",
    "outputs": (
        "Every call in the conversation has exactly one output once no task holds the session, and a "
        "request never carries a call without one."
    ),
    "told_truly": (
        "The output that the model reads of a call is what the call gave, or says that it did not run, "
        "was stopped, or is in doubt."
    ),
    "live_state": "The state that a worker works with is the fold of the log up to the same entry.",
    "deltas": "No delta of a text is shown behind the finished text.",
    "events": (
        "A client that follows a session sees its events once each and in the order of the log, from where "
        "it came, unless it is told of a gap, and of one that there is."
    ),
    "deadlines": (
        "Once faults are over, a timer becomes an entry of its session's queue within half a minute."
    ),
    "awaits": (
        "Once faults are over, every await ends within half a minute of its deadline, or of room for its "
        "session."
    ),
    "timers": (
        "What waits for a deadline has its timer, under the generation that it was given, or the fired "
        "timer in its queue; no await and no watchdog leaves one behind."
    ),
    "early": "A retry, an approval, an await and a watchdog are never ended or set off before their time.",
    "watchdogs": "An agent that was cancelled, and a session that is closed, keep no watchdog.",
    "registry": (
        "The registry of a tree (agents, their status, marks and inbox depths) is the fold of its tree "
        "log, after every commit."
    ),
    "slots": (
        "After every commit a tree counts as many slots as its agents hold and letters bring; at rest none."
    ),
    "spawned": "A tree counts the agents that it made, and makes no more than it may.",
    "inbox": (
        "After every commit the inbox depths that are told are those of the letters that wait, in the queue "
        "and in the state."
    ),
    "budget": (
        "After every commit what a tree holds in reserve is reserved for requests that are in flight, and "
        "what it spent is what the logs of its agents say."
    ),
    "overshoot": (
        "No request begins when a budget is spent, or when it does not fit beside what others reserved."
    ),
    "room": "Who sleeps until there is room in a budget is on a list that somebody will wake.",
    "forks": (
        "A fork names an entry of its parent's log by its chain value, and begins with what had been said "
        "there."
    ),
    "said": "What people said is in the conversation, or in what a compaction kept of it.",
    "limits": (
        "A provider is sent what was let through, and in no time more requests or tokens than its limits "
        "allow in that time and a minute."
    ),
    "cancelled": "When an agent is reported canceled, no command of it runs any more.",
    "exported": (
        "The file of a rollout holds the log's first lines, each once, whenever somebody has written it; "
        "before `conversation_path` and `shutdown_complete` all that went before, or a `warning` says why; "
        "and of what came to rest when all faults were over, every line."
    ),
    "reaped": (
        "A cancel that was begun comes to its end where the agents' workers are gone for good, as long as "
        "any other worker lives, or upkeep."
    ),
    "sealed": (
        "What leaves Redis is in the archive: segments and stream together are the log as it grew, entry "
        "by entry."
    ),
    "archived": (
        "A session that is archived is closed, has been for as long as it must, and owes and awaits nothing."
    ),
    "restored": (
        "An archived session that is spoken to begins with the state that it ended with, and with every "
        "large text of its log."
    ),
    "deleted": (
        "A session is deleted only when it has rested for as long as it is to be kept, a root closed, and "
        "when it has been given nothing to do."
    ),
    "rest": (
        "When faults are over and people answer, every session comes to rest, and every closed one is in "
        "the archive where there is upkeep."
    ),
    "no_crash": "No step raises what nobody expects, and no session is quarantined.",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that did not hold, and what was seen."""

    rule: str
    at_s: float
    seen: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.at_s:.4f}: {self.seen}"


class Broken(Exception):
    """Ends a simulation at the moment when a rule was broken."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation
