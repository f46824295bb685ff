"""Ports of an app-server that has no Redis: for what is decided before one is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from orchestrator.gateways.app_server.door_ports import Offer, Ports


class NoRedis:
    """A client that is never asked: what is tested here is decided before."""

    def calling_itself(self, name: str) -> None:
        """Nobody is told of the name."""


def ports(offer: Offer | None = None, **more: Any) -> Ports:
    """The ports, with the settings that a test is about."""
    given: dict[str, Any] = {
        "found": cast(Any, None),
        "client": lambda principal, via: cast(Any, NoRedis()),
        "create": cast(Any, None),
        "fork": cast(Any, None),
        "delete": cast(Any, None),
        "home": Path("/home/ann/.dendro"),
        "version": "1.2.3",
        "now_ms": lambda: 1_000,
        "random_bytes": bytes,
        "offer": cast(Any, offer),
    }
    return Ports(**(given | more))
