"""The `subagent_*` tools: what they ask for, and what has to be looked up for it.

    specs      what the model is told of them
    arguments  what it may give them: floors, caps, defaults
    port       what is looked up in the tree, by whoever runs the session
    assess     a call → an assessment, or its output where nothing has to be decided
    logs       pages of an agent's log
    roles      what a new agent is told of its part

Whether a call may be carried out is decided by the core; nothing here changes a tree.
"""
