"""First content of portable sessions: from a folder of this machine, another session, or nowhere."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.broker.errors import Unavailable
from orchestrator.core.birth import Birth, ForkedFrom, first_entries
from orchestrator.core.evolve import fold
from orchestrator.core.frozen import replace
from orchestrator.core.ids import TreeId
from orchestrator.core.state import State
from orchestrator.core.workspace import Unsaved
from orchestrator.folders.copy import Copy
from orchestrator.folders.outcomes import FolderSnapshot, Place
from orchestrator.gateways.folder_facts import Workspace
from orchestrator.protocol.ops import WorkspaceSource
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.wiring.new_sessions import new_birth
from orchestrator.wiring.portable import (
    NoWorkspace,
    first_folder,
    forked_folder,
    machine_config,
    machine_folders,
    pack_store,
    with_folder,
)
from orchestrator.workspaces.host_folders import birth_bounds
from orchestrator.workspaces.pack_keys import new_file
from orchestrator.workspaces.stored_packs import PackName, Packs
from tests.instructions.test_skills import write
from tests.workspaces.machines import tree_of

New = Callable[..., Settings]
APP = "https://git.example/team/app.git"


class Announced(list[str]):
    """A broker that notes what it is told of."""

    async def announce(self, session: str) -> int:
        self.append(session)
        return 1


ANNOUNCED: Any = Announced()


class Told:
    """A broker and a store that note in which order they hear of sessions that are to be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, away: bool = False) -> None:
        self.seen: list[tuple[str, str]] = []
        self.away = away
        put = Packs.put

        async def noted(packs: Packs, name: PackName, file: Path) -> None:
            self.seen.append(("stored", name.session))
            await put(packs, name, file)

        monkeypatch.setattr(Packs, "put", noted)

    async def announce(self, session: str) -> int:
        self.seen.append(("announced", session))
        if self.away:
            raise Unavailable("no Redis")
        return 7


@pytest.fixture
def settings(tmp_path: Path) -> New:
    def load(*overrides: str, cwd: Path | None = None) -> Settings:
        folder = cwd or tmp_path / "work"
        folder.mkdir(exist_ok=True)
        environ = {"HOME": str(tmp_path), "DENDRO_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
        return load_settings(SettingsSources(folder, environ, overrides=overrides))

    return load


async def born(settings: Settings, wish: WorkspaceSource, source: State | None = None) -> Birth:
    first = first_folder(settings, wish, None if source is None else (source, "s1"))
    birth = new_birth(settings, Workspace(), 1_790_000_000_000, os.urandom, first)
    return await with_folder(ANNOUNCED, settings, birth, first)


def state_of(birth: Birth) -> State:
    return fold(State(), first_entries(birth), 1)


async def made(settings: Settings, state: State, target: Path) -> dict[str, str]:
    """The folder of a session, as any machine makes it from the store."""
    files = []
    for number, pack in enumerate(state.workspace.packs):
        files.append(target.parent / f"{target.name}-{number}.pack")
        name = PackName.of(pack.name, TreeId(state.facts.tree_id))
        await pack_store(settings).fetch(name, files[-1], pack.bytes)
    portable, snapshot = state.facts.portable, state.workspace.snapshot
    assert portable is not None
    assert snapshot is not None
    place = Place(target, target.with_name(f"{target.name}-objects"))
    Copy(place, birth_bounds(settings.workspace, portable)).make(files, FolderSnapshot(snapshot))
    return tree_of(target)


def repository(folder: Path, **files: str) -> None:
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for name, text in files.items():
        (folder / name).write_text(text)
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull})


