"""Calls of `apply_patch`, from their check to what the model and people are told; written in this process."""

from __future__ import annotations

import asyncio
import marshal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.core.calls import ApplyPatch, Call
from orchestrator.core.commands import CallFinished, Immediate
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.record_json import whole
from orchestrator.core.settings import PortableFolder, SessionFacts, TurnSettings
from orchestrator.core.state import State, Task
from orchestrator.protocol.events import PatchApplyEnd, TurnDiff
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.sandbox.policy_paths import Place
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.tools import apply_patch
from orchestrator.tools.apply_patch import CHANGED_SINCE, WHOLE, ApplyPatchTool, PatchRequest
from orchestrator.tools.exec.command import Written
from orchestrator.tools.patch import writer
from orchestrator.tools.tool_context import CallSite, ToolConfig

SUPPORT = SandboxSupport(None, 0, ())
FULL = {"mode": "danger-full-access"}
WRITABLE = {"mode": "workspace-write", "exclude_slash_tmp": True, "exclude_tmpdir_env_var": True}


class Hand:
    """A supervisor that writes patches in the test's own process."""

    async def write(self, claim: str, job: Any) -> Written:
        outcome = await asyncio.to_thread(writer.carry_out, marshal.loads(marshal.dumps(job)))
        return Written(marshal.loads(marshal.dumps(outcome)))


class Session:
    """A task whose model patches files; its diff counts from what the core keeps of each patch."""

    def __init__(
        self,
        folder: Path,
        policy: Any = None,
        *,
        config: ToolConfig | None = None,
        facts: SessionFacts | None = None,
        granted: tuple[str, ...] = (),
    ) -> None:
        settings = TurnSettings(str(folder), "never", policy or FULL, "gpt-5")
        task = Task(SubmissionId("u1"), "user", settings)
        self.state = State(facts=facts or SessionFacts(), task=task, granted_roots=granted)
        self.tool = ApplyPatchTool(config or ToolConfig(SUPPORT, {}), cast(Any, Hand()))

    @property
    def site(self) -> CallSite:
        return CallSite("c", self.state, lambda _: None)

    async def asks(self, *lines: str, workdir: str | None = None) -> Any:
        text = "\n".join(("*** Begin Patch", *lines, "*** End Patch"))
        return await self.tool.assess_request(PatchRequest(text, workdir), self.site)

    async def runs(self, asked: ApplyPatch, *, sandboxed: bool = False) -> CallFinished:
        work = asked.work(sandboxed=sandboxed)
        done = await self.tool.run(Call(CallId("p1"), "apply_patch", {}, work=work), self.site)
        task = self.state.task
        if done.applied and task is not None:
            kept = {path: data for path, data in task.baselines.items() if path not in work.baselines["drop"]}
            task = replace(task, baselines={**kept, **work.baselines["set"]})
            self.state = replace(self.state, task=task)
        return done

    async def patches(self, *lines: str) -> str:
        """The diff of the task behind the patch."""
        asked = await self.asks(*lines)
        assert isinstance(asked, ApplyPatch), asked
        done = await self.runs(asked)
        assert done.applied, done.output
        (diff,) = (event.unified_diff for event in done.events if isinstance(event, TurnDiff))
        return diff


def changes(diff: str) -> list[str]:
    """The files and the lines of a diff."""
    marks = ("diff ", "+", "-")
    return [line for line in diff.splitlines() if line.startswith(marks) and line[:3] not in ("+++", "---")]


@pytest.mark.parametrize("inline", [True, False], ids=["baselines by path", "baselines as one text"])
async def test_diff_of_a_task_counts_from_what_was_there_before_its_first_patch(
    tree: Path, monkeypatch: pytest.MonkeyPatch, inline: bool
) -> None:
    session = Session(tree)
    if not inline:
        monkeypatch.setattr(apply_patch, "INLINE_BYTES", 0)
    diff = await session.patches("*** Update File: a.txt", "-one", "+1")
    assert changes(diff) == ["diff --git a/a.txt b/a.txt", "-one", "+1"]
    moved = ["diff --git a/a.txt b/b.txt", "-one", "-two", "+1", "+2"]
    diff = await session.patches("*** Update File: a.txt", "*** Move to: b.txt", "-two", "+2")
    assert changes(diff) == moved
    diff = await session.patches("*** Add File: n", "+new", "*** Delete File: README.md")
    gone, new = ["diff --git a/README.md b/README.md", "-hello"], ["diff --git a/n b/n", "+new"]
    assert changes(diff) == [*gone, *moved, *new]
    refused = await session.asks("*** Update File: n", "-no such line")
    assert isinstance(refused, Immediate)
    diff = await session.patches("*** Delete File: n", "*** Add File: README.md", "+hello")
    assert changes(diff) == moved
    diff = await session.patches("*** Update File: b.txt", "*** Move to: a.txt", "-1", "-2", "+one", "+two")
    assert diff == ""
    assert (tree / "a.txt").read_text() == "one\ntwo\nthree\n"
    await session.patches("*** Update File: a.txt", "*** Move to: b.txt", "-one", "+1")
    diff = await session.patches("*** Add File: a.txt", "+one", "+two", "+three")
    assert changes(diff) == ["diff --git a/b.txt b/b.txt", "+1", "+two", "+three"]


