"""From settings to the parts.

Composition roots (`cli`, `workers`) call this; nothing below it knows settings. What clients
need is imported from here; `wiring.worker` is apart, because it loads everything that a
worker runs, and most commands are not workers.
"""

from orchestrator.wiring.deployment import (
    Deployment,
    broker_config,
    chain_key,
    deployment,
    embedded_config,
    open_broker,
    redis_url,
    session_pool,
    worker_name,
    worker_pools,
)
from orchestrator.wiring.sessions import VERSION, guide, new_birth, tree_rules, turn_settings

__all__ = [
    "VERSION",
    "Deployment",
    "broker_config",
    "chain_key",
    "deployment",
    "embedded_config",
    "guide",
    "new_birth",
    "open_broker",
    "redis_url",
    "session_pool",
    "tree_rules",
    "turn_settings",
    "worker_name",
    "worker_pools",
]
