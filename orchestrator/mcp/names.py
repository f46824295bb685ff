"""Names of MCP tools as models are offered them: `mcp__SERVER__TOOL`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from orchestrator.mcp.records import OfferedTool, ServerTool

PREFIX = "mcp__"
LONGEST = 64
_DIGITS = 8
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def named(tools: Iterable[ServerTool]) -> tuple[OfferedTool, ...]:
    """The tools under their full names, sorted by server and name.

    Of two with one name the second gets a hash in its name. Two with one hash would take work to make: the
    second is left out.
    """
    taken: dict[str, OfferedTool] = {}
    for tool in sorted(tools, key=lambda each: (each.server, each.name)):
        whole = f"{PREFIX}{tool.server}__{tool.name}"
        plain = _OTHER.sub("_", whole)
        name = plain if len(plain) <= LONGEST and plain not in taken else _with_hash(plain, whole)
        taken.setdefault(name, OfferedTool(name, tool))
    return tuple(taken.values())


def _with_hash(plain: str, whole: str) -> str:
    digest = hashlib.sha1(whole.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
    return f"{plain[: LONGEST - _DIGITS - 1]}_{digest[:_DIGITS]}"
