"""`dendro audit` of files: its lines, its JSON, and its exit codes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli.audit import audit
from orchestrator.core.entries import timestamp
from orchestrator.terminal.faults import Fault
from orchestrator.views.audit_tables import TABLES, _safe, close_doors, tables
from orchestrator.views.audit_who import logs_of_bundle
from tests.core.driver import Session
from tests.rollouts.bundles import zipped
from tests.rollouts.conftest import double, kept
from tests.rollouts.deployments import Kept
from tests.rollouts.test_bundle_check import covered
from tests.views.test_audit_questions import KEY, three, worked
from tests.views.test_audit_who import logs_of

__all__ = ["double", "kept"]
QUESTIONS = (
    ("who", "call_3"),
    ("cost",),
    ("file", "src/app.py"),
    ("context", "call_3"),
    ("secrets",),
    ("egress",),
    ("redactions",),
)


@pytest.fixture
async def files(kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the export and the bundle of a session."""
    monkeypatch.setenv("DENDRO_HOME", str(tmp_path / "home"))
    await three(kept, tmp_path, worked())
    return tmp_path


def asked(question: str, source: Path, *words: str) -> Result:
    return CliRunner().invoke(audit, [question, str(source), *words])


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question[0])
def test_each_line_of_an_answer_ends_with_entries_and_their_worth(
    files: Path, question: tuple[str, ...]
) -> None:
    name, *words = question
    done = asked(name, files / "run.zip", *words)
    assert done.exit_code == 0, done.output
    for line in done.stdout.splitlines():
        assert line.endswith((" proved", " stated"))
        assert ":" in line.split()[-2]
    as_json = asked(name, files / "run.jsonl", *words, "--json")
    assert as_json.exit_code == 0
    told = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert all({"entries"} < one.keys() for one in told)
    assert as_json.stdout == asked(name, files / "run.zip", *words, "--json").stdout
    if name == "secrets":
        assert KEY not in done.output + as_json.output


def test_file_whose_chain_does_not_hold_is_answered_from_and_nothing_of_it_is_called_proved(
    files: Path,
) -> None:
    spoiled = files / "run.jsonl"
    spoiled.write_bytes(spoiled.read_bytes().replace(b"docs.example", b"dogs.example"))
    done = asked("egress", spoiled)
    assert (done.exit_code, "dogs.example" in done.stdout, " proved" in done.stdout) == (1, True, False)
    assert "not proved" in done.stderr


def test_question_that_nothing_answers_and_bad_words_are_refused(files: Path) -> None:
    for words in (("who", "rm*"), ("file", "no/such"), ("context", "call_9")):
        done = asked(words[0], files / "run.zip", words[1])
        assert isinstance(done.exception, Fault)
        assert done.exception.code == 1
    times = ("yesterday", "28.11.2026", "2026-11-28 20:00", "2026-11-28T20:00+01:00", "2026-1")
    wrong = [("who", "*", "--since", time) for time in times]
    for name, *more in (("cost", "--by", "moon"), ("secrets", "--find", "("), *wrong):
        done = asked(name, files / "run.zip", *more)
        assert isinstance(done.exception, Fault)
        assert done.exception.code == 2


def test_calls_are_told_of_since_a_time_or_the_beginning_of_one(files: Path) -> None:
    all_of_them = asked("who", files / "run.zip", "*").stdout
    for since in ("2000", "2000-01-01", "2000-01-01T10:20:30Z"):
        assert asked("who", files / "run.zip", "*", "--since", since).stdout == all_of_them != ""
    assert isinstance(asked("who", files / "run.zip", "*", "--since", "2999").exception, Fault)


def test_question_whose_answer_is_that_there_is_nothing_says_so(files: Path) -> None:
    done = asked("redactions", files / "run.jsonl")
    assert (done.exit_code, done.stdout, "nothing was redacted" in done.stderr) == (0, "", True)


