"""The `subagent_*` tools: what they ask for, and what has to be looked up for it.

    specs      their specs for the model
    arguments  their arguments: floors, caps, defaults
    port       look-ups in the tree, implemented by the runtime
    assess     a call → an assessment, or its output where nothing has to be decided
    logs       pages of an agent's log
    roles      the role text of a new agent

Whether a call may be carried out is decided by the core; nothing here changes a tree.
"""
