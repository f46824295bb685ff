"""The result of a call: as its event shows it, and as the model reads it. Both within bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from orchestrator.mcp.bounds import (
    BLOCKS,
    ERROR_CHARS,
    IMAGES,
    JSON_DEPTH,
    RESULT_BYTES,
    cut,
    is_deeper,
    plain,
)
from orchestrator.mcp.records import Answer
from orchestrator.protocol.items import ContentItem, InputImage, InputText, ToolOutput
from orchestrator.protocol.mcp import CallToolResult, ImageBlock, text_block
from orchestrator.protocol.wire import written

Shorten = Callable[[str], str]
"""Cuts a text to what one call may tell a model."""

_IMAGE_KINDS = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def answered(result: Mapping[str, Any], shorten: Shorten) -> Answer:
    """The answer of a server's result, as its JSON came."""
    blocks = list(_blocks(result.get("content") or ()))
    structured = _structured(result.get("structuredContent"))
    shown = CallToolResult(
        content=tuple(_within(blocks)),
        structured_content=structured if _size(structured) <= RESULT_BYTES else None,
        is_error=True if result.get("isError") else None,
    )
    return Answer(shown, _output(blocks, structured, shorten))


def failed(why: str) -> Answer:
    """The answer of a call that has no result."""
    text = cut(why, ERROR_CHARS)
    return Answer(text, text)


def _blocks(content: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The content blocks that are well-formed; a note stands in the place of what is not shown."""
    images = 0
    for block in content[:BLOCKS]:
        if not isinstance(block, Mapping) or is_deeper(block, JSON_DEPTH):
            yield text_block("[a block that is nested too deep]")
            continue
        kind = block.get("type")
        if kind == "image":
            images += 1
            yield _image(block) if images <= IMAGES else text_block(f"[an image beyond the first {IMAGES}]")
        elif kind == "text":
            yield text_block(plain(str(block.get("text", ""))))
        else:
            yield plain(block)
    if len(content) > BLOCKS:
        yield text_block(f"[{len(content) - BLOCKS} more blocks]")


def _image(block: Mapping[str, Any]) -> dict[str, Any]:
    data, kind = block.get("data"), block.get("mimeType")
    if kind not in _IMAGE_KINDS or not isinstance(data, str) or not _is_base64(data):
        return text_block(f"[an image that cannot be shown: {cut(str(kind), 80)}]")
    return written(ImageBlock(data=data, mime_type=kind))


def _is_base64(data: str) -> bool:
    return data.isascii() and data.translate(_BASE64) == "" and bool(data)


_BASE64 = {ord(char): None for char in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\n"}


def _structured(value: Any) -> Any:
    return None if value is None or is_deeper(value, JSON_DEPTH) else plain(value)


def _within(blocks: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The blocks for the event: texts share its bound; images are stored beside the log."""
    room = RESULT_BYTES
    for block in blocks:
        if block.get("type") == "image":
            yield block
            continue
        size = _size(block)
        if size <= room:
            yield block
        elif block.get("type") == "text":
            kept = block["text"].encode()[:room].decode("utf-8", "ignore")
            yield text_block(f"{kept}\n[{size - room} more bytes]")
        else:
            yield text_block(f"[a block of {size} bytes]")
        room = max(0, room - size)


def _size(value: Any) -> int:
    return len(orjson.dumps(value))


def _output(blocks: Sequence[dict[str, Any]], structured: Any, shorten: Shorten) -> ToolOutput:
    if any(block.get("type") == "image" for block in blocks):
        return tuple(_items(blocks, shorten))
    return shorten(orjson.dumps(blocks if structured is None else structured).decode())


def _items(blocks: Sequence[dict[str, Any]], shorten: Shorten) -> Iterator[ContentItem]:
    """The blocks as content items; the texts together have the room of one output."""
    texts: list[str] = []
    images: list[InputImage] = []
    for block in blocks:
        if block.get("type") == "image":
            images.append(InputImage(image_url=f"data:{block['mimeType']};base64,{block['data']}"))
        else:
            texts.append(block["text"] if block.get("type") == "text" else orjson.dumps(block).decode())
    if texts:
        yield InputText(text=shorten("\n".join(texts)))
    yield from images
