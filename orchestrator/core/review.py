"""Code reviews: what a reviewer is told, what its answer says, and what the conversation keeps of it.

The answer is a model's text. Whatever it is, reading it gives a review of bounded size and raises nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final, assert_never

import orjson
from pydantic import ValidationError

from orchestrator.core.frozen import record
from orchestrator.protocol.items import InputText, Message
from orchestrator.protocol.review import (
    BaseBranch,
    Commit,
    CustomReview,
    ReviewFinding,
    ReviewOutputEvent,
    ReviewRequest,
    UncommittedChanges,
)
from orchestrator.protocol.wire import JsonMapping, JsonValue, written

MOST_ASKED: Final = 32 << 10
"""Bytes of a prompt, or of a target's text."""
REVIEW_TAG: Final = "<code_review>"
"""The opening of the message that tells the conversation of a review."""
MOST_FINDINGS: Final = 100
FINDINGS_BYTES: Final = 128 << 10
"""All findings, as JSON: an event and a message of the conversation hold them."""
TITLE_CHARS: Final = 200
BODY_CHARS: Final = 4_000
EXPLANATION_CHARS: Final = 16_000
PATH_CHARS: Final = 4_096
ASKED_CHARS: Final = 300
_ASKED, _VERDICT = " It was asked: ", " Verdict: "

REVIEW_BRIEF: Final = (
    "You are reviewing a change that somebody else has written. You change nothing: the sandbox is "
    "read-only, and nobody answers questions. Look at the change with git and at as much of the code around "
    "it as you need; run what shows whether a suspicion holds, as far as a read-only sandbox lets you.\n"
    "\n"
    "A finding is a defect that the change brings in or lays open, and that its author would mend if they "
    "knew of it: wrong results, crashes, lost data, holes in security, races, broken callers, speed that "
    "people will notice. It names the place, the input or the state in which it goes wrong, and what happens "
    "then. Leave out what was wrong before the change, matters of taste, guesses that you could not confirm "
    "in the code, praise, and advice that fits any change. Tell each defect once. No findings is a good "
    "result.\n"
    "\n"
    "Your last message is one JSON object and nothing else, no Markdown around it:\n"
    '{"findings": [{"title": TEXT, "body": TEXT, "confidence_score": NUMBER, "priority": NUMBER, '
    '"code_location": {"absolute_file_path": TEXT, "line_range": {"start": LINE, "end": LINE}}}], '
    '"overall_correctness": "patch is correct" or "patch is incorrect", "overall_explanation": TEXT, '
    '"overall_confidence_score": NUMBER}\n'
    "A title says in one line what goes wrong; a body, in a few sentences, when and why. Scores go from 0 to "
    "1. Priorities: 0 stops everybody, 1 is to be mended before it is merged, 2 soon, 3 some day. A line "
    "range is as short as shows the defect, in the file as the change leaves it. The patch is incorrect if "
    "it breaks something or does not do what it is for. At most 100 findings are read."
)


# ── the request ───────────────────────────────────────────────────────────────────────────────────


def request_fault(request: ReviewRequest) -> str | None:
    """The reason why a review cannot be begun; None if it can."""
    if request.prompt is not None and request.target is not None:
        return "review_request: give a prompt or a target, not both"
    if request.target is None:
        return _unfit("prompt", request.prompt or "", "what is to be reviewed")
    match request.target:
        case UncommittedChanges():
            return None
        case BaseBranch(branch=branch):
            return _unfit("target.branch", branch, "the branch that the changes are to be compared with")
        case Commit(sha=sha):
            return _unfit("target.sha", sha, "the commit that is to be reviewed")
        case CustomReview(instructions=instructions):
            return _unfit("target.instructions", instructions, "what is to be reviewed")
        case target:
            assert_never(target)


def _unfit(field: str, value: str, meaning: str) -> str | None:
    if not value.strip():
        return f"review_request.{field}: it is blank; it says {meaning}"
    if (size := len(value.encode("utf-8", "replace"))) > MOST_ASKED:
        return (
            f"review_request.{field}: at most {MOST_ASKED:,} bytes can be taken, and this has {size:,}; name "
            "files or a commit instead of what they hold"
        )
    return None


def brief() -> Message:
    """The developer message that a reviewer begins with."""
    return Message(role="developer", content=(InputText(text=REVIEW_BRIEF),))


def assignment(request: ReviewRequest) -> str:
    """The reviewer's task in words: the person's own, or a sentence made of the target."""
    match request.target:
        case None:
            return request.prompt or ""
        case UncommittedChanges():
            return (
                "Review the changes of this repository that are not committed yet: what is staged, what is "
                "not, and the files that git does not know."
            )
        case BaseBranch(branch=branch):
            return (
                f"Review what this branch changes compared with {branch}. Find the commit at which they "
                f"parted (git merge-base HEAD {branch}; if there is no such branch here, its upstream), and "
                "look at everything since then."
            )
        case Commit(sha=sha, title=title):
            named = f" ({title.strip()})" if title and title.strip() else ""
            return f"Review the changes that commit {sha}{named} makes."
        case CustomReview(instructions=instructions):
            return instructions
        case target:
            assert_never(target)


