"""Runs of one turn a process: what the command line says, who else is there, and how a run ends."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.exec import _as_run, _prompt, _read, _schema
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.terminal.faults import Fault
from tests.acceptance.conversation import PATIENCE_S, Scene, scene
from tests.doors.exec_runs import exec_run, started

CONFIG = 'model = "gpt-5.5"\nsandbox_mode = "workspace-write"\n'
PIXEL = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\x06\0\0\0\x1f\x15\xc4\x89"
    b"\0\0\0\rIDATx\x9cc\xf8\xcf\xc0\xf0\x1f\0\x05\0\x01\xff\x89\x99=\x1d\0\0\0\0IEND\xaeB`\x82"
)
QUESTION = {"id": "q", "header": "Which", "question": "Which one?", "options": None}


def sleeps(seconds: int) -> dict[str, Any]:
    command = ["bash", "-c", f"touch begun; exec sleep {seconds}"]
    args = {"command": command, "timeout_ms": 90_000}
    return {"items": [{"call": "shell", "args": args, "call_id": "c1"}]}


def first_line(place: Scene) -> dict[str, Any]:
    [file] = (place.setup.data / "sessions").rglob("*.jsonl")
    line: dict[str, Any] = json.loads(file.read_text().splitlines()[0])
    return line


@pytest.mark.slow
async def test_program_sets_what_its_sdk_lets_it_set(tmp_path: Path) -> None:
    async with scene(tmp_path, CONFIG, [{"items": [{"text": '{"a": 1}'}]}]) as place:
        (place.setup.root / "pixel.png").write_bytes(PIXEL)
        schema = {"type": "object", "properties": {"a": {"type": "number"}}}
        (place.setup.root / "schema.json").write_text(json.dumps(schema))
        done = await exec_run(
            place,
            *("--config", f'openai_base_url="{place.base_url}"', "--config", 'cyber_mode="on"'),
            *(
                "--model",
                "gpt-5-mini",
                "--cd",
                str(place.setup.workspace),
                "--add-dir",
                str(place.setup.outside),
            ),
            *("--output-schema", "../schema.json", "--image", "../pixel.png", "--thread-source", "sdk"),
            OPENAI_BASE_URL="http://127.0.0.1:9/v1",
            OPENAI_API_KEY="",
            CODEX_API_KEY="hush",
            CODEX_INTERNAL_ORIGINATOR_OVERRIDE="codex_sdk_ts",
        )
        assert done.code == 0, done.stderr
        meta = first_line(place)
        other = await exec_run(place, "resume", "--last", "go on", CODEX_API_KEY="another")
        assert (other.code, other.events) == (1, [])
        assert "was begun under another key" in other.stderr
        assert "-c 'worker.pools=[\"host:" in other.stderr
    kinds = ["thread.started", "item.completed", "turn.started", "item.completed", "turn.completed"]
    assert done.kinds() == kinds, done.events
    warning = done.events[1]["item"]
    assert (warning["id"], warning["type"]) == ("item_0", "error")
    assert "unknown key cyber_mode" in warning["message"]
    [request] = place.held.requests
    assert (request["model"], request["text"]["format"]["schema"]) == ("gpt-5-mini", schema)
    assert "data:image/png;base64," in json.dumps(request["input"][-1])
    assert meta["payload"]["originator"] == "codex_sdk_ts"


@pytest.mark.slow
async def test_second_program_joins_the_turn_and_the_first_one_ends_it_by_its_signal(tmp_path: Path) -> None:
    async with scene(tmp_path, CONFIG, [sleeps(60), {"items": [{"text": "later"}]}]) as place:
        async with started(place, "work") as first:
            assert first.stdout is not None
            lines = [json.loads(await first.stdout.readline()) for _ in range(3)]
            assert [line["type"] for line in lines] == ["thread.started", "turn.started", "item.started"]
            thread = lines[0]["thread_id"]
            async with started(place, "--no-worker", "resume", thread, "and this") as second:
                assert second.stdout is not None
                joined = [json.loads(await second.stdout.readline()) for _ in range(2)]
                assert joined == [{"type": "thread.started", "thread_id": thread}, {"type": "turn.started"}]
                first.send_signal(signal.SIGTERM)
                assert await first.wait() == -signal.SIGTERM
                rest, _ = await second.communicate()
                ended = json.loads(rest.splitlines()[-1])
                assert (ended["type"], second.returncode) == ("turn.failed", 1)
        again = await exec_run(place, "resume", "--last", "go on")
        assert again.events[0]["thread_id"] == thread
        assert [e["item"]["text"] for e in again.events if e["type"] == "item.completed"] == ["later"]


@pytest.mark.slow
async def test_person_is_told_that_no_worker_takes_the_turn(tmp_path: Path) -> None:
    async with scene(tmp_path, CONFIG, []) as place, started(place, "--no-worker", "work") as process:
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            while b"no worker has taken it yet; start one" not in await process.stderr.readline():
                pass
        process.terminate()
        assert await process.wait() == -signal.SIGTERM
        out, _ = await process.communicate()
        assert [json.loads(line)["type"] for line in out.splitlines()][:1] == ["thread.started"]


@pytest.mark.slow
async def test_run_that_joins_a_turn_which_waits_for_a_person_ends_by_itself(tmp_path: Path) -> None:
    asks = {"call": "request_user_input", "args": {"questions": [QUESTION]}, "call_id": "q1"}
    play: list[dict[str, Any]] = [{"items": [asks]}, {"items": [{"text": "alone"}]}]
    queued = ("-c", "exec.approvals=queue")
    async with scene(tmp_path, CONFIG, play) as place, started(place, *queued, "work") as first:
        assert first.stdout is not None
        assert first.stderr is not None
        thread = json.loads(await first.stdout.readline())["thread_id"]
        async with asyncio.timeout(PATIENCE_S):
            while b"waits for a person" not in await first.stderr.readline():
                pass
        done = await exec_run(place, "--no-worker", "resume", thread)
        assert done.code == 0, done.stderr
        assert done.events[-2]["item"]["text"] == "alone"


@pytest.mark.slow
async def test_run_that_nobody_is_there_to_answer_ends_also_where_an_agent_asks(tmp_path: Path) -> None:
    asks = {"call": "request_user_input", "args": {"questions": [QUESTION]}, "call_id": "q1"}
    spawn = {"call": "subagent_spawn", "args": {"label": "scout", "prompt": "scout"}, "call_id": "s1"}
    wait = {"call": "subagent_await", "args": {"agent_ids": [1]}, "call_id": "w1"}
    steps = [{"items": [spawn]}, {"items": [wait]}, {"items": [{"text": "both alone"}]}]
    scout = [{"items": [asks]}, {"items": [{"text": "scout alone"}]}]
    play = {"steps": steps, "agents": [{"label": "scout", "steps": scout}], "after_end": "repeat_last"}
    async with scene(tmp_path, CONFIG, play) as place:
        done = await exec_run(place)
        assert done.code == 0, done.stderr
        assert done.events[-2]["item"]["text"] == "both alone"


@pytest.mark.slow
async def test_run_that_cannot_begin_writes_no_event(tmp_path: Path) -> None:
    async with scene(tmp_path, CONFIG, []) as place:
        unknown, outside = await asyncio.gather(
            exec_run(place, "resume", "0199a2b4-0000-7000-8000-000000000000"),
            exec_run(place, "--cd", str(place.setup.outside)),
        )
    assert (unknown.code, unknown.events) == (outside.code, outside.events) == (1, [])
    assert "no rollout found for thread id 0199a2b4" in unknown.stderr
    assert "is in no git repository" in outside.stderr
    assert "--skip-git-repo-check" in outside.stderr


@pytest.mark.parametrize(
    ("words", "last", "meant"),
    [
        ((), False, (None, None)),
        (("say",), False, (None, "say")),
        (("resume", "id"), False, ("id", None)),
        (("resume", "id", "-"), False, ("id", "-")),
        (("resume",), True, ("", None)),
        (("resume", "say"), True, ("", "say")),
    ],
)
def test_words_name_a_thread_and_a_prompt(words: tuple[str, ...], last: bool, meant: tuple[Any, Any]) -> None:
    assert _read(words, last=last) == meant


@pytest.mark.parametrize(("words", "last"), [(("resume",), False), (("a", "b"), False), (("a",), True)])
def test_words_that_say_too_much_or_too_little_are_refused(words: tuple[str, ...], last: bool) -> None:
    with pytest.raises(Fault):
        _read(words, last=last)


def nested(levels: int) -> dict[str, Any]:
    return {"a": nested(levels - 1)} if levels > 1 else {}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is no JSON Schema: "),
        (b"\x00\xff", "is no JSON Schema: "),
        (b"[]", "a JSON object of at most 1,048,576 bytes is one"),
        (b'{"a":"' + b"x" * (1 << 20) + b'"}', "a JSON object of at most 1,048,576 bytes is one"),
        (b'{"a":"' + b"x" * 65_536 + b'"}', "is too much for a schema: at most 65,536 bytes as JSON"),
        (b'{"a":' * 2_000 + b"1" + b"}" * 2_000, "is no JSON Schema: depth limit exceeded"),
        (json.dumps(nested(33)).encode(), "is too much for a schema: nested deeper than 32 levels"),
    ],
    ids=["empty", "binary", "list", "huge", "large", "too-deep-to-read", "deep"],
)
def test_schema_that_cannot_be_used_is_refused_before_a_session_is_made_for_it(
    content: bytes, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "schema.json"
    file.write_bytes(content)
    with pytest.raises(Fault) as refused:
        _schema(file)
    assert str(refused.value).startswith(str(file))
    assert why in str(refused.value)


def test_schema_at_its_bounds_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(nested(32)))
    assert _schema(file) == nested(32)


class Stdin:
    """The standard input of a process that was handed these bytes."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


