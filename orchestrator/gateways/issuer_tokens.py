"""Bearer tokens of an OpenID issuer: their holders are principals, as those of Dendro's own tokens are.

A token says by its claims what its holder may do: `scope` has `dendro:read`, `dendro:submit`,
`dendro:approve` or `dendro:admin`, `dendro_namespace` may name a tenant's namespace, and `dendro_workspace`
the kind of folder of new sessions. Without such a scope it opens nothing: an issuer's tokens are made for
other programs, too.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from orchestrator.gateways.principals import HOME_NAMESPACE, WORKSPACE_KINDS, Principal, Scope
from orchestrator.gateways.tokens import NAME, PrincipalLookUp
from orchestrator.model.issuer import BadIssuerToken, Issuer, IssuerError

PREFIX: Final = "dendro:"
NAMESPACE: Final = "dendro_namespace"
WORKSPACE: Final = "dendro_workspace"
OWN: Final = "dendro_"
"""The begin of Dendro's own tokens."""
MOST_REMEMBERED: Final = 10_000
_SUBJECT = re.compile(r"[A-Za-z0-9._+@|:/=-]{1,128}")
log = logging.getLogger("dendro.gateway")


class IssuerTokens:
    """Finds the principals of tokens, Dendro's own and those of an issuer."""

    def __init__(
        self, own: PrincipalLookUp, issuer: Issuer, audience: str, now_s: Callable[[], float]
    ) -> None:
        self._own = own
        self._issuer = issuer
        self._audience = audience
        self._now_s = now_s
        self._until: dict[str, float] = {}
        """The ids of tokens that were presented, with the seconds of the epoch at which they end."""

    async def __call__(self, text: str) -> Principal | None:
        """The principal; None for a token that does not count."""
        if text.startswith(OWN):
            return await self._own(text)
        try:
            claims = await self._issuer.claims(text, self._audience)
            principal = principal_of(claims, _id(text))
        except BadIssuerToken as error:
            log.info("a token of the issuer was refused", extra={"why": str(error)})
            return None
        except IssuerError as error:
            log.warning("the issuer's keys cannot be had", extra={"why": str(error)})
            return None
        self._remember(principal.token, float(claims["exp"]))
        return principal

    def _remember(self, token: str, until: float) -> None:
        now = self._now_s()
        if len(self._until) >= MOST_REMEMBERED:
            self._until = {id: end for id, end in self._until.items() if end > now}
        self._until[token] = until

    async def in_force(self) -> frozenset[str]:
        """The ids of all tokens that count now."""
        now = self._now_s()
        return await self._own.in_force() | {id for id, end in self._until.items() if end > now}


def principal_of(claims: Mapping[str, Any], token: str) -> Principal:
    """The one for whom a token speaks; raises `BadIssuerToken`."""
    subject, namespace = str(claims["sub"]), claims.get(NAMESPACE, HOME_NAMESPACE)
    if not _SUBJECT.fullmatch(subject):
        raise BadIssuerToken("its subject has other characters than a name may have, or too many")
    if not isinstance(namespace, str) or (namespace and not NAME.fullmatch(namespace)):
        raise BadIssuerToken(f"its {NAMESPACE} is no name of a namespace")
    workspace = claims.get(WORKSPACE)
    if workspace is not None and workspace not in WORKSPACE_KINDS:
        raise BadIssuerToken(f"its {WORKSPACE} is none of {', '.join(WORKSPACE_KINDS)}")
    # No name of a token, and no user of a machine, begins so.
    name = f"openid:{subject}"
    return Principal(
        f"{namespace}/{name}" if namespace else name, namespace, _scope(claims), token, workspace
    )


def _scope(claims: Mapping[str, Any]) -> Scope:
    said = claims.get("scope", claims.get("scp", ""))
    words = said.split() if isinstance(said, str) else said if isinstance(said, list) else []
    scopes = [scope for scope in Scope if PREFIX + scope.word in words]
    if not scopes:
        raise BadIssuerToken(f"its scope has none of {', '.join(PREFIX + scope.word for scope in Scope)}")
    return max(scopes)


def _id(text: str) -> str:
    return f"openid-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:32]}"