async def test_skills_are_offered_where_the_session_will_have_them(settings: New, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    repository(work, a="1\n")
    (work / ".gitignore").write_text("/sub/.dendro\n")
    write(work / ".agents/skills", "release", "Cuts a release.")
    write(work / "sub/.agents/skills", "inner", "For sub.")
    write(work / "sub/.dendro/skills", "ignored")
    write(tmp_path / ".agents/skills", "mine", "As I do.")
    birth = await born(settings(cwd=work / "sub"), WorkspaceSource(folder=str(work / "sub")))
    top = f"{tmp_path}/home/workspaces/{birth.facts.tree_id}/work"
    assert birth.user_instructions is not None
    assert birth.user_instructions.endswith(
        f"- inner: For sub. (file: {top}/sub/.agents/skills/inner/SKILL.md)\n"
        f"- release: Cuts a release. (file: {top}/.agents/skills/release/SKILL.md)\n"
        f"- mine: As I do. (file: {tmp_path}/.agents/skills/mine/SKILL.md)\n"
    )
    assert "ignored" not in birth.user_instructions


async def test_folder_is_packed_with_its_changes_and_untracked_files(settings: New, tmp_path: Path) -> None:
    found = settings()
    work = tmp_path / "work"
    repository(work, a="1\n", b="2\n")
    (work / "a").write_text("changed\n")
    (work / "new").write_text("untracked\n")
    (work / "b").unlink()
    birth = await born(found, WorkspaceSource(folder=str(work)))
    state = state_of(birth)
    assert await made(found, state, tmp_path / "made") == {"a": "changed\n", "new": "untracked\n"}
    assert state.settings.cwd == f"{tmp_path}/home/workspaces/{state.facts.tree_id}/work"
    assert state.facts.pool == "default"
    assert state.facts.workspace is None
    assert state.settings.sandbox_policy["mode"] == "workspace-write"
    assert sorted(path.name for path in work.iterdir()) == [".git", "a", "new"]


async def test_secrets_and_what_the_person_ignores_are_not_uploaded(settings: New, tmp_path: Path) -> None:
    found = settings()
    work = tmp_path / "work"
    repository(work, a="1\n")
    (work / ".git/info/exclude").write_text("# mine\nprivate\n")
    for name in (".env", ".env.local", "server.pem", "id_ed25519", "private"):
        (work / name).write_text("hush")
    birth = await born(found, WorkspaceSource(folder=str(work)))
    state = state_of(birth)
    assert set(await made(found, state, tmp_path / "made")) == {"a"}
    assert state.facts.portable is not None
    assert "private" in state.facts.portable.ignored
    warned = [str(entry.payload) for entry in first_entries(birth) if "warning" in str(entry.payload)]
    assert len(warned) == 1
    assert all(name in warned[0] for name in (".env", ".env.local", "server.pem", "id_ed25519"))
    assert "private" not in warned[0]


async def test_session_begun_below_the_top_of_a_repository_works_there_in_the_whole(
    settings: New, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "sub").mkdir()
    (work / "sub/x").write_text("x")
    repository(work, a="1\n")
    found = settings(cwd=work / "sub")
    birth = await born(found, WorkspaceSource(folder=str(work / "sub")))
    state = state_of(birth)
    assert set(await made(found, state, tmp_path / "made")) == {"a", "sub/x"}
    assert state.settings.cwd.endswith("/work/sub")


async def test_session_begins_with_the_folder_of_another_and_outlives_its_tree(
    settings: New, tmp_path: Path
) -> None:
    found = settings()
    (tmp_path / "work/a").write_text("1\n")
    first = state_of(await born(found, WorkspaceSource(folder=str(tmp_path / "work"))))
    second = state_of(await born(found, WorkspaceSource(session="s1"), first))
    assert second.workspace.snapshot == first.workspace.snapshot
    assert second.facts.tree_id != first.facts.tree_id
    store = pack_store(found)
    for pack in first.workspace.packs:
        await store.remove(PackName.of(pack.name, TreeId(first.facts.tree_id)))
    assert await made(found, second, tmp_path / "made") == {"a": "1\n"}


async def test_repository_and_nothing_are_left_to_the_worker(settings: New) -> None:
    cloned = state_of(await born(settings(), WorkspaceSource(git=APP, ref="v1")))
    assert cloned.facts.portable is not None
    assert cloned.facts.portable.source == {"git": APP, "ref": "v1"}
    assert cloned.facts.portable.name == "app"
    assert cloned.workspace.snapshot is None
    empty = state_of(await born(settings(), WorkspaceSource(empty=True)))
    assert empty.facts.portable is not None
    assert (empty.facts.portable.source, empty.workspace.snapshot) == (None, None)


@pytest.mark.parametrize(
    ("wish", "overrides", "why"),
    [
        ({"folder": "/nowhere"}, (), "there is no folder"),
        ({"folder": "HOME"}, (), "contain each other"),
        ({"folder": "HOME/home/archive"}, (), "contain each other"),
        ({"git": "file:///srv/a.git"}, (), "workspace.git_protocols"),
        ({"git": "https://ann:hush@git.example/a.git"}, (), "leave them out"),
        ({"git": "https://token@git.example/a.git"}, (), "leave them out"),
        ({"empty": True}, ('sandbox_workspace_write.writable_roots=["/opt"]',), "writable_roots"),
    ],
)
async def test_first_content_that_cannot_be_is_refused_with_a_reason(
    settings: New, tmp_path: Path, wish: dict[str, Any], overrides: tuple[str, ...], why: str
) -> None:
    found = settings(*overrides)
    (tmp_path / "home/archive").mkdir(parents=True, exist_ok=True)
    folder = wish.get("folder", "").replace("HOME", str(tmp_path))
    said = {**wish, "folder": folder} if folder else wish
    with pytest.raises(NoWorkspace, match=why):
        await born(found, WorkspaceSource.model_validate(said))


async def test_unsaved_folder_of_another_session_is_no_first_content(settings: New, tmp_path: Path) -> None:
    found = settings()
    state = state_of(await born(found, WorkspaceSource(folder=str(tmp_path / "work"))))
    unsaved = replace(state, workspace=replace(state.workspace, unsaved=Unsaved(1, "m1")))
    with pytest.raises(NoWorkspace, match="no store has yet"):
        await born(found, WorkspaceSource(session="s1"), unsaved)
    usual = replace(state, facts=replace(state.facts, portable=None))
    with pytest.raises(NoWorkspace, match="no portable folder"):
        await born(found, WorkspaceSource(session="s1"), usual)


async def test_folder_with_too_many_files_is_refused_by_name(settings: New, tmp_path: Path) -> None:
    found = settings("workspace.max_files=3")
    for number in range(5):
        (tmp_path / "work" / str(number)).touch()
    with pytest.raises(NoWorkspace, match="max_files"):
        await born(found, WorkspaceSource(folder=str(tmp_path / "work")))


def test_root_is_there_from_the_workers_start(settings: New, tmp_path: Path) -> None:
    machine_folders(settings(), SandboxSupport(None, 0, ()))
    assert (tmp_path / "home/workspaces").is_dir()


async def test_store_that_is_away_is_named_before_there_is_a_session(settings: New, tmp_path: Path) -> None:
    found = settings(f'upkeep.archive_url="file://{tmp_path}/file"')
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(NoWorkspace, match=r"upkeep\.archive_url"):
        await born(found, WorkspaceSource(folder=str(tmp_path / "work")))


@pytest.mark.parametrize("named", ["the top", "work", "work/deep"])
@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ((), "contain each other"),
        (("workspace.root='{top}/kept'",), "contain each other"),
        (("workspace.root='{top}/work/kept'",), "contain each other"),
        (("workspace.key_file='{top}/kept'",), "would be stored with it"),
        (("upkeep.archive_url='file://{top}/kept'",), "would read the logs of all sessions"),
    ],
)
async def test_repository_that_holds_what_is_dendros_is_not_copied_with_it_wherever_in_it_one_works(
    tmp_path: Path, overrides: tuple[str, ...], why: str, named: str
) -> None:
    """The repository around a working folder is copied whole."""
    top = tmp_path / "repository"
    (top / "work/deep").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", top], check=True)
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    environ["DENDRO_HOME"] = str(tmp_path / "home" if overrides else top / "home")
    (top / "kept").mkdir()
    (top / "home").mkdir()
    given = tuple(override.format(top=top) for override in overrides)
    found = load_settings(SettingsSources(tmp_path, environ, overrides=given))
    folder = top if named == "the top" else top / named
    with pytest.raises(NoWorkspace, match=why):
        await born(found, WorkspaceSource(folder=str(folder)))


