"""The `dendro` command: options are read here, and what the views and doors give is drawn.

A file is a command's, with its drawing, or what several commands draw with: `live` (events), `prompts`
(questions), `terminal` (what a terminal does with text and keys). `invocation` holds the options that stand
before every command, `faults` turns errors into one line and an exit code.

Begin with `main`, then `run`. What is read or handed in is not decided here: see `orchestrator.views`,
`orchestrator.rollouts` and `orchestrator.gateways`.
"""
