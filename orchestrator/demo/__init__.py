"""`dendro demo` without its drawing: a tree of agents that outlives a worker, and the proof that it did.

    stage    a clone, a home of its own, the model stub and two workers
    play     the run: followers of all agents, a worker that is killed, a request that is answered
    proof    what the demo claims in the end, and how each claim is checked

Begin with `play`. Must not know how it is drawn.
"""
