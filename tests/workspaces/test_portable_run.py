"""A portable session by `dendro proto` and `dendro run`, from a folder to a change that a person can see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.sandbox.probe import probe
from orchestrator.terminal.faults import ExitCode
from tests.cli.machine import Machine, says
from tests.cli.test_lookups import PNG, answer
from tests.cli.test_mcp import proto, requests
from tests.instructions.test_skills import write
from tests.servers import start_redis

pytestmark = pytest.mark.realredis
NEVER = ("-c", "approval_policy=never")
SHELL = {
    "items": [{"call": "shell", "args": {"command": ["bash", "-c", "pwd; cat a; echo 2 >> a; rm gone"]}}]
}


@pytest.mark.sandbox
@pytest.mark.skipif(probe().bubblewrap is None, reason="bubblewrap does not work here")
@pytest.mark.always
def test_program_at_proto_sees_a_portable_session_leave_the_folder_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    with start_redis(tmp_path / "redis") as server:
        person = Machine.at(tmp_path, server.url)
        for name, text in (("a", "1\n"), ("gone", "x\n"), (".env", "hush")):
            (person.folder / name).write_text(text)
        asked = {"type": "user_input", "items": [{"type": "text", "text": "go"}]}
        with person.model(SHELL, says("done")) as user:
            ran = user.run(*NEVER, "proto", "--portable", input=json.dumps({"id": "1", "op": asked}) + "\n")
        events = [json.loads(line)["msg"] for line in ran.stdout.splitlines()]
        session = events[0]["session_id"]
        diff = person.run("diff", session, "--stat").stdout
    told = [event["message"] for event in events if event["type"] == "warning"]
    assert any(".env" in text for text in told), ran.stderr
    (ended,) = (event for event in events if event["type"] == "exec_command_end")
    assert ended["stdout"] == f"{tmp_path}/home/workspaces/{session}/workspace\n1\n"
    assert sorted(path.name for path in person.folder.iterdir()) == [".env", "a", "gone"]
    assert (person.folder / "a").read_text() == "1\n"
    assert "a" in diff
    assert "gone" in diff


@pytest.mark.sandbox
@pytest.mark.skipif(probe().bubblewrap is None, reason="bubblewrap does not work here")
@pytest.mark.always
def test_person_hands_in_images_and_skills_of_a_folder_that_no_worker_has_made(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    with start_redis(tmp_path / "redis") as server:
        person = Machine.at(tmp_path, server.url)
        (person.folder / "shot.png").write_bytes(PNG)
        write(person.folder / ".agents/skills", "release", "Cuts a release.", "Tag it.\n")
        write(tmp_path / ".agents/skills", "mine")
        with (
            person.model(says("seen")) as user,
            proto(user, *NEVER, front=("--portable",)) as client,
        ):
            session = client.until("session_configured")["msg"]["session_id"]
            top = f"{tmp_path}/home/workspaces/{session}/workspace"
            # What lies on the machine by now is not what the session has.
            (person.folder / "shot.png").unlink()
            (entry,) = answer(client, "l1", "list_skills_response", type="list_skills")["skills"]
            assert not Path(top).exists() or not list(Path(top).iterdir())
            paths = {skill["name"]: skill["path"] for skill in entry["skills"]}
            assert paths == {
                "release": f"{top}/.agents/skills/release/SKILL.md",
                "mine": f"{tmp_path}/.agents/skills/mine/SKILL.md",
            }
            client.send("bad", type="user_input", items=[{"type": "local_image", "path": "gone.png"}])
            skills = [{"type": "skill", "name": name, "path": path} for name, path in paths.items()]
            image = {"type": "local_image", "path": "shot.png"}
            client.send("u1", type="user_input", items=[image, *skills])
            told = client.until("user_message")["msg"]
            client.until("task_complete")
            (asked,) = requests(user)
    (error,) = client.all("error")
    assert f"the image {top}/gone.png cannot be used: it is not among the files" in error["msg"]["message"]
    assert told["local_images"] == [f"{top}/shot.png"]
    assert "data:image/png;base64," in str(asked)
    assert f"- release: Cuts a release. (file: {paths['release']})" in str(asked)
    assert f"- mine: Does it. (file: {paths['mine']})" in str(asked)
    assert f"{person.folder}/.agents" not in str(asked)
    assert "Tag it." in str(asked)
    assert "Do it." in str(asked)


@pytest.mark.sandbox
@pytest.mark.skipif(probe().bubblewrap is None, reason="bubblewrap does not work here")
@pytest.mark.always
def test_person_is_told_that_a_repository_nobody_has_cloned_has_no_files_yet(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    repository = ("--portable", "--from", "https://git.invalid/app.git")
    with start_redis(tmp_path / "redis") as server:
        person = Machine.at(tmp_path, server.url)
        mine = write(tmp_path / ".agents/skills", "mine", "As I do.")
        with person.model(says("hello")) as user, proto(user, *NEVER, front=repository) as client:
            session = client.until("session_configured")["msg"]["session_id"]
            (entry,) = answer(client, "l1", "list_skills_response", type="list_skills")["skills"]
            client.send("bad", type="user_input", items=[{"type": "local_image", "path": "a.png"}])
            client.send("u1", type="user_input", items=[{"type": "text", "text": "go"}])
            client.until("task_complete")
            (asked,) = requests(user)
    top = f"{tmp_path}/home/workspaces/{session}/app"
    assert [skill["path"] for skill in entry["skills"]] == [str(mine)]
    assert [error["path"] for error in entry["errors"]] == [top]
    (error,) = client.all("error")
    for text in (entry["errors"][0]["message"], error["msg"]["message"]):
        assert "the session's folder has no content yet: a worker clones its repository when" in text
    assert f"- mine: As I do. (file: {mine})" in str(asked)


def test_person_who_asks_for_what_does_not_go_together_is_told_so(tmp_path: Path) -> None:
    person = Machine.at(tmp_path)
    for words, why in (
        (("run", "--from", "https://x/a.git", "go"), "add --portable"),
        (("run", "--portable", "--resume", "0199a2b4", "go"), "keeps its folder"),
        (("proto", "--portable", "--resume", "0199a2b4"), "keeps its folder"),
    ):
        done = person.run(*words)
        assert done.returncode == ExitCode.USAGE
        assert why in done.stderr
