"""Folds for people: of a session's log and of files, with every way in which they can be broken."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from orchestrator.cli.replay import summary
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.chain import BrokenLink, ChainKey, payload_digest
from orchestrator.core.snapshot import digest
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.file_format import Header
from orchestrator.rollouts.inherited_lines import LogLine
from orchestrator.rollouts.replay import Folded, LiveFold, fold_file, fold_session
from orchestrator.rollouts.rollout_file import export_lines
from tests.rollouts.deployments import Kept, output, said
from tests.rollouts.test_file_format import SECRET, grandchild, stored
from tests.rollouts.test_file_format import full as full_of

GOOD = b'{"timestamp":"t","type":"session_meta","payload":{"id":"x"}}\n'


@pytest.fixture
async def lines(kept: Kept) -> list[bytes]:
    """A full export of a session with two messages."""
    return await kept.file(await kept.has(said("one"), said("two")))


def written(folder: Path, lines: list[bytes]) -> Path:
    path = folder / "rollout.jsonl"
    path.write_bytes(b"".join(lines))
    return path


def folded(folder: Path, lines: list[bytes], at: int | None = None, secret: bytes = b"") -> Folded:
    return fold_file(written(folder, lines), at, ChainKey("k", secret) if secret else None)


async def test_file_folds_to_the_state_that_its_session_rested_with(kept: Kept, tmp_path: Path) -> None:
    session = await kept.has(said("one"), output("z" * 9_000))
    live = await fold_session(kept, await kept.head(session), None)
    found = folded(tmp_path, await kept.file(session))
    assert (found.kind, found.broken, found.matches, found.complete) == ("full", None, True, True)
    assert (found.seq, found.lines, found.head) == (live.seq, live.seq, live.head)
    assert found.sha256_then == digest(found.state) == digest(live.state)
    assert (found.omitted, found.redacted) == (0, 0)


def test_file_is_folded_up_to_an_entry_and_no_further(tmp_path: Path, lines: list[bytes]) -> None:
    last = len(lines) - 1
    found = folded(tmp_path, lines, at=last - 1)
    assert (found.seq, found.lines, found.broken) == (last - 1, last - 1, None)
    assert found.matches is None
    assert len(found.state.history) == len(folded(tmp_path, lines).state.history) - 1


def test_file_that_ends_early_names_the_first_missing_entry(tmp_path: Path, lines: list[bytes]) -> None:
    last = len(lines) - 1
    found = folded(tmp_path, lines[:-1])
    assert found.broken == BrokenLink(last, f"the file should go on to {last}")
    assert found.matches is None


def test_part_of_a_file_that_ends_early_is_whole(tmp_path: Path, lines: list[bytes]) -> None:
    last = len(lines) - 1
    assert folded(tmp_path, lines[:-1], at=last - 1).broken is None
    assert folded(tmp_path, lines[:-1], at=2).broken is None
    assert folded(tmp_path, lines[:-1], at=last).broken is not None, "so far it does not go"


def test_file_with_a_changed_first_line_is_broken_there(tmp_path: Path, lines: list[bytes]) -> None:
    changed = [lines[0].replace(b'"pool":"default"', b'"pool":"another"'), *lines[1:]]
    found = folded(tmp_path, changed)
    assert found.broken is not None
    assert (found.broken.seq, "first line was changed" in found.broken.reason) == (0, True)
    assert folded(tmp_path, changed[:-1]).broken == found.broken


def test_fold_of_a_file_stops_before_what_was_altered(tmp_path: Path, lines: list[bytes]) -> None:
    found = folded(tmp_path, [*lines[:-1], lines[-1].replace(b'"two"', b'"2wo"')])
    assert found.broken is not None
    assert found.broken.seq == len(lines) - 1
    assert (found.seq, found.lines) == (len(lines) - 2, len(lines) - 2)


def test_exported_file_is_folded_without_its_facts(tmp_path: Path) -> None:
    log, texts, whole = grandchild()
    lines = list(export_lines(map(LogLine, log), texts.get))
    found = folded(tmp_path, lines, secret=SECRET)
    assert (found.kind, found.broken, found.omitted, found.complete) == ("exported", None, 1, False)
    assert (found.seq, found.lines, found.head) == (3, 7 - 1, log[-1].chain)
    assert [item["type"] for item in found.state.history] == [*(item["type"] for item in whole), "message"]
    cut = folded(tmp_path, lines[:-1], secret=SECRET)
    assert cut.broken is not None
    assert "inherited" in cut.broken.reason
    assert folded(tmp_path, lines[:-1], at=1, secret=SECRET).broken is None


def test_redacted_entry_of_a_file_is_counted_and_not_folded(tmp_path: Path) -> None:
    log, texts = stored([e.item({"type": "other", "text": "one"}), e.fact(f.Closed())])
    lines, gone = full_of(log, texts), log[1]
    places, digest = {"seq": 2, "epoch": 3}, payload_digest(gone.salt, gone.payload).hex()
    header = Header("s", "default", 2, gone.chain).encode(SECRET) + b"\n"
    lines = [header, lines[1], orjson.dumps({**places, "chain": gone.chain.hex(), "digest": digest}) + b"\n"]
    found = folded(tmp_path, lines, secret=SECRET)
    assert (found.lines, found.redacted, found.seq) == (2, 1, 2)
    assert found.broken is not None
    assert "no fact of the log says who did that" in found.broken.reason
    assert found.complete is False
    assert found.state.closed is False


def test_peers_file_has_no_chain_and_its_lines_are_counted(tmp_path: Path) -> None:
    item = b'{"timestamp":"t","type":"response_item","payload":{"type":"other"}}\n'
    found = folded(tmp_path, [GOOD, item, item])
    assert (found.kind, found.broken, found.lines, found.seq) == ("foreign", None, 3, 3)
    assert folded(tmp_path, [GOOD, item, item], at=2).lines == 2


def test_line_that_cannot_be_read_or_folded_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    bad = b'{"timestamp":"t","type":"event_msg","payload":{"type":"token_count","info":{"a":1}}}\n'
    with pytest.raises(RolloutError, match=f"^{path}: line 2: it does not fit what came before"):
        folded(tmp_path, [GOOD, bad])
    with pytest.raises(RolloutError, match=f"^{path}: line 2: not JSON"):
        folded(tmp_path, [GOOD, b"nonsense\n"])
    with pytest.raises(RolloutError, match=f"^{path}: line 1: the file is empty"):
        folded(tmp_path, [])


async def test_log_is_folded_up_to_an_entry_or_its_end(kept: Kept) -> None:
    head = await kept.head(await kept.has(said("one"), said("two")))
    end, part, beyond = [await fold_session(kept, head, at) for at in (None, 3, head.seq + 9)]
    assert (end.kind, end.seq, end.lines, end.head, end.matches) == (
        None,
        head.seq,
        head.seq,
        head.head,
        True,
    )
    assert (part.seq, part.lines, part.matches, part.broken) == (3, 3, None, None)
    assert (beyond.seq, beyond.broken) == (head.seq, None)


async def test_log_that_has_lost_its_end_names_the_first_missing_entry(kept: Kept) -> None:
    head = await kept.head(await kept.has(said("one"), said("two")))
    await kept.redis.xdel(kept.broker.keys.rollout(head.session), f"{head.seq}-0")
    found = await fold_session(kept, head, None)
    assert found.broken == BrokenLink(head.seq, f"missing: the log should go on to {head.seq}")
    assert (found.seq, found.lines) == (head.seq - 1, head.seq - 1)
    assert (await fold_session(kept, head, head.seq - 1)).broken is None


async def test_fold_of_a_log_stops_before_a_page_with_an_altered_entry(kept: Kept) -> None:
    session = await kept.has(said("one"), said("two"))
    key, head = kept.broker.keys.rollout(session), await kept.head(session)
    entries = await kept.redis.xrange(key)
    await kept.redis.delete(key)
    for at, fields in entries:
        fields[b"p"] = fields[b"p"].replace(b'"two"', b'"2wo"')
        await kept.redis.xadd(key, fields, id=at)
    found = await fold_session(kept, head, None)
    assert found.broken is not None
    assert found.broken.seq == head.seq
    assert found.lines == 0


async def test_session_that_never_rested_has_nothing_to_compare(kept: Kept) -> None:
    head = await kept.head(await kept.has(said("one")))
    assert LiveFold.of(head) is not None
    await kept.redis.hset(kept.broker.keys.session(head.session), "meta", b'{"seq":3}')
    assert LiveFold.of(await kept.head(head.session)) is None
    await kept.redis.hset(kept.broker.keys.session(head.session), "meta", b"")
    assert LiveFold.of(await kept.head(head.session)) is None


async def test_state_that_differs_from_the_live_one_does_not_match(kept: Kept) -> None:
    head = await kept.head(await kept.has(said("one")))
    meta = orjson.loads(head.meta) | {"state_sha256": "0" * 64}
    await kept.redis.hset(kept.broker.keys.session(head.session), "meta", orjson.dumps(meta))
    assert (await fold_session(kept, await kept.head(head.session), None)).matches is False


def test_session_whose_words_were_redacted_has_no_fold_to_compare_and_says_why() -> None:
    told = list(summary(Folded(None, seq=4, lines=4, redacted=2)))
    assert told[-1] == "live fold  nothing to compare: 2 entries in the log were redacted"
