"""The rollout's file: brought up to date from what the caller still has, else from the log itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.records import StoredEntry
from orchestrator.core.birth import inherited_history
from orchestrator.core.chain import GENESIS, next_chain, payload_digest
from orchestrator.core.facts import Forked, ForkedAt, encode
from orchestrator.core.history import user_message
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.protocol.wire import written
from orchestrator.rollouts.rollout_file import FileLine, RolloutFile, last_line, locked
from orchestrator.runtime.ports import Ports

SESSION = SessionId("01a1f821-7090-700a-b0b5-81d1b4589218")


class Log:
    """A session's log, as far as an export reads it; counts how often it is asked."""

    archive = None
    files = staticmethod(locked)

    def __init__(self, kinds: str) -> None:
        """`e` is an event, `f` a fact that the file has no line for."""
        self.entries: list[StoredEntry] = []
        for kind in kinds:
            self.add(kind)
        self.reads = 0
        self.texts = self
        self.broker = self
        self.logs = self
        self.held_back = asyncio.Event()
        self.held_back.set()

    def add(self, kind: str, said: object = None) -> None:
        """The next entry, chained to the one before; `said` tells two logs apart."""
        value = {"timestamp": "t", "type": "dendro" if kind == "f" else "event_msg", "payload": said or {}}
        self.replace(len(self.entries) + 1, value)

    def replace(self, seq: int, value: object) -> None:
        """Writes the log on from an entry, which is this one now."""
        del self.entries[seq - 1 :]
        before = self.entries[-1].chain if self.entries else GENESIS
        payload = orjson.dumps(value)
        chain = next_chain(before, seq, 1, payload_digest(b"salt", payload))
        self.entries.append(StoredEntry(seq, 1, payload, b"salt", chain))

    async def read_rollout(self, session: SessionId, after: int, count: int) -> Sequence[StoredEntry]:
        self.reads += 1
        await self.held_back.wait()
        return self.entries[after : after + count]

    async def head(self, session: SessionId) -> Any:
        return SimpleNamespace(manifest=b"")

    async def fetch(self, tree: TreeId, digests: set[str]) -> None:
        assert not digests

    def get(self, digest: str) -> str | None:
        raise AssertionError(digest)

    async def exported(self, path: Path, through: int, fresh_from: int | None = None) -> int:
        """Brings the file up to `through`; the caller still has the entries from `fresh_from` on."""
        fresh = [] if fresh_from is None else self.entries[fresh_from - 1 :]
        file = RolloutFile(path, SESSION, TreeId(SESSION))
        end = FileLine(through, self.entries[through - 1].chain)
        return await file.bring_up_to(cast(Ports, self), end, fresh)


def _seqs(path: Path) -> list[int]:
    return [orjson.loads(line)["seq"] for line in path.read_bytes().splitlines()]


async def test_file_is_written_from_the_log_when_nothing_is_at_hand(tmp_path: Path) -> None:
    log, path = Log("efe"), tmp_path / "2026" / "r.jsonl"
    assert await log.exported(path, 3) == 3
    assert _seqs(path) == [1, 3]


async def test_caller_that_kept_what_follows_the_last_line_reads_nothing(tmp_path: Path) -> None:
    log, path = Log("eeffefe"), tmp_path / "r.jsonl"
    assert await log.exported(path, 4) == 2
    asked = log.reads
    assert await log.exported(path, 7, fresh_from=3) == 7
    assert log.reads == asked
    assert _seqs(path) == [1, 2, 5, 7]


async def test_caller_that_lacks_facts_behind_the_last_line_has_them_read(tmp_path: Path) -> None:
    log, path = Log("eeffefe"), tmp_path / "r.jsonl"
    await log.exported(path, 4)
    assert await log.exported(path, 7, fresh_from=5) == 7
    last = orjson.loads(path.read_bytes().splitlines()[2])
    assert [seq for seq, *_ in last["omitted"]] == [3, 4]


async def test_nothing_is_written_twice(tmp_path: Path) -> None:
    log, path = Log("eefe"), tmp_path / "r.jsonl"
    await log.exported(path, 4)
    assert await log.exported(path, 4) == 4
    assert await log.exported(path, 4, fresh_from=1) == 4
    assert _seqs(path) == [1, 2, 4]


