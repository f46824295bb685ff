"""The state machine of a session: what has happened and a command in, entries of the log out.

    state, evolve      what a session is, and how one entry changes it
    decide             what a command leads to: a rule for each, then what follows from the state
    calls              each kind of a call's work, with all that is special about it
    phases             the phases of a task, the statuses of an agent; drawn in `docs/states.md`
    outstanding        what the state owes: all that is ever started is derived from it
    entries            entries and the bytes of them; `birth` makes the first; `chain`, `blobs`, `snapshot`
    commit_parts       messages, events, children and timers, as a commit carries them
    tree, registry     agents of a tree, and what is known of them

Begin with `state`, then `decide`. Pure: no I/O, no clock, no randomness, nothing of Redis.
"""

CORE_VERSION = 7
"""Grows when a fold of before would not give what a fold of today gives: older workers leave it alone."""
