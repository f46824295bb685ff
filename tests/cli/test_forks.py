"""Forks of whole sessions, as people make them: of what rests, works, is archived, or is deleted after it."""

from __future__ import annotations

import base64
import json
import signal
from typing import Any

import pytest

from tests.cli.machine import SLEEP, Machine, events, says
from tests.cli.test_archived import archived
from tests.cli.test_mcp import proto, requests, worker
from tests.servers import RedisServer

pytestmark = [pytest.mark.realredis, pytest.mark.slow]

NEVER = ("-c", "approval_policy=never")
ASK = {
    "question": "Which one?",
    "header": "Auth",
    "options": [{"label": "Key", "description": "a key"}, {"label": "Login", "description": "a login"}],
}
ASKS = {"items": [{"call": "ask_user_question", "args": {"questions": [ASK]}, "call_id": "q1"}]}


def inputs(user: Machine) -> list[list[dict[str, Any]]]:
    """The conversations of the requests that the model got."""
    return [request["body"]["input"] for request in requests(user)]


def texts(items: list[dict[str, Any]]) -> list[str]:
    """The words of a conversation, without its context."""
    said = ["".join(part.get("text", "") for part in item.get("content") or ()) for item in items]
    return [text for text in said if text and not text.startswith("<")]


def ran(user: Machine, *words: str) -> list[dict[str, Any]]:
    """The messages of `dendro run`."""
    done = user.run("run", "--json", *words, *NEVER)
    assert done.returncode == 0, done.stderr
    return events(done.stdout)


def marks(messages: list[dict[str, Any]]) -> list[str]:
    return [message["response_id"] for message in messages if message["type"] == "task_complete"]


def test_fork_goes_on_with_the_conversation_of_its_source_which_stays_as_it_is(machine: Machine) -> None:
    with machine.model(says("one"), says("two")) as user:
        source = str(ran(user, "first")[0]["session_id"])
        with proto(user, front=("--fork", source[-12:])) as client:
            told = client.until("session_configured")
            client.say("second")
            client.until("task_complete")
        ran(user, "third", "--resume", source)
        conversations = [texts(items) for items in inputs(user)]
        shown = user.run("sessions").stdout, user.run("tree", told["msg"]["session_id"]).stdout
        rows = {row["session_id"]: row for row in user.sessions()}
        verified = user.run("verify", told["msg"]["session_id"])
    message = told["msg"]
    assert (told["id"], message["forked_from_id"]) == ("", source)
    kinds = [one["type"] for one in message["initial_messages"]]
    assert kinds[0] == "task_started"
    assert kinds[-1] == "task_complete"
    assert conversations == [["first"], ["first", "one", "second"], ["first", "one", "third"]]
    assert rows[message["session_id"]]["forked_from"] == source
    assert rows[source]["forked_from"] is None
    assert all("fork of " in page for page in shown)
    assert verified.returncode == 0, verified.stdout


def test_fork_of_an_earlier_turn_has_the_settings_of_then_but_those_that_are_named(machine: Machine) -> None:
    with machine.model(says("one"), says("two")) as user:
        said = ran(user, "first", "-m", "gpt-5-mini")
        source, (mark,) = str(said[0]["session_id"]), marks(said)
        ran(user, "second", "--resume", source, "-m", "o3")
        then = ran(user, "other", "--fork", source, "--at", mark)
        named = ran(user, "named", "--fork", source, "--at", mark, "-m", "o4-mini")
        models = [request["body"]["model"] for request in requests(user)]
        conversations = [texts(items) for items in inputs(user)]
    assert models == ["gpt-5-mini", "o3", "gpt-5-mini", "o4-mini"]
    assert conversations[2:] == [["first", "one", "other"], ["first", "one", "named"]]
    assert {then[0]["forked_from_id"], named[0]["forked_from_id"]} == {source}


def test_wrong_wishes_are_refused_with_what_to_do(machine: Machine) -> None:
    with machine.model(says("one")) as user:
        source = str(ran(user, "first")[0]["session_id"])
        for words, code, said in (
            (("--fork", source, "--at", "nope"), 1, "no turn of session"),
            (("--fork", "ffffffff"), 1, "ffffffff"),
            (("--at", "r1"), 2, "--at names a turn of the session that --fork names"),
            (("--fork", source, "--resume", source), 2, "give one of them"),
        ):
            refused = user.run("run", "go", *words)
            assert (refused.returncode, said in refused.stderr) == (code, True), refused.stderr
        assert user.session_ids() == [source]