async def test_two_runners_of_one_process_do_not_wait_for_each_other_for_ever(tmp_path: Path) -> None:
    log, path = Log("eefe"), tmp_path / "r.jsonl"
    log.held_back.clear()
    first = asyncio.create_task(log.exported(path, 4))
    while not log.reads:
        await asyncio.sleep(0)
    assert await log.exported(path, 4, fresh_from=1) == 4
    log.held_back.set()
    assert await first == 4
    assert _seqs(path) == [1, 2, 4]


async def test_what_a_crash_left_of_an_inherited_conversation_is_written_again(tmp_path: Path) -> None:
    log, path = Log("effe"), tmp_path / "r.jsonl"
    items = [written(user_message("one")), written(user_message("two"))]
    source = ForkedAt(session=SessionId("a"), seq=2, chain="00")
    line = {
        "timestamp": "t",
        "type": "dendro",
        "payload": encode(Forked(source, inherited_history(items, frozenset())[0])),
    }
    log.replace(3, line)
    log.add("e")
    await log.exported(path, 4)
    whole = path.read_bytes().splitlines(keepends=True)
    assert [orjson.loads(line)["payload"] for line in whole[1:-1]] == items
    for torn in (b"".join(whole[:2]), b"".join(whole[:3]) + whole[3][:20]):
        path.write_bytes(torn)
        with path.open("r+b") as file:
            assert last_line(file).seq == 1
        assert path.read_bytes() == whole[0]
        assert await log.exported(path, 4) == 4
        assert path.read_bytes() == b"".join(whole)


def _after_the_loss(log: Log, kept: int, added: str) -> Log:
    """The log as it went on where Redis had lost its end."""
    other = Log("")
    other.entries = log.entries[:kept]
    for kind in added:
        other.add(kind, {"another": "life"})
    return other


@pytest.mark.parametrize("added", ["", "f", "e", "efe", "efeeee"])
@pytest.mark.parametrize("at_hand", [False, True])
async def test_a_file_with_lines_that_redis_has_lost_is_made_anew(
    tmp_path: Path, added: str, at_hand: bool
) -> None:
    log, path = Log("eefee"), tmp_path / "r.jsonl"
    await log.exported(path, 5)
    now = _after_the_loss(log, 2, added)
    through = len(now.entries)
    last = await now.exported(path, through, fresh_from=3 if at_hand else None)
    anew = tmp_path / "anew.jsonl"
    assert last == await now.exported(anew, through)
    assert path.read_bytes() == anew.read_bytes()


async def test_a_late_writer_leaves_what_the_next_holder_has_written(tmp_path: Path) -> None:
    log, path = Log("eefee"), tmp_path / "r.jsonl"
    await log.exported(path, 5)
    assert await log.exported(path, 2, fresh_from=1) == 5
    assert _seqs(path) == [1, 2, 4, 5]


@pytest.mark.parametrize(
    "damage", [b"\0\0\0\n", b"[1]\n", b'{"seq": 3}\n', b'{"seq": 3, "chain": "no hex"}\n']
)
async def test_a_file_whose_last_line_cannot_be_read_is_made_anew(tmp_path: Path, damage: bytes) -> None:
    log, path = Log("eeffe"), tmp_path / "r.jsonl"
    await log.exported(path, 3)
    with path.open("ab") as file:
        file.write(damage)
    assert await log.exported(path, 5, fresh_from=4) == 5
    assert _seqs(path) == [1, 2, 5]


class Forgetful(Log):
    """A log of which a large text is nowhere any more."""

    def __init__(self, kinds: str) -> None:
        super().__init__(kinds)
        self.fetched: list[set[str]] = []

    async def fetch(self, tree: TreeId, digests: set[str]) -> None:
        self.fetched.append(digests)

    def get(self, digest: str) -> str | None:
        return None


async def test_text_that_is_nowhere_is_asked_for_once_and_its_line_is_written(tmp_path: Path) -> None:
    log, path = Forgetful("e"), tmp_path / "r.jsonl"
    text = {"$blob": "a" * 64, "bytes": 9_000}
    log.replace(
        2, {"timestamp": "t", "type": "event_msg", "payload": {"type": "agent_message", "message": text}}
    )
    assert await log.exported(path, 2) == 2
    assert log.fetched == [{"a" * 64}]
    assert len(path.read_bytes().splitlines()) == 2
