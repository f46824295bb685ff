"""The comparison with peers: its orders, the contract of adapters, and what the page says."""

from __future__ import annotations

import ast
import io
import json
import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from orchestrator.stub.answers import Call, StubRequest, Text
from peers.jobs import STARTS, Queue
from peers.wire import Peer, _carry_out
from proof.peers import (
    CONTENDERS,
    QUEUES,
    QUICK,
    Absent,
    Contender,
    Run,
    _install,
    begins,
    kept_bytes,
    ran,
    starts,
)
from proof.peers_page import LEFT_OUT, NOISY, cell, noise, page, verdict
from proof.peers_script import ECHO, PeersScript, many, nothing, sleep, sleeper, three

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "peers").glob("*/adapter.py"))


def answer(text: str, made: int, *tools: str) -> list[Any]:
    """The answer of the comparison's model when so many calls were made."""
    items: list[dict[str, Any]] = [{"role": "user", "content": text}]
    for n in range(made):
        call = {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": f"c{n}"}
        items += [call, {"type": "function_call_output", "call_id": f"c{n}", "output": "x"}]
    offered = [{"type": "function", "name": name} for name in tools]
    body = json.dumps({"input": items, "tools": offered}).encode()
    return list(PeersScript().answer(StubRequest.of(body, None)).step.items)


# ── the model ─────────────────────────────────────────────────────────────────────────────────────


def test_model_calls_three_commands_and_then_ends() -> None:
    assert [answer(three(), made, "shell") for made in range(4)] == [
        *([Call("shell", {"command": list(ECHO)})] for _ in range(3)),
        [Text("Done.")],
    ]


def test_model_calls_in_the_words_that_it_is_offered() -> None:
    line = "sh -c 'echo x'"
    assert answer(three(), 0, "exec_command") == [Call("exec_command", {"cmd": line})]
    assert answer(three(), 0, "shell_command") == [Call("shell_command", {"command": line})]


def test_model_lets_the_second_command_alone_sleep() -> None:
    slept = [answer(sleep("20.001"), made)[0].args["command"] for made in range(3)]
    assert slept == [list(ECHO), list(sleeper("20.001")), list(ECHO)]


def test_model_calls_many_at_once_and_nothing_when_nothing_is_ordered() -> None:
    assert len(answer(many(7), 0)) == 7
    assert answer(many(7), 7) == answer(nothing(), 0) == [Text("Done.")]


# ── adapters ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_adapter_is_short_and_takes_the_orders(folder: Path) -> None:
    code = (folder / "adapter.py").read_text()
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 60
    classes = [node for node in ast.parse(code).body if isinstance(node, ast.ClassDef)]
    bases = {getattr(base, "id", ""): one for one in classes for base in one.bases}
    peer = bases.get("Peer", bases.get("Queue"))
    assert peer is not None
    taken = {node.name for node in peer.body if isinstance(node, ast.AsyncFunctionDef)}
    assert {"turn", "resume"} <= taken if "Peer" in bases else taken == {"put"}
    assert {name for name in taken if not name.startswith("_")} <= set(dir(Queue))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_versions_of_a_peer_are_pinned(folder: Path) -> None:
    lock = folder / "requirements.lock"
    lines = lock.read_text().splitlines() if lock.exists() else []
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+(\[[\w,]+\])?==\S+", line)] == []
    if (folder / "package.json").exists():
        wanted = json.loads((folder / "package.json").read_text())["dependencies"]
        assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values())
        assert "resolved" not in (folder / "package-lock.json").read_text()


def test_each_contender_has_an_adapter_and_each_adapter_a_contender() -> None:
    assert {one.folder for one in CONTENDERS} | {*QUEUES} == {folder.name for folder in FOLDERS}


async def test_order_is_answered_with_its_result_or_its_error() -> None:
    class Fake(Peer):
        async def turn(self, id: str, text: str) -> str:
            if text == "fail":
                raise ValueError("no")
            return id + text

    said = io.StringIO()
    await _carry_out(Fake(), {"n": 1, "op": "turn", "args": ["a", "b"]}, said)
    await _carry_out(Fake(), {"n": 2, "op": "turn", "args": ["a", "fail"]}, said)
    await _carry_out(Fake(), {"n": 3, "op": "kill", "args": []}, said)
    assert [json.loads(line) for line in said.getvalue().splitlines()] == [
        {"n": 1, "result": "ab"},
        {"n": 2, "error": "ValueError: no"},
        {"n": 3, "result": False},
    ]


# ── the harness ───────────────────────────────────────────────────────────────────────────────────


def test_installer_that_is_missing_or_fails_is_a_reason() -> None:
    with pytest.raises(Absent, match="no-such-installer is not installed"):
        _install(["no-such-installer"])
    with pytest.raises(Absent, match=r"sh: an error: it is not there"):
        _install(["sh", "-c", "echo first >&2; echo 'an error: it is not there' >&2; exit 3"])