async def test_folder_that_holds_the_keys_is_not_packed_with_them(settings: New, tmp_path: Path) -> None:
    keys = tmp_path / "work/within/pack.keys"
    keys.parent.mkdir(parents=True)
    new_file(keys)
    with pytest.raises(NoWorkspace, match="would be stored with it"):
        await born(settings(f"workspace.key_file='{keys}'"), WorkspaceSource(folder=str(tmp_path / "work")))


async def test_folder_that_holds_the_archive_is_not_copied_with_it(settings: New, tmp_path: Path) -> None:
    """Agents would read the logs of all sessions in their copies."""
    archive = tmp_path / "work/within/archive"
    archive.mkdir(parents=True)
    kept = settings(f"upkeep.archive_url='{archive.as_uri()}'")
    with pytest.raises(NoWorkspace, match="would read the logs of all sessions"):
        await born(kept, WorkspaceSource(folder=str(tmp_path / "work")))
    told = machine_config(kept, SandboxSupport(None, 0, ())).archive
    assert told == archive


async def test_session_begins_with_the_folder_of_another_under_each_ones_key(
    settings: New, tmp_path: Path
) -> None:
    keyed = settings(f"workspace.key_file='{tmp_path}/pack.keys'")
    (tmp_path / "work/a").write_text("a line of a file")
    wish = WorkspaceSource(folder=str(tmp_path / "work"))
    with pytest.raises(NoWorkspace, match="there is no file"):
        await born(keyed, wish)
    new_file(tmp_path / "pack.keys")
    parent = state_of(await born(keyed, wish))
    fork = state_of(await born(keyed, WorkspaceSource(session="s1"), parent))
    assert await made(keyed, fork, tmp_path / "made") == {"a": "a line of a file"}
    packs = [file.read_bytes() for file in (tmp_path / "home/archive").rglob("*.pack")]
    assert len(set(packs)) == 2
    assert all(pack.startswith(b"DENDRPK") for pack in packs)


