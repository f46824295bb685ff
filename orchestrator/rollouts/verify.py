"""Verification of a session's log against itself and against all notes of it elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import SessionHead
from orchestrator.core.chain import BrokenLink, ExpectedHead
from orchestrator.core.frozen import record
from orchestrator.core.ids import TreeId, created_ms
from orchestrator.rollouts.audit import ExternalNote, LogAudit, audit_session, audit_tree, tree_witnesses
from orchestrator.rollouts.rollout_file import last_noted
from orchestrator.rollouts.storage import Storage
from orchestrator.rollouts.tree_log import audit_tree_log


@record
class Report:
    """The result of the checks of a log."""

    what: str
    seq: int
    head: bytes
    shown: tuple[str, ...]
    """The claims that hold, for people."""
    findings: Sequence[BrokenLink]
    key_id: str = ""
    """The id of the key that the log says its chain was keyed by; full exports say it, sessions do not."""
    unchecked: str = ""
    """Why the chain could not be checked here, where it is keyed otherwise: neither sound nor broken."""


class Audited(Protocol):
    """A deployment, as far as its logs are verified."""

    @property
    def broker(self) -> Broker: ...

    @property
    def rollout_files(self) -> Path:
        """The folder of rollout files in this user's data folder."""
        ...

    def storage(self) -> Storage:
        """Redis and the archive."""
        ...


async def session_report(found: Audited, head: SessionHead, expected: ExpectedHead | None) -> Report:
    """The verification report of a session; `expected` is an earlier head."""
    witnesses = [*await tree_witnesses(found.broker.logs, head.tree), *_noted_in_file(found, head)]
    if expected is not None:
        witnesses.append(ExternalNote(head.session, expected.seq, expected.chain, "--expect-head"))
    return _report(await audit_session(found.storage(), head, witnesses))


def _noted_in_file(found: Audited, head: SessionHead) -> Iterator[ExternalNote]:
    """The note in the session's rollout file, where workers write that file into this user's data folder."""

    moment = datetime.fromtimestamp(created_ms(head.session) / 1000)
    day = found.rollout_files / f"{moment:%Y}" / f"{moment:%m}" / f"{moment:%d}"
    for path in day.glob(f"rollout-*-{head.session}.jsonl"):
        if path.is_file():
            with path.open("rb") as file:
                line = last_noted(file)
            if line.seq:
                yield ExternalNote(head.session, line.seq, line.head, f"the file {path}")


async def sessions_by_tree(found: Audited, tree: TreeId | None) -> AsyncIterator[list[SessionHead]]:
    """The sessions of one tree, or of each tree that there is."""
    if tree is not None:
        # Agents that were pruned are in no registry, so the tree's shard is read.
        pages = found.broker.logs.heads_of_shard(found.broker.keys.shard_of(tree))
        yield [head async for page in pages for head in page if head.tree == tree]
        return
    async for sessions in found.broker.logs.session_ids():
        # All of a tree are in one shard, and each page is one shard's.
        trees: dict[str, list[SessionHead]] = {}
        for head in await found.broker.logs.heads(sessions):
            trees.setdefault(str(head.tree), []).append(head)
        for heads in trees.values():
            yield heads


async def tree_reports(found: Audited, heads: Sequence[SessionHead]) -> list[Report]:
    """In the order in which the agents were made."""

    noted = [note for head in heads for note in _noted_in_file(found, head)]
    audits = [audit async for audit in audit_tree(found.storage(), heads, noted)]
    reports = [_report(audit) for audit in reversed(audits)]
    if heads:
        made = [child for audit in audits for _, child in audit.children]
        told, findings = await audit_tree_log(found.storage(), heads[0].tree, made)
        if told or findings:
            reports.append(_tree_report(heads[0].tree, told, findings))
    return reports


def _tree_report(tree: TreeId, told: int, findings: Sequence[BrokenLink]) -> Report:
    shown = (
        "in no chain",
        "it agrees with the registry and with the births, requests and decisions in its sessions' logs",
    )
    return Report(f"tree {tree}", told, b"", shown, findings)


def _report(audit: LogAudit) -> Report:
    shown = ["it is this session's log"] if audit.named else ["its entries name no session"]
    shown += [f"{audit.texts} large texts are there"] if audit.texts else []
    shown += [f"{audit.witnesses} notes of others agree"] if audit.witnesses else []
    unchecked = unchecked_for("") if audit.keyed else ""
    what = f"session {audit.session}"
    return Report(what, audit.seq, audit.head, tuple(shown), audit.findings, unchecked=unchecked)


def unchecked_for(key_id: str) -> str:
    """Why a chain cannot be checked, in words."""
    by = f"keyed by {key_id!r}" if key_id else "keyed, or changed from its first entries on"
    return f"{by}: cannot be checked here, where chain.secret is not that key"