def test_source_at_work_is_forked_at_its_last_turn_and_its_questions_stay_its_own(machine: Machine) -> None:
    with machine.model(says("one"), ASKS) as user:
        source = str(ran(user, "first")[0]["session_id"])
        parked = user.run("run", "second", "--resume", source, *NEVER)
        assert parked.returncode == 3
        forked = ran(user, "instead", "--fork", source)
        conversations = [texts(items) for items in inputs(user)]
        waiting = json.loads(user.run("approvals", "--json").stdout)
    assert conversations[-1] == ["first", "one", "instead"]
    assert [one["session_id"] for one in waiting] == [source]
    assert forked[-1]["last_agent_message"] == "one"


def test_first_turn_at_work_is_no_place_to_fork_at(machine: Machine) -> None:
    with machine.model(ASKS) as user:
        assert user.run("run", "first", *NEVER).returncode == 3
        (source,) = user.session_ids()
        refused = user.run("run", "go", "--fork", source)
    assert refused.returncode == 1
    assert "at work on its first turn" in refused.stderr


def test_fork_outlives_its_source_with_pictures_and_large_texts(machine: Machine) -> None:
    picture = machine.folder / "a.png"
    picture.write_bytes(_png())
    large = "a large output " * 1_000
    (machine.folder / "large.txt").write_text(large)
    reads = {"items": [{"call": "shell", "args": {"command": ["cat", "large.txt"]}}]}
    with machine.model(reads, says("one"), says("two")) as user:
        source = str(ran(user, "first", "-i", str(picture))[0]["session_id"])
        with proto(user, front=("--fork", source)) as client:
            fork = client.until("session_configured")["msg"]["session_id"]
        removed = user.run("rm", source, "--force", "--yes")
        assert removed.returncode == 0, removed.stderr
        with proto(user, front=("--resume", fork)) as client:
            initial = client.until("session_configured")["msg"]["initial_messages"]
            client.say("second")
            client.until("task_complete")
        before, after = inputs(user)[1:3]
        verified = user.run("verify", fork)
    assert after[: len(before)] == before
    assert "data:image/png;base64," in json.dumps(after)
    assert "a large output a large output" in json.dumps(after)
    assert [one.get("message") for one in initial[:2]] == ["first", "one"]
    assert verified.returncode == 0, verified.stdout


async def test_archived_source_is_forked_and_stays_archived(
    machine: Machine, redis_server: RedisServer
) -> None:
    with machine.model(says("one")) as user:
        # The worker has given the session back when its process is gone.
        with proto(user, *NEVER, front=("--no-worker",)) as client, worker(user):
            client.say("first")
            client.until("task_complete")
            client.send("bye", type="shutdown")
            client.until("shutdown_complete")
            source = client.all("session_configured")[0]["msg"]["session_id"]
        await archived(user, redis_server, source)
        ran(user, "second", "--fork", source)
        assert texts(inputs(user)[-1]) == ["first", "one", "second"]
        with redis_server.client() as client:
            keys = [key.decode() for key in client.keys(f"*rollout:{source}")]
    assert keys == []


def test_killed_process_loses_nothing_of_a_fork(machine: Machine) -> None:
    with machine.model(says("one")) as user:
        source = str(ran(user, "first")[0]["session_id"])
    with machine.model(SLEEP, says("two")) as user:
        with proto(user, *NEVER, front=("--fork", source, "--no-worker")) as client:
            with worker(user) as first:
                client.say("second")
                client.until("exec_command_begin")
                first.send_signal(signal.SIGKILL)
                first.wait()
            with worker(user):
                assert client.until("task_complete")["id"] == "u1"
        said = inputs(user)[-1]
    assert texts(said) == ["first", "one", "second"]
    assert "in doubt" in json.dumps(said)


def _png() -> bytes:
    """A picture of one pixel, followed by bytes that make its text a large one."""
    pixel = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    return pixel + bytes(20_000)