async def test_fork_goes_on_in_a_copy_that_is_its_own(settings: New, tmp_path: Path) -> None:
    found = settings()
    (tmp_path / "work/sub").mkdir(parents=True)
    (tmp_path / "work/sub/a").write_text("1\n")
    repository(tmp_path / "work", b="2\n")
    below = settings(cwd=tmp_path / "work/sub")
    state = state_of(await born(below, WorkspaceSource(folder=str(tmp_path / "work/sub"))))
    source = ForkedFrom(state.facts.session_id, 7, "ab" * 32, state)
    own = new_birth(found, Workspace(), 1_790_000_000_000, os.urandom)
    fork = state_of(await forked_folder(ANNOUNCED, found, source, own))
    folder = f"{tmp_path}/home/workspaces/{fork.facts.tree_id}/work"
    assert fork.settings.cwd == f"{folder}/sub"
    assert fork.facts.tree_id != state.facts.tree_id
    assert fork.facts.pool == "default"
    assert await made(found, fork, tmp_path / "made") == {"b": "2\n", "sub/a": "1\n"}
    assert folder in str(fork.history), "its model is told where it works now"


async def test_fork_of_a_portable_folder_cannot_be_given_another_one(settings: New, tmp_path: Path) -> None:
    found = settings()
    state = state_of(await born(found, WorkspaceSource(folder=str(tmp_path / "work"))))
    source = ForkedFrom(state.facts.session_id, 7, "ab" * 32, state)
    own = new_birth(found, Workspace(), 1_790_000_000_000, os.urandom)
    with pytest.raises(NoWorkspace, match="leave the folder out"):
        await forked_folder(ANNOUNCED, dataclasses.replace(found, named=frozenset({"cwd"})), source, own)


# ── announced first ───────────────────────────────────────────────────────────────────────────────


async def begin(kind: str, settings: Settings, folder: Path, source: State, told: Told) -> str:
    """A session of this kind begins, and a broker hears of it; answers its id."""
    name, commits = str(source.facts.session_id), cast(Any, told)
    wish = WorkspaceSource(folder=str(folder)) if kind == "folder" else WorkspaceSource(session=name)
    first = (
        None
        if kind == "fork"
        else first_folder(settings, wish, (source, name) if kind == "session" else None)
    )
    own = new_birth(settings, Workspace(), 1_790_000_000_000, os.urandom, first)
    if first is None:
        forked = ForkedFrom(source.facts.session_id, 7, "ab" * 32, source)
        birth = await forked_folder(commits, settings, forked, own)
    else:
        birth = await with_folder(commits, settings, own, first)
    assert birth.announced_ms == 7
    return str(birth.facts.session_id)


@pytest.mark.parametrize("kind", ["folder", "session", "fork"])
async def test_session_is_announced_before_the_store_has_its_packs(
    kind: str, settings: New, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else would know whose they are if its client died in between."""
    found, work = settings(), tmp_path / "work"
    source = state_of(await born(found, WorkspaceSource(folder=str(work))))
    told = Told(monkeypatch)
    session = await begin(kind, found, work, source, told)
    assert told.seen == [("announced", session), ("stored", session)]


@pytest.mark.parametrize("kind", ["folder", "session", "fork"])
async def test_session_that_cannot_be_announced_has_nothing_in_the_store(
    kind: str, settings: New, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, work = settings(), tmp_path / "work"
    source = state_of(await born(found, WorkspaceSource(folder=str(work))))
    told = Told(monkeypatch, away=True)
    with pytest.raises(Unavailable):
        await begin(kind, found, work, source, told)
    assert [what for what, _ in told.seen] == ["announced"]
