"""Look-ups in whole processes: a shared history, skills, prompts, files that input names."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

from tests.cli.machine import Machine, says
from tests.cli.test_mcp import Client, proto, requests, worker
from tests.instructions.test_skills import write

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\2\0\0\0"
HELD_GIT = """#!/bin/sh
case "$*" in
*/held/*--show-toplevel*) read -r line < {fifo} ;;
esac
exit 1
"""


def answer(client: Client, id: str, kind: str, **op: Any) -> dict[str, Any]:
    """Asks, and returns the answer's message."""
    client.send(id, **op)
    event = client.until(kind)
    assert event["id"] == id
    found: dict[str, Any] = event["msg"]
    return found


def test_two_sessions_of_a_person_share_a_history(machine: Machine) -> None:
    with proto(machine) as first, proto(machine) as second:
        here = first.until("session_configured")["msg"]
        there = second.until("session_configured")["msg"]
        log_id = there["history_log_id"]
        assert (here["history_log_id"], here["history_entry_count"]) == (log_id, 0)
        assert log_id > 0
        asks: dict[str, Any] = {
            "kind": "get_history_entry_response",
            "type": "get_history_entry_request",
            "offset": 0,
        }
        first.send("h1", type="add_to_history", text="what I typed")
        assert "entry" in answer(first, "g1", **asks, log_id=log_id)
        kept = answer(second, "g2", **asks, log_id=log_id)["entry"]
        assert kept["text"] == "what I typed"
        assert kept["conversation_id"] == here["session_id"]
        assert "entry" not in answer(second, "g3", **asks, log_id=log_id + 1)
    with proto(machine) as third:
        assert third.until("session_configured")["msg"]["history_entry_count"] == 1


def test_person_without_a_history_keeps_nothing(machine: Machine) -> None:
    silent = ("-c", "history.persistence=none")
    with proto(machine, *silent) as client:
        told = client.until("session_configured")["msg"]
        assert (told["history_log_id"], told["history_entry_count"]) == (0, 0)
        client.send("h1", type="add_to_history", text="secret")
        answer(client, "p1", "list_custom_prompts_response", type="list_custom_prompts")
    with proto(machine) as client:
        assert client.until("session_configured")["msg"]["history_entry_count"] == 0


def test_skills_and_prompts_are_listed_and_offered(machine: Machine) -> None:
    skills = machine.folder / ".agents/skills"
    good = write(skills, "good", "Does good.")
    bad = write(skills, "bad")
    bad.write_text("---\nname: bad\n---\n")
    prompts = Path(machine.environ["DENDRO_HOME"], "prompts")
    prompts.mkdir(parents=True)
    (prompts / "tidy.md").write_text("---\ndescription: Tidies.\n---\nTidy up.\n")
    with machine.model(says("done"), says("done")) as user, proto(user) as client:
        (entry,) = answer(client, "s1", "list_skills_response", type="list_skills")["skills"]
        assert entry["cwd"] == str(machine.folder)
        assert [(skill["name"], skill["path"]) for skill in entry["skills"]] == [("good", str(good))]
        assert [error["path"] for error in entry["errors"]] == [str(bad)]
        write(skills / "good/more", "hidden")
        (entry,) = answer(client, "s2", "list_skills_response", type="list_skills")["skills"]
        assert [skill["name"] for skill in entry["skills"]] == ["good"], "it lies too deep to be seen"
        forced = answer(client, "s3", "list_skills_response", type="list_skills", force_reload=True)
        assert [skill["name"] for skill in forced["skills"][0]["skills"]] == ["good", "hidden"]
        (prompt,) = answer(client, "p1", "list_custom_prompts_response", type="list_custom_prompts")[
            "custom_prompts"
        ]
        assert (prompt["name"], prompt["content"]) == ("tidy", "Tidy up.\n")
        skill = {"type": "skill", "name": "good", "path": str(good)}
        client.send("u1", type="user_input", items=[{"type": "text", "text": "use"}, skill])
        client.until("task_complete")
        client.send("u2", type="user_input", items=[{**skill, "path": str(bad)}])
        assert "is no skill of" in client.until("error")["msg"]["message"]
        asked = str(requests(user)[0])
    assert f"good: Does good. (file: {good})" in asked
    assert "Do it." in asked


def test_image_is_found_from_the_sessions_folder_and_a_text_by_that_name_stops_nothing(
    machine: Machine,
) -> None:
    other = machine.folder.parent / "other"
    other.mkdir()
    (other / "AGENTS.md").write_text("Be kind to the other folder.")
    (other / "relative.png").write_bytes(PNG)
    (other / "text.png").write_text("hello")
    with machine.model(says("seen")) as user, proto(user) as client:
        client.send("o1", type="override_turn_context", cwd=str(other))
        client.send("bad", type="user_input", items=[{"type": "local_image", "path": "text.png"}])
        client.send("u1", type="user_input", items=[{"type": "local_image", "path": "relative.png"}])
        told = client.until("user_message")
        client.until("task_complete")
        (asked,) = requests(user)
    (error,) = client.all("error")
    assert error["id"] == "bad"
    assert "text.png cannot be used: it is no PNG" in error["msg"]["message"]
    assert told["msg"]["local_images"] == [str(other / "relative.png")]
    assert "data:image/png;base64," in str(asked)
    assert "Be kind to the other folder." in str(asked)


def test_next_worker_answers_what_a_killed_one_was_asked(machine: Machine, tmp_path: Path) -> None:
    held = tmp_path / "held/folder"
    write(held / ".agents/skills", "good")
    (held / ".agents/skills/pipe").mkdir()
    os.mkfifo(held / ".agents/skills/pipe/SKILL.md")
    fifo, programs = tmp_path / "fifo", tmp_path / "programs"
    os.mkfifo(fifo)
    programs.mkdir()
    (programs / "git").write_text(HELD_GIT.format(fifo=fifo))
    (programs / "git").chmod(0o755)
    slow = machine.buried.under(PATH=f"{programs}:{machine.environ['PATH']}", DENDRO_PROGRAMS=str(programs))
    with proto(machine, front=("--no-worker",)) as client:
        with worker(slow) as first:
            client.send("s1", type="list_skills", cwds=[str(held)])
            # Opens as soon as the worker's git reads there: the op is accepted, and not answered.
            met = os.open(fifo, os.O_WRONLY)
            first.send_signal(signal.SIGKILL)
            first.wait()
        with worker(machine):
            event = client.until("list_skills_response")
        os.close(met)
    assert event["id"] == "s1"
    (entry,) = event["msg"]["skills"]
    assert [skill["name"] for skill in entry["skills"]] == ["good"]
    assert [error["message"] for error in entry["errors"]] == ["Not a regular file"]
    assert len(client.all("list_skills_response")) == 1


def test_page_shows_what_a_client_gets(machine: Machine) -> None:
    page = (Path(__file__).parents[2] / "docs/instructions.md").read_text()
    skill, chosen, prompt, asked, told = re.findall(r"```(?:markdown|json)\n(.*?)```", page, re.DOTALL)
    file = machine.folder / ".agents/skills/release/SKILL.md"
    saved = Path(machine.environ["DENDRO_HOME"], "prompts/tidy.md")
    for path, text in ((file, skill), (saved, prompt)):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    with machine.model(says("done")) as user, proto(user) as client:
        submission = json.loads(asked)
        client.send(submission["id"], **submission["op"])
        event = client.until("list_skills_response")
        assert event == json.loads(told.replace("FOLDER", str(machine.folder)))
        listed = answer(client, "p1", "list_custom_prompts_response", type="list_custom_prompts")
        (shown,) = listed["custom_prompts"]
        assert (shown["name"], shown["argument_hint"]) == ("tidy", "FILE")
        submission = json.loads(chosen)
        client.send(submission["id"], **submission["op"])
        assert client.until("user_message")["msg"]["message"] == "Version 2, please.\n$release"
        client.until("task_complete")
