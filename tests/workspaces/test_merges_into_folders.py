"""Merges into folders: what may be written of them, what is told where one fails, and what is left of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.core import facts as f
from orchestrator.core.calls import Merge, MergeWork
from orchestrator.core.commands import FolderMerged, FolderNotMerged
from orchestrator.core.frozen import replace
from orchestrator.core.ids import AgentId
from orchestrator.core.settings import SessionFacts
from orchestrator.folders import outcomes
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.workspaces import claimed_folder
from orchestrator.workspaces.claimed_folder import CONFLICTS, INCOMING, Held, merge
from orchestrator.workspaces.copies import Copy
from orchestrator.workspaces.host_folders import MOST_PATH
from orchestrator.workspaces.pack_keys import KeyUnavailable
from orchestrator.workspaces.stored_packs import BrokenPack
from tests.workspaces.machines import ROOT
from tests.workspaces.test_host_folders import Host, host, replace_config

__all__ = ["host"]
NOTHING: Any = None


def work(folder: str = "", *, sandboxed: bool = True, base: str | None = "b" * 40) -> MergeWork:
    began = None if base is None else SnapshotId(base)
    made = Merge(AgentId(1), began, SnapshotId("c" * 40), (), 1, (), folder).work(sandboxed=sandboxed)
    assert isinstance(made, MergeWork)
    return made


# ── what may be written ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("cwd", "roots", "allowed"),
    [
        (".", [], {"a", "one/a", "two/a", "two/deep/a", "onetwo"}),
        ("one", [], {"one/a"}),
        ("one", ["../two"], {"one/a", "two/a", "two/deep/a"}),
        ("one", ["../two/deep", "/elsewhere"], {"one/a", "two/deep/a"}),
        ("one", ["/elsewhere", "TOP"], {"a", "one/a", "two/a", "two/deep/a", "onetwo"}),
        ("/elsewhere", ["TOP/.."], {"a", "one/a", "two/a", "two/deep/a", "onetwo"}),
        ("/elsewhere", ["TOP/two", "TOP/one"], {"one/a", "two/a", "two/deep/a"}),
        ("/elsewhere", ["LINK"], {"two/a", "two/deep/a"}),
        ("/elsewhere", ["/elsewhere/too"], set()),
    ],
)
def test_sandboxed_merge_writes_below_each_writable_root_and_nowhere_else(
    host: Host, cwd: str, roots: list[str], allowed: set[str]
) -> None:
    for name in ("one", "two/deep"):
        (host.checkout / name).mkdir(parents=True)
    link = host.root.parent.parent / "link"
    link.symlink_to(host.checkout / "two")
    named = [root.replace("TOP", str(host.checkout)).replace("LINK", str(link)) for root in roots]
    policy = {"mode": "workspace-write", "writable_roots": named}
    settings = replace(host.state.settings, cwd=str(host.checkout / cwd), sandbox_policy=policy)
    state = replace(host.state, settings=settings)
    guard = host.folders._hosts._guard_of(state, work(str(host.checkout)))
    paths = {"a", "one/a", "two/a", "two/deep/a", "onetwo"}
    assert {path for path in paths if guard.allows(path.encode())} == allowed
    # An approval counts for all of it, and so does full access.
    full = replace(state, settings=replace(settings, sandbox_policy={"mode": "danger-full-access"}))
    approved = work(str(host.checkout), sandboxed=False)
    for free in (
        host.folders._hosts._guard_of(full, work(str(host.checkout))),
        host.folders._hosts._guard_of(state, approved),
    ):
        assert all(free.allows(path.encode()) for path in paths)


def test_sandboxed_merge_writes_none_of_what_is_guarded_in_the_folder_nor_below_it(host: Host) -> None:
    top = host.checkout
    link = host.root.parent.parent / "link"
    link.symlink_to(top)
    guarded = (top / "sub/kept", Path("/elsewhere/rules"), link / "keys", top)
    host.folders._hosts._config = replace_config(host, guarded=guarded)
    guard = host.folders._hosts._guard_of(host.state, work(str(top)))
    refused = {"sub/kept", "sub/kept/a", "keys/deep/a", "dendro.toml", "sub/dendro.toml"}
    paths = {*refused, "sub/kept2", "sub/a", "keys.txt", "rules", "sub/dendro.toml.txt", "dendro.toml/a"}
    assert {path for path in paths if not guard.allows(path.encode())} == refused


# ── what is told ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BrokenPack("the store lacks it"), "the store lacks it"),
        (KeyUnavailable("no key"), "no key; merge again when this worker has it"),
        (
            ArchiveUnavailable("no route"),
            "the store did not give it: no route; merge again when the store is back",
        ),
        (OSError("no room"), "this machine refused it: no room"),
    ],
)
async def test_merge_whose_packs_do_not_come_is_told_with_the_reason_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    async def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(claimed_folder, "fetch_all", fails)
    told = await merge(cast(Held, _Held(NOTHING)), NOTHING, work())
    assert told == FolderNotMerged(said)


class _Held:
    """A folder under a claim, whose keeper answers so."""

    def __init__(self, answer: object, copy: Copy | None = None) -> None:
        self.answer, self.copy = answer, copy
        self.facts = SessionFacts(session_id=ROOT)
        self.asked: list[str] = []

    @property
    def keeper(self) -> Any:
        return self

    async def plan_merge(self, *_: object) -> object:
        self.asked.append("plan")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if isinstance(self.answer, outcomes.Conflicted) else _planned("approved")

    async def write_merge(self, base: str, theirs: str, packs: object, digest: str, guard: object) -> object:
        self.asked.append(f"write {digest}")
        return self.answer


def _planned(digest: str) -> outcomes.Planned:
    return outcomes.Planned(digest, outcomes.Counts(), ())


def conflicted(named: int, all: int) -> outcomes.Conflicted:
    return outcomes.Conflicted(tuple(outcomes.Conflict(f"f{n}", "why") for n in range(named)), all)


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        (outcomes.Merged(outcomes.Counts(1, 2, 3), ("A a",)), ["plan", "write approved"]),
        (conflicted(1, 1), ["plan"]),
        (outcomes.FolderError("damaged", "x"), ["plan"]),
    ],
)
async def test_packs_that_were_brought_for_a_merge_go_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: object, asked: list[str]
) -> None:
    copy = Copy(tmp_path, ROOT, "boot")
    copy.prepare()

    async def brought(*_: object) -> list[Path]:
        file = copy.path / INCOMING / "a.pack"
        file.parent.mkdir()
        file.touch()
        return [file]

    monkeypatch.setattr(claimed_folder, "fetch_all", brought)
    held = _Held(answer, copy)
    try:
        told = await merge(cast(Held, held), NOTHING, work())
        assert isinstance(told, FolderMerged | FolderNotMerged)
        if isinstance(told, FolderMerged):
            assert (told.files.added, told.files.modified, told.files.deleted) == (1, 2, 3)
    except outcomes.FolderError:
        assert isinstance(answer, outcomes.FolderError)
    assert held.asked == asked, "what conflicts is not written"
    assert not (copy.path / INCOMING).exists()


@pytest.mark.parametrize(("named", "all", "more"), [(1, 1, ""), (100, 100, ""), (100, 101, "and 1 more")])
async def test_conflicts_are_named_with_their_reasons_and_those_beyond_the_bound_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: int, all: int, more: str
) -> None:
    async def nothing(*_: object) -> list[Path]:
        return []

    monkeypatch.setattr(claimed_folder, "fetch_all", nothing)
    held = _Held(conflicted(named, all), Copy(tmp_path, ROOT, "boot"))
    told = await merge(cast(Held, held), NOTHING, work())
    lines = tuple(f"f{n}: why" for n in range(named))
    assert told == FolderNotMerged(CONFLICTS, (*lines, *((more,) if more else ())))


async def test_agent_that_began_with_no_folder_that_is_known_is_not_merged() -> None:
    with pytest.raises(outcomes.FolderError, match="began with no folder"):
        await merge(cast(Held, _Held(NOTHING)), NOTHING, work(base=None))


@pytest.mark.parametrize(("letter", "size"), [("a", MOST_PATH), ("a", MOST_PATH + 1), ("é", MOST_PATH + 2)])
async def test_folder_under_a_path_that_no_state_can_hold_is_not_merged_into(
    host: Host, monkeypatch: pytest.MonkeyPatch, letter: str, size: int
) -> None:
    """The state names it, by which the next worker takes a lost merge back."""
    path = "/" + letter * ((size - 1) // len(letter.encode()))
    path += "a" * (size - len(path.encode()))
    assert len(path.encode()) == size
    merged = FolderMerged(NOTHING, ())

    async def merges(*_: object) -> FolderMerged:
        return merged

    monkeypatch.setattr(host.folders._hosts, "_merge", merges)
    told = await host.folders.merge(host.state, host.claim(), work(path))
    if size <= MOST_PATH:
        assert told is merged
    else:
        assert isinstance(told, FolderNotMerged)
        assert "more than 2,048 bytes: move it" in told.reason


async def test_merge_that_the_log_has_is_forgotten_alone_and_one_of_another_agent_or_state_is_not(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way back stays until the very snapshot of the very agent is recorded."""
    hosts, claim = host.folders._hosts, host.claim()
    mine = work(str(host.checkout))
    for agent, snapshot, forgets in ((2, "c", False), (1, "d", False), (1, "c", True)):
        hosts._written[claim.claim_id] = mine
        host.folds(f.WorkspaceMerged(CallId("c1"), AgentId(agent), None, SnapshotId(snapshot * 40), ()))
        hosts.recorded(host.state, claim)
        assert (claim.claim_id not in hosts._written) is forgets
    for task in list(hosts._settling):
        await task
