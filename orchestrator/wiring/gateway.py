"""A gateway from settings: its doors, who may come in, and the addresses that it listens on."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from orchestrator.gateways.wires.authentication import Authentication
from orchestrator.gateways.wires.http_rules import HttpRules
from orchestrator.gateways.wires.listeners import ListenerConfig, tls_context
from orchestrator.settings import Settings


def http_rules(settings: Settings) -> HttpRules:
    """The rules for `Host` and `Origin`."""
    return HttpRules(
        hosts=frozenset(host.lower() for host in settings.gateway.hosts),
        origins=frozenset(origin.lower().rstrip("/") for origin in settings.gateway.allowed_origins),
    )


def gateway_tls(settings: Settings) -> ssl.SSLContext | None:
    """The gateway's side of TLS; None without a certificate. Raises `BadAddress`."""
    certificate, key = settings.gateway.tls_certificate, settings.gateway.tls_key
    return tls_context(certificate, key) if certificate is not None and key is not None else None


def listener_config(
    settings: Settings, authentication: Authentication, is_ready: Callable[[], bool] = lambda: True
) -> ListenerConfig:
    """The rules for all addresses of a gateway; raises `BadAddress` for a certificate that does not do."""
    return ListenerConfig(
        authentication,
        http_rules(settings),
        gateway_tls(settings),
        settings.gateway.max_connections,
        is_ready,
    )
