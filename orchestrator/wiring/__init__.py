"""From settings to the parts.

Composition roots (`cli`, `workers`) call this; nothing below it knows settings. `wiring.worker_parts` is
apart, because it loads everything that a worker runs, and most commands are not workers.
"""
