"""Look-ups of a worker: beside the task, over losses, within their time; and files that input names."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.core import commands as c
from orchestrator.core.decide.draft import Note
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.settings import PortableFolder, SessionFacts
from orchestrator.core.state import State
from orchestrator.gateways.client import Client
from orchestrator.instructions.skills import Instructions, RecordedSkills
from orchestrator.mcp.server_records import OfferedTool, ServerTool, named
from orchestrator.protocol import ops
from orchestrator.protocol.catalog import (
    CustomPrompt,
    SkillErrorInfo,
    SkillMetadata,
    SkillScope,
    SkillsListEntry,
)
from orchestrator.protocol.events import ListSkillsResponse
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.mcp import Tool
from orchestrator.protocol.submission import Submission
from orchestrator.runtime import arrivals, lookups, machine_files
from orchestrator.runtime.arrivals import with_files
from orchestrator.runtime.machine_files import NoFiles
from orchestrator.runtime.runner import Ended
from orchestrator.tools.mcp_tools import McpToolbox
from tests.broker.actors import holder_died
from tests.runtime.connections import Gate, lost
from tests.runtime.folders import ScriptedFolders
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends

PROMPT = CustomPrompt(name="a", path="/p/a.md", content="Do it.")
PICTURE = "data:image/png;base64,iVBORw0KGgo="
PIXEL = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\2\0\0\0"


@dataclass
class Shelf(NoFiles):
    """A library whose look-ups wait at a gate, and which remembers what was asked of it."""

    gate: Gate | None = None
    asked: list[Any] = field(default_factory=list)
    found: dict[str, str] = field(default_factory=dict)
    fails: Exception | None = None
    keeps_history: bool = True

    async def _look(self, *asked: Any) -> None:
        self.asked.append(asked)
        if self.gate is not None:
            await self.gate.wait()
        if self.fails is not None:
            raise self.fails

    async def instructions(self, folder: str, known: Sequence[str]) -> Instructions:
        await self._look("instructions", folder, tuple(known))
        return Instructions(self.found.get(folder))

    async def prompts(self) -> tuple[CustomPrompt, ...]:
        await self._look("prompts")
        return (PROMPT,)

    async def skills(self, folder: str, *, anew: bool) -> SkillsListEntry:
        await self._look("skills", folder, anew)
        return SkillsListEntry(cwd=folder, skills=())

    async def skill(self, folder: str, path: str) -> str:
        await self._look("skill", folder, path)
        return self.found[path]

    async def image(self, path: Path) -> str:
        await self._look("image", str(path))
        return PICTURE


@pytest.fixture
def shelf(harness: Harness) -> Shelf:
    made = Shelf()
    harness.ports = replace(harness.ports, library=made)
    return made


def items(*given: dict[str, str]) -> ops.UserInput:
    return ops.UserInput.model_validate({"type": "user_input", "items": given})


async def answers(harness: Harness, session: SessionId, type: str) -> list[Any]:
    return await harness.logged_events(session, type)


async def kept(harness: Harness, who: str) -> list[tuple[str, str]]:
    """The prompts of a person's history, with their sessions."""
    requests = harness.broker.requests
    head = await requests.history_head(who, b"12345678")
    found = [await requests.history_entry(who, head.log_id, place) for place in range(head.count)]
    return [(one.session, one.text) for one in found if one is not None]


async def listed(harness: Harness, session: SessionId) -> Any:
    head = await harness.broker.logs.head(session)
    assert head is not None
    return orjson.loads(head.meta)


