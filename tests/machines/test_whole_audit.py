"""A tree that has met everything is bundled, checked by a stranger, and answers an auditor's questions."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.cli.machine import PATIENCE_S, Machine
from tests.machines.conftest import Fleet
from tests.machines.host import Host
from tests.machines.test_portable import QUICK, begun, portable, shell, until

__all__ = ["portable"]
pytestmark = [pytest.mark.realredis, pytest.mark.night]

SECRET = "ACME-70214413"
KINDS = ("claimed", "call", "answer", "child", "forked", "workspace", "workspace_merged", "redacted")
QUESTIONS = (
    ("who", "*"),
    ("file", "only.txt"),
    ("cost", "--by", "agent"),
    ("context", "widen"),
    ("secrets", "--find", SECRET),
    ("egress",),
    ("redactions",),
)
WHICH = {"question": "Which one?", "header": "Auth", "multiSelect": False}
OPTIONS = [{"label": "Key", "description": "a key"}, {"label": "Login", "description": "a login"}]


def called(id: str, name: str, **args: Any) -> dict[str, Any]:
    return {"items": [{"call": name, "call_id": id, "args": args}]}


STEPS = [
    called(
        "widen",
        "shell",
        command=["bash", "-c", "hostname"],
        with_escalated_permissions=True,
        justification="to see where it runs",
    ),
    called("ask", "ask_user_question", questions=[{**WHICH, "options": OPTIONS}]),
    called("made", "subagent_spawn", label="writer", prompt="Write."),
    called("split", "subagent_fork", label="reader", prompt="Read."),
    called("wait1", "subagent_await", agent_ids=[1]),
    called("wait2", "subagent_await", agent_ids=[2]),
    called("merge", "subagent_merge", agent_id=1),
    shell("echo half > half.txt; echo begun > /tmp/begun; sleep 60"),
    shell("cat only.txt; hostname"),
    {"items": [{"text": "done"}]},
]
AGENTS = [
    {"label": "writer", "steps": [shell("echo written > only.txt"), {"items": [{"text": "written"}]}]},
    {"label": "reader", "steps": [shell("cat README.md"), {"items": [{"text": "read"}]}]},
]


def test_tree_with_a_takeover_people_a_fork_a_merge_and_a_redaction_is_audited_alike_everywhere(
    portable: Fleet, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with Machine.at(folder).buried.playing(json.dumps({"steps": STEPS, "agents": AGENTS})) as stub:
        fleet = portable.under(
            OPENAI_BASE_URL=stub.environ["OPENAI_BASE_URL"], DENDRO_APPROVAL_POLICY="on-request"
        )
        root = lived(fleet)
    two = fleet.two
    two.says("redact", root, "--find", SECRET, "--why", "a key of a customer")
    two.says("bundle", root, "-o", "/mnt/run.zip", "--packs", "here", "--unnoted")
    sessions = [agent["session_id"] for agent in json.loads(two.says("tree", root, "--json"))["agents"]]
    for session in sessions:
        two.says("export", session, f"/mnt/{session}.jsonl", "--full")
    lines = b"".join((fleet.common / f"{session}.jsonl").read_bytes() for session in sessions)
    assert [kind for kind in KINDS if f'"kind":"{kind}"'.encode() not in lines] == []
    assert SECRET.encode() not in lines
    checked_by_a_stranger(fleet.common / "run.zip", tmp_path)
    for question in QUESTIONS:
        asked_everywhere(two, root, sessions, *question)


def lived(fleet: Fleet) -> str:
    """The tree's life on one machine, which is lost, and then on the other; answers its id."""
    one, two = fleet.one, fleet.two
    with one.worker(*QUICK), begun(two, f"Do it; the key is {SECRET}.") as following:
        asked = until(following, "exec_approval_request")
        (root,) = two.user.session_ids()
        assert asked["call_id"] == "widen"
        two.says("approvals", root, "--allow", "0:widen")
        wait_for(lambda: '"ask"' in two.says("approvals", root, "--json"))
        two.says("approvals", root, "--answer", "0:ask Auth=Key")
        wait_for(lambda: next(iter(one.srv("workspaces").glob(f"copies/{root}/tmp/begun")), None))
        one.lose()
    with two.worker(*QUICK):
        wait_for(lambda: '"type":"task_complete"' in two.says("logs", root, "--json"))
    return root


def wait_for(found: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < until
        time.sleep(0.1)


def checked_by_a_stranger(bundle: Path, tmp_path: Path) -> None:
    """Checks a bundle in a folder with nothing else in it, by a process that cannot import Dendro."""
    alone, library = tmp_path / "alone", tmp_path / "library"
    alone.mkdir()
    library.mkdir()
    for name in ("cryptography", "cffi", "_cffi_backend", "pycparser"):
        if (spec := find_spec(name)) is not None and spec.origin is not None:
            origin = Path(spec.origin)
            source = origin.parent if origin.name == "__init__.py" else origin
            (library / source.name).symlink_to(source)
    program = Path(__file__).parents[2] / "examples" / "check_bundle.py"
    for source in (program, bundle):
        shutil.copy(source, alone)
    python, environ = [sys.executable, "-S", "-P"], {"PYTHONPATH": str(library)}
    ours = subprocess.run([*python, "-c", "import orchestrator"], cwd=alone, env=environ, check=False)
    assert ours.returncode == 1, "the process has none of our packages"
    words = [*python, program.name, bundle.name]
    done = subprocess.run(words, cwd=alone, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def asked_everywhere(host: Host, root: str, sessions: list[str], name: str, *words: str) -> None:
    """A question to the tree, to its bundle and to the exports of its sessions has the same answers."""
    live, bundled = (answers(host, source, name, *words) for source in (root, "/mnt/run.zip"))
    assert live == bundled
    assert live, f"nothing answers {name}"
    for answer in live:
        assert answer["entries"], answer
        assert answer.get("worth", answer.get("entries_are")) in ("proved", "stated"), answer
    shown = host.says("audit", name, root, *words).splitlines()
    assert all(line.endswith((" proved", " stated")) for line in shown)
    found = [answer for session in sessions for answer in alone(host, session, name, *words)]
    if name == "secrets":
        # A number counts what was found in all that was asked.
        assert sorted(entries_of(found)) == sorted(entries_of(live))
    else:
        assert sorted(map(repr, found)) == sorted(map(repr, live))


def alone(host: Host, session: str, name: str, *words: str) -> list[dict[str, Any]]:
    """The answers of a session's export; none where nothing of it answers the question."""
    done = host.run("audit", name, f"/mnt/{session}.jsonl", *words, "--json")
    assert done.returncode == 0 or not done.stdout, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def answers(host: Host, source: str, name: str, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in host.says("audit", name, source, *words, "--json").splitlines()]


def entries_of(told: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for answer in told:
        yield from ((answer.get("kind", answer["what"]), entry) for entry in answer["entries"])
