"""redis-py's synchronous client, with the types of what it answers.

redis-py types most answers as "the answer, or an awaitable of it", because its asynchronous client shares the
methods, and does not type `execute_command` at all. A test would have to say at each answer which of the two
it is. Nothing here changes what the client does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from redis import Redis

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from redis.typing import EncodableT, FieldT, KeyT, StreamIdT

    Fields = dict[bytes, bytes]


class PlainRedis(Redis):
    """A client that answers with bytes, as redis-py does unless it is told to decode them."""

    if TYPE_CHECKING:

        @classmethod
        def from_url(cls, url: str, **options: Any) -> Self: ...

        def execute_command(self, *words: EncodableT, **options: Any) -> Any: ...

        def get(self, name: KeyT) -> bytes | None: ...

        # redis-py says str, which a client that decodes would answer with.
        def hget(self, name: KeyT, key: FieldT) -> bytes | None: ...  # type: ignore[override]

        def hgetall(self, name: KeyT) -> Fields: ...

        def hmget(self, name: KeyT, keys: Sequence[FieldT], *args: Any) -> list[Any]: ...

        def hset(
            self,
            name: KeyT,
            key: FieldT | None = None,
            value: EncodableT | None = None,
            mapping: Mapping[Any, Any] | None = None,
            items: list[Any] | None = None,
        ) -> int: ...

        def info(self, section: str | None = None, *args: Any, **options: Any) -> dict[str, Any]: ...

        def smembers(self, name: KeyT) -> set[bytes]: ...

        def type(self, name: KeyT) -> bytes: ...

        def xadd(
            self,
            name: KeyT,
            fields: Mapping[Any, EncodableT],
            id: StreamIdT = "*",
            *args: Any,
            **options: Any,
        ) -> bytes: ...

        def xrange(
            self, name: KeyT, min: StreamIdT = "-", max: StreamIdT = "+", count: int | None = None
        ) -> list[tuple[bytes, Fields]]: ...

        def xinfo_stream(self, name: KeyT, full: bool = False) -> dict[str, Any]: ...

        def zrange(self, name: KeyT, start: int, end: int, *args: Any, **options: Any) -> list[Any]: ...
