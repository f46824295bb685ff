"""Code reviews in whole processes: a client, a worker, a scripted model, a real sandbox."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.machine import SLEEP, Machine, dendro, says
from tests.cli.parked_tree import ParkedTree, worker
from tests.cli.test_chat import DONE
from tests.cli.test_lookups import PNG
from tests.cli.test_mcp import Client, output, proto, requests
from tests.core.test_core_review_answer import ANSWER
from tests.started import Started

pytestmark = pytest.mark.realredis

PAGE = Path(__file__).parents[2] / "docs/reviews.md"
DIFF = {"items": [{"call": "shell", "args": {"command": ["git", "diff"]}, "call_id": "c1"}]}
WRITES = {"items": [{"call": "shell", "args": {"command": ["touch", "made.txt"]}, "call_id": "c2"}]}
FOUND = says(json.dumps(ANSWER))


def repository(machine: Machine) -> None:
    """A repository with a change that is not committed."""
    (machine.folder / "a.py").write_text("one\n")
    for words in (["init", "-q", "-b", "main"], ["add", "a.py"], ["commit", "-qm", "One"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *words], cwd=machine.folder, check=True)
    (machine.folder / "a.py").write_text("two\n")


def asked(client: Client) -> None:
    """Sends the page's example."""
    example, _shown = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    submission = json.loads(example)
    client.send(submission["id"], **submission["op"])


def kinds(client: Client, *left_out: str) -> list[str]:
    return [event["msg"]["type"] for event in client.seen if event["msg"]["type"] not in left_out]


def texts(request: dict[str, Any]) -> list[str]:
    body = request.get("body", request)
    said = [item["content"] for item in body["input"] if item["type"] == "message"]
    return ["".join(part["text"] for part in content) for content in said]


def test_reader_of_the_page_has_a_change_reviewed_and_talks_about_it(machine: Machine) -> None:
    repository(machine)
    with machine.model(DIFF, WRITES, FOUND, says("after")) as user, proto(user) as client:
        asked(client)
        client.until("task_complete")
        told = kinds(client, "token_count", "session_configured", "exec_command_output_delta")
        assert told == [
            "task_started",
            "entered_review_mode",
            "exec_command_begin",
            "exec_command_end",
            "exec_command_begin",
            "exec_command_end",
            "exited_review_mode",
            "task_complete",
        ]
        (entered,) = client.all("entered_review_mode")
        assert entered["msg"]["target"] == {"type": "uncommittedChanges"}
        looked, wrote = client.all("exec_command_end")
        assert "+two" in looked["msg"]["stdout"]
        assert wrote["msg"]["exit_code"] != 0
        (exited,) = client.all("exited_review_mode")
        (finding,) = exited["msg"]["review_output"]["findings"]
        assert finding["code_location"]["absolute_file_path"] == str(machine.folder / "src/a.py")
        client.send("u1", type="user_input", items=[{"type": "text", "text": "next"}])
        client.until("task_complete")
        *_, last = requests(user)
    assert not (machine.folder / "made.txt").exists()
    assert not [item for item in last.get("body", last)["input"] if "call" in item["type"]]
    _environment, review, said = texts(last)
    assert review.startswith("<code_review>")
    assert "t — " in review
    assert said == "next"


def test_review_goes_on_with_the_next_worker_when_its_own_is_killed_during_a_command(
    machine: Machine,
) -> None:
    repository(machine)
    with machine.model(SLEEP, FOUND) as user, worker(user) as lost:
        with Started(
            dendro("review", "--base", "main", "--no-worker", "--json"),
            stdout=subprocess.PIPE,
            text=True,
            cwd=user.folder,
            env=user.environ,
        ) as watching:
            assert watching.stdout is not None
            lines = (json.loads(line)["msg"] for line in watching.stdout)
            entered = [next(line for line in lines if line["type"] == "entered_review_mode")]
            assert entered[0]["target"] == {"type": "baseBranch", "branch": "main"}
            assert next(line for line in lines if line["type"] == "exec_command_begin")
            ParkedTree(user, "", lost).lose_worker()
            with worker(user):
                rest = [line for line in lines if line["type"] != "token_count"]
            assert watching.wait(30) == 0
        _, second = requests(user)
    assert [line["type"] for line in rest] == [
        "exec_command_end",
        "warning",
        "exited_review_mode",
        "task_complete",
    ]
    assert rest[-2]["review_output"]["overall_explanation"] == "e"
    assert "in doubt" in output(second)


def test_person_has_changes_reviewed_in_a_conversation_while_nothing_runs(machine: Machine) -> None:
    repository(machine)
    (machine.folder / "dot.png").write_bytes(PNG)
    words = ("run", "-i", str(machine.folder / "dot.png"), "-c", "approval_policy=never")
    with machine.model(FOUND, SLEEP) as user, user.terminal(*words) as person:
        person.wait_for("Ctrl-D leaves")
        person.type("/review\r")
        person.wait_for("reviews the uncommitted changes")
        person.wait_for("review: patch is correct, 1 finding")
        person.wait_for(r"\[P1\] t — ")
        person.wait_for(DONE)
        person.type("go\r")
        person.wait_for("sleep 60")
        person.type("/review main\r")
        person.wait_for("no review yet: the agent works")
        person.type("/stop\r")
        person.wait_for("the turn was interrupted")
        person.wait_for(DONE)
        person.type("\x04")
        assert person.exit_code() == 0
        of_review, of_message = map(str, requests(user))
    assert "data:image/png" in of_message, "the image of the command line goes with the first message"
    assert "data:image/png" not in of_review