async def test_prompts_and_skills_are_listed_for_the_folder_that_is_asked_for(
    harness: Harness, shelf: Shelf
) -> None:
    session = await harness.session()
    await harness.submit(session, ops.ListCustomPrompts(), "l1")
    await harness.submit(session, ops.ListSkills(), "l2")
    await harness.submit(session, ops.ListSkills(cwds=("/a", "b"), force_reload=True), "l3")
    assert await harness.run(session) is Ended.PARKED
    (prompts,) = await answers(harness, session, "list_custom_prompts_response")
    assert [prompt["name"] for prompt in prompts["custom_prompts"]] == ["a"]
    listed = await answers(harness, session, "list_skills_response")
    assert [[entry["cwd"] for entry in answer["skills"]] for answer in listed] == [["/tmp"], ["/a", "b"]]
    assert {("skills", "/tmp", False), ("skills", "/a", True), ("skills", "/tmp/b", True)} <= set(shelf.asked)


async def test_history_is_shared_and_a_prompt_is_kept_once_over_a_lost_answer(
    harness: Harness, shelf: Shelf
) -> None:
    first, second = await harness.session(), await harness.session()
    harness.connection.after["add_to_history"] = lost()
    await harness.submit(first, ops.AddToHistory(text="hello"), "h1")
    assert await harness.run(first) is Ended.PARKED
    head = await harness.broker.requests.history_head("ann", b"12345678")
    assert head.count == 1
    for log_id, offset in ((head.log_id, 0), (head.log_id + 1, 0), (head.log_id, 1)):
        await harness.submit(second, ops.GetHistoryEntryRequest(log_id=log_id, offset=offset))
    assert await harness.run(second) is Ended.PARKED
    found = await answers(harness, second, "get_history_entry_response")
    by_question = {(one["log_id"], one["offset"]): one.get("entry") for one in found}
    kept = by_question.pop((head.log_id, 0))
    assert (kept["conversation_id"], kept["text"]) == (first, "hello")
    assert list(by_question.values()) == [None, None]


async def test_prompts_of_any_client_and_session_are_each_kept_in_the_order_of_their_sessions(
    harness: Harness, shelf: Shelf
) -> None:
    others = [Client(harness.client._ports, f"other-{n}", "ann") for n in range(2)]
    clients, sessions = [harness.client, *others], [await harness.session() for _ in range(2)]
    typed: list[tuple[str, str]] = []
    for session in sessions:
        for n, client in enumerate(clients):
            # Each client counts its submissions from the beginning.
            for id in ("1", "2"):
                text = f"{n}: {id}"
                await client.submit(session, Submission(SubmissionId(id), ops.AddToHistory(text=text)))
                typed.append((session, text))
        assert await harness.run(session) is Ended.PARKED
    assert sorted(await kept(harness, "ann")) == sorted(typed)


async def test_same_prompt_of_two_clients_is_kept_twice_and_of_one_submission_once(
    harness: Harness, shelf: Shelf
) -> None:
    other, session = Client(harness.client._ports, "other", "ann"), await harness.session()
    prompt = Submission(SubmissionId("1"), ops.AddToHistory(text="hello"))
    for client in (harness.client, other, harness.client, other):
        await client.submit(session, prompt)
    assert await harness.run(session) is Ended.PARKED
    assert await kept(harness, "ann") == [(session, "hello")] * 2
    assert await kept(harness, "bob") == []


async def test_worker_without_a_history_keeps_nothing(harness: Harness, shelf: Shelf) -> None:
    shelf.keeps_history = False
    session = await harness.session()
    await harness.submit(session, ops.AddToHistory(text="hello"))
    assert await harness.run(session) is Ended.PARKED
    assert (await harness.broker.requests.history_head("ann", b"12345678")).count == 0
    assert await harness.logged_events(session, "error") == []


async def test_configured_session_tells_of_the_senders_history(harness: Harness, shelf: Shelf) -> None:
    session = await harness.session()
    await harness.submit(session, ops.AddToHistory(text="hello"))
    await harness.run(session)
    await harness.submit(session, ops.ConfigureSession())
    await harness.run(session)
    told = (await answers(harness, session, "session_configured"))[-1]
    head = await harness.broker.requests.history_head("ann", b"12345678")
    assert (told["history_log_id"], told["history_entry_count"]) == (head.log_id, 1)