async def test_peer_whose_commands_fail_is_left_out_and_not_taken_for_a_quick_one() -> None:
    told = ['{"output":"x\\n"}', "Exit code: 0\nOutput:\nx\n", "x"]
    await ran(cast(Any, SimpleNamespace(told=AsyncMock(return_value=["earlier, and failed", *told]))))
    told[1] = "bwrap: execvp codex-linux-sandbox: No such file or directory\n"
    with pytest.raises(Absent, match="its commands fail: bwrap: execvp"):
        await ran(cast(Any, SimpleNamespace(told=AsyncMock(return_value=told))))


def test_begins_of_a_ledger_and_bytes_of_a_folder_are_counted(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    assert begins(ledger) == 0
    ledger.write_text("begin\nend\nbegin\n")
    assert begins(ledger) == 2
    assert kept_bytes(tmp_path) >= 512


def test_begins_of_jobs_are_read_as_far_as_their_lines_are_whole(tmp_path: Path) -> None:
    assert starts(tmp_path) == {}
    (tmp_path / STARTS).write_text("a-0 1.5\nb-0 2.0\na-0 3.5\nc-0")
    assert starts(tmp_path) == {"a-0": [1.5, 3.5], "b-0": [2.0]}


def ends() -> None:
    """Fails as a peer does that has ended."""
    raise Absent("it has ended")


def test_part_is_passed_over_when_the_time_is_over_or_it_has_failed_and_the_reason_is_kept(
    tmp_path: Path,
) -> None:
    one, other, away = (Contender(name, name) for name in ("one", "other", "away"))
    run = Run([one, other, away], [], QUICK, tmp_path, time.monotonic() + 60, rounds={"one": [], "other": []})
    assert list(run.left("turns")) == [one, other]
    with run.part("one", "turns"):
        ends()
    assert list(run.left("turns")) == [other]
    assert list(run.left("a kill")) == [one, other]
    run.until = time.monotonic() - 1
    assert list(run.left("turns")) == []
    assert run.absent == {
        "one, turns": "it has ended",
        "other, turns": "left out: the time of the run was over",
    }


# ── the page ──────────────────────────────────────────────────────────────────────────────────────


def found(*bare_ms: float) -> dict[str, Any]:
    """The findings of a run: of the bare loop, in so many rounds, and of one more."""
    kill = {"who": "itself", "after_s": 0.08, "begun": 1, "living": 0, "told": ["in doubt:\n it was lost"]}
    return {
        "conditions": {"CPU": "two cores"},
        "size": asdict(replace(QUICK, rounds=len(bare_ms))),
        "took_s": 61.4,
        "rounds": {"bare loop": [{"turn_ms": took} for took in bare_ms], "other": [{"turn_ms": 30.0}]},
        "once": {
            "bare loop": {"kill": {**kill, "who": "nobody", "after_s": None, "told": []}},
            "other": {"kill": kill},
        },
        "jobs": {"queue": [{"start_ms": 2.5, "jobs_s": 900.0}]},
        "again": {"queue": {"default": None, "shortest": 1.5}},
        "absent": {"third: turns": "pip: no such version"},
    }


def test_page_says_that_a_machine_is_noisy_when_the_bare_loop_differs() -> None:
    calm, noisy = found(10.0, 10.0 * (1 + NOISY) - 0.01), found(10.0, 12.0, 11.0)
    assert noise(noisy) == pytest.approx(0.2)
    assert "noisy machine" in page(noisy)
    assert "differ by 20%" in page(noisy)
    assert "noisy machine" not in page(calm)
    assert "one round alone" in page(found(10.0))


def test_page_has_the_median_and_the_spread_of_each_row_and_the_reason_of_each_absent_peer() -> None:
    written = page(found(12.0, 10.0, 11.0))
    assert "| bare loop | 11.0 (10.0–12.0) | – |" in written
    assert "| other | 30.0 | – |" in written
    assert "- third: turns: pip: no such version" in written
    assert "- langgraph, Redis saver: it needs" in written
    assert "| queue | 2.50 | – | 900 | – | never | 1.50 |" in written
    assert "| other | itself | 0.08 | in doubt, once | 1 | no |" in written
    assert "the model is told `in doubt: it was lost`" in written


def test_page_tells_how_many_rounds_there_were_and_no_later_one_as_absent() -> None:
    run = found(10.0, 10.5)
    run["size"]["rounds"] = 3
    run["absent"] = {f"{name}, turns": LEFT_OUT for name in ("bare loop", "third")}
    written = page(run)
    assert "- rounds: 2 of 3 (then the time of the run was over), with" in written
    assert "- third, turns: left out" in written
    assert "bare loop, turns" not in written


def test_cell_without_a_value_is_a_dash() -> None:
    assert cell([]) == "–"


@pytest.mark.parametrize(
    ("who", "begun", "word"),
    [("nobody", 1, "lost"), ("itself", 1, "in doubt, once"), ("once restarted", 2, "**repeated**")],
)
def test_call_is_lost_in_doubt_or_repeated(who: str, begun: int, word: str) -> None:
    assert verdict({"who": who, "begun": begun}) == word
