"""Requests to the model, digested a second time: each as a whole, by the words of the form alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from orchestrator.model.prompt import Prompt
from sim.secrets import SECRET


def canonical(prompt: Prompt) -> str | None:
    """The SHA-256 of a request that says everything; None for one that does not, or that shows a secret."""
    ids: dict[str, int] = {}
    calls: dict[str, int] = {}

    def item(said: Mapping[str, Any]) -> dict[str, Any]:
        made = dict(said)
        for name, known in (("id", ids), ("call_id", calls)):
            if isinstance(made.get(name), str):
                made[name] = known.setdefault(made[name], len(known))
        if "encrypted_content" in made:
            made["encrypted_content"] = hashlib.sha256(made["encrypted_content"].encode()).hexdigest()
        if made["type"] == "reasoning":
            made.pop("content", None)
        return made

    # What is encoded already is what leaves.
    given = prompt.input if prompt.encoded is None else json.loads(prompt.encoded)
    shown = [
        said
        for said in given
        if said["type"] != "reasoning" or said.get("summary") or "encrypted_content" in said
    ]
    text: dict[str, Any] = {"verbosity": prompt.verbosity} if prompt.verbosity else {}
    if prompt.output_schema is not None:
        named = {"type": "json_schema", "strict": True, "name": "codex_output_schema"}
        text["format"] = {**named, "schema": prompt.output_schema}
    reasoning = {"effort": prompt.effort, "summary": prompt.summary}
    told = {name: value for name, value in reasoning.items() if value not in (None, "none")}
    whole = {
        "input": [item(said) for said in shown],
        "instructions": prompt.instructions,
        "model": prompt.model,
        "reasoning": told if prompt.supports_reasoning else None,
        "text": text or None,
        "tool_choice": "auto",
        "tools": sorted(prompt.tools, key=lambda tool: (tool.get("name") or "", tool["type"])),
    }
    data = json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=dict)
    if prompt.previous_response_id is not None or SECRET in data:
        return None
    return hashlib.sha256(data.encode()).hexdigest()
