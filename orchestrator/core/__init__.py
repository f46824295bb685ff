"""The state machine of a session: what has happened and a command in, entries of the log out.

    state, evolve      what a session is, the phases of its task, and how one entry changes it
    decide             what a command leads to: a rule for each, then what follows from the state
    calls              the phases of a call, and each kind of its work with all that is special about it
    outstanding        what the state owes: all that is ever started is derived from it
    entries            entries and the bytes of them; `birth` makes the first; `chain`, `blobs`, `snapshot`
    commit_parts       messages, events, children and timers, as a commit carries them
    user_turns         what people say: a turn's op, its input items, the items that clients draw
    modes              personality, collaboration modes, plans; what a child has less than its parent
    tree, registry     agents of a tree, and what is known of them

Begin with `state`, then `decide`. Pure: no I/O, no clock, no randomness, nothing of Redis.
"""

CORE_VERSION = 10
"""Grows when a fold of before would not give what a fold of today gives: older workers leave it alone."""
