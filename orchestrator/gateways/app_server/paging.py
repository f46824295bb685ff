"""Pages of short lists that stand in memory, by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

from pydantic import Field

from orchestrator.gateways.app_server.errors import bad_params
from orchestrator.gateways.app_server.method import Params
from orchestrator.protocol.wire import JsonObject

MOST = 100
MOST_CURSOR = 2_000
Limit = Annotated[int, Field(ge=0, le=1 << 32)]
CursorText = Annotated[str, Field(max_length=MOST_CURSOR)]
Row = TypeVar("Row")


class PageParams(Params):
    """A page that is asked for."""

    limit: Limit | None = None
    cursor: CursorText | None = None

    def most(self, usual: int = MOST, at_most: int = MOST) -> int:
        """The rows of the page: as many as are asked for, within bounds."""
        return max(1, min(self.limit or usual, at_most))


def page(rows: Sequence[Row], asked: PageParams) -> JsonObject:
    """`data` and `nextCursor`; raises `RpcError` for a cursor that is none."""
    first = _place(asked.cursor)
    last = first + asked.most()
    return {"data": list(rows[first:last]), "nextCursor": str(last) if last < len(rows) else None}


def _place(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit()) or len(cursor) > 9:
        raise bad_params("cursor: this is no place of a list; give one that the list answered")
    return int(cursor)
