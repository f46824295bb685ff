"""Running sessions: claims, the step loop, side tasks, renewal, drain.

One story, by module:

    worker     takes claims while it has room, fires due timers, hands sessions to runners
    runner     one claimed session: gather → decide → commit → start what is owed → park
    journal    what the runner knows of the log: state, seq, chain head; builds commits
    effects    the side tasks of one session (a request's stream, running calls), by name
    renewal    keeps claims alive from a thread of its own, and stops when the loop is stuck
    loading    the state of a session from cache, snapshot and tail
    export     the rollout's file

The runtime touches the outside only through `ports.Ports`: clock, sleep, randomness, task
start, broker, model, tools, keeper. That is what a simulator replaces.
"""