# ── the answer ────────────────────────────────────────────────────────────────────────────────────


@record
class Reviewed:
    """A reviewer's answer, as read."""

    output: ReviewOutputEvent
    left_out: int = 0
    """Findings that did not fit: in their form, or among so many."""


def reviewed(text: str, cwd: str) -> Reviewed:
    """The review that a text holds as JSON, with paths below `cwd`; of another text, the text itself."""
    answer = object_in(text)
    given = answer.get("findings")
    asked = given if isinstance(given, list) else []
    findings = tuple(_fitting(asked, cwd))
    named = {
        "overall_correctness": _words(answer.get("overall_correctness"), TITLE_CHARS),
        "overall_explanation": _words(answer.get("overall_explanation"), EXPLANATION_CHARS),
    }
    if not findings and not any(named.values()) and given != []:
        return Reviewed(ReviewOutputEvent(overall_explanation=_cut(text, EXPLANATION_CHARS)))
    score = _score(answer.get("overall_confidence_score"))
    output = ReviewOutputEvent(findings=findings, overall_confidence_score=score, **named)
    return Reviewed(output, len(asked) - len(findings))


def _fitting(given: list[JsonValue], cwd: str) -> Iterator[ReviewFinding]:
    """The first findings that have their form, as many as there is room for."""
    left, size = MOST_FINDINGS, 0
    for value in given:
        finding = _finding(value, cwd)
        if finding is None:
            continue
        left, size = left - 1, size + len(orjson.dumps(written(finding)))
        if left < 0 or size > FINDINGS_BYTES:
            return
        yield finding


def _finding(value: JsonValue, cwd: str) -> ReviewFinding | None:
    if not isinstance(value, dict):
        return None
    try:
        found = ReviewFinding.model_validate(
            {**value, "priority": value.get("priority") or 0}, extra="ignore"
        )
    except ValidationError:
        return None
    place = found.code_location
    if not (found.title.strip() and 0 < len(place.absolute_file_path.strip()) <= PATH_CHARS):
        return None
    path = str(PurePosixPath(cwd, place.absolute_file_path))
    return found.model_copy(
        update={
            "title": _words(found.title, TITLE_CHARS),
            "body": _words(found.body, BODY_CHARS),
            "confidence_score": _score(found.confidence_score),
            "code_location": place.model_copy(update={"absolute_file_path": path}),
        }
    )


def _words(value: JsonValue, most: int) -> str:
    return _cut(value.strip(), most) if isinstance(value, str) else ""


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _score(value: JsonValue) -> float:
    """A score; 0 for what is none: an endless number cannot be written as JSON."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9
    return float(value) if known else 0.0


# ── what the conversation keeps ───────────────────────────────────────────────────────────────────


def review_message(asked: str, output: ReviewOutputEvent) -> tuple[str, str]:
    """The opening and the rest of the message that tells the conversation of a review.

    So the person can refer to it. `asked` is what the reviewer was asked for.
    """
    verdict = f"{_VERDICT}{output.overall_correctness}." if output.overall_correctness else ""
    what = _cut(" ".join(asked.split()), ASKED_CHARS)
    opening = f"{REVIEW_TAG}\n\nThe user ran a code review, which another agent made.{_ASKED}{what}{verdict}"
    parts = []
    if output.overall_explanation:
        parts.append(output.overall_explanation)
    parts.append("Findings:" if output.findings else "It has no findings.")
    parts += [f"{number}. {_told(finding)}" for number, finding in enumerate(output.findings, 1)]
    return f"{opening}\n\n", "\n\n".join((*parts, f"</{REVIEW_TAG[1:]}"))


def asked_in(message: str) -> str:
    """The request of the review that a message tells of; empty for another message."""
    asked = message.split("\n\n")[1].partition(_ASKED)[2] if message.startswith(f"{REVIEW_TAG}\n\n") else ""
    return asked.partition(_VERDICT)[0]


def _told(finding: ReviewFinding) -> str:
    place, lines = finding.code_location.absolute_file_path, finding.code_location.line_range
    return f"{finding.title} — {place}:{lines.start}-{lines.end}\n{finding.body}"


# ── json answers ──────────────────────────────────────────────────────────────────────────────────
# JSON objects in what a model answers.


def object_in(text: str) -> JsonMapping:
    """The JSON object that a text is, or else that it holds from its first brace to its last; {} for none."""
    for part in (text, text[text.find("{") : text.rfind("}") + 1]):
        try:
            found = orjson.loads(part)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return {}
