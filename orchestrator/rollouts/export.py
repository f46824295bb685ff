"""A session's log as the lines of a file: in Codex's shapes, or whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from orchestrator.broker.records import SessionHead
from orchestrator.core.counts import counted
from orchestrator.core.entries import milliseconds
from orchestrator.rollouts.errors import RolloutError
from orchestrator.rollouts.file_format import Header, full_line
from orchestrator.rollouts.inherited_lines import missing_texts
from orchestrator.rollouts.log_line import LogLine
from orchestrator.rollouts.replay import LiveFold
from orchestrator.rollouts.rollout_file import export_lines
from orchestrator.rollouts.source import LogSource
from orchestrator.rollouts.tree_lines import TreeLines


@dataclass(slots=True)
class Tally:
    """The count of a log's entries in a file."""

    lines: int = 0
    last: int = 0
    """The entry of the last line."""

    def summary(self, seq: int) -> str:
        """The count in words, as `verify` and `import` print it."""
        left_out, behind = self.last - self.lines, seq - self.last
        parts = [f"{self.lines:,} stand in the file"]
        parts += [f"{left_out:,} are left out of it but for their digests"] if left_out else []
        parts += [f"{behind:,} follow behind its last line"] if behind else []
        return f"{counted(seq, 'entry')}, {'; '.join(parts)}"


def header_of(head: SessionHead, key_id: str) -> Header:
    """The first line of a full export; `key_id` names the chain's key, if it has one."""
    live = LiveFold.of(head)
    return Header(
        session_id=head.session,
        pool=head.pool,
        seq=head.seq,
        head=head.head,
        key_id=key_id,
        state_seq=live.seq if live else 0,
        state_sha256=live.sha256 if live else "",
    )


async def exported(found: LogSource, head: SessionHead, full: bool, tally: Tally) -> AsyncIterator[bytes]:
    """The file's lines as they are read; raises `RolloutError` if the log is not all there."""
    carried: list[LogLine] = []
    told = TreeLines(found.broker, head)
    last = 0
    async for entry in found.log(head.session, head.seq):
        last = entry.seq
        line = LogLine(entry)
        carried.append(line)
        if full or not line.is_fact:
            # One line at a time: the large texts of many would not fit into memory together.
            texts = await _texts_of(found, head, carried)
            lines = (
                (full_line(one, texts.get) for one in carried) if full else export_lines(carried, texts.get)
            )
            if not full and carried[0].stored.seq > 1:
                yield await told.before(milliseconds(line.value["timestamp"]))
            yield b"".join(lines)
            tally.lines, tally.last = tally.lines + 1, last
            carried = []
    if not full:
        yield await told.before(None)
    if last < head.seq:
        raise RolloutError(
            f"entry {last + 1} of session {head.session} is missing; `dendro verify` tells more"
        )


async def _texts_of(found: LogSource, head: SessionHead, lines: Sequence[LogLine]) -> dict[str, str]:
    """All texts that the lines refer to, those inside inherited conversations too."""

    texts: dict[str, str] = {}
    asked: set[str] = set()
    while missing := missing_texts(lines, texts.get) - asked:
        asked |= missing
        texts |= await found.large_texts(head.tree, missing)
    return texts
