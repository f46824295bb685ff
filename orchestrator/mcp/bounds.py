"""The most that an MCP server may send: what lies beyond is cut, left out, or ends its connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MESSAGE_BYTES = 4 << 20
"""A JSON-RPC message; a longer one ends the connection. Reading it holds the worker's event loop."""

UNREAD_BYTES = 8 << 20
"""Output of a program that was not read yet; a program that writes more is ended."""

NOISE_LINES = 1_000
"""Lines of a program that are no messages (programs print banners); one more ends the connection."""

OPEN_REQUESTS = 32
"""Requests of a server that are not answered yet; one more ends the connection."""

REQUESTS_A_MINUTE = 600
"""Requests of a server within a minute, answered or not; one more ends the connection."""

MESSAGES_A_MINUTE = 60_000
"""Messages of a server of any kind within a minute; one more ends the connection. Each costs some 0.1 ms."""

OPEN_EXCHANGES = 64
"""HTTP responses of a server that have not ended; one more ends the connection."""

TOOLS = 128
"""Tools of one server; further ones are left out."""

PAGES = 32
"""Pages of one list of tools."""

NAME_CHARS = 128
"""A tool's own name; a tool with a longer one is left out."""

DESCRIPTION_CHARS = 4_096
SCHEMA_BYTES = 32 << 10
"""A tool's schema as JSON; a tool with a larger one is left out."""

JSON_DEPTH = 32
"""Levels of a schema or of a structured result."""

OFFERED_BYTES = 512 << 10
"""All tools of all servers as a model is offered them; what comes after it is left out."""

BLOCKS = 256
"""Content blocks of one result."""

RESULT_BYTES = 64 << 10
"""Texts of one result as its event keeps them."""

IMAGES = 16
"""Images of one result."""

QUESTION_CHARS = 4_096
"""Text of a question that a server asks a person."""

ERROR_CHARS = 2_000
"""Text of an error."""

STDERR_BYTES = 2_048
"""The end of a program's standard error, for the text of its failure."""

_REFERENCE = "$blob"
_LARGEST = 1 << 63
_LONGEST_BITS = 4_096


def cut(text: str, most: int) -> str:
    """`text` in at most `most` characters, without control characters and halves of surrogate pairs."""
    clean = "".join(char for char in text[: most + 1] if char >= " " or char in "\n\t")
    clean = clean.encode("utf-8", "replace").decode()
    return clean if len(text) <= most else clean[: most - 1] + "…"


def is_deeper(value: Any, levels: int) -> bool:
    """Whether a JSON value has more levels of arrays and objects than `levels`."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [
            inner
            for each in layer
            if isinstance(each, (dict, list))
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not layer:
            return False
    return True


def plain(value: Any) -> Any:
    """A JSON value that the log can hold, and that cannot be taken for the log's reference to a stored text.

    Numbers beyond 64 bits become texts; halves of surrogate pairs become question marks.
    """
    match value:
        case Mapping():
            return {_key(str(key)): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case str():
            return value if value.isascii() else value.encode("utf-8", "replace").decode()
        case int() if not -_LARGEST <= value < _LARGEST:
            return str(value)[:ERROR_CHARS] if value.bit_length() < _LONGEST_BITS else "[a very large number]"
        case _:
            return value


def _key(key: str) -> str:
    clean = key if key.isascii() else key.encode("utf-8", "replace").decode()
    return f"{clean} " if clean == _REFERENCE else clean
