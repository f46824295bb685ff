"""Sessions that begin with the folder of another one, and a person's own rules that travel with a folder."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.core import facts as f
from orchestrator.core.birth import Birth, ForkedFrom, first_entries
from orchestrator.core.entries import fact
from orchestrator.core.evolve import fold
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.packs import FileCounts, Pack
from orchestrator.core.state import State
from orchestrator.folders.outcomes import Taken
from orchestrator.gateways.folder_facts import Workspace
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.protocol.ops import WorkspaceSource
from orchestrator.rollouts.object_store import Objects
from orchestrator.settings import Settings
from orchestrator.views.workspaces import copied_to
from orchestrator.wiring.new_sessions import new_birth
from orchestrator.wiring.portable import (
    NoWorkspace,
    first_folder,
    forked_folder,
    pack_store,
    with_folder,
)
from orchestrator.workspaces import host_folders
from orchestrator.workspaces.host_folders import (
    BIRTH_S,
    IGNORED_BYTES,
    UnfitFolder,
    birth_bounds,
    commit_of,
    host_folder,
    repository_of,
)
from orchestrator.workspaces.stored_packs import PackName, Packs
from tests.folders.workshop import Bench, git
from tests.workspaces.machines import tree_of
from tests.workspaces.test_portable_births import APP, New, made, settings

__all__ = ["settings"]
OMITTED = ("'.env' (excluded)", "'big' (larger)")


async def source(settings: Settings, bench: Bench, changes: int) -> State:
    """A session that began with a folder and changed it so often, each time by a pack of its own."""
    first = first_folder(settings, WorkspaceSource(empty=True))
    birth = new_birth(settings, Workspace(), 1_790_000_000_000, os.urandom, first)
    facts = replace(birth.facts, pool="gpu")
    names = PackName(TreeId(facts.tree_id), SessionId(facts.session_id), 0, "0", "")

    async def stored(taken: Taken) -> Pack:
        name = replace(names, sha256=taken.sha256)
        await pack_store(settings).put(name, taken.pack)
        return Pack(str(name), taken.sha256, taken.bytes, taken.whole)

    bench.write({"a": b"0\n"})
    taken = bench.born()
    begun = fact(f.WorkspaceBegun(SnapshotId(taken.snapshot), (await stored(taken),), OMITTED[:1]))
    state = fold(State(), (*first_entries(replace(birth, facts=facts)), begun), 1)
    entries = []
    for number in range(1, changes + 1):
        (bench.folder / "a").write_text(f"{number}\n")
        bench.write({f"new {number}": b"x"})
        taken = bench.taken()
        assert taken.parent is not None
        entries.append(
            fact(
                f.WorkspaceSaved(
                    SnapshotId(taken.snapshot), SnapshotId(taken.parent), await stored(taken),
                    FileCounts(1, 1, 0), (), (CallId("c"),), number, omitted=OMITTED,
                )
            )
        )  # fmt: skip
    return fold(state, entries, 1)


class Order(list[str]):
    """A broker and a store that note what they are told, in order."""

    async def announce(self, session: str) -> int:
        self.append(f"announced {session}")
        return 7

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        put = Packs.put

        async def noted(packs: Packs, name: PackName, file: Path) -> None:
            self.append(f"stored {name.session}")
            await put(packs, name, file)

        monkeypatch.setattr(Packs, "put", noted)


async def begun(way: str, settings: Settings, state: State, told: Order) -> Birth:
    """A session that begins with that folder: as a client names it, or as a fork."""
    if way == "session":
        first = first_folder(settings, WorkspaceSource(session="s1"), (state, "s1"))
        birth = new_birth(settings, Workspace(), 1_790_000_000_000, os.urandom, first)
        return await with_folder(cast(Any, told), settings, birth, first)
    own = new_birth(settings, Workspace(), 1_790_000_000_000, os.urandom)
    fork = ForkedFrom(state.facts.session_id, 7, "ab" * 32, state)
    return await forked_folder(cast(Any, told), settings, fork, own)


@pytest.mark.parametrize("changes", [0, 1, 3])
@pytest.mark.parametrize("way", ["session", "fork"])
async def test_folder_of_another_session_is_taken_with_all_its_packs_and_what_it_leaves_out(
    settings: New, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, changes: int
) -> None:
    found, told = settings(), Order()
    state = await source(found, Bench(tmp_path / "bench"), changes)
    told.watch(monkeypatch)
    birth = await begun(way, found, state, told)
    new = fold(State(), first_entries(birth), 1)
    packs = new.workspace.packs
    own = SessionId(birth.facts.session_id)
    assert told == [f"announced {own}", *[f"stored {own}"] * (changes + 1)], "the store has them last"
    assert birth.announced_ms == 7
    theirs = state.workspace.packs
    assert [(pack.sha256, pack.bytes, pack.whole) for pack in packs] == [
        (pack.sha256, pack.bytes, pack.whole) for pack in theirs
    ]
    assert all(pack.name.startswith(f"{birth.facts.tree_id}/workspaces/{own}/") for pack in packs)
    assert (new.workspace.snapshot, new.workspace.base) == (state.workspace.snapshot,) * 2
    assert new.workspace.omitted == (OMITTED if changes else OMITTED[:1])
    for pack in theirs:
        await pack_store(found).remove(PackName.of(pack.name, TreeId(state.facts.tree_id)))
    wanted = {"a": f"{changes}\n", **{f"new {number}": "x" for number in range(1, changes + 1)}}
    assert await made(found, new, tmp_path / "made") == wanted


@pytest.mark.parametrize("way", ["session", "fork"])
async def test_folder_of_which_a_pack_is_gone_is_no_first_content(
    settings: New, tmp_path: Path, way: str
) -> None:
    found = settings()
    state = await source(found, Bench(tmp_path / "bench"), 2)
    await pack_store(found).remove(PackName.of(state.workspace.packs[1].name, TreeId(state.facts.tree_id)))
    with pytest.raises(NoWorkspace, match="restore it from a backup"):
        await begun(way, found, state, Order())


@pytest.mark.parametrize("way", ["session", "fork"])
async def test_session_without_any_snapshot_yet_is_taken_as_it_is_and_announces_no_pack(
    settings: New, way: str
) -> None:
    found, told = settings(), Order()
    first = first_folder(found, WorkspaceSource(git=APP))
    birth = new_birth(found, Workspace(), 1_790_000_000_000, os.urandom, first)
    state = fold(State(), first_entries(birth), 1)
    new = fold(State(), first_entries(await begun(way, found, state, told)), 1)
    assert (list(told), new.workspace.snapshot) == ([], None)
    assert new.facts.portable is not None
    assert new.facts.portable.source == {"git": APP}


@pytest.mark.parametrize(("named", "pool"), [((), "gpu"), (("pool",), "cpu"), (("model",), "gpu")])
async def test_fork_of_a_portable_session_goes_to_the_pool_of_its_source_unless_one_is_named(
    settings: New, tmp_path: Path, named: tuple[str, ...], pool: str
) -> None:
    found = settings("pool=cpu")
    state = await source(found, Bench(tmp_path / "bench"), 0)
    named_now = dataclasses.replace(found, named=frozenset(named))
    fork = await begun("fork", named_now, state, Order())
    assert (fork.facts.pool, fork.facts.workspace) == (pool, None)


# ── packs that an import brings along ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("given", [(), (0,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("gone", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)])
async def test_packs_of_an_imported_folder_are_copied_each_and_those_that_are_nowhere_are_counted(
    tmp_path: Path, given: tuple[int, ...], gone: tuple[int, ...]
) -> None:
    store = Packs(Objects((tmp_path / "store").as_uri()))
    theirs, own = ("01996720-4a00-7000-8000-00000000000" + digit for digit in "12")
    bench = Bench(tmp_path / "bench")
    bench.write({"a": b"0"})
    packs, files = [], dict[str, Path]()
    for number, taken in enumerate((bench.born(), *(_next(bench, number) for number in (1, 2)))):
        name = PackName(TreeId(theirs), SessionId(theirs), 3, "c1", taken.sha256)
        packs.append(Pack(str(name), taken.sha256, taken.bytes, taken.whole))
        files[taken.sha256] = taken.pack
        if number not in gone:
            await store.put(name, taken.pack)

    def brought(sha256: str, target: Path) -> bool:
        """Packs of a bundle."""
        here = sha256 in {packs[number].sha256 for number in given}
        if here:
            target.write_bytes(files[sha256].read_bytes())
        return here

    lacking = await copied_to(store, TreeId(own), SessionId(own), packs, brought)
    there = {number for number in range(3) if number in given or number not in gone}
    assert lacking == 3 - len(there)
    names = await store.names(TreeId(own), SessionId(own))
    assert {name.sha256 for name in names} == {packs[number].sha256 for number in there}
    assert {(name.epoch, name.claim) for name in names} <= {(3, "c1")}
    for name in names:
        await store.fetch(name, tmp_path / "again", 1 << 20)
        assert (tmp_path / "again").read_bytes() == files[name.sha256].read_bytes()


def _next(bench: Bench, number: int) -> Taken:
    (bench.folder / "a").write_text(f"{number}")
    return bench.taken()


async def test_pack_under_a_name_that_no_store_has_is_lacking_and_keeps_no_other(tmp_path: Path) -> None:
    store = Packs(Objects((tmp_path / "store").as_uri()))
    own = "01996720-4a00-7000-8000-000000000002"
    bench = Bench(tmp_path / "bench")
    bench.write({"a": b"0"})
    taken = bench.born()
    theirs = PackName(TreeId(own), SessionId(own[:-1] + "3"), 0, "0", taken.sha256)
    await store.put(theirs, taken.pack)
    right = Pack(str(theirs), taken.sha256, taken.bytes, whole=True)
    wrong = [replace(right, name=name) for name in ("../etc/passwd", "", "a/b/c", f"{theirs}x")]
    assert await copied_to(store, TreeId(own), SessionId(own), (*wrong, right)) == len(wrong)
    assert len(await store.names(TreeId(own), SessionId(own))) == 1


# ── rules of a person's own ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("letter", ["x", "é", "界", "\udcff"])
@pytest.mark.parametrize("lines", [1, 8, 16])
@pytest.mark.parametrize("over", [0, 1])
def test_rules_of_a_persons_own_are_bounded_in_bytes_whatever_letters_they_have(
    monkeypatch: pytest.MonkeyPatch, letter: str, lines: int, over: int
) -> None:
    size, each = len(os.fsencode(letter)), IGNORED_BYTES // lines
    rules = [letter * (each // size) + "x" * (each % size)] * lines
    rules[-1] += "x" * over
    assert sum(len(os.fsencode(rule)) for rule in rules) == IGNORED_BYTES + over
    monkeypatch.setattr(host_folders, "excludes_of", lambda *_: tuple(rules))
    if over:
        with pytest.raises(UnfitFolder, match=r"have more than 16,384 bytes; shorten them"):
            host_folders._own_ignores({}, Path("/w"), None, ())
    else:
        assert host_folders._own_ignores({}, Path("/w"), None, ()) == tuple(rules)


def test_linked_work_tree_is_copied_at_its_own_commit_under_the_rules_of_its_repository(
    settings: New, tmp_path: Path
) -> None:
    found, main, linked = settings(), tmp_path / "main", tmp_path / "linked"
    main.mkdir()
    git(main, "init", "-q", "-b", "main")
    for name in ("first", "second"):
        (main / name).write_text("1\n")
        git(main, "add", ".")
        git(main, "commit", "-qm", name)
    git(main, "worktree", "add", "-q", "-b", "other", str(linked), "HEAD~1")
    (main / ".git/info/exclude").write_text("private\n")
    (linked / "private").write_text("mine\n")
    told = host_folder(linked, found.workspace, found.home, {"HOME": str(tmp_path)})
    assert (told.top, told.portable.ignored) == (linked, ("private",))
    assert repository_of(linked) == main / ".git"
    commit, repository = commit_of(linked)
    assert (commit, repository) == (git(main, "rev-parse", "HEAD~1").decode().strip(), main / ".git")
    bench = Bench(tmp_path / "bench")
    bench.copy.place = dataclasses.replace(bench.copy.place, folder=linked)
    bench.copy.bounds = dataclasses.replace(bench.bounds, ignored=told.portable.ignored)
    taken = bench.copy.born(repository, commit, 1)
    assert taken.names == ("A first",)
    assert set(tree_of(linked)) == {"first", "private"}


@pytest.mark.parametrize("kept", ["keys", "archive"])
def test_folder_with_what_a_link_of_dendros_settings_leads_to_is_not_copied(
    settings: New, tmp_path: Path, kept: str
) -> None:
    work, link = tmp_path / "work", tmp_path / "link"
    (work / "kept").mkdir(parents=True)
    link.symlink_to(work / "kept")
    found = settings()
    workspace = found.workspace.model_copy(update={"key_file": link if kept == "keys" else None})
    with pytest.raises(UnfitFolder, match="keep it elsewhere"):
        host_folder(work, workspace, found.home, {"HOME": str(tmp_path)}, link if kept == "archive" else None)


@pytest.mark.parametrize(("named", "name"), [("app-1.x", "app-1.x"), ("my app", "work"), ("-x", "work")])
def test_copy_is_called_as_its_folder_if_that_is_a_plain_word(
    settings: New, tmp_path: Path, named: str, name: str
) -> None:
    (tmp_path / named).mkdir()
    found = settings()
    made = host_folder(tmp_path / named, found.workspace, found.home, {"HOME": str(tmp_path)})
    assert made.portable.name == name
    hurried = found.workspace.model_copy(update={"seconds": 1.0})
    assert birth_bounds(hurried, made.portable).seconds == BIRTH_S, "the first one has all to read"


@pytest.mark.parametrize("kept", ["home", "workspaces", "keys", "archive"])
def test_folder_whose_repository_lies_in_dendros_own_folders_is_not_copied(
    settings: New, tmp_path: Path, kept: str
) -> None:
    """A session could have put one there, whose rules and commit it has made up."""
    places = {name: tmp_path / name for name in ("home", "workspaces", "keys", "archive")}
    work, repository = tmp_path / "elsewhere", places[kept] / "repository"
    places[kept].mkdir(exist_ok=True)
    git(tmp_path, "init", "-q", f"--separate-git-dir={repository}", str(work))
    workspace = settings().workspace.model_copy(
        update={"root": places["workspaces"], "key_file": places["keys"]}
    )
    with pytest.raises(UnfitFolder, match="no copy is made of it"):
        host_folder(work, workspace, places["home"], {"HOME": str(tmp_path)}, places["archive"])
