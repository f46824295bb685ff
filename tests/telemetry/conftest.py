"""The runtime's harness, for workers that are observed."""

from tests.runtime.conftest import harness, redis_server

__all__ = ["harness", "redis_server"]