async def test_bundle_under_a_key_that_is_not_here_is_not_called_proved(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DENDRO_HOME", str(tmp_path / "home"))
    await three(kept, tmp_path, worked(), key_id="k")
    done = await asyncio.to_thread(asked, "file", tmp_path / "run.zip", "src/app.py")
    assert (done.exit_code, " proved" in done.stdout) == (2, False)
    assert "keyed by 'k'" in done.stderr


@pytest.mark.parametrize(
    "statement",
    [
        "COPY entries TO '/tmp/dendro-audit.csv'",
        "ATTACH '/tmp/dendro-audit.db'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "INSTALL httpfs",
        "LOAD httpfs",
        "EXPORT DATABASE '/tmp/dendro-audit'",
        "SET enable_external_access = true",
        "SELECT * FROM nowhere",
    ],
)
async def test_statement_that_reaches_beyond_the_logs_is_refused(
    statement: str, kept: Kept, tmp_path: Path
) -> None:
    session = Session()
    made = await tables(logs_of(session))
    close_doors(made)
    with pytest.raises(duckdb.Error):
        made.execute(statement)


def test_tables_answer_sql_and_are_written_as_parquet(files: Path) -> None:
    query = (
        "SELECT c.call_id, t.who FROM calls c JOIN tasks t USING (session) WHERE command LIKE '%setup.sh%'"
    )
    done = asked("sql", files / "run.zip", query)
    assert (done.exit_code, done.stdout) == (0, "call_3\tann@host\n")
    as_json = asked("sql", files / "run.jsonl", "SELECT n, sent FROM requests ORDER BY n LIMIT 1", "--json")
    assert json.loads(as_json.stdout)["n"] == 1
    assert len(json.loads(as_json.stdout)["sent"]) == 64
    wrong = asked("sql", files / "run.zip", "SELECT * FROM read_text('/etc/passwd')")
    assert isinstance(wrong.exception, Fault)
    target = files / "tables"
    assert asked("export", files / "run.zip", "--parquet", str(target)).exit_code == 0
    assert {path.stem for path in target.iterdir()} == set(TABLES)
    with duckdb.connect() as read:
        [[count]] = read.execute(f"SELECT count(*) FROM '{target}/entries.parquet'").fetchall()
    assert count == len((files / "run.jsonl").read_bytes().splitlines()) - 1
    again = asked("export", files / "run.zip", "--parquet", str(target))
    assert isinstance(again.exception, Fault)


def test_page_has_no_scripts_and_shows_markup_as_text(files: Path) -> None:
    done = asked("report", files / "run.zip", "--html", str(files / "run.html"))
    assert done.exit_code == 0, done.output
    page = (files / "run.html").read_text()
    assert "default-src 'none'" in page
    assert "call_3" in page
    assert "<script" not in page
    assert _safe("<b>\u202e\x1b[0m") == "&lt;b&gt;\\u202e\\u001b[0m"


def test_log_whose_entries_no_version_writes_is_refused_in_words(files: Path) -> None:
    whole = (files / "run.jsonl").read_bytes()
    policy = b'"sandbox_policy":{"mode":"danger-full-access"}'
    for was, made in ((policy, b'"sandbox_policy":5'), (b'"n":1,', b'"n":[1],')):
        assert was in whole
        (files / "spoiled.jsonl").write_bytes(whole.replace(was, made))
        for question in (("who", "*"), ("cost",), ("context", "call_3"), ("egress",), ("report", "--html")):
            name, *words = question
            words += [str(files / "page.html")] if name == "report" else []
            done = asked(name, files / "spoiled.jsonl", *words)
            assert done.exit_code == 1
            assert isinstance(done.exception, Fault | SystemExit), done.exception


async def test_receipts_of_a_bundle_are_a_table(tmp_path: Path) -> None:
    stated = logs_of_bundle(zipped(covered().sealed(), tmp_path / "run.zip"), None).statements
    assert [head.index for head in stated] == list(range(1, 8)), "the first is of another tree"
    logs = logs_of(Session())
    logs.statements = stated
    made = await tables(logs)
    query = "SELECT log, size, state, stated_at FROM receipts ORDER BY size, log"
    *_, (log, size, state, at) = made.execute(query).fetchall()
    last = max(stated, key=lambda head: head.size)
    assert (log, size, state) == (last.log, last.size, last.state)
    assert at == timestamp(last.ms)
