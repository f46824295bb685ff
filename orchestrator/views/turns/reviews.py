"""Reviews in words: the subject as a review begins, and its findings as it ends."""

from __future__ import annotations

from orchestrator.protocol.wire import JsonMapping
from orchestrator.views.turns.fields import mapping, mappings, optional, text, whole

NOTHING = "The review ended without findings of its own."


def subject(event: JsonMapping) -> str:
    """The subject of a review that begins, as people read it."""
    hint = optional(event.get("user_facing_hint"))
    target = mapping(event.get("target"))
    match target.get("type"):
        case _ if hint:
            return hint
        case "uncommittedChanges":
            return "current changes"
        case "baseBranch":
            return f"changes against '{text(target.get('branch'))}'"
        case "commit":
            title = optional(target.get("title"))
            sha = text(target.get("sha"))[:7]
            return f"commit {sha}: {title}" if title else f"commit {sha}"
        case "custom":
            return text(target.get("instructions")).strip()
        case _:
            return text(event.get("prompt")).strip()


def outcome(event: JsonMapping) -> str:
    """The explanation and the findings of a review that ends."""
    output = mapping(event.get("review_output"))
    parts = [text(output.get("overall_explanation")).strip()]
    findings = mappings(output.get("findings"))
    if findings:
        parts.append("Review comment:" if len(findings) == 1 else "Full review comments:")
        parts += map(_finding, findings)
    return "\n\n".join(part for part in parts if part) or NOTHING


def _finding(finding: JsonMapping) -> str:
    place = mapping(finding.get("code_location"))
    lines = mapping(place.get("line_range"))
    start, end = whole(lines.get("start")) or 0, whole(lines.get("end")) or 0
    where = f"{text(place.get('absolute_file_path'))}:{start}-{end}"
    body = "\n".join(f"  {line}" for line in text(finding.get("body")).splitlines())
    return f"- {text(finding.get('title'))} — {where}\n{body}".rstrip()
