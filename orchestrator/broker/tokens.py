"""Tokens of clients: a hash of records by id, one of them a token. Knows no token's text, only its digest."""

from __future__ import annotations

from orchestrator.broker.port import Port


class Tokens(Port):
    """The part of the broker that keeps who may come in from the network."""

    async def add_token(self, token_id: str, record: bytes) -> bool:
        """Keeps a token's record; False if the id is taken, by this very record or by another."""
        return bool(await self._connection.command("HSETNX", self.keys.tokens(), token_id, record))

    async def token(self, token_id: str) -> bytes | None:
        """The record of a token; None if there is none (any more)."""
        found: bytes | None = await self._connection.command("HGET", self.keys.tokens(), token_id)
        return found

    async def tokens(self) -> dict[str, bytes]:
        """The records of all tokens by their ids."""
        found = await self._connection.command("HGETALL", self.keys.tokens())
        return {token_id.decode(): record for token_id, record in found.items()}

    async def remove_token(self, token_id: str) -> bool:
        """Removes a token's record; False if there was none."""
        return bool(await self._connection.command("HDEL", self.keys.tokens(), token_id))