@pytest.mark.parametrize(
    ("stdin", "why"),
    [
        (Stdin(b""), "the prompt is empty"),
        (Stdin(b" \n\t"), "the prompt is empty"),
        (Stdin(b"x" * (10 << 20)), "more than 4,194,304 bytes: give the text in a file"),
    ],
    ids=["empty", "blank", "huge"],
)
def test_prompt_that_says_nothing_or_too_much_is_refused(
    stdin: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(Fault, match=why):
        _prompt(None)


def test_prompt_that_is_no_text_is_read_with_marks_in_the_place_of_what_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b"a\xff\x00b"))
    assert _prompt("-") == "a\N{REPLACEMENT CHARACTER}\0b"


def test_run_asks_nobody_unless_the_queue_is_to_be_asked(tmp_path: Path) -> None:
    sources = SettingsSources(tmp_path, {"HOME": "/nobody"}, overrides=["approval_policy=untrusted"])
    refusing = _as_run(load_settings(sources), (tmp_path / "more",))
    assert refusing.session_defaults.approval_policy == "never"
    assert refusing.session_defaults.sandbox.writable_roots == (tmp_path / "more",)
    queue = SettingsSources(
        tmp_path, {"HOME": "/nobody"}, overrides=[*sources.overrides, "exec.approvals=queue"]
    )
    assert _as_run(load_settings(queue), ()).session_defaults.approval_policy == "untrusted"
