"""A real server and a scripted worker, as the runtime's tests have them."""

from __future__ import annotations

from tests.runtime.conftest import harness, redis_server

__all__ = ["harness", "redis_server"]
