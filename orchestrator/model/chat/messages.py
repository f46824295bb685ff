"""A conversation's items as chat messages. Pure.

An assistant's text and the calls of one response are one message; the outputs follow it, each a message of
its own.
Reasoning, searches and items of unknown kinds are left out: no server could read them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from orchestrator.core.history import CALL_KINDS, OUTPUT_KINDS
from orchestrator.model.chat.tools import function_of
from orchestrator.model.request import Item

Message = dict[str, Any]
Part = dict[str, Any]

_ONLY_IMAGES = "The output is in the next message."


def messages_of(
    instructions: str, items: Iterable[Item], developer_role: str, together: frozenset[str] = frozenset()
) -> list[Message]:
    """The messages of a request; `developer_role` is the role that the provider reads for `developer`.

    `together`: the calls that one response made with the call before them, by their ids.
    """
    talk = _Talk(developer_role, together)
    if instructions:
        talk.messages.append({"role": "system", "content": instructions})
    for item in items:
        talk.add(item)
    talk.show_images()
    return talk.messages


class _Talk:
    """The messages so far, and the images that wait until every output of a message's calls is there."""

    def __init__(self, developer_role: str, together: frozenset[str]) -> None:
        self.messages: list[Message] = []
        self._together = together
        self._asked: list[Any] | None = None
        """The calls of the last message that has any, until another one says something."""
        self._developer_role = developer_role
        self._calls: set[str] = set()
        self._images: list[Part] = []

    def add(self, item: Item) -> None:
        kind = item.get("type", "message")
        if kind in OUTPUT_KINDS:
            self._output(item)
        elif kind in CALL_KINDS:
            self._call(item)
        elif kind == "message":
            self._message(item)

    def _message(self, item: Item) -> None:
        role, content = item.get("role"), item.get("content")
        if role == "assistant":
            texts = _texts(content)
            self._append({"role": role, "content": "".join(texts)} if texts else None)
            return
        kept = {"developer": self._developer_role, "system": "system"}.get(str(role), "user")
        if _images(content):
            parts = [part for one in content or () for part in _parts(one)]
            self._append({"role": kept, "content": parts})
        elif texts := _texts(content):
            # Many servers take a text alone.
            self._append({"role": kept, "content": "\n".join(texts)})

    def _call(self, item: Item) -> None:
        function, call_id = function_of(item), item.get("call_id")
        if function is None or not call_id:
            return
        beside = call_id in self._together and self._asked is not None
        # Some servers count calls anew in each response: no message has two of one id.
        if not beside or any(call_id == made["id"] for made in self._asked or ()):
            self._asked = self._asking()
        assert self._asked is not None
        self._asked.append({"id": call_id, "type": "function", "function": function})
        self._calls.add(call_id)

    def _asking(self) -> list[Any]:
        """The calls of the assistant's message that stands last, or of a new one."""
        self.show_images()
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": None})
        found: list[Any] = self.messages[-1].setdefault("tool_calls", [])
        return found

    def _output(self, item: Item) -> None:
        call_id, output = item.get("call_id"), item.get("output")
        if call_id not in self._calls:
            return
        images = _images(output)
        if images:
            self._images += [_text_part(f"The output of the call {call_id}:"), *images]
        text = "\n".join(_texts(output)) or (_ONLY_IMAGES if images else "")
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def show_images(self) -> None:
        """The images of the outputs so far, as a message of a user: an output carries text alone."""
        if self._images:
            self.messages.append({"role": "user", "content": self._images})
            self._images = []

    def _append(self, message: Message | None) -> None:
        self.show_images()
        if message is not None:
            self._asked = None
            self.messages.append(message)


def _texts(content: Any) -> list[str]:
    """The texts of a content: a text, parts, or, in an output of another version, any JSON."""
    if isinstance(content, str):
        return [content]
    if isinstance(content, Mapping):
        return [orjson.dumps(content).decode()]
    parts = [part for part in content or () if isinstance(part, Mapping)]
    texts = [part.get("text", part.get("refusal")) for part in parts]
    return [text for text in texts if isinstance(text, str)]


def _parts(part: Any) -> list[Part]:
    """A part of a message that has images: its text or its image, in its place."""
    return [_text_part(text) for text in _texts([part])] or _images([part])


def _images(content: Any) -> list[Part]:
    if not isinstance(content, list | tuple):
        return []
    found = [part for part in content if isinstance(part, Mapping) and part.get("type") == "input_image"]
    return [_image_part(part) for part in found if isinstance(part.get("image_url"), str)]


def _image_part(part: Mapping[str, Any]) -> Part:
    image = {"url": part["image_url"]}
    if part.get("detail") is not None:
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}


def _text_part(text: str) -> Part:
    return {"type": "text", "text": text}
