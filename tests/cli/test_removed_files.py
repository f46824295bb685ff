"""`dendro rm`: a tree goes whole, with its files, or stays whole, with its files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from orchestrator.cli import remove
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.terminal.faults import Fault
from orchestrator.views import ViewError
from tests.views.test_threads import head


def session(number: int) -> SessionId:
    return SessionId(f"0199a2b4-0000-7000-8000-{number:012}")


@dataclass
class Tree:
    """A tree whose sessions have rollout files, and what a command does to it."""

    home: Path
    members: list[Any] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    reads: int = 0

    def has(self, agent: int, folder: str, name: str = "rollout-{}.jsonl", **facts: Any) -> Path:
        """A session of the tree, the root last, with a file."""
        file = self.home / folder / name.format(session(agent))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}\n")
        known = {"parked": True, "status": "idle", "holder": None, "title": "", "tree": session(0)}
        known |= {"quarantined": False} | facts
        head = SimpleNamespace(
            session=session(agent), agent_id=agent, summary={"rollout_path": str(file)}, **known
        )
        self.members.insert(0 if agent else len(self.members), head)
        return file

    async def removed(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        refused: str = "",
        force: bool = False,
        ask: bool = False,
        why: str = "",
        left: str = "",
    ) -> None:
        async def members(*_: Any) -> list[Any]:
            self.reads += 1
            return self.members

        async def at_work(*_: Any) -> str:
            return why

        async def end(*_: Any) -> None:
            self.done.append("end")
            if left:
                raise Fault(left)

        async def delete(found: Any, those: list[Any], *, force: bool) -> None:
            self.done.append("delete")
            assert those == self.members
            if refused:
                raise Fault(refused)

        for name, stand_in in (
            ("_members", members),
            ("_at_work", at_work),
            ("_end", end),
            ("_delete", delete),
        ):
            monkeypatch.setattr(remove, name, stand_in)
        monkeypatch.setattr(typer, "confirm", lambda question: True)
        settings = SimpleNamespace(home=self.home)
        found = cast(Any, SimpleNamespace(settings=settings))
        await remove._remove(found, self.members[-1], force=force, ask=ask)


@pytest.mark.parametrize("agents", [0, 1, 3])
async def test_every_file_of_a_tree_below_the_data_folder_goes_with_it_and_no_other(
    agents: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path)
    own = [tree.has(number, "sessions/2026/11") for number in range(agents + 1)]
    kept = [tree.has(agents + 1, "elsewhere"), tree.has(agents + 2, "sessions", "of-another-session.jsonl")]
    await tree.removed(monkeypatch)
    assert [file.exists() for file in (*own, *kept)] == [False] * len(own) + [True] * len(kept)
    assert tree.done == ["delete"]


READS = [(False, False, 1), (True, False, 1), (False, True, 1), (True, True, 2)]


@pytest.mark.parametrize(("force", "ask", "reads"), READS)
async def test_tree_is_read_again_where_a_person_was_asked_before_it_is_removed_by_force(
    force: bool, ask: bool, reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path)
    tree.has(0, "sessions")
    await tree.removed(monkeypatch, force=force, ask=ask)
    assert (tree.done, tree.reads) == (["delete"], reads)


REFUSED: list[dict[str, Any]] = [
    {"refused": "a session was taken by a worker meanwhile"},
    {"refused": "the archive does not answer", "force": True},
    {"why": "the root is running"},
    {"left": "still at work: agent 1", "force": True},
]


@pytest.mark.parametrize("how", REFUSED)
async def test_tree_that_stays_for_whatever_reason_keeps_its_files(
    how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path)
    files = [
        tree.has(0, "sessions", status="running", parked=False) if "left" in how else tree.has(0, "sessions"),
        tree.has(1, "sessions"),
    ]
    with pytest.raises(Fault):
        await tree.removed(monkeypatch, **how)
    assert all(file.exists() for file in files)
    assert ("delete" in tree.done) is ("refused" in how)


@pytest.mark.parametrize("named", [["0"], ["0", "0"], ["0", "00"], ["0", "1", "00", "1"], ["1", "0"]])
async def test_tree_that_is_named_in_several_ways_is_removed_once(
    named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its id and by parts of it: a second removal would find nothing, and fail."""
    removed: list[SessionId] = []

    class Found:
        async def __aenter__(self) -> Found:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def find(self, id: str) -> Any:
            return SimpleNamespace(session=session(int(id)), agent_id=0)

    async def remove_one(found: Any, root: Any, **_: Any) -> None:
        removed.append(root.session)

    async def done(found: Any, members: Any) -> None:
        pass

    async def members_of(found: Any, root: Any) -> list[Any]:
        return [root]

    monkeypatch.setattr(remove, "_remove", remove_one)
    monkeypatch.setattr(remove, "_members", members_of)
    monkeypatch.setattr(remove, "_require_done", done)
    monkeypatch.setattr("orchestrator.cli.invocation.opened", lambda settings: Found())
    invocation = cast(Any, SimpleNamespace(settings=lambda: None))
    await remove._rm(invocation, named, force=False, ask=False)
    assert removed == list(dict.fromkeys(session(int(id)) for id in named))


# ── which trees are done, and what is of them ─────────────────────────────────────────────────────


