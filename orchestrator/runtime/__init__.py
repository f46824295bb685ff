"""Running sessions: claims, the step loop, side tasks, renewal, drain.

One story, by module:

    worker          takes claims while it has room, fires due timers, hands sessions to runners
    runner          one claimed session: gather → decide → commit → start what is owed → park
    runner_context  the claim, journal and configuration that the parts of one runner share
    arrivals        what came and is not decided yet: the SQ's entries, results of effects
    intake          an entry of the SQ as a command, with what has to be looked up for it
    journal         what the runner knows of the log: state, seq, chain head; drafts steps on it
    commits         a step sent until it is answered, and the deltas between two of them
    bisect          a step that the tree refused, decided again part by part
    defects         commands that no step can hold, and what is recorded in their place
    trees           what calls look up in their tree
    budget          what requests cost their tree;  admission: room for them at a provider
    side_work       what runs beside the loop, from what the log owes to its grace in a drain
    effects         the side tasks of one session (a request's stream, running calls), by name
    prompts         the model request that a state owes;  requests: that request as it runs
    copies          what is kept beside the log: snapshots, and how far the rollout's file is
    renewal         keeps claims alive from a thread of its own, and stops when the loop is stuck
    loader          the state of a session from cache, snapshot and tail
    restore         an archived session brought back
    reaper          cancelled agents that no worker serves, seen to their end

The runtime touches the outside only through `ports.Ports`: clock, sleep, randomness, task
start, broker, model, tools, supervisor, files. That is what a simulator replaces.
"""