async def test_lookup_that_takes_its_time_disturbs_neither_a_command_nor_an_interrupt(
    harness: Harness, shelf: Shelf
) -> None:
    shelf.gate = Gate()
    session = await harness.session()
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = Gate()
    task = await harness.say(session)
    runner = harness.runner(await harness.claimed(session))
    running = asyncio.create_task(runner.run())
    await harness.tools.began("c1").wait()
    await harness.submit(session, ops.ListCustomPrompts(), "l1")
    runner.notify()
    await shelf.gate.reached.wait()
    assert harness.tools.killed == []
    await harness.submit(session, ops.Interrupt())
    runner.notify()
    aborted = (await harness.until(session, "turn_aborted"))[-1]
    assert aborted.id == task
    assert not running.done(), "the look-up is still owed"
    shelf.gate.open()
    told = (await harness.until(session, "list_custom_prompts_response"))[-1]
    assert told.id == "l1"
    assert await running is Ended.PARKED
    assert shelf.asked == [("prompts",)], "the interrupt did not begin it anew"


async def test_session_that_is_closed_during_a_lookup_is_listed_as_closed_now(
    harness: Harness, shelf: Shelf
) -> None:
    session = await harness.session()
    await harness.submit(session, ops.Shutdown())
    await harness.run(session)
    closed_first = await listed(harness, session)
    shelf.gate = Gate()
    await harness.submit(session, ops.SetThreadName(name="again"))
    await harness.submit(session, ops.ListCustomPrompts(), "l1")
    runner = harness.runner(await harness.claimed(session))
    running = asyncio.create_task(runner.run())
    await shelf.gate.reached.wait()
    await harness.submit(session, ops.Shutdown(), "bye")
    runner.notify()
    await harness.until(session, "shutdown_complete")
    shelf.gate.open()
    assert await running is Ended.PARKED
    head = await harness.broker.logs.head(session)
    assert head is not None
    summary = await listed(harness, session)
    assert summary["seq"] == head.seq > closed_first["seq"], "its time of rest is what upkeep goes by"


async def test_next_worker_answers_what_a_lost_one_was_asked(harness: Harness, shelf: Shelf) -> None:
    shelf.gate = Gate()
    session = await harness.session()
    await harness.submit(session, ops.ListCustomPrompts(), "l1")
    runner = harness.runner(await harness.claimed(session, "lost"))
    task = asyncio.create_task(runner.run())
    await shelf.gate.reached.wait()
    runner.lose()
    assert await task is Ended.LOST
    await holder_died(harness.broker, session)
    shelf.gate = None
    assert await harness.run(session) is Ended.PARKED
    assert len(await answers(harness, session, "list_custom_prompts_response")) == 1
    assert len(await harness.facts(session, "looked_up")) == 1


