"""Tools of MCP servers in whole processes: a client, a worker, a scripted model, real servers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.cli.machine import Machine, dendro, says
from tests.mcp.serving import BAD, Fifo, fifo, is_alive
from tests.started import Started

__all__ = ["fifo"]

pytestmark = [pytest.mark.realredis, pytest.mark.slow]

Event = dict[str, Any]
ASKING = BAD.with_name("plain_asking_server.py")


def calls(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"items": [{"call": tool, "args": arguments, "call_id": "c1"}]}


def configure(machine: Machine, **servers: list[str]) -> None:
    """Writes the servers into the person's own file."""
    home = Path(machine.environ["DENDRO_HOME"])
    home.mkdir(exist_ok=True)
    (home / "dendro.toml").write_text("".join(_table(name, words) for name, words in servers.items()))


def _table(name: str, words: list[str]) -> str:
    command, args = json.dumps(words[0]), json.dumps(words[1:])
    return f"[mcp_servers.{json.dumps(name)}]\ncommand = {command}\nargs = {args}\n"


def bad(mode: str = "good", *more: str) -> list[str]:
    return [sys.executable, "-I", str(BAD), mode, *more]


class Client:
    """A `dendro proto` process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.seen: list[Event] = []

    def send(self, submission: str, /, **op: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": submission, "op": op}) + "\n")
        self._process.stdin.flush()

    def say(self, text: str) -> None:
        self.send("u1", type="user_input", items=[{"type": "text", "text": text}])

    def until(self, kind: str) -> Event:
        """The next event of a kind; what comes before it is kept too."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: Event = json.loads(line)
            self.seen.append(event)
            if event["msg"]["type"] == kind:
                return event
        pytest.fail(f"no {kind}; seen: {[event['msg']['type'] for event in self.seen]}")

    def all(self, *kinds: str) -> list[Event]:
        return [event for event in self.seen if event["msg"]["type"] in kinds]


@contextmanager
def proto(user: Machine, *words: str, front: tuple[str, ...] = ()) -> Iterator[Client]:
    with Started(
        dendro(*words, "proto", *front),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=user.folder,
        env=user.environ,
    ) as process:
        try:
            yield Client(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)