class Fleet:
    """Sessions of one shard, and the open requests there."""

    def __init__(self, *heads: Any, asked: tuple[int, ...] = (), gone: bool = False) -> None:
        self.heads, self.asked, self.gone = heads, asked, gone
        requests = SimpleNamespace(approvals_of=self._approvals_of)
        keys = SimpleNamespace(shard_of=lambda session: 5)
        logs = SimpleNamespace(heads_of_tree=self._of_tree, head=self._head)
        self.broker = SimpleNamespace(requests=requests, keys=keys, logs=logs)

    async def _approvals_of(self, shards: list[int]) -> list[Any]:
        assert shards == [5]
        return [SimpleNamespace(session=session(number)) for number in self.asked]

    async def _of_tree(self, tree: TreeId) -> list[Any]:
        return [head for head in self.heads if head.tree == tree]

    async def _head(self, wanted: SessionId) -> Any:
        found = (head for head in self.heads if head.session == wanted)
        return None if self.gone else replace(next(found), seq=99)


def one(number: int, tree: int = 0, **facts: Any) -> Any:
    return head(session=session(number), tree=TreeId(session(tree)), agent_id=AgentId(number - tree), **facts)


HELD, UNREAD = {"holder": "w1"}, {"sq_tip": "2-0"}


@pytest.mark.parametrize(
    ("root", "agent", "asked", "at_work", "why"),
    [
        ({}, {}, (), [], ""),
        ({"status": "closed"}, {}, (), [], ""),
        ({}, {}, (7, 9), [], ""),
        ({}, {}, (7, 1), [], "it waits for a person"),
        ({}, {}, (0,), [], "it waits for a person"),
        ({}, {}, (), [2, 4], "agent 2, agent 4 at work"),
        ({"status": "awaiting_approval"}, {}, (0,), [1], "the root is awaiting approval"),
        ({}, {"status": "running", **HELD}, (), [1], "agent 1 is running"),
        ({"status": "waiting"}, {"status": "running"}, (), [], "the root is waiting"),
        (HELD, {}, (), [], "the root is held by a worker"),
        (UNREAD, {}, (), [], "the root has unread input"),
        ({}, HELD, (), [], "agent 1 is held by a worker"),
        ({}, UNREAD, (1,), [], "agent 1 has unread input"),
        ({**HELD, **UNREAD}, {}, (), [], "the root is held by a worker"),
        ({"quarantined": True, "status": "running"}, {}, (), [], "the root is quarantined"),
        ({}, {"quarantined": True, **UNREAD}, (), [], "agent 1 is quarantined"),
    ],
)
async def test_tree_is_done_where_no_session_of_it_works_waits_or_was_handed_something(
    root: dict[str, Any],
    agent: dict[str, Any],
    asked: tuple[int, ...],
    at_work: list[int],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def agents(found: Any, tree: TreeId) -> list[int]:
        assert tree == TreeId(session(0))
        return at_work

    monkeypatch.setattr("orchestrator.wiring.cancelling.agents_at_work", agents)
    members = [one(2), one(1, **agent), one(0, **root)]
    assert await remove._at_work(cast(Any, Fleet(asked=asked)), members) == why


@pytest.mark.parametrize(
    ("ids", "removed", "force"),
    [
        (["0", "7"], [0, 7], False),
        (["7", "0", "7"], [7, 0], False),
        (["0", "nobody"], None, False),
        (["7", "0", "1"], None, False),
        (["0", "7", "9"], None, False),
        (["0", "9"], [0, 9], True),
    ],
)
async def test_trees_are_removed_once_each_and_none_where_one_is_no_root_or_at_work(
    ids: list[str], removed: list[int] | None, force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[SessionId] = []

    @asynccontextmanager
    async def opened(settings: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(find=find)

    async def find(text: str) -> Any:
        if text == "nobody":
            raise ViewError("no session 'nobody'")
        return one(int(text), 0 if text == "1" else int(text))

    async def remove_tree(found: object, root: Any, *, force: bool, ask: bool) -> None:
        gone.append(root.session)

    async def members_of(found: object, root: Any) -> list[Any]:
        return [root]

    async def at_work(found: object, members: Any) -> str:
        return "the root is running" if members[-1].session == session(9) else ""

    monkeypatch.setattr("orchestrator.cli.invocation.opened", opened)
    monkeypatch.setattr(remove, "_remove", remove_tree)
    monkeypatch.setattr(remove, "_members", members_of)
    monkeypatch.setattr(remove, "_at_work", at_work)
    removing = remove._rm(cast(Any, SimpleNamespace(settings=dict)), ids, force=force, ask=False)
    if removed is None:
        with pytest.raises((Fault, ViewError)):
            await removing
    else:
        await removing
    assert gone == [session(number) for number in removed or ()]


@pytest.mark.parametrize("gone", [False, True])
async def test_all_sessions_of_a_tree_go_with_it_and_none_of_its_neighbours(gone: bool) -> None:
    """Also those that its registry does not name any more; the root comes last, as it is now."""
    fleet = Fleet(one(1), one(7, 7), one(0), one(2), one(8, 7), one(3), gone=gone)
    found = await remove._members(cast(Any, fleet), one(0))
    assert [head.session for head in found] == [session(number) for number in (1, 2, 3, 0)]
    assert found[-1].seq == (9 if gone else 99)


@pytest.mark.parametrize("agents", [0, 1, 3])
@pytest.mark.parametrize("title", ["", "Fix\nthe \x1b parser"])
def test_person_is_asked_about_a_tree_by_its_name_and_the_number_of_its_agents(
    agents: int, title: str
) -> None:
    root = one(0, meta={"title": title}) if title else one(0)
    told = remove._described([*(one(number) for number in range(1, agents + 1)), root])
    assert session(0).endswith(told.split(" ")[0])
    assert ("(" in told, "\n" in told, "\x1b" in told) == (bool(title), False, False)
    assert told.endswith({0: ")" if title else told[-1], 1: "and its 1 agent", 3: "and its 3 agents"}[agents])
