"""Events in words, the same wherever a person reads them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import orjson

SILENT = frozenset(
    {
        "session_configured",
        "task_started",
        "task_complete",
        "token_count",
        "turn_diff",
        "context_compaction",
        "raw_response_item",
        "agent_reasoning_section_break",
        "mcp_startup_complete",
        "sub_agent_tool_call_activity",
        "sub_agent_tool_call_tokens",
    }
)
"""Events that a person is shown nothing of."""


PLAN_ITEM = "Plan"
"""The type of the item that a proposed plan is."""


def lifecycle_text(message: Mapping[str, Any]) -> str:
    """The text of a lifecycle event for a person; empty for changes in between."""
    known = message.get("subagent") or {}
    number = message.get("agent_id", known.get("agent_id"))
    named = f"agent {number}" + (f" ({known['label']})" if known.get("label") else "")
    match message["event"], message.get("status"):
        case "created", _:
            what = f": {known['summary']}" if known.get("summary") else ""
            return f"+ {named} was made{what}"
        case "deleted", _:
            return f"- {named} was taken off the list"
        case "status", "canceled":
            return f"✗ {named} was cancelled: {message.get('cancel', 'proved')}"
        case "status", "failed":
            return f"✗ {named} failed"
        case "status", "ready":
            return f"✓ {named} has come to rest"
        case _:
            return ""


def visible(message: Mapping[str, Any]) -> bool:
    """Whether a person is shown anything of an event."""
    if message["type"] == "subagent_lifecycle":
        return bool(lifecycle_text(message))
    if message["type"] in ("item_started", "item_completed"):
        return bool(message["type"] == "item_completed" and message["item"].get("type") == PLAN_ITEM)
    return message["type"] not in SILENT


def resolved_text(message: Mapping[str, Any], agent: str) -> str:
    """The text of a resolved request for a person."""
    asker = f" of {agent}" if message.get("agent_id") else ""
    about = f"request {message['call_id']}{asker}"
    if not message["who"]:
        return f"{about} is not asked any more: its turn has ended"
    from orchestrator.core.calls.exec import amended

    if prefix := amended(message["decision"]):
        return f"{about} and all that begins with `{shlex.join(prefix)}` was approved by {message['who']}"
    word = _DECIDED.get(message["decision"], message["decision"].replace("_", " "))
    return f"{about} was {word} by {message['who']}"


_DECIDED: Mapping[str, str] = {"accept": "accepted", "decline": "declined", "cancel": "cancelled"}
"""Decisions on questions of MCP servers."""


def mcp_call_text(message: Mapping[str, Any]) -> str:
    """A call of an MCP server's tool, with its arguments."""
    asked = message["invocation"]
    arguments = orjson.dumps(asked["arguments"]).decode() if asked.get("arguments") else ""
    return f"{asked['server']}: {asked['tool']} {arguments}".rstrip()


def mcp_result_text(message: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether a call of an MCP server's tool went well, and what came of it."""
    result = message["result"]
    if isinstance(result, str):
        return False, result
    blocks = [block for block in result.get("content") or () if isinstance(block, dict)]
    texts = [
        block["text"] if isinstance(block.get("text"), str) else f"[{block.get('type')}]" for block in blocks
    ]
    return not result.get("isError"), "\n".join(texts)


def client_call_text(message: Mapping[str, Any]) -> str:
    """A call of a tool that a client brings, with its arguments."""
    space = f"{message['namespace']}: " if message.get("namespace") else ""
    arguments = orjson.dumps(message["arguments"]).decode() if message.get("arguments") else ""
    return f"{space}{message['tool']} {arguments}".rstrip()


def client_result_text(message: Mapping[str, Any]) -> str:
    """The outcome of such a call: its texts, and a note for its images."""
    parts = message.get("content_items") or ()
    images = sum(part["type"] == "input_image" for part in parts)
    noted = () if not images else ("[1 image]" if images == 1 else f"[{images} images]",)
    return "\n".join(filter(None, (message["output"], *noted)))


def review_asked_text(message: Mapping[str, Any]) -> str:
    """The subject of a code review: the person's hint, or what the reviewer is asked for."""
    target = message.get("target") or {}
    words = target.get("branch") or target.get("sha") or target.get("instructions") or message.get("prompt")
    match target.get("type"):
        case "uncommittedChanges":
            what = "the uncommitted changes"
        case "baseBranch":
            what = f"the changes against {words}"
        case "commit":
            what = f"commit {words}" + (f" ({target['title']})" if target.get("title") else "")
        case _:
            what = str(words or "")
    hint = message.get("user_facing_hint")
    return f"{what} ({hint})" if hint and what else str(hint or what)


def review_verdict_text(output: Mapping[str, Any]) -> str:
    """The outcome of a code review in one line."""
    number = len(output["findings"])
    found = "no findings" if not number else "1 finding" if number == 1 else f"{number} findings"
    verdict = output["overall_correctness"]
    return f"{verdict}, {found} (confidence {output['overall_confidence_score']:.2f})" if verdict else found


def finding_text(finding: Mapping[str, Any]) -> str:
    """A finding's priority, title and place in one line."""
    place, lines = finding["code_location"], finding["code_location"]["line_range"]
    where = f"{place['absolute_file_path']}:{lines['start']}-{lines['end']}"
    return f"[P{finding['priority']}] {finding['title']} — {where}"
