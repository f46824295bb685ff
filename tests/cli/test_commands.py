"""The commands as a user runs them: processes, exit codes, what stands on stdout and stderr."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import COMMANDS, app
from orchestrator.core.entries import encode_event, event
from orchestrator.protocol.events import Error
from orchestrator.protocol.wire import UNSET
from orchestrator.wiring.deployment import QUARANTINE_EVENT, QUARANTINED
from tests.cli.machine import TOUCH, Machine, dendro, events, kinds, says
from tests.servers import RedisServer
from tests.started import Started

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts"
UNTRUSTED = ("-c", "approval_policy=untrusted", "-c", "sandbox_mode=danger-full-access")


@pytest.mark.always
def test_a_session_is_run_listed_replayed_verified_exported_and_imported(machine: Machine) -> None:
    with machine.model(TOUCH, says("done"), says("again")) as user:
        ran = user.run("run", "make a file", "-c", "sandbox_mode=danger-full-access")
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.splitlines()[0] == "$ touch made.txt"
        assert ran.stdout.splitlines()[-1] == "done"
        assert (user.folder / "made.txt").exists()
        [row] = user.sessions()
        assert (row["status"], row["title"], row["model"]) == ("idle", "make a file", "gpt-5")
        session = row["session_id"]

        replayed = user.run("replay", session[:13])
        assert replayed.returncode == 0
        assert "live fold  equal at entry" in replayed.stdout
        verified = user.run("verify", session)
        assert verified.returncode == 0
        assert f"session {session}: {row['seq']} entries follow from each other" in verified.stdout

        assert user.run("export", session, "--full", "whole.jsonl").returncode == 0
        lost = user.run("export", session, "nowhere/whole.jsonl")
        assert (lost.returncode, lost.stderr) == (
            1,
            "dendro: nowhere/whole.jsonl: No such file or directory\n",
        )
        imported = user.run("import", "whole.jsonl")
        assert imported.returncode == 0, imported.stderr
        copy = imported.stdout.strip()
        assert copy in user.session_ids()
        assert "live fold  equal at entry" in user.run("replay", copy).stdout

        went_on = user.run("run", "--resume", copy, "once more")
        assert went_on.returncode == 0, went_on.stderr
        assert user.run("verify", copy).returncode == 0


def test_a_user_without_any_server_gets_a_private_one(tmp_path: Path) -> None:
    user = Machine.at(tmp_path)
    listed = user.run("sessions")
    assert listed.returncode == 0, listed.stderr
    assert "no sessions yet" in listed.stdout
    assert not list((tmp_path / "home").glob("**/redis.pid"))


def test_a_program_reads_events_and_nothing_else_from_stdout(machine: Machine) -> None:
    with machine.model(says("hello")) as user:
        ran = user.run("run", "-", "--json", input="say hello\n")
    assert ran.returncode == 0
    assert kinds(ran.stdout)[0] == "session_configured"
    assert events(ran.stdout)[-1]["last_agent_message"] == "hello"


def test_without_a_terminal_an_approval_parks_the_session_for_whoever_comes(machine: Machine) -> None:
    with machine.model(TOUCH, says("made it")) as user:
        ran = user.run("run", "make a file", *UNTRUSTED)
        assert ran.returncode == 3
        [row] = user.sessions()
        assert (row["status"], row["holder"]) == ("awaiting_approval", None)
        assert f"dendro run --resume {row['session_id']}" in ran.stderr
        assert "touch made.txt" in ran.stdout
        with user.terminal("run", "--resume", row["session_id"]) as person:
            asked = person.wait_for(r"\[q\]uit the turn:")
            assert "touch made.txt" in asked
            person.type("y\n")
            person.wait_for("made it")
            person.wait_for(r"— \d+\.\d s")
            person.type("\x04")
            assert person.exit_code() == 0
        told = user.run("logs", row["session_id"]).stdout
        assert (
            told.index("? the agent wants to run") < told.index(" was approved by ") < told.index("$ touch")
        )
    assert (machine.folder / "made.txt").exists()


def test_second_answer_that_comes_too_late_is_no_failure_of_the_turn(machine: Machine) -> None:
    with machine.model(TOUCH, says("done")) as user:
        assert user.run("run", "go", *UNTRUSTED).returncode == 3
        [session] = user.session_ids()
        for answer in ("--deny", "--allow"):
            assert "handed in" in user.run("approvals", session, answer, "*").stdout
        resumed = user.run("run", "--resume", session)
        assert "was already decided: denied" in resumed.stdout + resumed.stderr
        assert resumed.returncode == 0, resumed.stderr


@pytest.mark.parametrize("name", sorted(path.name for path in TRANSCRIPTS.iterdir() if path.is_dir()))
def test_every_recorded_rollout_folds_as_a_file(name: str) -> None:
    from orchestrator.rollouts.replay import fold_file

    folded = fold_file(TRANSCRIPTS / name / "rollout.jsonl", None, None)
    assert folded.kind == "foreign"
    assert folded.broken is None
    assert len(folded.state.history) >= 2


def test_the_peers_rollout_becomes_an_idle_session_that_goes_on(machine: Machine) -> None:
    with machine.model(says("I remember")) as user:
        recorded = (TRANSCRIPTS / "exec_approved" / "rollout.jsonl").read_text()
        (user.folder / "peer.jsonl").write_text(recorded.replace("@WORKSPACE@", str(user.folder)))
        imported = user.run("import", "peer.jsonl")
        assert imported.returncode == 0, imported.stderr
        session = imported.stdout.strip()
        state = json.loads(user.run("replay", session, "--json").stdout)["state"]
        assert state["settings"]["approval_policy"] == "untrusted"
        assert state["settings"]["sandbox_policy"] == {"mode": "read-only"}
        assert "permits more than your own settings do here, and that is not taken over" in imported.stderr
        assert state["task"] is None
        ran = user.run("run", "--resume", session, "what did we do?")
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.strip() == "I remember"
        own = user.run("import", "--trust", "peer.jsonl").stdout.strip()
        state = json.loads(user.run("replay", own, "--json").stdout)["state"]
        assert state["settings"]["sandbox_policy"] == {"mode": "danger-full-access"}


def test_a_file_with_a_bad_line_is_named_by_its_number_and_makes_no_session(machine: Machine) -> None:
    lines = (TRANSCRIPTS / "plain" / "rollout.jsonl").read_text().splitlines()
    (machine.folder / "bad.jsonl").write_text(
        "\n".join([*lines[:2], '{"type": "response_item"}', *lines[2:]])
    )
    imported = machine.run("import", "bad.jsonl")
    assert imported.returncode == 1
    assert "line 3: timestamp, type and a payload object are required" in imported.stderr
    assert "nothing was imported" in imported.stderr
    assert machine.session_ids() == []


def test_proto_greets_first_and_ends_after_shutdown(machine: Machine) -> None:
    with machine.model(says("hello")) as user:
        ran = user.run("proto", input='{"id":"9","op":{"type":"shutdown"}}\n')
        assert ran.returncode == 0, ran.stderr
        assert kinds(ran.stdout) == ["session_configured", "shutdown_complete"]


def test_proto_reads_lines_up_to_the_set_limit(machine: Machine) -> None:
    lines = "x" * 2_000 + '\n{"id":"9","op":{"type":"shutdown"}}\n'
    with machine.model(says("hello")) as user:
        ran = user.run("-c", "wire.line_limit_bytes=1024", "proto", input=lines)
    assert ran.returncode == 0, ran.stderr
    assert [each["message"] for each in events(ran.stdout) if each["type"] == "error"] == [
        "line 1: longer than 1024 bytes; it was skipped"
    ]


def test_proto_resumes_with_the_events_so_far(machine: Machine) -> None:
    with machine.model(says("hello"), says("more")) as user:
        user.run("run", "say hello")
        [session] = user.session_ids()
        ran = user.run("proto", "--resume", session, input='{"id":"9","op":{"type":"shutdown"}}\n')
    greeting, *rest = events(ran.stdout)
    assert greeting["session_id"] == session
    told = [message["type"] for message in greeting["initial_messages"]]
    assert told[0] == "task_started"
    assert told[-1] == "task_complete"
    assert [message["type"] for message in rest] == ["shutdown_complete"]


@pytest.mark.parametrize("front", [("run", "go on"), ("proto",)], ids=lambda words: words[0])
def test_person_who_resumes_a_session_that_was_quarantined_is_told_the_remedy(
    machine: Machine, redis_server: RedisServer, front: tuple[str, ...]
) -> None:
    with machine.model() as user:
        session = str(events(user.run("proto", "--no-worker").stdout)[0]["session_id"])
        with redis_server.client() as client:
            [key] = client.keys(f"dendro:*:session:{session}")
            client.hset(key, "quarantined", "1")
        ran = user.run(*front, "--resume", session[:13], "--no-worker")
        assert ran.returncode == 1
        assert f"dendro revoke {session}" in ran.stderr


def test_proto_tells_a_client_that_resumes_what_is_still_asked(machine: Machine) -> None:
    with machine.model(TOUCH, says("hello")) as user:
        user.run("run", "make a file", *UNTRUSTED)
        [session] = user.session_ids()
        ran = user.run("proto", "--resume", session)
    assert ran.returncode == 3, ran.stderr
    assert kinds(ran.stdout)[:2] == ["session_configured", "exec_approval_request"]


def test_proto_leaves_a_parked_session_whose_request_is_no_longer_among_the_events(
    machine: Machine, redis_server: RedisServer
) -> None:
    with machine.model(TOUCH, says("hello")) as user:
        user.run("run", "make a file", *UNTRUSTED)
        [session] = user.session_ids()
        with redis_server.client() as client:
            [eq] = client.keys(f"*:eq:{session}")
            client.delete(eq)
        ran = user.run("proto", "--resume", session)
    assert ran.returncode == 3, ran.stderr
    greeting, *_, last = events(ran.stdout)
    assert "exec_approval_request" in [message["type"] for message in greeting["initial_messages"]]
    assert "input has ended while an approval is open; session" in last["message"]


def test_help_of_the_model_stub_names_every_behaviour(machine: Machine) -> None:
    shown = machine.under(COLUMNS="200").run("model-stub", "--help").stdout
    refusal = machine.run("model-stub", "--behaviour", "none").stderr
    names = refusal.split("choose ")[1].split(" (")[0].strip().replace(" or ", ", ").split(", ")
    assert names == ["echo", "survey", "tree", "instant", "shell:N"]
    assert [name for name in names if name not in shown] == []


def test_proto_leaves_quietly_when_its_client_is_gone(machine: Machine) -> None:
    with Started(
        dendro("proto", "--no-worker"),
        cwd=machine.folder,
        env=machine.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b"nonsense\n")
        process.stdin.close()
        assert process.wait(30) == 1
        said = process.stderr.read()
        assert said.count(b"\n") == 1, "that the session may only read, and nothing else"
        assert b"is in no git repository" in said


def test_revoke_says_who_held_the_session(machine: Machine) -> None:
    imported = machine.run("import", str(TRANSCRIPTS / "plain" / "rollout.jsonl"))
    session = imported.stdout.strip()
    revoked = machine.run("revoke", session[:15])
    assert revoked.returncode == 0
    assert revoked.stdout.startswith(f"{session} was held by no worker")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("run",), 2, "give a prompt, or --resume ID"),
        (("run", " "), 2, "the prompt is empty"),
        (("run", "hello"), 2, "OPENAI_API_KEY is not set"),
        (("replay", "0000"), 1, "no session '0000'"),
        (("verify", "missing.jsonl"), 1, "no file missing.jsonl"),
        (("worker", "--concurrency", "0"), 2, "worker.concurrency = 0: at least 1"),
        (("sessions", "-c", "redis.url=redis://127.0.0.1:9"), 2, "no answer from Redis"),
        (("sessions", "-c", "redis.url=redis.example:6379"), 2, "redis.url names no server; try redis://"),
        (("model-stub", "--behaviour", "none"), 2, "no behaviour 'none'"),
        (("import", "missing.jsonl"), 2, "missing.jsonl"),
        (("sessions", "--home", "/dev/null", "-c", "redis.url="), 2, "choose another one by --home"),
    ],
)
def test_a_failure_is_one_line_with_a_remedy_and_an_exit_code(
    machine: Machine, words: tuple[str, ...], code: int, said: str
) -> None:
    failed = machine.run(*words)
    assert failed.returncode == code
    assert said in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize("command", ["run", "review"])
def test_prompt_that_no_session_would_take_makes_none(machine: Machine, command: str) -> None:
    with machine.model() as user:
        failed = user.run(command, "-", input="x" * (5 << 20))
        assert (failed.returncode, "the prompt has more than 4,194,304 bytes" in failed.stderr) == (1, True)
        assert user.session_ids() == []


def test_folder_that_was_removed_is_told_of_with_the_remedy(machine: Machine) -> None:
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    for words in (("sessions",), ("run", "hello")):
        command = ["bash", "-c", script, "bash", *dendro(*words)]
        here, there = machine.folder, machine.environ
        done = subprocess.run(command, cwd=here, env=there, capture_output=True, text=True)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert "its folder: it was removed: go to a folder that is there, and start again" in done.stderr


@pytest.mark.parametrize(
    "command", ["run", "proto", "replay", "verify", "export", "import", "worker", "demo"]
)
def test_the_help_of_each_command_has_an_example(machine: Machine, command: str) -> None:
    helped = machine.run(command, "--help")
    assert helped.returncode == 0
    assert f" dendro {command}" in helped.stdout.replace(f"Usage: dendro {command}", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_sentence_of_a_command_in_the_list_is_the_first_of_its_help(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "100"}, prog_name="dendro")
    assert shown.exit_code == 0
    usage, _, text = shown.output.partition("\n\n")
    assert usage.startswith(f"Usage: dendro {command}")
    assert " ".join(text.split()).startswith(COMMANDS[command][2])
    assert COMMANDS[command][2].endswith(".")


@pytest.mark.parametrize("group", ["audit", "notary", "witness", "anchor", "token", "keys", "workers"])
def test_list_of_a_group_has_the_first_sentence_of_each_command_whole(group: str) -> None:
    shown = CliRunner().invoke(app, [group, "--help"], env={"COLUMNS": "80"}, prog_name="dendro")
    assert shown.exit_code == 0
    listed = shown.output.partition("\nCommands:\n")[2]
    assert listed
    assert "..." not in listed


def test_help_imports_nothing_that_it_does_not_need() -> None:
    script = (
        "import sys; sys.argv = ['dendro', '--help']\n"
        "from orchestrator.cli.main import app\n"
        "try: app()\nexcept SystemExit: pass\n"
        "heavy = ('rich', 'orchestrator.cli.run', 'asyncio', 'redis', 'pydantic', 'httpx',\n"
        "    'prompt_toolkit', 'orchestrator.wiring')\n"
        "print([n for n in heavy if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines()[-1] == "[]"


INTERRUPTED_LOADING = """
import sys
from importlib.abc import MetaPathFinder
class CtrlC(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "typer": raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
from orchestrator.cli.start import main
main()
"""
CAUSE_OF_ITSELF = """
from orchestrator.terminal.faults import Fault, report
inner, outer = Fault("not now"), Fault("in vain")
try:
    raise inner from outer
except Fault: outer.__cause__ = inner
raise SystemExit(report(ExceptionGroup("in a task", [ExceptionGroup("in another", [inner])])))
"""
INTERRUPTED_IN_A_CLASS = """
from orchestrator.terminal.faults import report
class CtrlC:
    def __set_name__(self, owner, name): raise KeyboardInterrupt
try: type("Owner", (), {"field": CtrlC()})
except RuntimeError as error: raise SystemExit(report(error))
except KeyboardInterrupt as error: raise SystemExit(report(error))
"""


@pytest.mark.parametrize("script", [INTERRUPTED_LOADING, INTERRUPTED_IN_A_CLASS])
def test_ctrl_c_while_a_command_is_loaded_ends_it_without_a_word(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (130, "")


def test_error_of_a_task_whose_causes_are_a_circle_is_told_by_itself() -> None:
    words = [sys.executable, "-c", CAUSE_OF_ITSELF]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (1, "dendro: not now\n")


@pytest.mark.parametrize("command", ["sessions", "workers", "approvals"])
def test_a_list_imports_no_rule_event_or_store(machine: Machine, command: str) -> None:
    script = (
        f"import sys; sys.argv = ['dendro', '{command}']\n"
        "from orchestrator.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = ('orchestrator.core.state', 'orchestrator.core.entries', 'orchestrator.protocol.events',\n"
        "         'orchestrator.runtime', 'orchestrator.model', 'orchestrator.gateways', 'fsspec',\n"
        "         'orchestrator.folders')\n"
        "print([n for n in heavy if n in sys.modules])"
    )
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, env=machine.environ, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize(
    ("words", "shown"), [(["tree", "ID", "--once"], "0 root"), (["logs", "ID"], "wait here")]
)
def test_a_tree_and_a_log_are_shown_without_importing_rules_models_or_folders(
    machine: Machine, words: list[str], shown: str
) -> None:
    with machine.playing(json.dumps([{"items": [{"text": "wait here"}]}])) as user:
        user.run("run", "begin")
    (session,) = (one["session_id"] for one in json.loads(machine.run("sessions", "--json").stdout))
    command = ["dendro", *(session if word == "ID" else word for word in words)]
    script = (
        f"import sys; sys.argv = {command}\n"
        "from orchestrator.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = ('orchestrator.core.state', 'orchestrator.runtime', 'orchestrator.model',\n"
        "         'orchestrator.folders', 'fsspec')\n"
        "print([n for n in heavy if n in sys.modules])"
    )
    process = [sys.executable, "-c", script]
    done = subprocess.run(process, env=machine.environ, capture_output=True, text=True, timeout=60)
    assert shown in done.stdout
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_a_quarantine_is_told_by_the_event_that_the_codec_writes() -> None:
    error = Error(message=QUARANTINED, codex_error_info=UNSET)
    assert encode_event(event("", error)) == QUARANTINE_EVENT


def asked_of_version_1(machine: Machine, method: str, **params: object) -> dict[str, Any]:
    """The answer of a server of its own to one request."""
    request = json.dumps({"id": 1, "method": method, "params": params})
    said = machine.run("app-server", input=f"{request}\n").stdout
    (answer,) = (one for one in map(json.loads, said.splitlines()) if one.get("id") == 1)
    found: dict[str, Any] = answer
    return found


def test_client_of_version_1_comes_back_to_an_imported_file_by_its_path(machine: Machine) -> None:
    path = str(TRANSCRIPTS / "plain" / "rollout.jsonl")
    refused = asked_of_version_1(machine, "resumeConversation", path=path)["error"]["message"]
    assert "`dendro import FILE`" in refused
    older, newer = (machine.run("import", path).stdout.strip() for _ in range(2))
    assert older != newer
    back = asked_of_version_1(machine, "resumeConversation", path=path)["result"]
    assert back["conversationId"] == newer, "the newest one"
    assert "user_message" in [event["type"] for event in back["initialMessages"]]
    asked_of_version_1(machine, "archiveConversation", conversationId=newer, rolloutPath=path)
    again = asked_of_version_1(machine, "resumeConversation", path=path)["result"]
    assert again["conversationId"] == older, "one that was put away comes behind those that were not"
    asked_of_version_1(machine, "archiveConversation", conversationId=older, rolloutPath=path)
    summary = asked_of_version_1(machine, "getConversationSummary", rolloutPath=path)["result"]["summary"]
    assert summary["conversationId"] == newer
    other = str(TRANSCRIPTS / "two_tools" / "rollout.jsonl")
    assert "error" in asked_of_version_1(machine, "resumeConversation", path=other)


def test_client_of_version_1_says_whether_the_model_has_the_tools_of_plans_and_patches(
    machine: Machine,
) -> None:
    tools: tuple[dict[str, bool], ...] = (
        {"includePlanTool": False},
        {"include_apply_patch_tool": False},
        {"includePlanTool": True},
        {},
    )
    for given in tools:
        made = asked_of_version_1(machine, "newConversation", **given)["result"]["conversationId"]
        with machine.model(says("done")) as user:
            assert user.run("run", "--resume", made, "go").returncode == 0
            url = user.environ["OPENAI_BASE_URL"].removesuffix("/v1") + "/requests"
            with urllib.request.urlopen(url) as answer:
                (request,) = json.load(answer)
        names = {tool.get("name") for tool in request.get("body", request)["tools"]}
        assert ("update_plan" in names) is given.get("includePlanTool", True)
        assert ("apply_patch" in names) is given.get("include_apply_patch_tool", True)
    refused = asked_of_version_1(machine, "newConversation", includePlanTool="perhaps")["error"]
    assert "includePlanTool" in refused["message"]


def test_path_of_an_imported_file_stays_with_its_session_through_a_turn_and_an_export(
    machine: Machine,
) -> None:
    path = str(TRANSCRIPTS / "plain" / "rollout.jsonl")
    with machine.model(says("on it")) as user:
        session = user.run("import", path).stdout.strip()
        assert user.run("run", "--resume", session, "go on", "--cwd", str(user.folder)).returncode == 0
        back = asked_of_version_1(user, "resumeConversation", path=path)["result"]
        assert back["conversationId"] == session
        assert user.run("export", session, "--full", "whole.jsonl").returncode == 0
        copy = user.run("import", "whole.jsonl").stdout.strip()
        for named, found in ((path, session), (str(user.folder / "whole.jsonl"), copy)):
            back = asked_of_version_1(user, "resumeConversation", path=named)["result"]
            assert back["conversationId"] == found, "a copy is of the file that it was made of"
        assert user.run("verify", copy).returncode == 0
