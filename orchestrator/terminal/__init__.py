"""A person at a terminal: what they see of sessions, what they type, and what they are told when it fails.

`live` draws events, `tree_view` a tree, `demo_view` the demo. `watched_turn` follows one task and takes what
is typed beside it; `chat` is one task after the other, `attachment` a conversation beside an agent at work.
The line that is typed is edited in `chat`, and read in `watched_turn`. `text` makes foreign text harmless,
`streams` reads and writes without blocking, `faults` turns errors into one line and an exit code.

Begin with `watched_turn`. Options and commands are in `orchestrator.cli`, which hands in what a person asked
for.
"""
