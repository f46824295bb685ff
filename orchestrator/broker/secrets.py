"""Texts of answers that stand beside the log: read by the workers of their tree, until a commit drops them.

Knows not which of them are secret. `submit` writes them with the submission that they belong to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.broker.connection import call
from orchestrator.broker.errors import SecretsFull
from orchestrator.broker.port import Port
from orchestrator.broker.records import Place
from orchestrator.broker.requests import SECRETS, queue_number
from orchestrator.core.ids import TreeId

if TYPE_CHECKING:
    from orchestrator.broker.reply_fields import KeepSecretSecrets


class Secrets(Port):
    """The part of the broker that keeps what no log may have."""

    async def secret(self, tree: TreeId, name: str) -> bytes:
        """The texts under a name; empty if they are gone."""
        found: bytes | None = await self._connection.command("HGET", self.keys.secrets(tree), name)
        return found or b""

    async def keep_secret(self, place: Place, sq_id: str, name: str, texts: bytes) -> None:
        """Sets texts apart that came in clear, unless their entry is consumed already; safe to repeat."""
        keys = [self.keys.session(place.session), self.keys.secrets(place.tree)]
        keep = call("keep_secret", keys, n=queue_number(sq_id), name=name, value=texts, **SECRETS)
        reply = await self._run(keep, place.session)
        match reply.code:
            case "OK":
                self._clock.note(reply.now)
            case "SECRETS":
                full: KeepSecretSecrets = reply.fields
                raise SecretsFull(place.session, full["most"])
            case _:
                raise reply.unexpected()
