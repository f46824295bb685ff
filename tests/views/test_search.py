"""Matches of a search: in names, first words, labels and folders, and in what was said and run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.cli import sessions as command
from orchestrator.cli.sessions import _search_each
from orchestrator.core.entries import event
from orchestrator.views import search, sessions
from orchestrator.views.search import AROUND, LINES, excerpt, matches
from tests.requests.test_answers import ASKS
from tests.views.test_decided_requests import Logs

SAYS: dict[str, dict[str, Any]] = {
    "a person": {"type": "user_message", "message": "find the Needle here"},
    "the model": {"type": "agent_message", "message": "the Needle it is"},
    "a command": {"type": "exec_command_begin", "call_id": "c", "command": ["grep", "Needle"], "cwd": "/w"},
    "questions": {
        **ASKS["choices"],
        "questions": [{"header": "Which", "question": "Which Needle?", "options": [{"label": "a"}]}],
    },
    "a plan": {**ASKS["plan"], "proposal": {**ASKS["plan"]["proposal"], "title": "A Needle"}},
    "a server": {**ASKS["elicitation"], "message": "May I have the Needle?"},
}
SILENT: dict[str, dict[str, Any]] = {
    "a request that its command repeats": {**ASKS["command"], "command": ["grep", "Needle"]},
    "reasoning": {"type": "agent_reasoning", "text": "a Needle, I think"},
    "an error": {"type": "error", "message": "no Needle"},
}


async def found_in(*messages: dict[str, Any], text: str = "needle") -> list[str]:
    logs = Logs()
    root = logs.root(1)
    logs._add(root, *(event("t", message) for message in messages))
    return [line async for line in matches(cast(Any, logs), await logs.head(root), text)]


@pytest.mark.parametrize("text", ["needle", "NEEDLE", "Needle"])
@pytest.mark.parametrize("who", [*SAYS, *SILENT])
async def test_words_are_found_in_what_was_said_asked_and_run_in_any_letters(who: str, text: str) -> None:
    lines = await found_in({**SAYS, **SILENT}[who], text=text)
    assert len(lines) == (who in SAYS)
    assert all("Needle" in line for line in lines)
    assert await found_in(SAYS[who] if who in SAYS else SILENT[who], text="n.*dle") == [], "it is no pattern"


@pytest.mark.parametrize(
    "odd",
    [
        *({"type": "exec_command_begin", "command": value} for value in (None, 5, [5])),
        {"type": "exec_command_begin"},
        {**SAYS["questions"], "questions": 5},
        {**SAYS["a plan"], "proposal": "x"},
    ],
)
async def test_entry_of_a_shape_that_none_has_hides_no_other_of_an_imported_log(odd: dict[str, Any]) -> None:
    assert await found_in(SAYS["a person"], odd, SAYS["the model"]) == [
        "find the Needle here",
        "the Needle it is",
    ]


@pytest.mark.parametrize("number", [0, 1, LINES - 1, LINES, LINES + 1])
async def test_first_matches_of_a_conversation_are_shown_up_to_a_number(number: int) -> None:
    said = [{"type": "agent_message", "message": f"needle {at}"} for at in range(number)]
    other = {"type": "agent_message", "message": "hay"}
    assert await found_in(other, *said, other) == [f"needle {at}" for at in range(min(number, LINES))]


@pytest.mark.parametrize("before", [0, AROUND, AROUND + 1])
@pytest.mark.parametrize("behind", [0, 2 * AROUND, 2 * AROUND + 1])
def test_match_is_shown_with_the_text_around_it_and_a_mark_where_that_was_cut(
    before: int, behind: int
) -> None:
    text = "a" * before + "needle" + "b" * behind
    shown = excerpt(text, before, before + 6)
    assert shown.startswith("…") is (before > AROUND)
    assert shown.endswith("…") is (behind > 2 * AROUND)
    kept = shown.strip("…")
    assert kept == "a" * min(before, AROUND) + "needle" + "b" * min(behind, 2 * AROUND)


MEMBERS = ("name", "title", "label", "cwd")


def row(number: int, **more: Any) -> dict[str, Any]:
    facts = {"session_id": f"{number:032}", "agent_id": 1, "status": "idle", "model": "needle"}
    return {**facts, **dict.fromkeys(MEMBERS, "hay"), **more}


@pytest.mark.parametrize("all", [True, False])
@pytest.mark.parametrize("limit", [1, 2, 3, 9])
@pytest.mark.parametrize("content", [True, False])
async def test_each_session_is_shown_once_that_has_the_text_by_its_facts_or_its_words(
    content: bool, limit: int, all: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(1, name="Needle"), row(2), row(3, label="needles"), row(4), row(5, cwd="/a/needle"), row(6)]
    said, ephemeral, away, damaged = {1: ["both"], 4: ["said", "twice"]}, 3, 5, 6
    bounds: list[int] = []

    async def found_rows(_: Any, most: int) -> AsyncIterator[tuple[dict[str, Any], Any]]:
        bounds.append(most)
        for each in rows[:most]:
            number = int(each["session_id"])
            labels = SimpleNamespace(ephemeral=number == ephemeral)
            if number != damaged:
                yield each, SimpleNamespace(number=number, labels=labels)

    async def listed_rows(broker: Any, most: int) -> AsyncIterator[tuple[dict[str, Any], Any]]:
        async for each, head in found_rows(broker, most):
            if head.number != away:
                yield each, head

    async def matches(_: Any, head: Any, text: str) -> AsyncIterator[str]:
        for line in said.get(head.number, ()):
            yield line

    async def count_sessions() -> int:
        return len(rows)

    monkeypatch.setattr(sessions, "found_rows", found_rows)
    monkeypatch.setattr(sessions, "listed_rows", listed_rows)
    monkeypatch.setattr(search, "matches", matches)
    monkeypatch.setattr(command, "LOOKED_THROUGH", 4)
    found = cast(
        Any, SimpleNamespace(broker=SimpleNamespace(logs=SimpleNamespace(count_sessions=count_sessions)))
    )
    await _search_each(found, "needle", limit, content=content, all=all)
    told = capsys.readouterr()
    read = 4 if content and not all else 6
    assert bounds == [read], "the newest conversations alone are read, all facts always"
    wanted = [
        n for n in (1, 3, 4, 5) if n <= read and (content or n != 4) and (all or n not in (ephemeral, away))
    ]
    lines = told.out.splitlines()
    shown = [int(line.split()[0]) for line in lines if not line.startswith(" ")]
    assert shown == wanted[:limit]
    assert [line.strip() for line in lines if line.startswith(" ")] == [
        line for n in shown if content for line in said.get(n, ())
    ]
    stopped = len(wanted) >= limit
    assert (f"stopped after {limit}: --limit {2 * limit} shows more" in told.err) is stopped
    assert ("read the newest 4 of 6 conversations: --all" in told.err) is (not stopped and read == 4)
    assert ("read the newest" in told.err) is (not stopped and read == 4)
