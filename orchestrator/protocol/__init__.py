"""The submission/event protocol on the wire: operations, events, rollout lines.

Shapes and their JSON, nothing else: no clock, no I/O, no rule of what an operation does
(`orchestrator.core`). Start at `codec`; `docs/protocol/reference.md` lists every type.
"""
