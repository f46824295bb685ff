"""Exports of stored sessions: every line with its texts, and an end that is said to be missing."""

from __future__ import annotations

import hashlib

import orjson
import pytest

from orchestrator.core.ids import TreeId
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.export import Tally, exported, header_of
from orchestrator.rollouts.file_format import FileWalk, read_rollout
from tests.rollouts.deployments import Kept, output, said


async def test_large_texts_are_put_back_into_their_own_lines(kept: Kept) -> None:
    texts = ["a" * 9_000, "b" * 9_000]
    session = await kept.has(output(texts[0]), said("between"), output(texts[1]))
    for full in (True, False):
        lines = [orjson.loads(line) for line in await kept.file(session, full=full)]
        told = [line["payload"].get("output") for line in lines if "payload" in line]
        assert [text for text in told if text] == texts


async def test_text_that_is_gone_is_asked_for_once(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await kept.has(output("a" * 9_000))
    name = hashlib.sha256(b"a" * 9_000).hexdigest()
    asked: list[set[str]] = []

    async def nowhere(tree: TreeId, digests: set[str]) -> dict[str, str]:
        assert tree == TreeId(session)
        asked.append(set(digests))
        return {}

    monkeypatch.setattr(kept, "large_texts", nowhere)
    last = orjson.loads((await kept.file(session))[-1])
    assert (asked, last["payload"]["output"]) == ([{name}], {"$blob": name, "bytes": 9_000})


async def test_exports_are_proved_and_tell_how_much_they_hold(kept: Kept) -> None:
    head = await kept.head(await kept.has(said("one")))
    for full in (True, False):
        tally = Tally()
        chunks = [chunk async for chunk in exported(kept, head, full, tally)]
        lines = b"".join(chunks).splitlines(keepends=True)
        text = read_rollout([header_of(head, "k").encode(), *lines] if full else lines)
        walk = FileWalk(b"")
        assert [walk.take_line(line) for line in text.lines] == [None] * len(lines)
        facts = 0 if full else head.seq - len(lines)
        assert (walk.seq, walk.head, tally.last, tally.lines) == (
            head.seq,
            head.head,
            head.seq,
            head.seq - facts,
        )
        assert facts == (0 if full else 1)


async def test_first_line_says_what_the_session_rested_with(kept: Kept) -> None:
    head = await kept.head(await kept.has(said("one")))
    told, meta = header_of(head, "k"), orjson.loads(head.meta)
    assert (told.session_id, told.pool, told.seq, told.head) == (head.session, "default", head.seq, head.head)
    assert (told.key_id, told.state_seq, told.state_sha256) == ("k", head.seq, meta["state_sha256"])
    await kept.redis.hset(kept.broker.keys.session(head.session), "meta", b"")
    young = header_of(await kept.head(head.session), "")
    assert (young.state_seq, young.state_sha256) == (0, "")


@pytest.mark.parametrize("full", [True, False])
async def test_log_that_has_lost_its_end_is_not_called_exported(kept: Kept, full: bool) -> None:
    head = await kept.head(await kept.has(said("one")))
    await kept.redis.xdel(kept.broker.keys.rollout(head.session), f"{head.seq}-0")
    with pytest.raises(RolloutError, match=f"^entry {head.seq} of session {head.session} is missing"):
        _ = [chunk async for chunk in exported(kept, head, full, Tally())]


@pytest.mark.parametrize(
    ("tally", "seq", "told"),
    [
        (Tally(3, 3), 3, "3 entries, 3 stand in the file"),
        (Tally(1, 1), 1, "1 entry, 1 stand in the file"),
        (
            Tally(1_000, 1_200),
            1_201,
            "1,201 entries, 1,000 stand in the file; 200 are left out of it but for their digests; "
            "1 follows behind its last line",
        ),
    ],
)
def test_person_reads_how_much_of_a_log_a_file_holds(tally: Tally, seq: int, told: str) -> None:
    assert tally.summary(seq) == told
