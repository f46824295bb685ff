"""Compares the answers to a client's requests in a recording with those of the program.

Pure: messages in, differences out. An answer is reduced to facts that clients show: whether it is a result or
an error, statuses, kinds and texts of what lists hold. Ids, times and cursors are not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Message = dict[str, Any]
SHOWN_ITEMS = {"userMessage": "content", "agentMessage": "text", "commandExecution": "status"}


def compare_answers(lines: Sequence[Message], got: Sequence[Message]) -> list[str]:
    """Differences in words; `lines` are those of a recording, each with what one side said."""
    said = {message["id"]: message for message in got if "id" in message and "method" not in message}
    methods: dict[Any, str] = {}
    found: list[str] = []
    for line in lines:
        if "client" in line and "method" in line["client"] and "id" in line["client"]:
            methods[line["client"]["id"]] = line["client"]["method"]
        answer = line.get("server", {})
        if "method" in answer or answer.get("id") not in methods:
            continue
        method, own = methods[answer["id"]], said.get(answer["id"])
        wanted, seen = facts(method, answer), None if own is None else facts(method, own)
        if wanted != seen:
            found.append(f"{method}:\n    recorded {wanted!r}\n    got      {seen!r}")
    return found


def facts(method: str, answer: Message) -> Any:
    """The facts of an answer."""
    if "error" in answer:
        return "error"
    read = _FACTS.get(method)
    return "result" if read is None else read(answer["result"])


def _turn(turn: Message) -> Any:
    error = (turn.get("error") or {}).get("codexErrorInfo")
    return turn["status"], turn["itemsView"], error, [_item(item) for item in turn["items"]]


def _item(item: Message) -> Any:
    value = item.get(SHOWN_ITEMS.get(item["type"], ""))
    if item["type"] == "userMessage":
        value = [(part["type"], part.get("text")) for part in item["content"]]
    return item["type"], value


def _thread(thread: Message) -> Any:
    names = ("preview", "ephemeral", "name", "cwd")
    return {name: thread[name] for name in names}, [_turn(turn) for turn in thread["turns"]]


def _settings(result: Message) -> Any:
    names, sandbox = ("approvalPolicy", "approvalsReviewer", "cwd"), result["sandbox"]
    # Folders of tests lie below /tmp, which the tests' own settings close.
    return {name: result[name] for name in names}, sandbox["type"], sandbox.get("networkAccess")


_FACTS: Mapping[str, Callable[[Message], Any]] = {
    "turn/start": lambda result: _turn(result["turn"]),
    "thread/start": lambda result: (_settings(result), _thread(result["thread"])),
    "thread/resume": lambda result: (_settings(result), _thread(result["thread"])),
    "thread/read": lambda result: _thread(result["thread"]),
    "thread/unarchive": lambda result: _thread(result["thread"]),
    "thread/list": lambda result: [_thread(thread) for thread in result["data"]],
    "thread/turns/list": lambda result: [_turn(turn) for turn in result["data"]],
    # An item that has not ended stands in our list, too; the peer tells it live alone.
    "thread/items/list": lambda result: [
        _item(one["item"]) for one in result["data"] if one["item"].get("status") != "inProgress"
    ],
    "thread/unsubscribe": lambda result: result["status"],
    "thread/goal/get": lambda result: result["goal"],
}
