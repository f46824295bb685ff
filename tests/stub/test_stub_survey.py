"""The survey, played through on a real repository: its report holds what the commands printed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.stub import behaviour
from orchestrator.stub.answers import StubConversation, StubRequest, Usage
from orchestrator.stub.scenario import report_path
from orchestrator.stub.server import Identity, frames

Item = dict[str, Any]
IN_DOUBT = "in doubt: the worker was lost while this call was running; it may have had effects"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    files = {"README.md": "# Hi\n", "src/long.py": "x = 1\n" * 41, "src/short.py": "# TODO: more\n"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "First stone"]):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True)
    return tmp_path


def ask(history: list[Item], tools: list[Item]) -> list[Item]:
    """The items that the survey answers this history with."""
    body = {"input": history, "tools": tools, "prompt_cache_key": "s"}
    request = StubRequest.of(json.dumps(body).encode(), None)
    answer = behaviour("survey").answer(request)
    sent = frames(answer, Identity("stub:survey", "r"), lambda size: Usage())
    events = [json.loads(frame.payload.split(b"data: ", 1)[1]) for frame in sent]
    return [event["item"] for event in events if event["type"] == "response.output_item.done"]


def tools(patch_type: str | None = None) -> list[Item]:
    offered = [{"type": "function", "name": "shell"}, {"type": "function", "name": "update_plan"}]
    return offered + ([{"type": patch_type, "name": "apply_patch"}] if patch_type else [])


class Hands:
    """Runs what the survey asks for, as a worker would."""

    def __init__(self, root: Path, spoil: Callable[[int], bool] = lambda call: False) -> None:
        self.root = root
        self.commands: list[list[str]] = []
        self.calls = 0
        self._spoil = spoil

    def output(self, call: Item) -> str:
        self.calls += 1
        if self._spoil(self.calls):
            return IN_DOUBT
        if call["name"] == "update_plan":
            return "Plan updated"
        if call["name"] == "apply_patch":
            return self._patch(call.get("input") or json.loads(call["arguments"])["input"])
        command = json.loads(call["arguments"])["command"]
        self.commands.append(command)
        if command[0] == "apply_patch":
            return self._patch(command[1])
        run = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        metadata = {"exit_code": run.returncode, "duration_seconds": 0.0}
        return json.dumps({"output": run.stdout + run.stderr, "metadata": metadata})

    def _patch(self, patch: str) -> str:
        begin, header, *lines, end = patch.splitlines()
        assert (begin, end) == ("*** Begin Patch", "*** End Patch")
        assert all(line.startswith("+") for line in lines)
        name = header.removeprefix("*** Add File: ")
        (self.root / name).write_text("".join(f"{line[1:]}\n" for line in lines), encoding="utf-8")
        return f"Success. Updated the following files:\nA {name}\n"


def play(hands: Hands, task: str, offered: list[Item]) -> tuple[str, list[Item]]:
    """Plays the survey to its closing words; returns them and the whole history."""
    history: list[Item] = [{"type": "message", "role": "user", "content": task}]
    for _ in range(30):
        items = ask(history, offered)
        history += items
        calls = [item for item in items if "call_id" in item]
        if not calls:
            return items[-1]["content"][0]["text"], history
        for call in calls:
            kind = f"{call['type']}_output"
            history.append({"type": kind, "call_id": call["call_id"], "output": hands.output(call)})
    raise AssertionError("the survey never came to an end")


@pytest.mark.parametrize("patch_type", [None, "custom", "function"])
def test_survey_writes_what_the_repositorys_own_commands_print(
    repository: Path, patch_type: str | None
) -> None:
    hands = Hands(repository)
    closing, history = play(hands, "Survey this repository into NOTES.md, please.", tools(patch_type))
    report = (repository / "NOTES.md").read_text(encoding="utf-8")
    for fact in ("First stone", "src/long.py:41", "src/short.py:1:# TODO: more", "    x = 1"):
        assert fact in report
    assert "    3\n" in report
    assert closing == (
        "I wrote NOTES.md. The repository tracks 3 files. The longest one is src/long.py with 41 lines."
    )
    assert len([command for command in hands.commands if command[0] != "apply_patch"]) == 6
    assert {item["type"] for item in history} >= {"reasoning", "function_call"}


def test_survey_keeps_a_plan_and_completes_it(repository: Path) -> None:
    _, history = play(Hands(repository), "go", tools())
    plans = [json.loads(item["arguments"])["plan"] for item in history if item.get("name") == "update_plan"]
    assert [[step["status"] for step in plan] for plan in plans] == [
        ["in_progress", "pending", "pending"],
        ["completed", "in_progress", "pending"],
        ["completed", "completed", "completed"],
    ]


@pytest.mark.parametrize("lost", [1, 5, 9])
def test_survey_asks_again_for_a_call_whose_fate_is_in_doubt(repository: Path, lost: int) -> None:
    whole = Hands(repository)
    expected, _ = play(whole, "go", tools())
    report = (repository / "REPORT.md").read_text(encoding="utf-8")
    (repository / "REPORT.md").unlink()
    hands = Hands(repository, spoil=lambda call: call == lost)
    assert play(hands, "go", tools())[0] == expected
    assert (repository / "REPORT.md").read_text(encoding="utf-8") == report


def test_survey_says_so_when_every_command_fails(tmp_path: Path) -> None:
    closing, _ = play(Hands(tmp_path), "go", tools())
    report = (tmp_path / "REPORT.md").read_text(encoding="utf-8")
    assert "exit code 128" in report
    assert "The longest one" not in closing


def test_survey_says_so_when_the_report_cannot_be_written(repository: Path) -> None:
    class Denied(Hands):
        def _patch(self, patch: str) -> str:
            return "patch rejected: the workspace is read-only"

    closing, _ = play(Denied(repository), "go", tools())
    assert closing == "The report could not be written: patch rejected: the workspace is read-only"


def test_survey_without_tools_only_speaks_of_what_it_knows(repository: Path) -> None:
    _, history = play(Hands(repository), "go", tools())
    (message,) = ask(history, [])
    assert "tracks 3 files" in message["content"][0]["text"]
    (message,) = ask(history[:1], [])
    assert "nothing to report" in message["content"][0]["text"]


@pytest.mark.parametrize(
    ("task", "path"),
    [
        ("write docs/SURVEY.md now", "docs/SURVEY.md"),
        ("look around", "REPORT.md"),
        ("write /etc/evil.md", "REPORT.md"),
        ("write ../evil.md", "REPORT.md"),
        ("write a/../../evil.md", "REPORT.md"),
    ],
)
def test_survey_writes_only_inside_the_workspace(task: str, path: str) -> None:
    assert report_path(task) == path


@pytest.mark.parametrize("tag", ["environment_context", "turn_aborted", "process_gone", "folder_changed"])
def test_what_the_orchestrator_tells_the_model_is_no_new_task(tag: str) -> None:
    said = [f"<{tag}>\nnews\n</{tag}>", "Read how `a.py` begins.", f"<{tag}>\nnews\n</{tag}>"]
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": t}]} for t in said
    ]
    assert StubConversation.of({"input": items}).task == "Read how `a.py` begins."
