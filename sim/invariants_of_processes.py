"""The rules of processes: commands that go on behind the call that started them."""

from __future__ import annotations

from sim.rule import Case, Rule

PROCESS_RULES = {
    "right_to_start": Rule(
        (
            "A supervisor starts nothing behind the deadline of its claim, also one that stood still and has"
            " not acted on it."
        ),
        Case("a start was asked for behind the deadline"),
    ),
    "readings": Rule(
        (
            "A script is judged by what it says, also where a reader of it was lost, or late. One that cost"
            " two is asked about, or refused, because nobody could read it: it is not called destructive, and"
            " not safe. No reader is left behind."
        ),
        Case("a script that had cost two readers was asked about, or refused"),
    ),
    "typed": Rule(
        (
            "To a process is typed what a call of its own session says, once, by a turn under the policies"
            " that it was started under; and a call that may not look or type is refused for a reason that"
            " holds."
        ),
        Case("a turn under other policies was not let type to a process"),
    ),
    "process_said": Rule(
        (
            "What a process writes is read by the model once, in its order, cut by rule alone; and the last"
            " of it, where it ends while nobody looks, is kept until it is read. A conversation that was"
            " compacted names those that live, and those that are not read to their ends."
        ),
        Case("the last words of an ended process were read"),
    ),
    "process_ended": Rule(
        (
            "A process ends in its log as it ended, when it is dead: with its exit code and all that it"
            " wrote; or, where its worker was lost, as one whose end nobody saw. The model is told of each"
            " end."
        ),
        Case("processes were lost with their worker"),
    ),
    "processes_stopped": Rule(
        (
            "An interrupt of a running task, also of one that stops already, a new configuration, a shutdown"
            " and a cancel stop every process of the session, and nothing else does."
        ),
        Case("a task was interrupted that was being replaced, and a process lived"),
    ),
    "unseen": Rule(
        "A process at which nobody looks for half an hour is killed, and no other one is killed for that.",
        Case("a process was killed because nobody looked"),
    ),
}
