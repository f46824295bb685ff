"""Lines about a bundle: all that was kept back, lost, seen and signed is told, and of each how much."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from orchestrator.cli import bundle as lines
from orchestrator.rollouts.bundle_check import BundleReport, Finding, LogSeen
from orchestrator.rollouts.bundle_form import LogLine, Manifest, Stated
from orchestrator.rollouts.bundle_receipts import Receipts
from orchestrator.rollouts.bundle_writer import Made
from tests.rollouts.bundles import ADA

ORIGIN = "fleet.example/home"
LOGS = (
    LogLine("session:root", 1_200, b"", b""),
    LogLine("session:agent", 30, b"", b"", "2026"),
    LogLine("tree:root", 4, b"", b""),
)


def manifest(**more: Any) -> Manifest:
    own = Manifest(ORIGIN, "2026-11-30T10:00:00.000Z", "dendro 1", "root", LOGS, (), (), {}, {}, {})
    return replace(own, **more)


def report(**more: Any) -> BundleReport:
    return BundleReport(**{"manifest": manifest(), **more})


def said(found: BundleReport, kind: str, *, trusted: bool = True) -> list[str]:
    """The lines of a kind, without it."""
    told = list(lines._verdict(found, trusted=trusted))
    return [line[11:] for line in told if line.startswith(f"{kind:<11}")]


@pytest.mark.parametrize("more", [0, 5])
@pytest.mark.parametrize("count", [0, 1, 19, 20, 21])
def test_findings_are_named_up_to_a_bound_and_all_are_counted(count: int, more: int) -> None:
    findings = [Finding("chain", f"session:root:{n}", "follows from nothing") for n in range(count)]
    found = report(findings=findings, more=more if count else 0)
    (verdict,) = said(found, "bundle")
    named, total = said(found, "FINDING"), count + (more if count else 0)
    if not count:
        assert verdict == "agrees with itself, and with what you trust"
        assert said(found, "bundle", trusted=False) == [lines.FOREIGN]
        return
    assert verdict == f"does not hold: {total} finding{'s' * (total != 1)}"
    wanted = [f"chain  session:root:{n}: follows from nothing" for n in range(min(count, 20))]
    assert named == wanted
    assert said(found, "") == ([f"and {total - 20:,} more"] if total > 20 else [])
    assert said(found, "logs")[0].endswith("(stated)"), "nothing of it is called proved"


@pytest.mark.parametrize(
    ("signed_by", "signatures", "wanted"),
    [
        ((ORIGIN, "other"), 2, f"{ORIGIN}; signed by a key you trust (proved); made "),
        (
            ("other", "third"),
            2,
            f"{ORIGIN} (stated); signed by a key you trust, other, third (proved); made ",
        ),
        ((), 1, f"{ORIGIN}; signed, by a key that you did not name; made "),
        ((), 0, f"{ORIGIN}; signed by nobody; made "),
    ],
)
def test_origin_is_told_with_who_has_signed(signed_by: tuple[str, ...], signatures: int, wanted: str) -> None:
    (line,) = said(report(signed_by=signed_by, signatures=signatures), "origin")
    assert line == f"{wanted}2026-11-30T10:00:00.000Z by dendro 1 (stated)"


@pytest.mark.parametrize(("read", "uncovered"), [(False, 0), (True, 0), (True, 1)])
def test_logs_are_counted_and_said_to_be_under_receipts_only_if_all_are(read: bool, uncovered: int) -> None:
    found = report(receipts=Receipts(present=read, read=read), uncovered=uncovered)
    covered = ", all of them under receipts" if (read, uncovered) == (True, 0) else ""
    counts = "2 sessions and the tree's log: 1,234 entries"
    assert said(found, "logs") == [f"{counts} under the roots of the manifest{covered} (proved)"]
    assert said(found, "chain") == ["keyed by 2026: who has that key can check it, too"]


def test_each_key_of_a_chain_is_named_once() -> None:
    logs = tuple(LogLine(f"session:{n}", 1, b"", b"", key) for n, key in enumerate(["b", "a", "", "b"]))
    (line,) = said(report(manifest=manifest(logs=logs)), "chain")
    assert line.startswith("keyed by a, b: ")


SEEN = Receipts(present=True, read=True, size=9, witnesses=2, until_ms=1_000)


@pytest.mark.parametrize(
    ("receipts", "trusted", "parts"),
    [
        (
            Receipts(),
            True,
            ["no receipts: nobody else has seen its roots, so who signs it can write another past"],
        ),
        (
            SEEN,
            True,
            [
                "2 of your witnesses signed the register's size 9",
                "chosen receipts, which cannot show that nothing was left out",
            ],
        ),
        (SEEN, False, ["chosen receipts, which cannot show that nothing was left out"]),
        (
            replace(SEEN, whole=True, earlier=5, stamps=1),
            True,
            [
                "2 of your witnesses signed the register's size 9",
                "it continues the checkpoint that you had (size 5)",
                "complete as of 1970-01-01T00:00:01.000Z",
                "1 time stamp, not looked at here",
            ],
        ),
        (
            replace(SEEN, earlier=0, stamps=2),
            False,
            [
                "it continues the checkpoint that you had (size 0)",
                "chosen receipts, which cannot show that nothing was left out",
                "2 time stamps, not looked at here",
            ],
        ),
    ],
)
def test_whoever_else_has_seen_it_is_told(receipts: Receipts, trusted: bool, parts: list[str]) -> None:
    assert said(report(receipts=receipts), "seen", trusted=trusted) == ["; ".join(parts)]


def test_all_that_is_not_there_is_told_with_who_took_it_away() -> None:
    found = report(
        manifest=manifest(left_out=("a", "b")),
        redacted={("ann", "a name"): 2, ("", "a 'key'"): 1},
        withheld=3,
        texts={"here": 7, "withheld": 1, "redacted": 2},
        packs={"named": 4, "here": 5, "withheld": 6},
    )
    (line,) = said(found, "withheld")
    assert line.split("; ") == [
        "1 entry redacted by somebody (\"a 'key'\") (stated)",
        "2 entries redacted by ann ('a name') (stated)",
        "3 entries withheld by who made the bundle",
        "2 sessions left out: deleted, or withheld",
        "2 large texts redacted, not here",
        "1 large text withheld, not here",
        "4 packs named, not here",
        "6 packs withheld, not here",
    ]
    assert said(report(texts={"here": 7}, packs={"here": 1}), "withheld") == []


@pytest.mark.parametrize(("answers", "proved"), [(0, 0), (1, 0), (1, 1), (5, 2)])
def test_answers_are_told_by_whether_they_are_proved(answers: int, proved: int) -> None:
    found = report(answers=answers, proved_answers=proved)
    noun = f"{answers} answer{'s' * (answers != 1)}"
    stated = f"{proved} of {noun} signed by a key of theirs (proved); {answers - proved} as the door says"
    assert said(found, "people") == ([f"{stated} (stated)"] if answers else [])


def test_each_note_is_told_and_what_the_last_entry_shows_no_more() -> None:
    logs = {n: LogSeen(n, last=last) for n, last in (("a", "2026-11-02"), ("b", "2026-11-09"), ("c", ""))}
    found = report(notes=["one", "two"], logs=logs)
    assert said(found, "note") == ["one", "two"]
    assert "what happened after 2026-11-09;" in said(found, "not shown")[0]
    assert "what happened after its last entry;" in said(report(), "not shown")[0]


def test_bundle_that_has_no_manifest_is_told_by_its_findings_alone() -> None:
    found = BundleReport(findings=[Finding("container", "run.zip", "it is no whole ZIP")])
    told = list(lines._verdict(found, trusted=True))
    assert [line.split()[0] for line in told] == ["bundle", "FINDING", "not"]


def test_overview_names_each_log_in_the_order_of_agents_and_the_trees_last() -> None:
    logs = [
        LogSeen("tree:root", 4),
        LogSeen("session:b", 1, first="2026-11-01T00:00:00.000Z+", last="2026-11-02", agent=12, label="l\nx"),
        LogSeen("session:a", 2, agent=3),
        LogSeen("session:root", 1_200, first="2026", last="2027"),
    ]
    told = list(lines._overview(report(logs={log.id: log for log in logs})))[-5:]
    assert told == [
        "session:root  1,200 entries  2026 to 2027",
        "session:a  2 entries  3 ",
        "session:b  1 entry  2026-11-01T00:00:00.000Z to 2026-11-02  12 l␊x",
        "tree:root  4 entries",
        "findings   none",
    ]


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, []),
        ({"absent_texts": 1}, ["warning    1 large text not stored any more: shown as withheld"]),
        ({"absent_packs": 2}, ["warning    2 packs not in the store: named, not here"]),
        ({"behind": 3}, ["receipts   3 entries not in it: not stated yet"]),
        (
            {"disputed": ("session:a", "tree:root")},
            [
                f"warning    {log} is not as it was stated: who checks the bundle finds that"
                for log in ("session:a", "tree:root")
            ],
        ),
    ],
)
@pytest.mark.parametrize("withheld", [(), (("session:root", 3),)])
@pytest.mark.parametrize("left_out", [(), ("agent", "other")])
def test_maker_of_a_bundle_is_told_all_that_is_not_in_it(
    more: dict[str, Any], wanted: list[str], withheld: Any, left_out: tuple[str, ...]
) -> None:
    texts = {"a": Stated(1, "here"), "b": Stated(1, "withheld"), "c": Stated(1, "here")}
    made = Made(manifest(texts=texts, withheld=withheld, left_out=left_out), entries=1_234, **more)
    first, *rest = lines._made_lines(made, cast(Any, ADA), "run.zip")
    said = "2 sessions and the tree's log, 1,234 entries, 2 large texts, all of one moment"
    assert first == f"root: {said}: run.zip"
    back = [f"withheld   {len(withheld)} entr{'y' if withheld else 'ies'}, {len(left_out)} sessions left out"]
    assert rest == [*(back if withheld or left_out else []), *wanted, f"signed by  {ADA.key}"]
