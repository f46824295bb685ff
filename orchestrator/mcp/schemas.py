"""A server's list of tools, cleaned: schemas that providers take, texts and sizes within their bounds.

Providers refuse a whole request for one schema that they do not take, so a tool that cannot be mended is
left out, with a reason for the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from orchestrator.mcp.bounds import (
    DESCRIPTION_CHARS,
    JSON_DEPTH,
    NAME_CHARS,
    SCHEMA_BYTES,
    TOOLS,
    cut,
    is_deeper,
    plain,
)
from orchestrator.mcp.records import ServerTool
from orchestrator.protocol.mcp import Tool
from orchestrator.tables import McpServerSettings

_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_NOT_AT_ROOT = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "$schema", "$id", "if", "then", "else")
"""Keywords that the Responses API refuses in the schema of a function's arguments, or has no use for."""
_HINTS = ("title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


def cleaned(
    tools: Iterable[Mapping[str, Any]], settings: McpServerSettings
) -> tuple[list[ServerTool], list[str]]:
    """The tools to offer of those that a server listed (as JSON), and why others are left out."""
    kept: dict[str, ServerTool] = {}
    left_out: list[str] = []
    for tool in tools:
        name = str(tool.get("name", ""))
        if not settings.offers(name):
            continue
        if len(kept) >= TOOLS:
            left_out.append(f"it has more than {TOOLS} tools")
            break
        if (fault := _fault(name, tool, kept)) is not None:
            left_out.append(f"tool {cut(name, 80)!r}: {fault}")
        else:
            kept[name] = _cleaned(name, tool, settings)
    return list(kept.values()), left_out


def _fault(name: str, tool: Mapping[str, Any], kept: Mapping[str, ServerTool]) -> str | None:
    """Why a tool cannot be offered."""
    if not name or not name.isprintable() or len(name) > NAME_CHARS:
        return f"its name is empty, has unprintable characters or more than {NAME_CHARS} characters"
    if name in kept:
        return "a tool of that name came before"
    for key in ("inputSchema", "outputSchema"):
        schema = tool.get(key)
        if is_deeper(schema, JSON_DEPTH):
            return f"its {key} has more than {JSON_DEPTH} levels"
        if len(orjson.dumps(plain(schema))) > SCHEMA_BYTES:
            return f"its {key} has more than {SCHEMA_BYTES:,} bytes"
    return None


def _cleaned(name: str, tool: Mapping[str, Any], settings: McpServerSettings) -> ServerTool:
    description = cut(str(tool.get("description") or ""), DESCRIPTION_CHARS)
    schema = plain(tool.get("inputSchema") or {})
    hints = _hints(tool.get("annotations"))
    title = tool.get("title")
    output_schema = tool.get("outputSchema")
    record = Tool(
        name=name,
        input_schema=schema,
        description=description or None,
        title=cut(str(title), NAME_CHARS) if title else None,
        output_schema=plain(output_schema) if output_schema else None,
        annotations=hints or None,
    )
    read_only = settings.trust_annotations and hints.get("readOnlyHint") is True
    return ServerTool(settings.id, name, description, parameters(schema), record, read_only)


def _hints(annotations: Any) -> dict[str, Any]:
    """The annotations that the protocol names; others are dropped."""
    if not isinstance(annotations, Mapping):
        return {}
    known = {key: annotations[key] for key in _HINTS if annotations.get(key) is not None}
    return {
        key: cut(value, NAME_CHARS) if isinstance(value, str) else bool(value) for key, value in known.items()
    }


def parameters(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of arguments as the Responses API takes it: an object with named properties."""
    root = {key: value for key, value in schema.items() if key not in _NOT_AT_ROOT}
    return {**_mended(root), "type": "object", "properties": _mended(root).get("properties", {})}


def _mended(schema: Any) -> Any:
    """A schema whose objects name properties, whose arrays name items, and whose parts are objects."""
    if not isinstance(schema, Mapping):
        return {}
    mended = dict(schema)
    for key in _SINGLE:
        if isinstance(mended.get(key), Mapping):
            mended[key] = _mended(mended[key])
        elif key in mended and not isinstance(mended[key], bool):
            del mended[key]
    for key in _LISTS:
        if key in mended:
            parts = mended[key]
            mended[key] = [_mended(each) for each in parts] if isinstance(parts, list) else []
            if not mended[key]:
                del mended[key]
    for key in _NAMED:
        if key in mended:
            parts = mended[key]
            mended[key] = (
                {name: _mended(each) for name, each in parts.items()} if isinstance(parts, Mapping) else {}
            )
    if mended.get("type") == "object":
        mended.setdefault("properties", {})
    if mended.get("type") == "array" and not isinstance(mended.get("items"), Mapping):
        mended["items"] = {}
    return mended