@pytest.mark.parametrize("more", [0, 1])
async def test_diff_begins_anew_where_more_is_to_be_kept_than_can_be_stored(
    tree: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    monkeypatch.setattr(apply_patch, "INLINE_BYTES", 0)
    session = Session(tree)
    first = ("*** Update File: a.txt", "-one", "+1")
    asked = await session.asks(*first)
    monkeypatch.setattr(apply_patch, "MOST_STORED", len(asked.baselines["set"][WHOLE]) - more)
    assert changes(await session.patches(*first)) == ([] if more else [
        "diff --git a/a.txt b/a.txt", "-one", "+1"
    ])  # fmt: skip
    monkeypatch.undo()
    diff = await session.patches("*** Update File: a.txt", "-two", "+2")
    before = [] if more else ["-one"]
    after = [] if more else ["+1"]
    assert changes(diff) == ["diff --git a/a.txt b/a.txt", *before, "-two", *after, "+2"]


def rewrite(tree: Path) -> None:
    (tree / "a.txt").write_text("one\ntwo\nthree\nfour\n")


def come_up(tree: Path) -> None:
    (tree / "new.txt").write_text("theirs\n")


def come_up_at_the_end(tree: Path) -> None:
    (tree / "moved.txt").write_text("theirs\n")


def change_what_goes(tree: Path) -> None:
    (tree / "gone.txt").write_text("other words\n")


def lead_elsewhere(tree: Path) -> None:
    (tree / "link").unlink()
    (tree / "link").symlink_to("twin.txt")


@pytest.mark.parametrize(
    "meddle",
    [rewrite, come_up, come_up_at_the_end, change_what_goes, lead_elsewhere],
    ids=lambda it: it.__name__,
)
async def test_patch_is_written_as_it_was_approved_or_not_at_all(
    tree: Path, everything_below: Callable[[Path], Any], meddle: Callable[[Path], None]
) -> None:
    """Each of these patches would still fit, and do something else than what a person has seen."""
    for name in ("gone.txt", "twin.txt", "first.txt"):
        (tree / name).write_text("same\n")
    (tree / "link").symlink_to("first.txt")
    session = Session(tree)
    asked = await session.asks(
        *("*** Update File: a.txt", "-one", "+1"),
        *("*** Add File: new.txt", "+ours"),
        *("*** Update File: README.md", "*** Move to: moved.txt", "-hello", "+bye"),
        "*** Delete File: gone.txt",
        *("*** Update File: link", "-same", "+other"),
    )
    meddle(tree)
    before = everything_below(tree)
    done = await session.runs(asked)
    assert CHANGED_SINCE in done.output
    assert not done.applied
    (end,) = done.events
    assert isinstance(end, PatchApplyEnd)
    assert (end.success, end.stdout, end.stderr) == (False, "", CHANGED_SINCE)
    assert everything_below(tree) == before


@pytest.mark.parametrize("sandboxed", [True, False])
async def test_patch_outside_of_its_roots_is_written_only_where_it_was_let_out(
    tree: Path, everything_below: Callable[[Path], Any], sandboxed: bool
) -> None:
    session = Session(tree, WRITABLE)
    asked = await session.asks("*** Add File: n", "+x", "*** Add File: ../other/n", "+x")
    assert asked.outside == (f"{tree.parent}/other/n",)
    before = everything_below(tree.parent)
    done = await session.runs(asked, sandboxed=sandboxed)
    assert done.applied is not sandboxed
    if sandboxed:
        assert f"outside of the writable roots: {tree.parent}/other/n" in done.output
        assert everything_below(tree.parent) == before


@pytest.mark.parametrize("workdir", ["sub", "./sub/", "{}/sub", "sub/../sub"])
async def test_patch_of_a_command_counts_from_the_commands_folder(tree: Path, workdir: str) -> None:
    (tree / "sub").mkdir()
    session = Session(tree)
    asked = await session.asks("*** Add File: n", "+x", workdir=workdir.format(tree))
    assert list(asked.changes) == [f"{tree}/sub/n"]
    assert (await session.runs(asked)).applied
    assert (tree / "sub/n").read_text() == "x\n"
    assert not (tree / "n").exists()


async def test_whoever_is_asked_reads_of_each_path_outside_where_it_leads_in_the_patches_order(
    tree: Path,
) -> None:
    for name in ("one", "two"):
        (tree.parent / "other" / name).mkdir()
        (tree / f"link-{name}").symlink_to(f"../other/{name}")
    asked = await Session(tree, WRITABLE).asks(
        *("*** Add File: link-two/b", "+x"),
        *("*** Add File: inside", "+x"),
        *("*** Add File: ../other/c", "+x"),
        *("*** Update File: a.txt", "*** Move to: link-one/a", "-one"),
    )
    other = tree.parent / "other"
    assert asked.outside == (f"{other}/two/b", f"{other}/c", f"{other}/one/a")
    assert {f"patch:{path}" for path in asked.outside} <= asked.keys


GUARDED = {
    ".git/hooks/x": "a repository",
    "extra/.git/config": "the repository of another root",
    "dendro.toml": "settings that are there",
    "deep/trusted/dendro.toml": "settings that a person trusted and took away",
    "named.toml": "the configuration in force",
    "extra/named.toml": "another file of it",
}


@pytest.mark.parametrize("path", GUARDED)
async def test_patch_asks_about_each_file_that_no_command_may_write_and_about_no_other(
    tree: Path, path: str
) -> None:
    (tree / "dendro.toml").write_text("")
    for folder in ("extra/.git/refs", "deep/trusted"):
        (tree / folder).mkdir(parents=True)
    for name in ("named.toml", "extra/named.toml"):
        (tree / name).write_text("")
    config = ToolConfig(
        SUPPORT,
        {},
        read_only=(tree / "named.toml", tree / "extra/named.toml"),
        trusted=lambda: [tree / "deep/trusted/dendro.toml"],
    )
    session = Session(tree, {**WRITABLE, "writable_roots": [f"{tree}/extra"]}, config=config)
    beside = (str(Path(path).parent / "beside.txt"), "extra/free", "deep/dendro.toml")
    asked = await session.asks(f"*** Add File: {path}", "+x")
    assert asked.outside == (f"{tree}/{path}",), GUARDED[path]
    for free in beside:
        if ".git" not in free:
            assert (await session.asks(f"*** Add File: {free}", "+x")).outside == ()


async def test_folder_that_was_granted_is_patched_unasked_and_no_other_one(tree: Path) -> None:
    names = ("one", "two", "named", "fourth")
    for name in names:
        (tree.parent / name).mkdir()
    granted = (f"{tree.parent}/one", f"{tree.parent}/two")
    session = Session(tree, {**WRITABLE, "writable_roots": [f"{tree.parent}/named"]}, granted=granted)
    asked = await session.asks(*(word for name in names for word in (f"*** Add File: ../{name}/n", "+x")))
    assert asked.outside == (f"{tree.parent}/fourth/n",)
    reading = Session(tree, {"mode": "read-only"}, granted=granted)
    assert (await reading.asks("*** Add File: ../one/n", "+x")).outside == (f"{tree.parent}/one/n",)


@pytest.mark.parametrize("where", ["first", "second"])
@pytest.mark.parametrize("lines", [("*** Add File: {}/new", "+x"), ("*** Delete File: {}/secret",)])
async def test_patch_reaches_into_none_of_several_hidden_folders(
    tree: Path, where: str, lines: tuple[str, ...]
) -> None:
    hidden = tuple(tree / name for name in ("first", "second"))
    for folder in hidden:
        folder.mkdir()
        (folder / "secret").write_text("x\n")
    session = Session(tree, WRITABLE, config=ToolConfig(SUPPORT, {}, hidden=hidden))
    refused = await session.asks(*(line.format(where) for line in lines))
    assert isinstance(refused, Immediate)
    assert "Dendro keeps it from sessions" in str(refused.output)


async def test_diff_of_a_portable_folder_names_every_file_as_commands_do(tmp_path: Path) -> None:
    root = tmp_path / "home/workspaces"
    place = Place.of(root, "t", "s", "work")
    for folder in (place.here, place.temporary, place.seen):
        folder.mkdir(parents=True)
    facts = SessionFacts(
        session_id=SessionId("s"), tree_id=TreeId("t"), portable=PortableFolder(str(root), "work")
    )
    config = ToolConfig(SUPPORT, {}, hidden=(tmp_path / "home",))
    session = Session(place.seen, {"mode": "workspace-write"}, facts=facts, config=config)
    diff = await session.patches("*** Add File: here", "+x", "*** Add File: /tmp/note", "+y")
    assert (place.temporary / "note").read_text() == "y\n"
    assert changes(diff) == ["diff --git a//tmp/note b//tmp/note", "+y", "diff --git a/here b/here", "+x"]
    diff = await session.patches("*** Update File: /tmp/note", "*** Move to: kept", "-y", "+z")
    assert "diff --git a//tmp/note b/kept" in diff
    assert str(root) not in diff


async def test_large_record_of_a_patch_is_read_again_from_its_text(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_patch, "INLINE_BYTES", 0)
    session = Session(tree)
    asked = await session.asks("*** Update File: a.txt", "-one", "+1", "*** Add File: né", "+x")
    assert isinstance(whole(asked.record) if not isinstance(asked.record, list) else asked.record, str)
    assert asked.keys == {f"patch:{tree}/a.txt", f"patch:{tree}/né"}
    assert (await session.runs(asked)).applied
    call = Call(CallId("p1"), "apply_patch", {}, work=asked.work(sandboxed=False))
    assert await session.tool.judge(call, "c") == "all"
