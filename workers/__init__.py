"""The process types of a deployment: `turns` runs sessions, `upkeep` keeps Redis and the archive tidy.

Begin with `turns`. `upkeep` is arq's worker; what its jobs do stands in the `upkeep_*` files beside it. These
are composition roots: settings come in, parts are made by `orchestrator.wiring`.
"""
