"""Settings of gateways: what `dendro serve` and `dendro app-server` take from the network."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from orchestrator.tables.base import ISSUER, Table, conflict, setting


class GatewaySettings(Table):
    """Gateways: who may connect from where ([tokens](doors/tokens.md))."""

    allowed_origins: tuple[str, ...] = setting((), "gateway.allowed_origins")
    """Web origins (`https://board.example`) whose pages may open a WebSocket. Pages of all others are refused
    with 403: a page may otherwise use its reader's network, and his tokens."""

    hosts: tuple[str, ...] = setting((), "gateway.hosts")
    """Names under which clients reach a gateway, beside those of loopback and the address itself. A request
    for another name is refused with 421: its name may lead here by somebody else's doing."""

    tls_certificate: Path | None = setting(None, "gateway.tls_certificate")
    """File of the certificate (PEM, with its chain) for `wss://` and `tcps://`. Whatever is not loopback is
    encrypted."""

    tls_key: Path | None = setting(None, "gateway.tls_key")
    """File of the certificate's private key (PEM)."""

    loopback_needs_token: bool = setting(False, "gateway.loopback_needs_token")
    """Whether a process of this user needs a token on loopback, too. On unix sockets it never does; processes
    of other users, and commands of agents in their sandbox, always need one."""

    token_issuer: str | None = setting(None, "gateway.token_issuer", pattern=ISSUER)
    """OpenID issuer whose access tokens count beside Dendro's own ([tokens](doors/tokens.md)): signed with a
    key that it publishes, for `gateway.token_audience`, with a scope `dendro:read`, `dendro:submit`,
    `dendro:approve` or `dendro:admin`."""

    token_audience: str | None = setting(None, "gateway.token_audience")
    """Audience (`aud`) that such a token must name: the name of this deployment at the issuer."""

    max_connections: int = setting(4096, "gateway.max_connections", at_least=1, at_most=100_000)
    """Connections that each address serves at once; a further one is closed."""

    cwd: Path | None = setting(None, "gateway.cwd", shown_default="the folder that it was started in")
    """Working folder of a new session whose client of the app-server protocol names none."""

    workspace: Literal["host", "portable"] = setting("host", "gateway.workspace")
    """Kind of the folder of a new session whose client does not choose one (`workspace`): the folder itself
    that its client names as `cwd`, or a portable copy of it ([portable folders](workspaces.md)). With
    `portable`, a client that names no `cwd` begins with an empty folder. A token that says one of both
    (`dendro token new --workspace`) is heard before this setting."""

    auto_review: Literal["queue", "ask"] = setting("queue", "gateway.auto_review")
    """The way of a request for approval whose client says that a model reviews it
    (`approvalsReviewer: auto_review`, the default of Codex's Python SDK, whose handler accepts anything): it
    waits for people (`dendro approvals`), or that client is asked."""

    client_tool_timeout_s: float = setting(
        600.0, "gateway.client_tool_timeout_s", at_least=1, at_most=7 * 86_400
    )
    """Seconds that a call of a tool which a client brings along (`dynamicTools`) waits for that client,
    connected or not. Then it has failed, and its turn goes on."""

    metrics_port: int | None = setting(
        None, "gateway.metrics_port", at_least=0, at_most=65_535, shown_default="none are served"
    )
    """Port at which a gateway answers `/healthz`, `/readyz` and `/metrics` ([metrics](metrics.md)). 0 takes
    a free one and prints it; a port that is taken is a warning."""

    metrics_host: str = setting("127.0.0.1", "gateway.metrics_host", pattern=r"^[A-Za-z0-9_.:-]+$")
    """Address of that port. Nobody is asked who they are there: it shows how many clients are connected, and
    how much work there is."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise conflict("gateway.tls_certificate, gateway.tls_key", "one of them", "both or none")
        if (self.token_issuer is None) != (self.token_audience is None):
            raise conflict("gateway.token_issuer, gateway.token_audience", "one of them", "both or none")
        return self
