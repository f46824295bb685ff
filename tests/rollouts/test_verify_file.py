"""Reports on an exported file: what holds, what does not, what cannot be shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.chain import BrokenLink, ChainKey, ExpectedHead, payload_digest
from orchestrator.core.entries import Entry
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.file_format import Header
from orchestrator.rollouts.inherited_lines import LogLine
from orchestrator.rollouts.rollout_file import export_lines
from orchestrator.rollouts.verify import Report, audit_file
from tests.rollouts.deployments import SETTINGS, new_facts
from tests.rollouts.test_file_format import SECRET, full, grandchild, item, stored

FIRST = (
    Entry(e.SESSION_META, {"id": "s"}),
    Entry(
        e.DENDRO,
        {
            "kind": "configured",
            "settings": SETTINGS.wire(),
            "session": {"session_id": "s", "pool": "default"},
        },
    ),
    Entry(e.EVENT_MSG, {"type": "session_configured", "session_id": "s"}),
)


def audited(folder: Path, lines: list[bytes], expected: ExpectedHead | None = None) -> Report:
    path = folder / "file.jsonl"
    path.write_bytes(b"".join(lines))
    return audit_file(path, ChainKey("k1", SECRET), expected)


def said(report: Report) -> list[str]:
    return [f"{broken.seq} {broken.reason}" for broken in report.findings]


def written(*entries: Entry, **header: Any) -> list[bytes]:
    """A full export, whose first line may say other things than the entries."""
    log, texts = stored(entries)
    lines = full(log, texts)
    first = replace(Header("s", "default", len(log), log[-1].chain, "k1"), **header)
    return [first.encode(SECRET) + b"\n", *lines[1:]]


def test_whole_file_is_told_with_its_session(tmp_path: Path) -> None:
    lines = written(*FIRST, item("one"))
    report = audited(tmp_path, lines)
    assert (report.what, report.seq, report.key_id) == (str(tmp_path / "file.jsonl"), 4, "k1")
    assert report.head.hex() == orjson.loads(lines[-1])["chain"]
    assert (report.shown, said(report)) == (("all 4 stand in the file", "it is the log of session s"), [])


def test_exported_file_is_told_without_a_first_line(tmp_path: Path) -> None:
    log, texts = stored([*FIRST, e.fact(f.Closed()), item("one")])
    report = audited(tmp_path, list(export_lines(map(LogLine, log), texts.get)))
    parts = "3 stand in the file, 2 are left out of it but for their digests"
    assert (report.shown, said(report), report.key_id) == (
        (parts, "what those say, only a full export shows", "it is the log of session s"),
        [],
        "",
    )


def test_inherited_lines_are_no_entries_and_must_be_proved(tmp_path: Path) -> None:
    log, texts, _ = grandchild()
    lines = list(export_lines(map(LogLine, log), texts.get))
    report = audited(tmp_path, lines)
    assert report.shown[0] == "2 stand in the file, 1 are left out of it but for their digests"
    assert report.findings == []
    assert said(audited(tmp_path, lines[:-1])) == [
        "2 the conversation that it inherited is not the one its log names"
    ]


def test_redacted_entries_and_missing_texts_are_counted(tmp_path: Path) -> None:
    lines, _ = redacted("session:s")
    report = audited(tmp_path, lines)
    assert report.findings == []
    assert report.shown == (
        "all 6 stand in the file",
        "1 of them redacted",
        "1 large texts are not in the file",
        "it is the log of session s",
    )


def redacted(log_id: str) -> tuple[list[bytes], str]:
    """A file whose fifth entry is redacted, and whose sixth says so of the log with this id; the digest."""
    secret = stored([*FIRST, item("x" * 9_000), item("secret")])[0][4]
    digest = payload_digest(secret.salt, secret.payload).hex()
    fact = e.fact(f.Redacted(log_id, 5, digest, "ada", "personal", {}))
    log, _ = stored([*FIRST, item("x" * 9_000), item("secret"), fact])
    lines = full(log, {})
    lines[0] = Header("s", "default", 6, log[5].chain, "k1").encode(SECRET) + b"\n"
    lines[5] = orjson.dumps({"seq": 5, "epoch": 3, "chain": log[4].chain.hex(), "digest": digest}) + b"\n"
    return lines, digest


def test_redaction_that_the_log_does_not_explain_is_a_finding(tmp_path: Path) -> None:
    lines, _ = redacted("session:another")
    assert said(audited(tmp_path, lines)) == [
        "5 it is redacted, and no fact of the log says who did that and why"
    ]


@pytest.mark.parametrize(
    "beside", [{"timestamp": "2020-01-01T00:00:00.000Z"}, {"type": "event_msg"}, {"x": 1}]
)
def test_redacted_line_says_nothing_beside_its_place(tmp_path: Path, beside: dict[str, Any]) -> None:
    lines, _ = redacted("session:s")
    lines[5] = orjson.dumps({**beside, **orjson.loads(lines[5])}) + b"\n"
    [found] = said(audited(tmp_path, lines))
    assert "seq, epoch, chain, digest and nothing else: what else it says is not believed" in found


def test_redaction_in_codex_shapes_is_explained_by_nothing(tmp_path: Path) -> None:
    log, texts = stored([*FIRST, item("one")])
    lines = list(export_lines(map(LogLine, log), texts.get))
    gone = log[3]
    digest = payload_digest(gone.salt, gone.payload).hex()
    lines[-1] = orjson.dumps({"seq": 4, "epoch": 3, "chain": gone.chain.hex(), "digest": digest}) + b"\n"
    [found] = said(audited(tmp_path, lines))
    assert found.startswith("4 it is redacted, a file in Codex's shapes has no facts")


def test_first_line_of_a_log_that_says_so_bears_a_code(tmp_path: Path) -> None:
    """The same for files that the reader accepts as older ones, and without any key."""
    first = [*FIRST]
    first[1] = Entry(e.DENDRO, {**FIRST[1].payload, "export_mac": True})
    lines = without_code(written(*first))
    path = tmp_path / "file.jsonl"
    path.write_bytes(b"".join(lines))
    report = audit_file(path, ChainKey("k1", SECRET), None, accept_old_header=True)
    assert [found.endswith("it was taken away") for found in said(report)] == [True]


def test_full_file_of_another_key_is_neither_sound_nor_broken(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    lines = written(*FIRST, item("one"))
    path.write_bytes(b"".join(lines))
    for key in (None, ChainKey("k2", b"another")):
        report = audit_file(path, key, None)
        assert (report.findings, report.unchecked[:32]) == ([], "keyed by 'k1': cannot be checked")
    path.write_bytes(b"".join(lines[:-1]))
    assert said(audit_file(path, None, None))[0] == "4 the file should go on to 4"


def test_file_in_codex_shapes_of_another_key_is_told_from_a_changed_one(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    for secret in (SECRET, b""):
        log, texts = stored([*FIRST, item("one")], secret)
        lines = list(export_lines(map(LogLine, log), texts.get))
        path.write_bytes(b"".join(lines).replace(b'"id":"s"', b'"id":"t"', 1))
        report = audit_file(path, None, None)
        assert (bool(report.findings), bool(report.unchecked)) == (not secret, bool(secret))


def without_code(lines: list[bytes]) -> list[bytes]:
    first = orjson.loads(lines[0])
    del first["mac"]
    return [orjson.dumps(first) + b"\n", *lines[1:]]


def test_file_of_an_older_version_says_what_it_does_not_prove(tmp_path: Path) -> None:
    lines = without_code(written(*FIRST))
    assert ["bears no code" in found for found in said(audited(tmp_path, lines))] == [True]
    report = audit_file(tmp_path / "file.jsonl", ChainKey("k1", SECRET), None, accept_old_header=True)
    assert (report.shown[-1][:31], report.findings) == ("its first line bears no code, a", [])


def test_file_whose_entries_name_nobody_says_so(tmp_path: Path) -> None:
    report = audited(tmp_path, written(item("one")))
    assert report.shown == ("all 1 stand in the file", "its entries name no session")
    assert report.findings == []


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ({"seq": 9}, ["4 the file should go on to 9"]),
        ({"head": bytes(32)}, ["3 the first line names another head"]),
        ({"session_id": "t"}, ["3 the first line and the entries name several sessions: s, t"]),
        ({"pool": "gpu"}, ["3 the first line says pool 'gpu', the entries say 'default'"]),
    ],
)
def test_first_line_is_held_against_the_entries(
    tmp_path: Path, header: dict[str, Any], found: list[str]
) -> None:
    assert said(audited(tmp_path, written(*FIRST, **header))) == found


@pytest.mark.parametrize("key", [ChainKey("k1", SECRET), None])
def test_first_line_that_no_export_writes_is_a_finding_also_where_no_key_is_configured(
    tmp_path: Path, key: ChainKey | None
) -> None:
    lines = written(*FIRST)
    path = tmp_path / "file.jsonl"
    for first, found in (
        (lines[0], []),
        (
            lines[0].replace(b'"seq":3', b'"seq": 3'),
            ["0 the file's first line was changed: no export writes it so"],
        ),
    ):
        path.write_bytes(b"".join([first, *lines[1:]]))
        assert said(audit_file(path, key, None)) == found


def test_changed_first_line_is_told_before_what_follows_from_it(tmp_path: Path) -> None:
    lines = written(*FIRST)
    changed = lines[0].replace(b'"seq":3', b'"seq":4')
    assert said(audited(tmp_path, [changed, *lines[1:]])) == [
        "0 the file's first line was changed, or written with another chain key",
        "4 the file should go on to 4",
    ]


def test_entries_that_name_two_sessions_are_told_without_a_first_line(tmp_path: Path) -> None:
    other = Entry(e.EVENT_MSG, {"type": "session_configured", "session_id": "t"})
    log, texts = stored([FIRST[0], other, item("one")])
    exported = list(export_lines(map(LogLine, log), texts.get))
    assert said(audited(tmp_path, exported)) == ["3 the entries name several sessions: s, t"]
    log, texts = stored([FIRST[0], FIRST[2], item("one")])
    assert audited(tmp_path, list(export_lines(map(LogLine, log), texts.get))).findings == []


def test_session_that_a_later_entry_names_is_another_ones_business(tmp_path: Path) -> None:
    other = Entry(e.EVENT_MSG, {"type": "session_configured", "session_id": "t"})
    assert audited(tmp_path, written(*FIRST, other)).findings == []
    assert len(audited(tmp_path, written(*FIRST[:2], other)).findings) == 1


def test_altered_entry_ends_the_walk(tmp_path: Path) -> None:
    lines = written(*FIRST, item("one"), item("two"))
    lines[4] = lines[4].replace(b'"one"', b'"0ne"')
    report = audited(tmp_path, lines)
    assert report.findings == [
        BrokenLink(4, "its hash does not follow from its content and the entry before it")
    ]
    assert (report.seq, report.shown[0]) == (3, "all 3 stand in the file")


def test_head_that_was_noted_is_looked_for(tmp_path: Path) -> None:
    lines = written(*FIRST, item("one"))
    head = bytes.fromhex(orjson.loads(lines[3])["chain"])
    assert audited(tmp_path, lines, ExpectedHead(3, head[:8])).findings == []
    missed = audited(tmp_path, lines, ExpectedHead(3, bytes(8)))
    assert said(missed) == ["4 it does not contain the head that was expected at entry 3"]


def test_file_that_is_no_export_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    with pytest.raises(RolloutError, match=f"^{path}: Codex's rollout has no hash chain"):
        audited(tmp_path, [b'{"timestamp":"t","type":"x","payload":{}}\n'])
    with pytest.raises(RolloutError, match=f"^{path}: line 1: not JSON"):
        audited(tmp_path, [b"nonsense"])


def test_facts_of_a_session_name_its_pool(tmp_path: Path) -> None:
    facts = new_facts(pool="gpu")
    configured = e.fact(f.Configured(SETTINGS, facts))
    report = audited(tmp_path, written(configured, session_id=str(facts.session_id), pool="gpu"))
    assert report.findings == []
