"""Running sessions: claims, the step loop, side tasks, renewal, drain.

One story, by module:

    worker     takes claims while it has room, fires due timers, hands sessions to runners
    runner     one claimed session: gather → decide → commit → start what is owed → park
    held       what the parts of one runner share: its claim, its journal, what it was asked
    arrivals   what was told and is not decided yet: the SQ's entries, results of effects
    journal    what the runner knows of the log: state, seq, chain head; builds commits
    side_work  what runs beside the loop, from what the log owes to its grace in a drain
    effects    the side tasks of one session (a request's stream, running calls), by name
    copies     what is kept beside the log: snapshots, and how far the rollout's file is
    renewal    keeps claims alive from a thread of its own, and stops when the loop is stuck
    loading    the state of a session from cache, snapshot and tail
    export     the rollout's file

The runtime touches the outside only through `ports.Ports`: clock, sleep, randomness, task
start, broker, model, tools, keeper. That is what a simulator replaces.
"""
