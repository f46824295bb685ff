"""The past of a portable folder, read from its session's log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.broker.records import SessionHead, StoredEntry
from orchestrator.core import facts as f
from orchestrator.core.entries import Entry, encode_entry, fact
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.packs import FileCounts, FolderChange, Pack
from orchestrator.protocol.ids import CallId, SnapshotId
from orchestrator.rollouts.log_source import LogSource
from orchestrator.views import ViewError
from orchestrator.views.workspaces import FolderPast, folder_past, packs_of

SESSION = SessionId("01a1f8a1-c5d0-7001-97bc-c80be6a60f79")
SAID = Entry("event_msg", {"type": "agent_message", "message": 'a "workspace'})


def pack(number: int, *, whole: bool = False) -> Pack:
    return Pack(f"{SESSION}/workspaces/{number}", f"{number:064x}", 100, whole)


def begun(number: int) -> Entry:
    return fact(f.WorkspaceBegun(SnapshotId(f"s{number}"), (pack(number, whole=True),)))


def saved(number: int, *, whole: bool = False) -> Entry:
    change = FolderChange(number, 10 * number, number)
    parent, calls = SnapshotId(f"s{number - 1}"), (CallId("c1"),)
    return fact(
        f.WorkspaceSaved(
            SnapshotId(f"s{number}"),
            parent,
            pack(number, whole=whole),
            FileCounts(1, 0, 0),
            (),
            calls,
            5,
            change=change,
        )
    )


UNSAVED = fact(f.WorkspaceUnsaved(1, "build-3", "the store is away", (CallId("c2"),), SnapshotId("s9")))


class Log:
    """A log of these entries."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries

    async def log(self, session: SessionId, through: int, after: int = 0) -> AsyncIterator[StoredEntry]:
        for seq, entry in enumerate(self._entries[after:through], start=after + 1):
            yield StoredEntry(seq, 1, encode_entry(entry, 1_000, {}).line, b"", b"")


async def past(*entries: Entry) -> FolderPast:
    head = SimpleNamespace(session=SESSION, tree=TreeId(SESSION), seq=len(entries))
    return await folder_past(cast(LogSource, Log(entries)), cast(SessionHead, head))


async def test_the_folder_at_an_entry_is_what_the_last_snapshot_before_it_says() -> None:
    found = await past(SAID, begun(0), SAID, saved(1), SAID, saved(2), SAID)
    assert [(moment.seq, moment.snapshot) for moment in found.moments] == [(2, "s0"), (4, "s1"), (6, "s2")]
    assert [found.at(seq).snapshot for seq in (2, 3, 4, 5, 6, 7, None)] == [
        "s0",
        "s0",
        "s1",
        "s1",
        "s2",
        "s2",
        "s2",
    ]
    assert found.base.snapshot == "s0"
    assert found.change == FolderChange(2, 20, 2)


async def test_packs_of_two_moments_are_named_once_in_the_order_of_their_entries() -> None:
    found = await past(begun(0), saved(1), saved(2, whole=True), saved(3))
    assert [moment.packs for moment in found.moments[2:]] == [
        (pack(2, whole=True),),
        (pack(2, whole=True), pack(3)),
    ]
    both = packs_of((found.at(4), found.at(2)))
    assert both == (pack(0, whole=True), pack(1), pack(2, whole=True), pack(3))


@pytest.mark.parametrize(
    ("seq", "words"), [(0, "entries 1 to 3"), (4, "entries 1 to 3"), (1, "from entry 2 on")]
)
async def test_an_entry_that_has_no_folder_is_told_with_those_that_have(seq: int, words: str) -> None:
    found = await past(SAID, begun(0), saved(1))
    with pytest.raises(ViewError, match=words):
        found.at(seq)


async def test_nothing_is_made_of_a_folder_whose_newest_changes_are_on_one_machine() -> None:
    found = await past(begun(0), saved(1), UNSAVED)
    with pytest.raises(ViewError, match="on machine build-3 only"):
        found.settled(None)
    assert found.settled(2).snapshot == "s1"
    for seq in (3, 4):
        with pytest.raises(ViewError, match="entries 1 to 3" if seq == 4 else "on machine build-3 only"):
            found.settled(seq)
    assert found.at(None).snapshot == "s1", "what the store has can be looked at"


@pytest.mark.parametrize("more", [(), (UNSAVED,), (UNSAVED, SAID)])
async def test_moments_before_changes_that_no_store_has_can_be_had_and_later_ones_when_they_are_stored(
    more: tuple[Entry, ...],
) -> None:
    log = (begun(0), saved(1), SAID, UNSAVED, *more, SAID)
    lacking = await past(*log)
    for seq in range(1, len(log) + 1):
        assert lacking.lacks(seq) is (seq >= 4), seq
    assert lacking.lacks(None)
    for ended in (saved(2), fact(f.WorkspaceSettled()), fact(f.WorkspaceRolledBack(SnapshotId("s1"), ()))):
        whole = await past(*log, ended)
        assert not any(whole.lacks(seq) for seq in (None, *range(1, len(log) + 2)))
        assert whole.settled(None).snapshot == ("s2" if ended == saved(2) else "s1")
    again = await past(*log, saved(2), SAID, UNSAVED)
    assert [seq for seq in range(1, len(log) + 4) if again.lacks(seq)] == [len(log) + 3]


async def test_a_session_without_a_portable_folder_is_told_how_to_get_one() -> None:
    with pytest.raises(ViewError, match="run --portable"):
        await past(SAID, SAID)


async def test_a_fact_of_a_newer_version_changes_nothing() -> None:
    newer: Any = {"kind": "workspace_painted", "colour": "red"}
    found = await past(begun(0), Entry("dendro", newer), saved(1))
    assert len(found.moments) == 2