class CancelGate(Gate):
    """A gate that notes when who waits at it is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.cancelled = asyncio.Event()

    async def wait(self, _: object = None) -> None:
        try:
            await super().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def test_lost_claim_ends_a_lookup_while_its_command_is_still_dying(
    harness: Harness, shelf: Shelf
) -> None:
    shelf.gate = gate = CancelGate()
    session = await harness.session()
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"], harness.tools.deaths["c1"] = Gate(), Gate()
    await harness.say(session)
    runner = harness.runner(await harness.claimed(session))
    running = asyncio.create_task(runner.run())
    await harness.tools.began("c1").wait()
    await harness.submit(session, ops.ListCustomPrompts(), "l1")
    runner.notify()
    await gate.reached.wait()
    runner.lose()
    async with asyncio.timeout(10):
        await harness.tools.deaths["c1"].reached.wait()
        await gate.cancelled.wait()
    assert not running.done()
    harness.tools.deaths["c1"].open()
    assert await running is Ended.LOST


async def test_draining_worker_leaves_a_lookup_to_the_next_one(harness: Harness, shelf: Shelf) -> None:
    shelf.gate = Gate()
    session = await harness.session()
    await harness.submit(session, ops.ListCustomPrompts(), "l1")
    runner = harness.runner(await harness.claimed(session), drain_grace_s=0.0)
    task = asyncio.create_task(runner.run())
    await shelf.gate.reached.wait()
    runner.drain()
    assert await task is Ended.YIELDED
    shelf.gate = None
    assert await harness.run(session) is Ended.PARKED
    assert len(await answers(harness, session, "list_custom_prompts_response")) == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TimeoutError(), "the files did not answer within 10 s"),
        (ValueError("too many"), "list_custom_prompts was not answered: too many"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (RuntimeError("broken"), "internal error: RuntimeError: broken"),
    ],
)
async def test_lookup_that_fails_is_an_error_under_its_id(
    error: Exception, message: str, harness: Harness, shelf: Shelf
) -> None:
    shelf.fails = error
    session = await harness.session()
    await harness.submit(session, ops.ListCustomPrompts(), "l1")
    assert await harness.run(session) is Ended.PARKED
    (told,) = await answers(harness, session, "error")
    assert message in told["message"]


async def test_files_that_do_not_answer_are_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_files, "PATIENCE_S", 0.01)
    held = asyncio.Event()
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
        await machine_files._read(lambda: asyncio.run_coroutine_threadsafe(held.wait(), loop).result())
    held.set()


async def test_answer_that_is_more_than_a_step_can_record_is_an_error(
    harness: Harness, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = [PROMPT.model_copy(update={"name": f"n{number}" * 40}) for number in range(20_000)]

    async def prompts(self: Shelf) -> tuple[CustomPrompt, ...]:
        return tuple(long)

    monkeypatch.setattr(Shelf, "prompts", prompts)
    session = await harness.session()
    await harness.submit(session, ops.ListCustomPrompts(), "l1")
    assert await harness.run(session) is Ended.PARKED
    (told,) = await answers(harness, session, "error")
    assert "the answer could not be recorded" in told["message"]


# ── input that names files ────────────────────────────────────────────────────────────────────


async def test_image_is_read_from_the_folder_that_the_session_will_be_in(
    harness: Harness, shelf: Shelf, tmp_path: Path
) -> None:
    session = await harness.session()
    await harness.submit(session, ops.OverrideTurnContext(cwd=str(tmp_path)))
    await harness.submit(session, items({"type": "local_image", "path": "relative.png"}))
    await harness.run(session)
    assert ("image", str(tmp_path / "relative.png")) in shelf.asked
    (told,) = await answers(harness, session, "user_message")
    assert told["local_images"] == [str(tmp_path / "relative.png")]
    (content,) = [
        part
        for item in harness.models.prompts[0].input
        for part in item.get("content", ())
        if part["type"] == "input_image"
    ]
    assert content["image_url"] == PICTURE


async def test_image_behind_several_folders_is_read_from_the_last_one(
    harness: Harness, shelf: Shelf, tmp_path: Path
) -> None:
    session = await harness.session()
    await harness.submit(session, ops.OverrideTurnContext(cwd="/first"))
    await harness.submit(session, ops.OverrideTurnContext(cwd=str(tmp_path)))
    await harness.submit(session, items({"type": "local_image", "path": "relative.png"}))
    await harness.run(session)
    assert ("image", str(tmp_path / "relative.png")) in shelf.asked


async def test_images_in_a_portable_folder_are_read_at_once_from_what_was_recorded_of_it(
    harness: Harness, shelf: Shelf
) -> None:
    folders = ScriptedFolders()
    folders.files = {"a.png": PIXEL, "b/b.png": PIXEL, "text.png": b"hello"}
    harness.ports = replace(harness.ports, folders=folders)
    session = await harness.session(portable=PortableFolder("/workspaces", "repo"))
    top = f"/workspaces/{session}/repo"

    def images(*paths: str) -> ops.UserInput:
        return items(*({"type": "local_image", "path": path} for path in paths))

    out, beside = f"{top}/../other.png", f"{top}sitory/b.png"
    await harness.submit(session, images(f"{top}/a.png", out, f"{top}/c/../b/./b.png", beside))
    assert await harness.run(session) is Ended.PARKED
    assert [asked for asked in folders.asked if asked.startswith("read")] == ["read a.png b/b.png"]
    assert shelf.asked == [("image", out), ("image", beside)]
    url = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    sent = [
        part["image_url"]
        for item in harness.models.prompts[0].input
        for part in item.get("content", ())
        if part["type"] == "input_image"
    ]
    assert sent == [url, PICTURE, url, PICTURE]
    for path, why in (("gone.png", "it is not there"), ("text.png", "it is no PNG, JPEG, GIF or WebP image")):
        await harness.submit(session, images(f"{top}/a.png", f"{top}/{path}"))
        assert await harness.run(session) is Ended.PARKED
        told = (await answers(harness, session, "error"))[-1]["message"]
        assert f"items[1]: the image {top}/{path} cannot be used: {why}" in told
    assert len(harness.models.prompts) == 1


async def test_skills_of_a_portable_folder_are_listed_and_read_as_recorded_and_others_on_the_machine(
    harness: Harness, shelf: Shelf
) -> None:
    folders = ScriptedFolders()
    harness.ports = replace(harness.ports, folders=folders)
    session = await harness.session(portable=PortableFolder("/workspaces", "repo"))
    top = f"/workspaces/{session}/repo"
    file = f"{top}/.agents/skills/x/SKILL.md"
    skill = SkillMetadata(name="x", description="For x.", path=file, scope=SkillScope.REPO)
    folders.found = RecordedSkills((skill,), (), {file: "Do x."})
    shelf.found["/home/ann/own/SKILL.md"] = "Do it as I do."
    await harness.submit(session, ops.OverrideTurnContext(cwd=f"{top}/a"))
    await harness.submit(session, ops.ListSkills(), "l1")
    await harness.submit(session, ops.ListSkills(cwds=(top, "/elsewhere")), "l2")
    assert await harness.run(session) is Ended.PARKED
    listed = {
        entry["cwd"]: [each["name"] for each in entry["skills"]]
        for answer in await answers(harness, session, "list_skills_response")
        for entry in answer["skills"]
    }
    assert listed == {f"{top}/a": ["x"], top: ["x"], "/elsewhere": []}
    assert {("skills", "", False), ("skills", "/elsewhere", False)} == set(shelf.asked)
    shelf.asked.clear()
    folders.asked.clear()
    paths = ("../.agents/skills/x/SKILL.md", file, "/home/ann/own/SKILL.md")
    named = [{"type": "skill", "name": "x", "path": path} for path in paths]
    await harness.submit(session, items(*named))
    assert await harness.run(session) is Ended.PARKED
    sent = str(harness.models.prompts[0].input)
    assert sent.count("Do x.") == 2
    assert "Do it as I do." in sent
    assert shelf.asked == [("skill", "", "/home/ann/own/SKILL.md")]
    assert [asked for asked in folders.asked if asked.startswith("skills")] == [f"skills {top}/a"]
    await harness.submit(session, items({"type": "skill", "name": "y", "path": f"{top}/y/SKILL.md"}))
    assert await harness.run(session) is Ended.PARKED
    told = (await answers(harness, session, "error"))[-1]["message"]
    assert f"the skill y cannot be used: {top}/y/SKILL.md is no skill of {top}/a: `list_skills` names" in told


async def test_skills_of_a_folder_that_cannot_be_read_are_an_error_beside_those_of_the_person(
    harness: Harness, shelf: Shelf
) -> None:
    state = State(facts=SessionFacts(tree_id=TreeId("t"), portable=PortableFolder("/workspaces", "repo")))
    state = replace(state, settings=replace(state.settings, cwd="/workspaces/t/repo"))
    found: Any = await lookups._skills(harness.ports, state, ops.ListSkills())
    (entry,) = found.skills
    (error,) = entry.errors
    assert (error.path, "this worker makes no folders" in error.message) == (state.settings.cwd, True)
    assert shelf.asked == [("skills", "", False)]


async def test_skills_of_many_folders_have_the_time_of_one_look_up(
    harness: Harness, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.gate = Gate()
    monkeypatch.setattr(lookups, "PATIENCE_S", 0.01)
    session = await harness.session()
    await harness.submit(session, ops.ListSkills(cwds=("/a", "/b")), "l1")
    assert await harness.run(session) is Ended.PARKED
    (told,) = await answers(harness, session, "error")
    assert "the files did not answer within 0.01 s" in told["message"]
    assert shelf.asked == [("skills", "/a", False)]


@pytest.mark.parametrize(("found", "fits"), [((2, 1), True), ((2, 2), False), ((0, 4), False)])
async def test_skills_and_errors_of_all_folders_are_bounded_together(
    found: tuple[int, int], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "MOST_LISTED", 3)
    folders = dict(zip(("/a", "/b"), found, strict=True))

    async def skills(folder: str, *, anew: bool) -> SkillsListEntry:
        errors = tuple(SkillErrorInfo(path=f"{n}", message="bad") for n in range(folders[folder]))
        return SkillsListEntry(cwd=folder, skills=(), errors=errors)

    ports: Any = SimpleNamespace(library=SimpleNamespace(skills=skills))
    asked = lookups._skills(ports, State(), ops.ListSkills(cwds=("/a", "/b")))
    if fits:
        told = await asked
        assert isinstance(told, ListSkillsResponse)
        assert [len(entry.errors) for entry in told.skills] == [*found]
    else:
        with pytest.raises(ValueError, match="more than 3 skills together"):
            await asked


async def test_worker_that_makes_no_folders_says_so_of_an_image_in_one(
    harness: Harness, shelf: Shelf
) -> None:
    state = State(facts=SessionFacts(tree_id=TreeId("t"), portable=PortableFolder("/workspaces", "repo")))
    op = items({"type": "local_image", "path": "a.png"})
    command = c.Submitted(SubmissionId("u1"), op)
    note = await with_files(harness.ports, state, command, lambda _: "/workspaces/t/repo")
    assert isinstance(note, Note)
    assert "cannot be used: this worker makes no folders" in str(note)


@pytest.mark.parametrize(("sizes", "fits"), [((60, 40), True), ((60, 41), False), ((41, 10, 50), False)])
async def test_images_of_one_op_are_bounded_together(
    sizes: tuple[int, ...], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "MOST_IMAGE_BYTES", 100)

    async def image(path: Path) -> str:
        return "x" * int(path.name)

    ports: Any = SimpleNamespace(library=SimpleNamespace(image=image))
    op = items(*({"type": "local_image", "path": str(size)} for size in sizes))
    read = await with_files(ports, State(), c.Submitted(SubmissionId("u1"), op), lambda _: "/repo")
    if fits:
        assert isinstance(read, c.Submitted)
        assert [len(item["image_url"]) for item in read.items or ()] == [*sizes]
    else:
        last = len(sizes) - 1
        assert f"items[{last}]: the image /repo/{sizes[last]} cannot be used: the images" in str(read)


PICTURED = {"type": "local_image", "path": "relative.png"}
NAMES_A_FOLDER: dict[str, Callable[[str, list[dict[str, str]]], ops.Op]] = {
    "override_turn_context": lambda cwd, _: ops.OverrideTurnContext(cwd=cwd),
    "configure_session": lambda cwd, _: ops.ConfigureSession(cwd=cwd),
    "user_turn": lambda cwd, said: _user_turn(cwd, said),
    "user_input": lambda cwd, said: ops.UserInput.model_validate(
        {"type": "user_input", "items": said, "overrides": {"type": "override_turn_context", "cwd": cwd}}
    ),
}


def _user_turn(cwd: str, said: list[dict[str, str]]) -> ops.Op:
    return ops.UserTurn.model_validate(
        {"type": "user_turn", "items": said, "cwd": cwd, "approval_policy": "never", "model": "m"}
        | {"sandbox_policy": {"type": "read-only"}, "summary": "auto", "delivery": "queue"}
    )


def _words() -> list[dict[str, str]]:
    return [{"type": "text", "text": "go"}]


@pytest.mark.parametrize("named", NAMES_A_FOLDER)
@pytest.mark.parametrize("decided", [False, True])
async def test_image_is_read_from_the_folder_that_any_op_before_it_named(
    harness: Harness, shelf: Shelf, named: str, decided: bool
) -> None:
    session = await harness.session()
    for cwd in ("/there", "below"):
        await harness.submit(session, NAMES_A_FOLDER[named](cwd, _words()))
        if decided:
            await harness.run(session)
    await harness.submit(session, items(PICTURED))
    await harness.run(session)
    assert ("image", "/there/below/relative.png") in shelf.asked


@pytest.mark.parametrize("named", ["user_turn", "user_input"])
async def test_image_is_read_from_the_folder_that_its_own_input_names(
    harness: Harness, shelf: Shelf, named: str
) -> None:
    session = await harness.session()
    await harness.submit(session, ops.OverrideTurnContext(cwd="/there"))
    await harness.submit(session, NAMES_A_FOLDER[named]("below", [PICTURED]))
    await harness.run(session)
    assert ("image", "/there/below/relative.png") in shelf.asked


async def test_image_in_the_place_of_words_that_wait_is_read_from_the_folder_that_they_will_find(
    harness: Harness, shelf: Shelf
) -> None:
    session = await harness.session()
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = Gate()
    await harness.say(session)
    runner = harness.runner(await harness.claimed(session))
    running = asyncio.create_task(runner.run())
    await harness.tools.began("c1").wait()
    await harness.submit(session, NAMES_A_FOLDER["user_turn"]("/first", _words()), "first")
    await harness.submit(session, NAMES_A_FOLDER["user_turn"]("/second", _words()), "second")
    change = {"type": "update_queued", "submission_id": "first", "items": [PICTURED]}
    await harness.submit(session, ops.UpdateQueued.model_validate(change), "change")
    runner.notify()
    await harness.until(session, "queue_changed")
    harness.tools.gates["c1"].open()
    assert await running is Ended.PARKED
    assert [path for kind, path in shelf.asked if kind == "image"] == ["/first/relative.png"]


async def test_file_that_cannot_be_read_is_an_error_and_the_running_task_goes_on(
    harness: Harness, shelf: Shelf
) -> None:
    session = await harness.session()
    harness.models.will([calls("c1"), ends()])
    harness.tools.gates["c1"] = Gate()
    await harness.say(session)
    runner = harness.runner(await harness.claimed(session))
    running = asyncio.create_task(runner.run())
    await harness.tools.began("c1").wait()
    shelf.fails = ValueError("it is no PNG, JPEG, GIF or WebP image")
    await harness.submit(session, items({"type": "local_image", "path": "x.png"}), "bad")
    runner.notify()
    told = (await harness.until(session, "error"))[-1]
    assert told.id == "bad"
    assert "items[0]: the image /tmp/x.png cannot be used: it is no PNG" in told.msg["message"]
    harness.tools.gates["c1"].open()
    assert await running is Ended.PARKED
    assert await harness.logged_events(session, "turn_aborted") == []


@pytest.mark.parametrize("url", ["http://x/a.png", "data:image/png;base64,aGVsbG8="])
async def test_url_that_is_no_image_begins_no_task(url: str, harness: Harness, shelf: Shelf) -> None:
    session = await harness.session()
    await harness.submit(session, items({"type": "image", "image_url": url}))
    await harness.run(session)
    assert len(await answers(harness, session, "error")) == 1
    assert harness.models.prompts == []


async def test_skill_is_read_and_a_client_cannot_write_it(harness: Harness, shelf: Shelf) -> None:
    shelf.found["/s/SKILL.md"] = "Do it."
    session = await harness.session()
    skill = {"type": "skill", "name": "pdf", "path": "/s/SKILL.md", "content": "evil"}
    await harness.submit(session, items({"type": "text", "text": "use"}, skill))
    await harness.run(session)
    said = str(harness.models.prompts[0].input)
    assert "Do it." in said
    assert "evil" not in said
    assert ("skill", "/tmp", "/s/SKILL.md") in shelf.asked


NOTES = ("notes", "notes2", "my notes", "notes.v1", "a", "a__b", "x" * 64)


@pytest.mark.parametrize("name", NOTES)
async def test_mention_stands_for_the_server_of_its_name_and_for_no_other(
    name: str, harness: Harness, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = [
        ServerTool(server, tool, "", {}, Tool(name=tool, input_schema={}))
        for server in NOTES
        for tool in ("add", "b__add", "t" * 80)
    ]
    offered = named(tools)

    class Up:
        """Servers that have started."""

        async def up(self, cwd: Path) -> Sequence[OfferedTool]:
            return offered

    monkeypatch.setattr(harness.tools, "of_servers", McpToolbox(cast(Any, Up())).listed)
    session = await harness.session()
    await harness.submit(session, items({"type": "mention", "name": name, "path": f"app://{name}"}))
    await harness.run(session)
    said = str(harness.models.prompts[0].input)
    told = {each.full_name for each in offered if re.search(rf"\b{re.escape(each.full_name)}(?![\w-])", said)}
    assert f"@{name}" in said
    assert told == {each.full_name for each in offered if each.tool.server == name}
    assert await answers(harness, session, "warning") == []


@pytest.mark.parametrize(
    ("path", "fails"), [("app://other", False), ("/notes", False), ("app://notes", True)]
)
async def test_mention_of_no_server_is_a_warning_and_stays_in_the_text(
    path: str, fails: bool, harness: Harness, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def of_servers(state: object, server: str | None = None) -> Any:
        if fails:
            raise RuntimeError("no server came up")
        return {"mcp__notes__add": None} if server == "notes" else {}

    monkeypatch.setattr(harness.tools, "of_servers", of_servers)
    session = await harness.session()
    await harness.submit(session, items({"type": "mention", "name": "notes", "path": path}))
    await harness.run(session)
    said = str(harness.models.prompts[0].input)
    assert ("@notes" in said, "mcp__notes__add" in said) == (True, False)
    (warning,) = await answers(harness, session, "warning")
    assert path in warning["message"]


async def test_op_names_only_so_many_skills(harness: Harness, shelf: Shelf) -> None:
    shelf.found["/s"] = "Do it."
    session = await harness.session()
    skill = {"type": "skill", "name": "pdf", "path": "/s"}
    await harness.submit(session, items(*[skill] * 17))
    await harness.run(session)
    (told,) = await answers(harness, session, "error")
    assert "items[16]: the skill pdf cannot be used: at most 16 skills" in told["message"]


async def test_new_folders_instructions_are_in_the_first_request_there(
    harness: Harness, shelf: Shelf, tmp_path: Path
) -> None:
    shelf.found[str(tmp_path)] = "Be kind."
    session = await harness.session()
    await harness.say(session)
    await harness.run(session)
    assert shelf.asked == []
    await harness.submit(session, ops.OverrideTurnContext(cwd=str(tmp_path)))
    await harness.say(session)
    await harness.run(session)
    await harness.say(session)
    await harness.run(session)
    assert shelf.asked == [("instructions", str(tmp_path), ("/tmp",))]
    requests = [str(prompt.input).count("Be kind.") for prompt in harness.models.prompts]
    assert requests == [0, 1, 1]


async def test_session_goes_on_where_instructions_cannot_be_read(
    harness: Harness, shelf: Shelf, tmp_path: Path
) -> None:
    session = await harness.session()
    shelf.fails = TimeoutError()
    await harness.submit(session, ops.OverrideTurnContext(cwd=str(tmp_path)))
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    assert len(harness.models.prompts) == 1