@contextmanager
def worker(user: Machine, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = Started(dendro(*words, "worker"), cwd=user.folder, env=user.environ, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(30)


def requests(user: Machine) -> list[dict[str, Any]]:
    """The requests that the model got."""
    url = user.environ["OPENAI_BASE_URL"].removesuffix("/v1") + "/requests"
    with urllib.request.urlopen(url) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def output(request: dict[str, Any]) -> Any:
    body = request.get("body", request)
    return next(item["output"] for item in body["input"] if item["type"] == "function_call_output")


def test_a_model_calls_a_published_server_and_clients_see_its_start_and_the_call(machine: Machine) -> None:
    if find_spec("mcp_server_time") is None:
        pytest.skip("the server mcp-server-time is not installed")
    configure(machine, time=[sys.executable, "-m", "mcp_server_time"], gone=["no-such-program"])
    steps = (calls("mcp__time__get_current_time", timezone="UTC"), says("It is late."))
    with machine.model(*steps) as user, proto(user) as client:
        client.say("What time is it?")
        client.until("task_complete")
        asked = requests(user)
    started = client.all("mcp_startup_update", "mcp_startup_complete")
    assert {event["id"] for event in started} == {""}
    told = [(event["msg"]["server"], event["msg"]["status"]["state"]) for event in started[:-1]]
    assert sorted(told) == [("gone", "failed"), ("gone", "starting"), ("time", "ready"), ("time", "starting")]
    complete = started[-1]["msg"]
    assert complete["ready"] == ["time"]
    assert [each["server"] for each in complete["failed"]] == ["gone"]
    begin, end = (event["msg"] for event in client.all("mcp_tool_call_begin", "mcp_tool_call_end"))
    invocation = {"server": "time", "tool": "get_current_time", "arguments": {"timezone": "UTC"}}
    assert begin["invocation"] == end["invocation"] == invocation
    assert json.loads(output(asked[-1]))["timezone"] == "UTC"
    names = [tool.get("name") for tool in asked[0].get("body", asked[0])["tools"]]
    assert names[-2:] == ["mcp__time__convert_time", "mcp__time__get_current_time"]


def test_a_server_whose_name_has_a_space_and_a_dot_is_offered_and_called(machine: Machine) -> None:
    configure(machine, **{"my files.v2": bad()})
    with machine.model(calls("mcp__my_files_v2__echo", a=1), says("done")) as user, proto(user) as client:
        client.say("go")
        client.until("task_complete")
    (end,) = (event["msg"] for event in client.all("mcp_tool_call_end"))
    assert (end["invocation"]["server"], end["invocation"]["tool"]) == ("my files.v2", "echo")
    assert end["result"]["content"] == [{"type": "text", "text": '{"a": 1}'}]


def test_an_untrusting_person_is_asked_about_a_call_and_sees_all_of_it(machine: Machine) -> None:
    configure(machine, bad=bad())
    with (
        machine.model(calls("mcp__bad__echo", a=1), says("done")) as user,
        proto(user, "-c", "approval_policy=untrusted") as client,
    ):
        client.say("go")
        asked = client.until("exec_approval_request")["msg"]
        assert asked["command"] == ["mcp", "bad", "echo", '{"a":1}']
        client.send("a1", type="exec_approval", id=asked["call_id"], decision="approved")
        ended = client.until("mcp_tool_call_end")["msg"]
        client.until("task_complete")
    assert ended["result"]["content"][0]["text"] == '{"a": 1}'


def test_a_client_lists_the_tools_of_servers_without_a_task(machine: Machine) -> None:
    configure(machine, bad=bad(), gone=["no-such-program"])
    with machine.model(says("never asked")) as user, proto(user) as client:
        client.send("l1", type="list_mcp_tools")
        listed = client.until("mcp_list_tools_response")
    assert listed["id"] == "l1"
    tools = listed["msg"]["tools"]
    assert list(tools) == sorted(tools)
    assert tools["mcp__bad__echo"] == {
        "name": "echo", "inputSchema": {"type": "object"}, "description": "Does echo.",
    }  # fmt: skip


def test_an_interrupt_is_told_to_the_server(machine: Machine, fifo: Fifo) -> None:
    configure(machine, bad=bad("good", str(fifo.path)))
    with machine.model(calls("mcp__bad__sleep"), says("never said")) as user, proto(user) as client:
        client.say("go")
        client.until("mcp_tool_call_begin")
        assert fifo.path.read_text() == "sleeping"
        client.send("i1", type="interrupt")
        assert fifo.path.read_text() == "cancelled True"
        assert client.until("turn_aborted")["msg"]["reason"] == "interrupted"
    assert client.all("mcp_tool_call_end") == []


def test_a_call_of_a_killed_worker_is_in_doubt_and_its_server_dies_with_it(
    machine: Machine, fifo: Fifo
) -> None:
    configure(machine, bad=bad("good", str(fifo.path)))
    steps = (calls("mcp__bad__environment"), calls("mcp__bad__sleep"), says("I shall check."))
    steps[1]["items"][0]["call_id"] = "c2"
    with machine.buried.model(*steps) as user, proto(user, front=("--no-worker",)) as client:
        with worker(user) as first:
            client.say("go")
            shown = client.until("mcp_tool_call_end")["msg"]["result"]["content"][0]["text"]
            pid = json.loads(shown)["pid"]
            client.until("mcp_tool_call_begin")
            assert fifo.path.read_text() == "sleeping"
            first.send_signal(signal.SIGKILL)
            first.wait(30)
        with worker(user):
            ended = client.until("mcp_tool_call_end")["msg"]
            warned = client.until("warning")["msg"]
            client.until("task_complete")
        assert not is_alive(pid)
    assert ended["call_id"] == "c2"
    assert ended["result"].startswith("in doubt: the worker was lost while this call was running")
    assert "c2 is in doubt" in warned["message"]
    begun = [event["msg"]["call_id"] for event in client.all("mcp_tool_call_begin")]
    assert begun == ["c1", "c2"], "it was not called again"
    assert len(client.all("mcp_startup_complete")) == 2, "once for each worker"


def test_a_question_that_wants_more_than_yes_or_no_is_declined_and_the_person_is_told(
    machine: Machine,
) -> None:
    configure(machine, bad=bad())
    with machine.model(calls("mcp__bad__ask_form"), says("done")) as user, proto(user) as client:
        client.say("go")
        warned = client.until("warning")["msg"]
        ended = client.until("mcp_tool_call_end")["msg"]
        client.until("task_complete")
    assert "the MCP server bad asked in the middle of ask_form: 'Your password?'" in warned["message"]
    assert json.loads(ended["result"]["content"][0]["text"])["action"] == "decline"
    assert client.all("elicitation_request") == []


def asking(machine: Machine, server: Path = ASKING) -> None:
    """A server that asks a person."""
    configure(machine, asking=[sys.executable, str(server)])


def result(ended: Event) -> str:
    found: str = ended["msg"]["result"]["content"][0]["text"]
    return found


def test_a_person_answers_a_server_in_the_middle_of_a_call(machine: Machine) -> None:
    asking(machine, BAD.with_name("asking_server.py"))
    with machine.model(calls("mcp__asking__permit", twice=True), says("done")) as user, proto(user) as client:
        client.say("go")
        for question, decision in (("May I?", "accept"), ("Really?", "decline")):
            asked = client.until("elicitation_request")
            assert asked["id"] == "u1"
            assert (asked["msg"]["server_name"], asked["msg"]["message"]) == ("asking", question)
            answer = {"server_name": "asking", "request_id": asked["msg"]["id"], "decision": decision}
            client.send(f"a-{decision}", type="resolve_elicitation", **answer)
        assert result(client.until("mcp_tool_call_end")) == "accept decline"
        client.until("task_complete")
        client.send("late", type="resolve_elicitation", **{**answer, "decision": "accept"})
        told = client.until("error")["msg"]["message"]
    assert "c1-q2 was already decided: decline, by " in told


def test_a_question_is_answered_from_the_list_of_requests(machine: Machine) -> None:
    asking(machine)
    with machine.model(calls("mcp__asking__permit"), says("done")) as user, proto(user) as client:
        session = client.until("session_configured")["msg"]["session_id"]
        client.say("go")
        client.until("elicitation_request")
        assert "0:c1-q1  answer the MCP server asking: May I?" in user.run("approvals", session).stdout
        assert user.sessions()[0]["status"] == "awaiting_answer"
        ran = user.run("approvals", session, "--allow", "0:c1-q1")
        assert "0:c1-q1  asking: May I?: accepted" in ran.stdout, ran.stderr
        assert result(client.until("mcp_tool_call_end")) == "accept"
        client.until("task_complete")
        (told,) = client.all("request_resolved")
    assert told["msg"]["decision"] == "accept"


def test_a_question_is_withdrawn_when_the_worker_is_lost(machine: Machine) -> None:
    asking(machine)
    steps = (calls("mcp__asking__permit"), says("I shall check."))
    with machine.buried.model(*steps) as user, proto(user, front=("--no-worker",)) as client:
        with worker(user) as first:
            client.say("go")
            client.until("elicitation_request")
            first.send_signal(signal.SIGKILL)
            first.wait(30)
        with worker(user):
            ended = client.until("mcp_tool_call_end")["msg"]
            client.until("task_complete")
        (gone,) = (event["msg"] for event in client.all("request_resolved"))
    assert ended["result"].startswith("in doubt: the worker was lost")
    assert (gone["call_id"], gone["decision"]) == ("c1-q1", "withdrawn")
    assert user.run("approvals").stdout == "nothing waits for a person\n"


def test_a_person_at_a_terminal_answers_a_server(machine: Machine) -> None:
    asking(machine)
    steps = (calls("mcp__asking__permit"), says("It said so."))
    with machine.model(*steps) as user, user.terminal("run", "go") as person:
        shown = person.wait_for(r"Answer\? \[y\]es / \[n\]o / \[c\]ancel: ")
        assert "? the MCP server asking asks" in shown
        assert "May I?" in shown
        person.type("y\n")
        assert "accept" in person.wait_for("It said so.")
        assert person.exit_code() == 0


def test_server_that_asks_a_command_in_a_pipe_is_told_that_its_call_ends_with_the_command(
    machine: Machine,
) -> None:
    asking(machine)
    with machine.model(calls("mcp__asking__permit"), says("I shall check.")) as user:
        left = user.run("run", "go")
        assert left.returncode == 3, left.stdout + left.stderr
        assert "waiting for an answer; the call that asks ends with the worker of this command" in left.stderr
        (session,) = user.session_ids()
        assert f"go on with: dendro run --resume {session}" in left.stderr
        done = user.run("run", "--resume", session)
        assert (done.returncode, "I shall check." in done.stdout) == (0, True), done.stdout + done.stderr


def test_server_that_asks_a_command_in_a_pipe_is_answered_where_another_worker_has_the_call(
    machine: Machine,
) -> None:
    asking(machine)
    with machine.model(calls("mcp__asking__permit"), says("It said so.")) as user, worker(user):
        left = user.run("run", "--no-worker", "go")
        assert left.returncode == 3, left.stdout + left.stderr
        assert "waiting for an answer; dendro approvals lists what is asked; go on with: " in left.stderr
        (session,) = user.session_ids()
        assert user.sessions()[0]["status"] == "awaiting_answer"
        assert "asking: May I?: accepted" in user.run("approvals", session, "--allow", "0:c1-q1").stdout
        with user.terminal("attach", session) as person:
            person.wait_for("It said so.")
    assert '"accept"' in user.run("logs", session, "--json").stdout.replace("\\", "")


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (calls("mcp__bad__none"), "unsupported call: mcp__bad__none"),
        (calls("mcp__bad__echo", a="x" * 70_000), "the arguments have more than 65,536 bytes"),
        ({"items": [{"item": {"type": "function_call", "call_id": "c1", "name": "mcp__bad__echo",
                              "arguments": "[1]"}}]}, "the arguments must be a JSON object"),
    ],
    ids=["unknown", "too many", "no object"],
)  # fmt: skip
def test_a_call_that_makes_no_sense_is_told_to_the_model(
    machine: Machine, step: dict[str, Any], said: str
) -> None:
    configure(machine, bad=bad())
    with machine.model(step, says("done")) as user, proto(user) as client:
        client.say("go")
        client.until("task_complete")
        assert said in output(requests(user)[-1])
    assert client.all("mcp_tool_call_begin") == []


def test_a_strangers_folder_starts_no_program_until_the_person_trusts_it(machine: Machine) -> None:
    made = machine.folder / "made.txt"
    table = _table("theirs", ["/bin/sh", "-c", f"touch {made}; exec {sys.executable} -I {BAD} good"])
    (machine.folder / "dendro.toml").write_text(table)
    with machine.model(says("hello")) as user:
        ran = user.run("run", "hello")
    assert ran.returncode == 0, ran.stderr
    assert not made.exists()
    assert "it may not set mcp_servers.theirs.command, mcp_servers.theirs.args" in ran.stderr
    with machine.model(calls("mcp__theirs__echo", a=1), says("done")) as user:
        assert user.run("trust").returncode == 0
        ran = user.run("run", "hello again")
    assert ran.returncode == 0, ran.stderr
    assert made.exists()
