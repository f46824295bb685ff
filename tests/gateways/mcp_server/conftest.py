"""The runtime's harness behind an MCP server."""

from tests.runtime.conftest import harness, redis_server

__all__ = ["harness", "redis_server"]
