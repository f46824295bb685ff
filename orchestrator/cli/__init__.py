"""The `dendro` command: options are read here, and what the views and doors give is drawn.

A file is a command's, or that of a few that belong together: `serve` has the doors for other programs,
`processes` the processes of a deployment, `workers` what operators see of them, `checkout` what takes a
session's folder out. `invocation` holds the options that stand before every command.

Begin with `main`, then `run`. What a person at a terminal sees and types is in `orchestrator.terminal`. What
is read or handed in is not decided here: see `orchestrator.views`, `orchestrator.rollouts` and
`orchestrator.gateways`.
"""
