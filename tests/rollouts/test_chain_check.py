"""Audits of sessions and of trees, beyond what `dendro verify` shows of them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from orchestrator.broker.records import TreeEntry
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.blobs import INLINE_BYTES
from orchestrator.core.entries import Entry
from orchestrator.core.ids import AgentId, SessionId, TreeId, new_session_id
from orchestrator.core.tree import Child
from orchestrator.rollouts.chain_check import (
    ExternalNote,
    LogAudit,
    audit_session,
    audit_tree,
    tree_witnesses,
)
from tests.rollouts.conftest import double, kept
from tests.rollouts.deployments import NOW_MS, Kept, output, said

__all__ = ["double", "kept"]


async def audited(kept: Kept, session: SessionId, *notes: ExternalNote) -> LogAudit:
    return await audit_session(kept.stored, await kept.head(session), notes)


def seqs(audit: LogAudit) -> list[int]:
    return [finding.seq for finding in audit.findings]


async def test_tree_that_was_deleted_meanwhile_has_no_findings() -> None:
    nowhere = cast(Any, None)
    assert [audit async for audit in audit_tree(nowhere, [])] == []


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("tree", str(new_session_id(NOW_MS, 3, 999_999)), "tree_id"),
        ("pool", "gpu", "pool"),
        ("agent_id", "7", "agent_id"),
    ],
)
async def test_each_place_that_the_hash_says_is_held_against_the_log(
    kept: Kept, field: str, value: str, named: str
) -> None:
    session = await kept.has(said("go"))
    assert (await audited(kept, session)).findings == []
    await kept.redis.hset(kept.broker.keys.session(session), field, value)
    assert [named in finding.reason for finding in (await audited(kept, session)).findings] == [True]


async def test_each_text_that_is_gone_is_named_once_with_its_first_entry(kept: Kept) -> None:
    one, two, three, four = (f"{name} " * INLINE_BYTES for name in ("one", "two", "three", "four"))
    ended = {"type": "exec_command_end", "call_id": "c", "stdout": three, "stderr": four, "exit_code": 0}
    both = Entry(e.EVENT_MSG, ended, "1")
    session = await kept.has(*map(output, (one, two, one)), both)
    assert (await audited(kept, session)).texts == 4
    for digest in await kept.broker.trees.texts_of(TreeId(session)):
        await kept.redis.delete(kept.broker.keys.blob(TreeId(session), digest))
    assert seqs(await audited(kept, session)) == [5, 6, 8, 8]


async def test_each_agent_that_is_gone_is_named_with_the_entry_that_made_it(kept: Kept) -> None:
    there, gone, older = (
        await kept.has(said("go")),
        [new_session_id(NOW_MS + 1, 3, 900_000 + number) for number in range(2)],
        new_session_id(NOW_MS - 86_400_000, 3, 1),
    )
    made = (gone[0], there, gone[1], older)
    children = [Child(AgentId(n), session, "spawn", "ready", NOW_MS) for n, session in enumerate(made, 1)]
    session = await kept.has(*(e.fact(f.ChildMade(child)) for child in children))
    audit = await audited(kept, session)
    assert seqs(audit) == [5, 7], "an imported log names those of the session that it was exported from"
    assert all(each in str(audit.findings) for each in gone)


@pytest.mark.parametrize("at", [4, 5, 6])
async def test_note_of_each_entry_agrees_or_is_a_finding_there(kept: Kept, at: int) -> None:
    session, other = await kept.has(said("go"), said("on")), await kept.has(said("go"))
    chains = {entry.seq: entry.chain async for entry in kept.log(session, 6)}
    right = [ExternalNote(session, seq, chain, "a ticket") for seq, chain in chains.items()]
    audit = await audited(kept, session, *right, ExternalNote(other, at, b"x" * 32, "of another session"))
    assert (audit.findings, audit.witnesses) == ([], 6)
    wrong = ExternalNote(session, at, b"x" * 32, "another ticket")
    audit = await audited(kept, session, *right, wrong)
    assert (seqs(audit), audit.witnesses) == ([at], 6)
    assert "another ticket names another hash" in audit.findings[0].reason


@pytest.mark.parametrize("beyond", [(7,), (7, 8), (8, 7)])
async def test_notes_beyond_the_end_are_a_finding_behind_it(kept: Kept, beyond: tuple[int, ...]) -> None:
    session = await kept.has(said("go"), said("on"))
    notes = [ExternalNote(session, seq, b"x" * 32, f"ticket {seq}") for seq in beyond]
    [finding] = (await audited(kept, session, *notes)).findings
    assert finding.seq == 7
    assert f"ticket {min(beyond)} names entry {min(beyond)}" in finding.reason


async def test_notes_of_the_trees_log_are_read_to_its_end(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await kept.has(said("go"), said("on"))
    keys, entries = kept.broker.keys, [entry async for entry in kept.log(session, 6)]
    for number, entry in enumerate(entries, 1):
        told = {"p": b"{}", "s": session, "q": entry.seq, "h": entry.chain, "d": "", "t": NOW_MS, "a": ""}
        await kept.redis.xadd(keys.tree(TreeId(session)), told, id=f"{number}-0")
    read_tree = kept.broker.logs.read_tree

    async def some(tree: TreeId, after: int = 0) -> tuple[TreeEntry, ...]:
        return await read_tree(tree, after, 2)

    monkeypatch.setattr(kept.broker.logs, "read_tree", some)
    notes = await tree_witnesses(kept.broker.logs, TreeId(session))
    assert [(note.seq, note.chain) for note in notes] == [(entry.seq, entry.chain) for entry in entries]
